"""A permutation test of the MMD: how often would sets of one distribution look this far apart?"""

from __future__ import annotations

import numpy as np

from genmeter.stats.mmd import CUBIC, Kernel

PERMUTATIONS = 499
_BLOCK = 512


def mmd_permutation_test(
    x: np.ndarray,
    y: np.ndarray,
    clusters: tuple[np.ndarray, np.ndarray] | None = None,
    *,
    kernel: Kernel = CUBIC,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> float:
    """Share of relabellings, this one included, whose U-statistic is at least as large as the one found.

    The interval of :func:`genmeter.stats.mmd.mmd_jackknife` is for sets that differ; where they may not, the
    statistic degenerates and this is the test to ask. Rows of one cluster move together. A cluster that stands on both
    sides (an output and its reference) changes sides with both its parts or not at all, which keeps what they share.

    Args:
        x: (n, d) feature rows, n >= 2.
        y: (m, d) rows, m >= 2.
        clusters: Labels of the rows of both sides; by default every row is a cluster of its own.
        kernel: The kernel.
        permutations: How many random relabellings; the smallest p that can come out is 1 / (permutations + 1).
        seed: Of the draws; they also depend on the order of the rows.

    Returns:
        The p value, in (0, 1]. Costs (n + m)^2 (d + permutations) multiplications, in memory that is linear in n + m.
    """
    n, m = len(x), len(y)
    pooled = (np.asarray(x), np.asarray(y))
    side = np.repeat([1.0, 0.0], [n, m])
    labels = _labels(side, clusters, permutations, np.random.default_rng(seed))
    within = np.zeros((2, permutations + 1))
    across = np.zeros(permutations + 1)
    diagonal = np.zeros(n + m)
    for start in range(0, n + m, _BLOCK):
        left = _rows(pooled, start, n + m)
        down = slice(start, start + len(left))
        product = np.zeros((len(left), permutations + 1))
        total = np.zeros(len(left))
        for other in range(0, n + m, _BLOCK):
            right = _rows(pooled, other, n + m)
            found = kernel(left, right)
            product += found @ labels[other : other + len(right)]
            total += found.sum(axis=1)
            if other == start:
                diagonal[down] = np.diagonal(found)
        mine = labels[down]
        rest = total[:, None] - product
        within[0] += (mine * product).sum(axis=0)
        within[1] += ((1.0 - mine) * rest).sum(axis=0)
        across += (mine * rest).sum(axis=0)
    counts = labels.sum(axis=0), (1.0 - labels).sum(axis=0)
    own = diagonal @ labels, diagonal @ (1.0 - labels)
    usable = (counts[0] >= 2) & (counts[1] >= 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = sum((within[i] - own[i]) / (counts[i] * (counts[i] - 1)) for i in (0, 1))
        found = found - 2.0 * across / (counts[0] * counts[1])
    # Labels that give back the sets themselves must not lose to rounding.
    slack = 1e-12 * float(np.abs(within[:, 0] / np.array([n * n, m * m])).sum())
    return float(np.count_nonzero(found[usable] >= found[0] - slack) / np.count_nonzero(usable))


def _rows(pooled: tuple[np.ndarray, np.ndarray], start: int, count: int) -> np.ndarray:
    stop, n = min(start + _BLOCK, count), len(pooled[0])
    parts = [pooled[0][start : min(stop, n)], pooled[1][max(start - n, 0) : max(stop - n, 0)]]
    return np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])


def _labels(
    side: np.ndarray, clusters: tuple[np.ndarray, np.ndarray] | None, permutations: int, rng: np.random.Generator
) -> np.ndarray:
    """(n + m, permutations + 1) of 1 (as x) and 0 (as y); the first column is how it was."""
    names = np.arange(len(side)) if clusters is None else np.concatenate([np.asarray(part) for part in clusters])
    known, codes = np.unique(names, return_inverse=True)
    codes = codes.reshape(-1)
    on_x = np.bincount(codes, weights=side, minlength=len(known)) > 0
    on_y = np.bincount(codes, weights=1.0 - side, minlength=len(known)) > 0
    both = np.flatnonzero(on_x & on_y)
    single = np.flatnonzero(on_x ^ on_y)
    labels = np.empty((len(side), permutations + 1))
    labels[:, 0] = side
    for turn in range(1, permutations + 1):
        swap = np.zeros(len(known), dtype=bool)
        swap[both] = rng.random(len(both)) < 0.5
        label = on_x.copy()
        label[single] = rng.permutation(on_x[single])
        labels[:, turn] = np.where(np.isin(codes, single), label[codes], side != swap[codes])
    return labels
