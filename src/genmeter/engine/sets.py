"""Set metrics: once every line has been read, the features of each set become one value and a part for every row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from genmeter.contract import Json, Rows, SetMetric, SetScore, Unscored
from genmeter.engine.journal import Journal
from genmeter.engine.store import FeatureStore
from genmeter.errors import GenmeterError
from genmeter.registry import Variant, make_scorer

_IN_MEMORY = 64 << 20


class SetOutcome(NamedTuple):
    """What a set metric came to.

    Attributes:
        score: Its value, or None with ``error``.
        detail: Facts about the set.
        flags: Flags of the set.
        error: Why there is no value.
        lines: Ascending line index of each entry of ``rows``.
        rows: What each prediction row contributes.
    """

    score: float | None
    detail: Mapping[str, Json]
    flags: tuple[str, ...]
    error: Mapping[str, Json] | None
    lines: np.ndarray
    rows: Sequence[Mapping[str, Json]]

    def of_line(self, line: int) -> list[Mapping[str, Json]]:
        """The rows of one line: one for each candidate."""
        start, stop = np.searchsorted(self.lines, [line, line + 1])
        return list(self.rows[int(start) : int(stop)])


def finish_set(journal: Journal, store: FeatureStore, variant: Variant, scratch: Path) -> SetOutcome:
    """Compute one set metric from the features of a run.

    The prediction set has a row for each candidate, with multiplicity; the reference set holds each asset once.
    Both are put into canonical order (by digest, then line) so that the order of the input cannot change the value.

    Args:
        journal: Says which features belong to which side.
        store: Holds them.
        variant: A variant of set scope.
        scratch: Folder for sets that are too large to keep in memory.
    """
    try:
        prediction, places = _rows(journal, store, variant.name, 0, scratch)
        reference, _ = _rows(journal, store, variant.name, 1, scratch)
        scorer: SetMetric = make_scorer(variant)
        result = scorer.score_set(prediction, reference, variant.params)
    except GenmeterError as error:
        return _failed(error)
    except Exception as error:
        return _failed(GenmeterError("internal", f"{variant.spec.id} failed: {type(error).__name__}: {error}"))
    if isinstance(result, Unscored):
        return _failed(GenmeterError(result.code, result.message, result.hint))
    return _outcome(result, prediction.lines, places)


def _outcome(result: SetScore, lines: np.ndarray, places: np.ndarray) -> SetOutcome:
    if not math.isfinite(result.value):
        return _failed(GenmeterError("non_finite", f"the set's value is {result.value}", "please report it"))
    if result.rows and len(result.rows) != len(lines):
        return _failed(GenmeterError("internal", f"{len(result.rows)} row results for {len(lines)} rows"))
    order = np.lexsort((places, lines))
    rows = [result.rows[i] for i in order] if result.rows else []
    return SetOutcome(float(result.value), result.detail, result.flags, None, lines[order] if rows else lines[:0], rows)


def _failed(error: GenmeterError) -> SetOutcome:
    return SetOutcome(None, {}, (), error.to_dict(), np.zeros(0, np.int64), ())


def _rows(journal: Journal, store: FeatureStore, metric: str, side: int, scratch: Path) -> tuple[Rows, np.ndarray]:
    """Gather one side in canonical order; a unit of k windows gives k rows. Second: position within each line."""
    keys, digests, lines, places, encoders = [], [], [], [], set()
    seen: set[bytes] = set()
    for line, position, encoder, key, digest in journal.members(metric, side):
        if side == 1:
            if digest in seen:
                continue
            seen.add(digest)
        keys.append(key)
        digests.append(digest)
        lines.append(line)
        places.append(position)
        encoders.add(encoder)
    if len(encoders) > 1:
        raise GenmeterError(
            "internal", "the set holds features of two devices or library versions", "score again with --fresh"
        )
    encoder = encoders.pop() if encoders else ""
    order = np.zeros(0, dtype=np.int64)
    if keys:
        order = np.lexsort((np.array(places), np.array(lines), np.array(digests, dtype="S32")))
    sizes = []
    width = 0
    for index in order:
        feature = store.find(encoder, keys[index])
        if feature is None:
            raise GenmeterError("internal", "a feature of the set is missing from the run", "score again with --fresh")
        sizes.append(len(feature.values))
        width = feature.values.shape[1]
    total = sum(sizes)
    values = _matrix(scratch / f"set-{side}.f32", total, width)
    start = 0
    for index, size in zip(order, sizes, strict=True):
        feature = store.find(encoder, keys[index])
        assert feature is not None
        values[start : start + size] = feature.values
        start += size
    pick = np.repeat(order, sizes) if keys else order
    return (
        Rows(values, np.array(digests, dtype="S32")[pick], np.array(lines, dtype=np.int64)[pick]),
        np.array(places, dtype=np.int64)[pick],
    )


def _matrix(path: Path, rows: int, width: int) -> np.ndarray:
    if rows * width * 4 <= _IN_MEMORY:
        return np.zeros((rows, width), dtype=np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    return np.memmap(path, dtype=np.float32, mode="w+", shape=(rows, width))
