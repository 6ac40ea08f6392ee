"""From scored lines to summary.json: means with intervals, counts of everything that has no score, groups."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from genmeter.analysis.columns import SCORED, SKIP, Buckets, Column, mapping
from genmeter.analysis.notes import build_notes
from genmeter.analysis.signature import signature
from genmeter.schema.labels import lookup, stable_hash
from genmeter.schema.roles import task_type
from genmeter.stats.means import mean_summary

SCHEMA = "genmeter.summary/1"
MAX_BUCKETS = 200
MAX_BUCKETS_ASKED = 5_000
MAX_KEYS = 64
_TAG_DEPTH = 3
WHOLE = "all"  # as a field to group by: for set metrics, one set of everything beside those of metadata.set


class SummaryBuilder:
    """Collects one line at a time and keeps about 20 bytes a line and metric.

    Args:
        run: The content of run.json. Its ``metrics`` say what is summarised, so that scores which somebody else left
            in a sample are not; without any, every metric that is met is.
        group_by: Further dotted field paths to make groups of, beside data_tag.*, task_type and metadata.set.
        cluster_by: Dotted path of the field whose equal values make samples dependent. By default samples that were
            scored against the same prompt, reference or input (by digest) are one cluster.
    """

    def __init__(
        self, run: Mapping[str, Any] | None = None, group_by: Sequence[str] = (), cluster_by: str | None = None
    ) -> None:
        self.run: dict[str, Any] = dict(run or {})
        self.cluster_by = cluster_by
        self.lines = 0
        self.columns: dict[str, Column] = {}
        self._asked = tuple(path for path in dict.fromkeys(group_by) if path != WHOLE)
        self._buckets: dict[str, Buckets] = {}
        self._keys_left_out = 0
        self._line_errors: dict[str, int] = {}
        self._unreadable = array("L")
        self._overall = {"passed": 0, "failed": 0, "undecided": 0}
        for name, entry in mapping(self.run.get("metrics")).items():
            self.columns[str(name)] = Column(str(name), mapping(entry))
        self._open = not self.columns

    def add(self, eval_result: Mapping[str, Any] | None, sample: Mapping[str, Any] | None = None) -> None:
        """Take one line: the ``eval_result`` that was written for it and its sample (``None`` for a bad line).

        Nothing of either is kept but numbers, and for the first three failures of each code id and message.
        """
        result = mapping(eval_result)
        sample = mapping(sample)
        error = result["error"] if isinstance(result.get("error"), Mapping) else None
        if error is not None:
            code = _code(error)
            self._line_errors[code] = self._line_errors.get(code, 0) + 1
            self._unreadable.append(self.lines)
        metrics = mapping(result.get("metrics"))
        if self._open:
            self._discover(metrics)
        cluster = None
        if self.cluster_by is not None:
            value = lookup(sample, self.cluster_by)
            cluster = self.lines if value is None else stable_hash(repr(value))
        for column in self.columns.values():
            self._add_cell(column, metrics.get(column.name), error, sample, cluster)
        passed = mapping(result.get("overall")).get("passed")
        self._overall["undecided" if passed is None else "passed" if passed else "failed"] += 1
        self._add_groups(sample)
        self.lines += 1

    def build(self) -> dict[str, Any]:
        """The summary so far, in the format of summary.json: plain JSON values, ``None`` where nothing is known."""
        groups, left_out = self._group_rows()
        metrics = {name: self._metric(column, groups) for name, column in self.columns.items()}
        summary: dict[str, Any] = {
            "schema": SCHEMA,
            "run_id": self.run.get("run_id"),
            "name": self.run.get("name"),
            "snapshot": self.run.get("snapshot"),
            "samples": {"total": self.lines, "failed": _sorted_counts(self._line_errors)},
            "metrics": metrics,
        }
        if self._overall["passed"] or self._overall["failed"]:
            summary["overall"] = dict(self._overall)
        if self._asked:
            summary["group_by"] = list(self._asked)
        if left_out:
            summary["groups_left_out"] = left_out
        thresholds = self._set_thresholds(metrics)
        if thresholds:
            summary["thresholds"] = thresholds
        summary["notes"] = build_notes(summary)
        return summary

    def _discover(self, metrics: Mapping[str, Any]) -> None:
        """Without run.json: make a column of each metric met. The first variant under a name takes the name."""
        for name, entry in metrics.items():
            if name not in self.columns and isinstance(entry, Mapping):
                known = {k: entry[k] for k in ("variant", "higher_is_better", "scope") if k in entry}
                self.columns[str(name)] = Column(str(name), known, self.lines)

    def _add_cell(
        self,
        column: Column,
        entry: Any,
        error: Mapping[str, Any] | None,
        sample: Mapping[str, Any],
        cluster: int | None,
    ) -> None:
        if not isinstance(entry, Mapping):
            # A line that could not be read counts as failed; a metric that was not asked of a sample, as skipped.
            reason = _code(error) if error is not None else "not_applicable"
            column.append(None, reason, (), self.lines if cluster is None else cluster)
            if error is not None:
                column.example(reason, self._example(error, sample))
            return
        score = entry.get("score")
        value = float(score) if isinstance(score, (int, float)) and not isinstance(score, bool) else None
        code: str | None = None
        failure = entry["error"] if isinstance(entry.get("error"), Mapping) else error
        want, got = column.entry.get("variant"), entry.get("variant")
        if want and got and want != got:
            # Two variants never share a mean, however the row came to hold the other one.
            value, code = None, "internal"
            failure = {"message": f"the row holds variant {got!r}, the run is of {want!r}"}
        elif value is None:
            code = _code(failure) if failure is not None else "internal"
        elif not math.isfinite(value):
            value, code = None, "non_finite"
        if cluster is None:
            cluster = _input_cluster(entry.get("inputs"), self.lines)
        flags = entry.get("flags")
        column.append(value, code, flags, cluster)
        if flags and code is None and "partial_video" in flags:
            column.add_frames(mapping(entry.get("detail")))
        if code is not None and code != "not_applicable":
            column.example(code, self._example(failure or {}, sample))
        elif code is None and column.scope == "set":
            column.add_set(str(entry.get("set") or "all"), entry)

    def _example(self, error: Mapping[str, Any], sample: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"line": self.lines + 1}
        if sample.get("id") is not None:
            found["id"] = str(sample["id"])[:200]
        for key in ("message", "hint", "asset"):
            if error.get(key):
                found[key] = str(error[key])[:500]
        return found

    def _add_groups(self, sample: Mapping[str, Any]) -> None:
        metadata = mapping(sample.get("metadata"))
        self._put("task_type", task_type(dict(sample)))
        self._put("metadata.set", metadata.get("set"))
        for path, value in _tags("data_tag", sample.get("data_tag"), _TAG_DEPTH):
            if path not in self._asked:
                self._put(path, value)
        for path in self._asked:
            if path not in ("task_type", "metadata.set"):
                self._put(path, lookup(sample, path))

    def _put(self, path: str, value: Any) -> None:
        if value is None:
            return
        buckets = self._buckets.get(path)
        if buckets is None:
            asked = path in self._asked
            if len(self._buckets) >= MAX_KEYS and not asked:
                self._keys_left_out += 1
                return
            buckets = self._buckets[path] = Buckets(MAX_BUCKETS_ASKED if asked else MAX_BUCKETS)
        buckets.put(self.lines, value)

    def _group_rows(self) -> tuple[dict[str, list[tuple[str, np.ndarray]]], dict[str, str]]:
        groups: dict[str, list[tuple[str, np.ndarray]]] = {}
        left_out: dict[str, str] = {}
        for path in sorted(self._buckets):
            buckets = self._buckets[path]
            if buckets.overflow:
                left_out[path] = f"more than {buckets.limit} different values"
                if path not in self._asked:
                    left_out[path] += f"; use --group-by {path} to expand up to {MAX_BUCKETS_ASKED}"
            else:
                # A line that could not be read has no tags to speak of: it is in the total, in no bucket.
                groups[path] = list(buckets.rows(self.lines, np.array(self._unreadable, dtype=np.uint32)))
        for path in self._asked:
            if path not in self._buckets:
                left_out[path] = "no sample holds this field"
        if self._keys_left_out:
            left_out["data_tag.*"] = f"only the first {MAX_KEYS} fields are expanded"
        return groups, left_out

    def _metric(self, column: Column, groups: Mapping[str, Iterable[tuple[str, np.ndarray]]]) -> dict[str, Any]:
        arrays = column.arrays()
        entry = column.entry
        result: dict[str, Any] = {
            "variant": entry.get("variant"),
            "higher_is_better": entry.get("higher_is_better"),
            "scope": column.scope,
            "range": entry.get("range"),
        }
        if entry.get("title"):
            result["title"] = entry["title"]
        floor = mapping(entry.get("rules")).get("mean_floor")
        if isinstance(floor, (int, float)):
            result["mean_floor"] = float(floor)
        if column.scope == "set":
            # A set has one value. Its rows repeat it, so a mean over them would only look like one.
            result |= {"mean": None, "sem": None, "median": None, "quantiles": {"p05": None, "p95": None}}
            result |= _set_value(column)
        result |= self._statistics(column, arrays, None)
        if column.frames:
            result["frames"] = {key: list(span) for key, span in column.frames.items()}
        if column.examples:
            result["failures"] = {
                code: {"n": result["n"]["failed"][code], "examples": column.examples[code]}
                for code in result["n"]["failed"]
                if code in column.examples
            }
        result["signature"] = signature(column.name, entry, self.run, result["n"]["scored"])
        if column.scope == "set":
            sets = {"metadata.set": result["sets"]} if "sets" in result else {}
            result["groups"] = {
                path: {
                    name: self._statistics(column, arrays, rows) | _set_group(found[name])
                    for name, rows in groups.get(path, ())
                    if name in found
                }
                for path, found in {**sets, **column.set_groups}.items()
                if path != WHOLE
            }
        if column.scope == "sample":
            result["groups"] = {
                path: {name: self._statistics(column, arrays, rows) for name, rows in buckets}
                for path, buckets in groups.items()
            }
        return result

    def _statistics(self, column: Column, arrays: tuple[np.ndarray, ...], rows: np.ndarray | None) -> dict[str, Any]:
        """Everything that is said of all lines and of each bucket alike."""
        values, status, flags, clusters = arrays if rows is None else tuple(a[rows] for a in arrays)
        scored = status == SCORED
        result: dict[str, Any] = {}
        if column.scope == "sample":
            labels = clusters[scored]
            if self.cluster_by is None and len(labels) and (labels == labels[0]).all():
                # All outputs answer one prompt: the interval can only speak of further outputs to that prompt.
                labels = np.arange(len(labels), dtype=np.uint64)
            stats = mean_summary(values[scored], labels)
            count = stats.pop("clusters")
            stats |= _floored(stats, mapping(column.entry.get("rules")).get("mean_floor"))
            result |= stats
            if stats["interval95"] is not None:
                clustered = count < len(labels)
                result["interval"] = {"method": "clustered_t" if clustered else "t", "clusters": count}
                if clustered:
                    result["interval"]["cluster_by"] = self.cluster_by or "inputs"
        counts = np.bincount(status, minlength=len(column.codes))
        failed = {column.codes[i]: int(c) for i, c in enumerate(counts) if c and i not in (SCORED, SKIP)}
        total, n_scored, skipped = len(status), int(counts[SCORED]), int(counts[SKIP])
        result["n"] = {
            "total": total,
            "scored": n_scored,
            "failed": _sorted_counts(failed),
            "n_failed": total - n_scored - skipped,
            "skipped": skipped,
        }
        result["coverage"] = n_scored / (total - skipped) if total > skipped else None
        result["flags"] = _flag_counts(column, flags)
        return result

    def _set_thresholds(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Thresholds on set metrics decide the run here; those on samples have decided each sample already."""
        decided: dict[str, Any] = {}
        for name, limits in mapping(mapping(self.run.get("config")).get("thresholds")).items():
            metric = metrics.get(name)
            if metric is None or metric["scope"] != "set":
                continue
            value = metric.get("score")
            low, high = mapping(limits).get("min"), mapping(limits).get("max")
            passed = None
            if value is not None:
                passed = (low is None or value >= low) and (high is None or value <= high)
            decided[name] = {"min": low, "max": high, "score": value, "passed": passed}
        return decided


def summarize_run(
    path: str | Path, group_by: Sequence[str] | None = None, cluster_by: str | None = None
) -> dict[str, Any]:
    """Compute the summary of a run directory (or a scored .jsonl) again, from its samples.

    Args:
        path: The run directory, or a file of scored samples.
        group_by: Field paths; by default those of the run's own configuration.
        cluster_by: Field path; by default that of the run's own configuration.

    Raises:
        ValueError: There is nothing to read; the message says what was looked for.
    """
    from genmeter.analysis.reader import iter_records, read_run

    run = read_run(path)
    config = mapping(run.get("config"))
    if group_by is None:
        group_by = tuple(config.get("group_by") or ())
    builder = SummaryBuilder(run, group_by, cluster_by or config.get("cluster_by"))
    for record in iter_records(path):
        builder.add(record.eval_result, record.sample)
    return builder.build()


def _floored(stats: Mapping[str, Any], floor: Any) -> dict[str, Any]:
    """The mean of a convention that clips it, and not the samples (torchmetrics' CLIPScore); what it was stays.

    The interval is clipped with it: clipping is monotone, so it covers the clipped mean as often as before.
    """
    mean, interval = stats["mean"], stats["interval95"]
    if not isinstance(floor, (int, float)) or mean is None or mean >= floor:
        return {}
    clipped = None if interval is None else [max(float(floor), bound) for bound in interval]
    return {"mean": float(floor), "mean_unclipped": mean, "interval95": clipped}


def _set_value(column: Column) -> dict[str, Any]:
    """The value of the set ``all`` (or the only one), and all of them under ``sets``."""
    sets = column.sets
    whole = column.set_groups.get(WHOLE, {}).get(WHOLE)
    if whole is not None:
        facts = {key: value for key, value in whole.items() if key not in ("score", "error")}
        sets = {**sets, WHOLE: {"score": whole.get("score"), "detail": facts, "flags": []}}
    main = sets.get("all") or (next(iter(sets.values())) if len(sets) == 1 else None)
    detail = main["detail"] if main else {}
    value: dict[str, Any] = {
        "score": main["score"] if main else None,
        "interval95": detail.get("interval95"),
        "detail": detail,
    }
    if len(sets) > 1 or (sets and "all" not in sets):
        value["sets"] = {name: sets[name] for name in sorted(sets)}
    return value


def _set_group(found: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of one set: its value where a mean would stand, which it has none of."""
    facts = mapping(found.get("detail")) or {k: v for k, v in found.items() if k not in ("score", "error", "flags")}
    group: dict[str, Any] = {"mean": None, "sem": None, "median": None, "quantiles": {"p05": None, "p95": None}}
    group |= {"score": found.get("score"), "interval95": facts.get("interval95"), "detail": dict(facts)}
    if found.get("error"):
        group["error"] = dict(found["error"])
    return group


def _input_cluster(inputs: Any, line: int) -> int:
    """Rows that were scored against the same prompt, reference or input share a cluster; others stand alone."""
    if isinstance(inputs, (list, tuple)):
        keys = sorted(
            str(item.get("digest") or item.get("uri") or "")
            for item in inputs
            if isinstance(item, Mapping) and item.get("role") != "prediction"
        )
        if any(keys):
            return stable_hash(*keys)
    return line


def _code(error: Mapping[str, Any]) -> str:
    code = error.get("code")
    return code if isinstance(code, str) and code else "internal"


def _tags(path: str, value: Any, depth: int) -> Iterable[tuple[str, Any]]:
    """data_tag as (dotted path, value) pairs; objects inside are opened to a limited depth."""
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, item in value.items():
        if depth > 1:
            yield from _tags(f"{path}.{key}", item, depth - 1)
        else:
            yield f"{path}.{key}", item


def _flag_counts(column: Column, flags: np.ndarray) -> dict[str, int]:
    counts: dict[str, int] = {}
    for index, count in enumerate(np.bincount(flags, minlength=1)):
        if count:
            for flag in column.flag_sets[index]:
                counts[flag] = counts.get(flag, 0) + int(count)
    return _sorted_counts(counts)


def _sorted_counts(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
