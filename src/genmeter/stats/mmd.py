"""Maximum mean discrepancy with a polynomial kernel, over all pairs of the full samples (Gretton et al., JMLR 2012).

KID (Binkowski et al. 2018, arXiv 1801.01401) and KVD are the U-statistic with k(x, y) = (x.y / d + 1)^3, which has no
bias at any number of samples; it is negative about as often as positive where both sets have one distribution. The
spread over random subsets that KID tables print is no standard error of anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from genmeter.stats.jackknife import Jackknife, delete_a_group
from genmeter.stats.moments import Features, checked_rows

Estimator = Literal["u", "v"]
_BLOCK = 512


class Kernel(NamedTuple):
    """k(x, y) = (gamma x.y + coef0)^degree; ``gamma`` None is 1/d."""

    degree: int = 3
    coef0: float = 1.0
    gamma: float | None = None

    def __call__(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """(n, m) of (n, d) and (m, d) float64 rows."""
        gamma = 1.0 / x.shape[1] if self.gamma is None else self.gamma
        base: np.ndarray = (x @ y.T) * gamma + self.coef0
        found: np.ndarray = base if self.degree == 1 else base * base
        for _ in range(self.degree - 2):
            found = found * base
        return found


CUBIC = Kernel()
"""The kernel of KID and KVD."""


class Sums(NamedTuple):
    """All that an MMD, its interval and its influences need, in memory that does not grow with pairs.

    Attributes:
        first: (n,) sum of k(x_i, x_j) over all j, itself included.
        second: (m,) likewise within y.
        across: (n,) sum of k(x_i, y_j) over j.
        back: (m,) sum of k(x_i, y_j) over i.
        own_first: (n,) k(x_i, x_i).
        own_second: (m,) k(y_j, y_j).
        groups: Three (G, G) sums over pairs of groups: within x, within y, across.
    """

    first: np.ndarray
    second: np.ndarray
    across: np.ndarray
    back: np.ndarray
    own_first: np.ndarray
    own_second: np.ndarray
    groups: tuple[np.ndarray, np.ndarray, np.ndarray]


def polynomial_mmd(
    x: np.ndarray,
    y: np.ndarray,
    *,
    degree: int = 3,
    coef0: float = 1.0,
    gamma: float | None = None,
    estimator: Estimator = "u",
) -> float:
    """Squared maximum mean discrepancy of two sets of feature rows.

    Args:
        x: (n, d), n >= 2, finite, of any real dtype; computed in float64. May be memory-mapped.
        y: (m, d), m >= 2, likewise.
        degree: Of the kernel (gamma x.y + coef0)^degree, at least 1.
        coef0: Its constant.
        gamma: Its factor; None is 1/d.
        estimator: ``u``: without the pairs of a row with itself, unbiased. ``v``: with them, at least 0 and biased
            upwards (JEDi's and pyiqa's).

    Raises:
        ValueError: Not rows of one width, fewer than 2, or NaN or infinity among them.
    """
    sums = kernel_sums(*_checked(x, y), Kernel(degree, coef0, gamma))
    return mmd_of(sums, estimator)


def kernel_sums(
    x: Features,
    y: Features,
    kernel: Kernel = CUBIC,
    groups: tuple[np.ndarray, np.ndarray] | None = None,
    count: int = 1,
) -> Sums:
    """Sums of the kernel over all pairs, block by block.

    Args:
        x: (n, d) rows.
        y: (m, d) rows.
        kernel: The kernel.
        groups: Group of each row of both sides, below ``count``; by default one group.
        count: How many groups.
    """
    labels = groups or (np.zeros(len(x), dtype=np.int64), np.zeros(len(y), dtype=np.int64))
    first, own_first, _, within_x = _pairs(x, x, kernel, labels[0], labels[0], count)
    second, own_second, _, within_y = _pairs(y, y, kernel, labels[1], labels[1], count)
    across, _, back, between = _pairs(x, y, kernel, labels[0], labels[1], count)
    return Sums(first, second, across, back, own_first, own_second, (within_x, within_y, between))


def mmd_of(sums: Sums, estimator: Estimator = "u") -> float:
    """The statistic of both whole sets."""
    n, m = len(sums.first), len(sums.second)
    if estimator == "v":
        return float(sums.first.sum() / n**2 + sums.second.sum() / m**2 - 2.0 * sums.across.sum() / (n * m))
    return _u(
        float(sums.first.sum() - sums.own_first.sum()),
        float(sums.second.sum() - sums.own_second.sum()),
        float(sums.across.sum()),
        n,
        m,
    )


def mmd_jackknife(sums: Sums, groups: tuple[np.ndarray, np.ndarray], count: int) -> Jackknife | None:
    """Interval of the U-statistic by the delete-a-group jackknife, around the value itself, which has no bias.

    Args:
        sums: With the group sums of ``groups``.
        groups: Group of each row of both sides.
        count: How many groups.

    Returns:
        None below 2 groups, or where fewer than 2 rows would be left.
    """
    sizes = [np.bincount(side, minlength=count) for side in groups]
    left = [size.sum() - size for size in sizes]
    if count < 2 or min(int(n.min()) for n in left) < 2:
        return None
    own = [np.bincount(g, weights=k, minlength=count) for g, k in zip(groups, sums[4:6], strict=True)]
    xx, yy, xy = (pair.sum() - pair.sum(axis=0) - pair.sum(axis=1) + np.diagonal(pair) for pair in sums.groups)
    xx, yy = xx - (own[0].sum() - own[0]), yy - (own[1].sum() - own[1])
    parts = np.array([_u(*values) for values in zip(xx, yy, xy, *left, strict=True)])
    return delete_a_group(mmd_of(sums), parts, unbiased=True)


def mmd_influences(
    x: np.ndarray, sums: Sums, units: np.ndarray | None = None, kernel: Kernel = CUBIC
) -> np.ndarray | None:
    """Influence of each sample of x by leave-one-out, exactly: (F - 1)(MMD - MMD without it), less its mean.

    Args:
        x: (n, d) rows.
        sums: Of x and the reference set.
        units: (n,) int64 in [0, F): the sample (file) of each row. None: a row each.
        kernel: The kernel of ``sums``.

    Returns:
        (F,) float64, positive where the sample raises the value; None where fewer than 2 rows would be left.
    """
    n, m = len(sums.first), len(sums.second)
    units = np.arange(n) if units is None else units
    counts = np.bincount(units)
    if n - int(counts.max()) < 2 or len(counts) < 2:
        return None
    within = np.bincount(units, weights=sums.own_first)
    order, ends = np.argsort(units, kind="stable"), np.cumsum(counts)
    for unit in np.flatnonzero(counts > 1):
        rows = np.asarray(x[order[ends[unit] - counts[unit] : ends[unit]]], dtype=np.float64)
        within[unit] = kernel(rows, rows).sum()
    own = np.bincount(units, weights=sums.own_first)
    pairs = float(sums.first.sum() - sums.own_first.sum())
    xx = pairs - 2.0 * np.bincount(units, weights=sums.first) + within + own
    xy = float(sums.across.sum()) - np.bincount(units, weights=sums.across)
    yy = float(sums.second.sum() - sums.own_second.sum())
    left = n - counts
    parts = xx / (left * (left - 1)) + yy / (m * (m - 1)) - 2.0 * xy / (left * m)
    found = mmd_of(sums) - parts
    result: np.ndarray = (found - found.mean()) * (len(counts) - 1)
    return result


def _checked(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x, y = checked_rows(x, "first set"), checked_rows(y, "second set")
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"expected features of one width, found {x.shape} and {y.shape}")
    return x, y


def _u(xx: float, yy: float, xy: float, n: float, m: float) -> float:
    return float(xx / (n * (n - 1)) + yy / (m * (m - 1)) - 2.0 * xy / (n * m))


def _slices(count: int) -> Iterator[slice]:
    for start in range(0, count, _BLOCK):
        yield slice(start, start + _BLOCK)


def _pairs(
    x: Features, y: Features, kernel: Kernel, groups_x: np.ndarray, groups_y: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Row sums, diagonal (of a set with itself), column sums and group sums of the (n, m) kernel matrix."""
    rows, columns = np.zeros(len(x)), np.zeros(len(y))
    own = np.zeros(len(x) if x is y else 0)
    between = np.zeros((count, count))
    for across in _slices(len(y)):
        right = np.asarray(y[across], dtype=np.float64)
        member = np.equal.outer(groups_y[across], np.arange(count)).astype(np.float64)
        for down in _slices(len(x)):
            found = kernel(np.asarray(x[down], dtype=np.float64), right)
            rows[down] += found.sum(axis=1)
            columns[across] += found.sum(axis=0)
            if x is y and across == down:
                own[down] = np.diagonal(found)
            if count > 1:
                sums = found @ member
                np.add.at(between, groups_x[down], sums)
    if count == 1:
        between[0, 0] = rows.sum()
    return rows, own, columns, between
