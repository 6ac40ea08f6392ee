"""From finished rows to ``eval_result``: the entry of each metric, thresholds, judge and provenance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genmeter import __version__
from genmeter.config import Threshold
from genmeter.contract import Json
from genmeter.engine.catalog import Catalog
from genmeter.engine.plan import LACKING
from genmeter.engine.sets import SetOutcomes
from genmeter.errors import SKIPPED
from genmeter.registry import Variant


class Evaluation:
    """Builds the ``eval_result`` of one line after another.

    Args:
        catalog: Known variants.
        provenance: What stands under ``provenance`` in every row.
        thresholds: What scores must reach, by metric name.
        overall_metric: The metric whose score becomes ``overall.score``.
        sets: Outcomes of set metrics by name.
        lacking: Default metrics whose inputs the whole set lacks; their rows count as not applicable.
        constants: With ``--rows full``, what is repeated in each row of a metric.
    """

    def __init__(
        self,
        catalog: Catalog,
        provenance: Mapping[str, Json],
        *,
        thresholds: Mapping[str, Threshold] | None = None,
        overall_metric: str | None = None,
        sets: Mapping[str, SetOutcomes] | None = None,
        lacking: frozenset[str] = frozenset(),
        constants: Mapping[str, Mapping[str, Json]] | None = None,
    ) -> None:
        self._catalog, self._provenance = catalog, dict(provenance)
        self._thresholds, self._overall = dict(thresholds or {}), overall_metric
        self._sets, self._lacking, self._constants = dict(sets or {}), lacking, dict(constants or {})
        self._variants: dict[str, Variant] = catalog.variants

    def build(self, line: int, rows: Mapping[str, Mapping[str, Json]], sample: Mapping[str, Any]) -> dict[str, Json]:
        """The ``eval_result`` of one line from the rows of its cells."""
        metrics = {name: self._entry(line, name, rows[name]) for name in self._order(rows)}
        passed, verdict, reason = self._judge(metrics, sample)
        score = metrics.get(self._overall or "", {}).get("score")
        return {
            "overall": {"score": score, "passed": passed},
            "metrics": metrics,
            "judge": {"model": f"genmeter {__version__}", "verdict": verdict, "reason": reason},
            "provenance": dict(self._provenance),
        }

    def _order(self, rows: Mapping[str, Any]) -> list[str]:
        known = [name for name in self._variants if name in rows]
        return known + [name for name in rows if name not in self._variants]

    def _entry(self, line: int, name: str, row: Mapping[str, Json]) -> dict[str, Json]:
        variant = self._variants.get(name)
        if name in self._lacking:
            message = "no sample of the set has what this default metric compares with"
            row = {"score": None, "error": {"code": "not_applicable", "message": message}}
        elif variant is not None and variant.spec.scope == "set":
            row = self._set_row(line, name, row)
        entry: dict[str, Json] = {"score": row.get("score")}
        if variant is not None:
            entry["variant"] = variant.label
            entry["higher_is_better"] = variant.spec.higher_is_better
        for key in ("scope", "set", "error", "detail", "flags", "inputs"):
            if row.get(key):
                entry[key] = row[key]
        entry.update(self._constants.get(name, {}))
        return entry

    def _set_row(self, line: int, name: str, row: Mapping[str, Json]) -> dict[str, Json]:
        outcomes = self._sets.get(name)
        return {**row, "scope": "set", "set": "all"} if outcomes is None else outcomes.entry(line, row)

    def _judge(self, metrics: Mapping[str, Any], sample: Mapping[str, Any]) -> tuple[bool | None, str, str]:
        """All thresholds of sample scope met, one missed, or no verdict."""
        thresholds = {**self._thresholds, **_own_thresholds(sample)}
        checked = []
        for name, threshold in thresholds.items():
            entry = metrics.get(name)
            if entry is None or entry.get("scope") == "set":
                continue
            error = entry.get("error")
            if error and error["code"] in SKIPPED:
                continue
            if entry["score"] is None:
                code = error["code"] if error else "no score"
                return None, "undecided", f"{name} has no score: {code}"
            checked.append((name, entry["score"], threshold))
        if not checked:
            return None, "undecided", "no thresholds configured"
        missed = [_miss(*item) for item in checked if _miss(*item)]
        if missed:
            return False, "fail", "; ".join(missed)
        return True, "pass", "; ".join(f"{name} {score:.4g} is within its threshold" for name, score, _ in checked)


def lacking_defaults(codes: Mapping[str, Mapping[str | None, int]], catalog: Catalog) -> frozenset[str]:
    """Metrics nobody asked for by name whose inputs no sample has: skipped rather than failed."""
    if catalog.explicit is not None:
        return frozenset()
    lacking = set()
    for name, counts in codes.items():
        found = {code for code in counts if code not in SKIPPED}
        if name in catalog.default_names and found and found <= LACKING:
            lacking.add(name)
    return frozenset(lacking)


def _own_thresholds(sample: Mapping[str, Any]) -> dict[str, Threshold]:
    config = sample.get("eval_config")
    own = config.get("thresholds") if isinstance(config, Mapping) else None
    found = {}
    for name, value in own.items() if isinstance(own, Mapping) else ():
        if isinstance(value, Mapping):
            limits = {k: v for k, v in value.items() if k in ("min", "max") and isinstance(v, int | float)}
            if limits:
                found[name] = Threshold(**limits)
    return found


def _miss(name: str, score: float, threshold: Threshold) -> str:
    if threshold.min is not None and score < threshold.min:
        return f"{name} {score:.4g} is below {threshold.min:.4g}"
    if threshold.max is not None and score > threshold.max:
        return f"{name} {score:.4g} is above {threshold.max:.4g}"
    return ""
