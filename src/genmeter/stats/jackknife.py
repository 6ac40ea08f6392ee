"""The delete-a-group jackknife: how far bias takes a set statistic, and an interval that covers.

A Frechet distance of n samples is too large by about b/n, and resampling adds that bias a second time: percentile
bootstrap intervals never cover. Leaving out one of G groups at a time shows the bias, and the spread of what is left
its standard error (Quenouille 1956, Tukey 1958; the delete-a-group form: Kott 2001).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from genmeter.contract import Moments
from genmeter.stats.frechet import distance
from genmeter.stats.groups import deal
from genmeter.stats.moments import power_of_two_scale
from genmeter.stats.spread import Spread, spread_of, spread_of_moments
from genmeter.stats.tdist import t_quantile

CONFIDENCE = 0.95


class Jackknife(NamedTuple):
    """What leaving groups out says of a statistic.

    Attributes:
        corrected: The value less its estimated bias; may be negative where a true value is near 0.
        error: Its standard error.
        interval: 95 % interval around ``corrected``, from Student's t with ``groups`` - 1 degrees of freedom.
        groups: How many groups were left out, one at a time.
    """

    corrected: float
    error: float
    interval: tuple[float, float]
    groups: int


def delete_a_group(whole: float, parts: np.ndarray, *, unbiased: bool = False) -> Jackknife:
    """Corrected value and interval from the statistic of everything and without each group.

    Args:
        whole: The statistic of all rows.
        parts: (G,) the statistic without group g, G >= 2.
        unbiased: The statistic has no bias to correct: the interval is around ``whole``.
    """
    count = len(parts)
    mean = float(np.mean(parts))
    corrected = whole if unbiased else count * whole - (count - 1) * mean
    error = math.sqrt((count - 1) / count * float(((parts - mean) ** 2).sum()))
    half = t_quantile(0.5 + CONFIDENCE / 2.0, count - 1) * error
    return Jackknife(corrected, error, (corrected - half, corrected + half), count)


class LeftOut:
    """The spread of a sample without one group after another, by taking the group's part from the whole.

    Args:
        x: (n, d) feature rows; may be memory-mapped.
        groups: (n,) the group of each row.
        ddof: As for :func:`genmeter.stats.frechet.frechet_distance`.
        scale: A power of two that is divided out.
        whole: The spread of all rows, where it is at hand.
    """

    def __init__(
        self, x: np.ndarray, groups: np.ndarray, ddof: int, scale: float = 1.0, whole: Spread | None = None
    ) -> None:
        self._x, self._groups, self._ddof, self._scale = x, groups, ddof, scale
        self.whole = whole or spread_of(x, ddof, scale)

    def without(self, group: int) -> Spread | None:
        """The spread of the rows of all other groups; None below 2 rows."""
        gone = np.flatnonzero(self._groups == group)
        left = len(self._x) - len(gone)
        if left < 2:
            return None
        if len(gone) == 0:
            return self.whole
        if self.whole.rows is not None:
            rows = np.delete(self.whole.rows, gone, axis=0)
        elif left <= self._x.shape[1]:
            kept = np.asarray(self._x[self._groups != group], dtype=np.float64)
            rows = kept / self._scale - self.whole.mean
        else:
            return self._less(np.asarray(self._x[gone], dtype=np.float64) / self._scale - self.whole.mean, left)
        shift = rows.mean(axis=0)
        return Spread(self.whole.mean + shift, left, left - self._ddof, rows=rows - shift)

    def _less(self, gone: np.ndarray, left: int) -> Spread:
        """The whole less rows (k, d) that are centred at its mean."""
        assert self.whole.scatter is not None
        total = gone.sum(axis=0)
        scatter = self.whole.scatter - gone.T @ gone - np.outer(total, total / left)
        return Spread(self.whole.mean - total / left, left, left - self._ddof, scatter=(scatter + scatter.T) / 2.0)


class Fixed:
    """A side that is known by its moments alone: it stays as it is, and its own uncertainty is not in the interval."""

    def __init__(self, moments: Moments, ddof: int) -> None:
        self.whole = spread_of_moments(moments, ddof)

    def without(self, group: int) -> Spread:
        """The same spread whichever group is left out."""
        return self.whole


def frechet_jackknife(
    x: np.ndarray,
    y: np.ndarray | Moments,
    clusters: tuple[np.ndarray, np.ndarray | None] | None = None,
    *,
    ddof: int = 1,
) -> Jackknife | None:
    """Bias-corrected Frechet distance with its interval.

    Args:
        x: (n, d) feature rows of the prediction set.
        y: (m, d) rows of the reference set, or its moments: then only predictions are left out, and the interval is
            that of new predictions against this very reference.
        clusters: Labels of the rows of both sides; rows of one label, on whichever side, are left out together. By
            default every row is a cluster of its own.
        ddof: As for :func:`genmeter.stats.frechet.frechet_distance`.

    Returns:
        None where too little is left without a group, or there are fewer than 2 groups.
    """
    labels = clusters or (_own_labels(x, 0), None if isinstance(y, Moments) else _own_labels(y, len(x)))
    scale = 1.0 if isinstance(y, Moments) else power_of_two_scale(x, y)
    sides, count = sides_of(x, y, labels, ddof, scale)
    return jackknife_of(sides, count, lambda found: distance(*found), scale * scale)


def sides_of(
    x: np.ndarray, y: np.ndarray | Moments, labels: tuple[np.ndarray, np.ndarray | None], ddof: int, scale: float
) -> tuple[list[LeftOut | Fixed], int]:
    """Both sides of a comparison, to be taken without each of their groups, and how many groups there are.

    Args:
        x: (n, d) feature rows of the prediction set.
        y: (m, d) rows of the reference set, or its moments, divided by ``scale`` already.
        labels: Cluster of each row of both sides; None for a side of moments.
        ddof: Covariances are divided by n - ddof.
        scale: What rows are divided by.
    """
    if isinstance(y, Moments):
        (groups,), count = deal([labels[0]])
        return [LeftOut(x, groups, ddof, scale), Fixed(y, ddof)], count
    assert labels[1] is not None
    both, count = deal([labels[0], labels[1]])
    return [LeftOut(rows, groups, ddof, scale) for rows, groups in zip((x, y), both, strict=True)], count


def jackknife_of(
    sides: list[LeftOut | Fixed], count: int, statistic: Callable[[list[Spread]], float], unit: float = 1.0
) -> Jackknife | None:
    """The jackknife of a statistic of several spreads; ``unit`` is multiplied back in."""
    if count < 2:
        return None
    parts = []
    for group in range(count):
        left = [side.without(group) for side in sides]
        if any(spread is None for spread in left):
            return None
        parts.append(statistic([spread for spread in left if spread is not None]))
    found = delete_a_group(statistic([side.whole for side in sides]), np.array(parts))
    low, high = found.interval
    return Jackknife(found.corrected * unit, found.error * unit, (low * unit, high * unit), count)


def _own_labels(x: np.ndarray, start: int) -> np.ndarray:
    return np.arange(start, start + len(x))
