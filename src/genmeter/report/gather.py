"""One pass over a run's samples: the summary, the values, and the few samples worth looking at."""

from __future__ import annotations

import heapq
import math
import zlib
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from genmeter.analysis.columns import mapping
from genmeter.analysis.reader import Record, iter_records, read_run
from genmeter.analysis.summary import SummaryBuilder
from genmeter.errors import GenmeterError
from genmeter.report.text import clean

WORST, BEST = 12, 6
# The gallery: at most so many samples, of which a cross-section and the first extremes of every metric.
GALLERY, CROSS, GALLERY_EXTREMES = 96, 36, 3
_MAX_INPUTS = 6
# A data: URI above this is not kept for a thumbnail.
_MAX_VALUE = 512_000


class Shown(NamedTuple):
    """A sample chosen for its score.

    Attributes:
        line: 1-based line in samples.jsonl.
        id: The sample's id, made safe to print; empty when it has none.
        score: What it was chosen by: the score, or the influence on a set's value.
        prompt: The text it was made from, cut; empty when there is none.
        facts: Short (name, value) pairs of the score's detail.
        flags: Flags of the score.
        inputs: What was scored: mappings with role, value (a string) and digest.
        every: The same for all metrics of the sample, each asset once.
        scores: What every metric says of the sample: its score (of a set metric the influence), or why there is none.
    """

    line: int
    id: str
    score: float
    prompt: str
    facts: tuple[tuple[str, str], ...]
    flags: tuple[str, ...]
    inputs: tuple[Mapping[str, str], ...]
    every: tuple[Mapping[str, str], ...] = ()
    scores: Mapping[str, float | str] = {}


class Extremes:
    """The best and worst samples of one metric: two heaps, so memory does not grow with the run."""

    def __init__(self, higher_is_better: bool | None, worst: int = WORST, best: int = BEST) -> None:
        self._sign = -1.0 if higher_is_better else 1.0
        self._limits = (worst, best)
        # (badness, -line, record): of equal scores the earlier line is kept. The line decides before the record.
        self._heaps: tuple[list[tuple[float, int, Shown]], list[tuple[float, int, Shown]]] = ([], [])
        self.influence = array("d")

    def add(self, score: float, record: Record, entry: Mapping[str, Any]) -> None:
        """Consider one scored line."""
        badness = self._sign * score
        shown: Shown | None = None
        for heap, limit, key in zip(self._heaps, self._limits, (badness, -badness), strict=True):
            order = (key, -record.line)
            if len(heap) >= limit and (not heap or order <= heap[0][:2]):
                continue
            shown = shown or _show(score, record, entry)
            item = (*order, shown)
            heapq.heappush(heap, item) if len(heap) < limit else heapq.heapreplace(heap, item)

    @property
    def worst(self) -> list[Shown]:
        """The worst samples, the worst first."""
        return [item[2] for item in sorted(self._heaps[0], key=lambda i: i[:2], reverse=True)]

    @property
    def best(self) -> list[Shown]:
        """The best samples, the best first, without those that are among the worst too (a small run)."""
        lines = {shown.line for shown in self.worst}
        ranked = [item[2] for item in sorted(self._heaps[1], key=lambda i: i[:2], reverse=True)]
        return [shown for shown in ranked if shown.line not in lines]


class Cross:
    """A cross-section of a run: samples drawn by a hash of their line, so that a rerun shows the same ones."""

    def __init__(self, size: int = CROSS) -> None:
        self._size = size
        self._heap: list[tuple[int, int, Shown]] = []

    def add(self, record: Record) -> None:
        """Consider one line, scored or not."""
        order = -zlib.crc32(b"%d" % record.line)
        if len(self._heap) < self._size:
            heapq.heappush(self._heap, (order, record.line, _show(math.nan, record, {})))
        elif order > self._heap[0][0]:
            heapq.heapreplace(self._heap, (order, record.line, _show(math.nan, record, {})))

    @property
    def samples(self) -> list[Shown]:
        """The drawn samples, in no order."""
        return [item[2] for item in self._heap]


class Gathered(NamedTuple):
    """What the report is made of.

    Attributes:
        run: The content of run.json.
        summary: The summary, computed from the samples themselves.
        values: For each metric the (n,) scores; for a set metric the influences.
        extremes: For each metric its best and worst samples.
        cross: A few samples whatever their scores.
    """

    run: dict[str, Any]
    summary: dict[str, Any]
    values: dict[str, np.ndarray]
    extremes: dict[str, Extremes]
    cross: list[Shown] = []

    def gallery(self) -> list[Shown]:
        """The samples of the gallery in input order: a cross-section, and the first of each metric's extremes."""
        chosen = {shown.line: shown for shown in self.cross}
        for found in self.extremes.values():
            for shown in (*found.worst[:GALLERY_EXTREMES], *found.best[:GALLERY_EXTREMES]):
                chosen.setdefault(shown.line, shown)
        return [chosen[line] for line in sorted(chosen)][:GALLERY]


def gather(path: str | Path) -> Gathered:
    """Read a run once. Raises ``ValueError`` when there are no samples to read."""
    run = read_run(path)
    config = mapping(run.get("config"))
    builder = SummaryBuilder(run, tuple(config.get("group_by") or ()), config.get("cluster_by"))
    extremes: dict[str, Extremes] = {}
    cross = Cross()
    for record in iter_records(path):
        cross.add(record)
        builder.add(record.eval_result, record.sample)
        entries = mapping(record.eval_result.get("metrics"))
        for name, column in builder.columns.items():
            entry = mapping(entries.get(name))
            found = extremes.get(name)
            if found is None:
                found = extremes[name] = Extremes(column.entry.get("higher_is_better"))
            # The builder has just judged this cell; a NaN in its column is a cell without a score.
            value = column.values[-1]
            if value != value:
                continue
            if column.scope == "set":
                influence = mapping(entry.get("detail")).get("influence")
                if not isinstance(influence, (int, float)) or influence != influence:
                    continue
                value = float(influence)
                found.influence.append(value)
            found.add(value, record, entry)
    values = {}
    for name, column in builder.columns.items():
        if column.scope == "set":
            values[name] = np.array(extremes[name].influence if name in extremes else [], dtype=np.float64)
        else:
            scores = np.array(column.values, dtype=np.float64)
            values[name] = scores[~np.isnan(scores)]
    return Gathered(run, builder.build(), values, extremes, cross.samples)


def _show(score: float, record: Record, entry: Mapping[str, Any]) -> Shown:
    sample = record.sample
    return Shown(
        record.line,
        clean(sample.get("id") if sample.get("id") is not None else "", 80),
        score,
        _prompt(sample),
        tuple(_facts(entry)),
        tuple(clean(flag, 40) for flag in entry.get("flags") or () if isinstance(flag, str))[:8],
        tuple(_inputs(record, entry)),
        tuple(_all_inputs(record)),
        _scores(record),
    )


def _scores(record: Record) -> dict[str, float | str]:
    """What every metric says of a line; a set metric says what the line does to the set's value."""
    found: dict[str, float | str] = {}
    for name, value in mapping(record.eval_result.get("metrics")).items():
        entry = mapping(value)
        score = mapping(entry.get("detail")).get("influence") if entry.get("scope") == "set" else entry.get("score")
        if isinstance(score, (int, float)) and math.isfinite(score):
            found[name] = float(score)
        else:
            found[name] = clean(mapping(entry.get("error")).get("code") or "", 40)
    return found


def _all_inputs(record: Record) -> list[Mapping[str, str]]:
    """The assets of every metric, each once."""
    found: dict[tuple[str, str], Mapping[str, str]] = {}
    for value in mapping(record.eval_result.get("metrics")).values():
        for item in _inputs(record, mapping(value)):
            found.setdefault((item["role"], item["value"]), item)
    return list(found.values())[:_MAX_INPUTS]


def _prompt(sample: dict[str, Any]) -> str:
    from genmeter.schema.roles import prompt_texts

    try:
        texts = prompt_texts(sample)
    except (GenmeterError, TypeError, AttributeError, KeyError):
        return ""
    return clean(" | ".join(str(found.value) for found in texts[:3]), 280)


def _facts(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = []
    detail = mapping(entry.get("detail"))
    if entry.get("scope") == "set":
        # The rest describes the set and stands above its chart.
        detail = {key: detail[key] for key in ("feature_distance",) if key in detail}
    for key, value in detail.items():
        if isinstance(value, float):
            facts.append((clean(key, 40), f"{value:.4g}"))
        elif isinstance(value, (str, int)):
            facts.append((clean(key, 40), clean(value, 60)))
    return facts[:6]


def _inputs(record: Record, entry: Mapping[str, Any]) -> list[Mapping[str, str]]:
    """Role, written path and digest of each asset that was scored, found through its field path."""
    from genmeter.schema.paths import lookup

    found: list[Mapping[str, str]] = []
    for item in entry.get("inputs") or ():
        role, path = mapping(item).get("role"), mapping(item).get("path")
        if role == "prompt" or not isinstance(path, str) or len(found) >= _MAX_INPUTS:
            continue
        value = item.get("uri")
        for holder in (record.sample, record.record):
            if isinstance(value, str):
                break
            try:
                value = lookup(holder, path)
            except (KeyError, IndexError, TypeError, ValueError):
                value = None
        if isinstance(value, str) and len(value) <= _MAX_VALUE:
            found.append({"role": clean(role, 20), "value": value, "digest": str(item.get("digest") or "")})
    return found
