"""What a set's rows say of their files: which belong together, which are equal, how far each is from its reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, overload

import numpy as np

from genmeter.contract import Json, Moments, Rows, Unscored
from genmeter.stats.groups import joined
from genmeter.stats.moments import blocks


class Files(NamedTuple):
    """The files behind the rows of one side.

    Attributes:
        of_row: (n,) int64 in [0, F), in order of first appearance.
        first: (F,) the first row of each file.
        rows: (F,) how many rows each has.
    """

    of_row: np.ndarray
    first: np.ndarray
    rows: np.ndarray

    @property
    def single(self) -> bool:
        """Whether every file is one row."""
        return len(self.first) == len(self.of_row)


class PerRow(Sequence[Mapping[str, Json]]):
    """One mapping for each row, made when it is asked for: a million rows cost their numbers and no more.

    Args:
        of_row: (n,) the entry of each row.
        constant: What stands in each.
        columns: (F,) numbers by name; NaN leaves the name out.
    """

    def __init__(self, of_row: np.ndarray, constant: Mapping[str, Json], columns: Mapping[str, np.ndarray]) -> None:
        self._of_row, self._constant, self._columns = of_row, dict(constant), dict(columns)

    def __len__(self) -> int:
        return len(self._of_row)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Json]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Mapping[str, Json]]: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Json] | list[Mapping[str, Json]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        entry = self._of_row[index]
        values = {name: float(column[entry]) for name, column in self._columns.items()}
        return {**{name: value for name, value in values.items() if value == value}, **self._constant}


def files_of(rows: Rows) -> Files:
    """The files of one side: as ``units`` says, else neighbouring rows of one line and digest."""
    n = len(rows.digests)
    if rows.units is not None:
        _, first, codes = np.unique(rows.units, return_index=True, return_inverse=True)
        rank = np.empty(len(first), dtype=np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        of_row = rank[codes.reshape(-1)]
    else:
        new = np.ones(n, dtype=bool)
        new[1:] = (rows.digests[1:] != rows.digests[:-1]) | (rows.lines[1:] != rows.lines[:-1])
        of_row = np.cumsum(new) - 1
    counts = np.bincount(of_row) if n else np.zeros(0, dtype=np.int64)
    _, first = np.unique(of_row, return_index=True)
    return Files(of_row, first, counts)


def distinct(rows: Rows) -> int:
    """How many different files there are, by content."""
    return len(np.unique(rows.digests))


def clusters_of(prediction: Rows, reference: Rows | Moments) -> tuple[np.ndarray, np.ndarray | None]:
    """Labels of the rows of both sides; rows of equal label are not independent.

    As ``clusters`` says on both; else an output goes with its own reference, and outputs of one line without one go
    together under the least of their digests. Clusters that hold equal outputs are one. Where all outputs come to one
    cluster each file stands alone: an interval can then only speak of further outputs of that one kind.
    """
    stored = isinstance(reference, Moments)
    if prediction.clusters is not None and (isinstance(reference, Moments) or reference.clusters is not None):
        labels = np.asarray(prediction.clusters)
        others = None if isinstance(reference, Moments) else np.asarray(reference.clusters)
    else:
        labels = _by_reference(prediction, reference)
        others = None if isinstance(reference, Moments) else np.asarray(reference.digests)
    if distinct(prediction) < len(files_of(prediction).first):
        labels, others = _joined(labels, others, prediction.digests)
    if len(labels) and (labels == labels[0]).all():
        labels = np.asarray(prediction.digests)
        others = None if isinstance(reference, Moments) else np.asarray(reference.digests)
    if not stored and others is not None and len(others) and (others == others[0]).all():
        assert not isinstance(reference, Moments)
        others = np.asarray(reference.digests)
        labels = np.asarray(prediction.digests)
    return labels, others


def feature_distances(prediction: Rows, reference: Rows | Moments, files: Files) -> np.ndarray | None:
    """Euclidean distance of each prediction file from its own reference, (F,) with NaN where it has none.

    A file of several rows is taken at their mean. None where no row has a reference of its own.
    """
    if prediction.own is None or isinstance(reference, Moments) or not (prediction.own >= 0).any():
        return None
    others = files_of(reference)
    owner = np.full(len(files.first), -1, dtype=np.int64)
    known = np.flatnonzero(prediction.own >= 0)[::-1]
    owner[files.of_row[known]] = others.of_row[prediction.own[known]]
    if files.single and others.single:
        found = np.full(len(owner), np.nan)
        step = len(next(blocks(prediction.values)))
        for start in range(0, len(owner), step):
            part = slice(start, start + step)
            has = owner[part] >= 0
            gap = np.asarray(prediction.values[part], dtype=np.float64)[has] - reference.values[owner[part][has]]
            found[part][has] = np.linalg.norm(gap, axis=1)
        return found
    ours, theirs = _file_means(prediction.values, files), _file_means(reference.values, others)
    apart: np.ndarray = np.linalg.norm(ours - theirs[owner], axis=1)
    apart[owner < 0] = np.nan
    return apart


def refusal(prediction: Rows, reference: Rows | Moments, what: str) -> Unscored | None:
    """Why two sets have no statistic, where they have none: too few rows, other widths, or NaN and infinity."""
    counts = len(prediction.values), reference.n if isinstance(reference, Moments) else len(reference.values)
    if min(counts) < 2:
        message = f"{what} needs at least 2 rows on each side; found {counts[0]} predictions, {counts[1]} references"
        return Unscored("too_few_samples", message, "score more samples")
    shape = np.shape(prediction.values)
    other = np.shape(reference.mean)[-1:] if isinstance(reference, Moments) else np.shape(reference.values)[1:]
    if len(shape) != 2 or shape[1:] != other:
        return Unscored("internal", f"features of different widths: {shape[1:]} and {other}", "please report it")
    for rows, side in ((prediction, "prediction"), (reference, "reference")):
        arrays = [np.asarray(rows.mean), np.asarray(rows.cov)] if isinstance(rows, Moments) else blocks(rows.values)
        if not all(np.isfinite(array).all() for array in arrays):
            return Unscored("non_finite", f"a feature of the {side} set holds NaN or infinity")
    return None


def _joined(labels: np.ndarray, others: np.ndarray | None, content: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """The labels of both sides, with clusters that share an equal prediction under one of their labels."""
    known, stands = joined(labels, content)

    def renamed(side: np.ndarray) -> np.ndarray:
        at = np.minimum(np.searchsorted(known, side), len(known) - 1)
        return np.where(known[at] == side, known[stands[at]], side)

    return renamed(labels), None if others is None else renamed(others)


def _by_reference(prediction: Rows, reference: Rows | Moments) -> np.ndarray:
    labels = np.array(prediction.digests, dtype="S32")
    # Outputs of one line, and equal outputs of several, go under the least digest among them.
    order = np.lexsort((labels, prediction.lines))
    lines, start = np.unique(prediction.lines[order], return_index=True)
    least = labels[order][start]
    known = prediction.lines >= 0
    labels[known] = least[np.searchsorted(lines, prediction.lines[known])]
    if prediction.own is not None and not isinstance(reference, Moments):
        has = prediction.own >= 0
        labels[has] = np.asarray(reference.digests)[prediction.own[has]]
    return labels


def _file_means(values: np.ndarray, files: Files) -> np.ndarray:
    total = np.zeros((len(files.first), values.shape[1]))
    start = 0
    for block in blocks(values):
        np.add.at(total, files.of_row[start : start + len(block)], np.asarray(block, dtype=np.float64))
        start += len(block)
    means: np.ndarray = total / files.rows[:, None]
    return means
