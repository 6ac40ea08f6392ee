"""Means and scatter matrices of feature rows in float64, read in blocks so that a mapped file stays on disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from genmeter.contract import Moments

BLOCK_BYTES = 16 << 20
# Squares of numbers in between neither overflow nor vanish in float64.
_PLAIN = (1e-70, 1e70)


class Picked:
    """Some rows of an array, read when they are asked for: a half of a mapped file without loading it.

    Args:
        x: (n, d) rows.
        rows: (k,) row numbers.
    """

    def __init__(self, x: np.ndarray, rows: np.ndarray) -> None:
        self._x, self._rows = x, rows
        self.shape = (len(rows), x.shape[1])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: slice) -> np.ndarray:
        found: np.ndarray = self._x[self._rows[index]]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype=dtype)


Features: TypeAlias = np.ndarray | Picked


def checked_rows(x: np.ndarray, what: str = "features") -> np.ndarray:
    """The same array, once it is known to be rows of features.

    Args:
        x: (n, d) of any real dtype; may be memory-mapped.
        what: What a message calls it.

    Raises:
        ValueError: It is not two-dimensional, has no columns or fewer than 2 rows, or holds NaN or infinity.
    """
    x = np.asanyarray(x)
    if x.ndim != 2 or x.shape[1] == 0:
        raise ValueError(f"{what}: expected rows of features, of shape (N, D); found shape {x.shape}")
    if x.dtype.kind not in "fiu":
        raise ValueError(f"{what}: expected real numbers, found {x.dtype}")
    if len(x) < 2:
        raise ValueError(f"{what}: a covariance needs at least 2 rows; found {len(x)}")
    if not all(np.isfinite(block).all() for block in blocks(x)):
        raise ValueError(f"{what}: hold NaN or infinity")
    return x


def blocks(x: Features) -> Iterator[np.ndarray]:
    """Consecutive (b, d) pieces of rows, as they are stored."""
    step = max(1, BLOCK_BYTES // (8 * max(1, x.shape[1])))
    for start in range(0, len(x), step):
        yield x[start : start + step]


def power_of_two_scale(*arrays: Features) -> float:
    """What to divide by so that squares stay within float64: 1, or for extreme values a power of two near the largest.

    Dividing by a power of two changes no digit, so ordinary and scaled results are the same numbers.
    """
    largest = max(float(np.abs(block.astype(np.float64)).max(initial=0)) for x in arrays for block in blocks(x))
    if largest == 0.0 or _PLAIN[0] <= largest <= _PLAIN[1]:
        return 1.0
    return float(2.0 ** np.floor(np.log2(largest)))


def mean_of(x: Features, scale: float = 1.0) -> np.ndarray:
    """Mean (d,) of rows that are divided by ``scale``."""
    total = np.zeros(x.shape[1])
    for block in blocks(x):
        total += (np.asarray(block, dtype=np.float64) / scale).sum(axis=0)
    return total / len(x)


def centred(x: Features, mean: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """(n, d) float64: rows divided by ``scale``, less their mean."""
    rows: np.ndarray = np.asarray(x, dtype=np.float64) / scale - mean
    return rows


def scatter_of(x: Features, mean: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """Sum of outer products of the rows about ``mean``: (d, d), symmetric to the bit."""
    total = np.zeros((x.shape[1], x.shape[1]))
    for block in blocks(x):
        rows = centred(block, mean, scale)
        total += rows.T @ rows
    return (total + total.T) / 2.0


def moments_of(x: np.ndarray) -> Moments:
    """Mean, covariance (divided by n - 1) and count of feature rows.

    Args:
        x: (n, d), n >= 2, finite, of any real dtype; may be memory-mapped.

    Raises:
        ValueError: As :func:`checked_rows`.
    """
    x = checked_rows(x)
    mean = mean_of(x)
    return Moments(mean, scatter_of(x, mean) / (len(x) - 1), len(x))
