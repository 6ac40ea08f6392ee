"""One side of a Frechet distance: a sample's mean and covariance, and factors of it that lose no digits.

With S = F^T F for each side, tr (S1 S2)^(1/2) is the sum of the singular values of F1 F2^T: real and at least 0 by
construction, and as exact for singular covariances as for others. No D x D root is ever taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from genmeter.contract import Moments
from genmeter.stats.moments import Features, blocks, centred, mean_of, scatter_of

# A Cholesky factor whose pivots span more than this has lost the small directions to rounding.
_PIVOTS = 1e-10


@dataclass(frozen=True)
class Spread:
    """Mean and covariance of one sample, ``scale`` (a power of two) divided out of its features.

    Attributes:
        mean: (d,) float64.
        count: Rows it was taken from.
        divisor: What the scatter is divided by: ``count`` less the degrees of freedom.
        rows: (n, d) centred rows where there are at most as many as columns; else None.
        scatter: (d, d) sum of outer products of the centred rows; None where ``rows`` says it better.
        pieces: Reads the centred rows in blocks again; None where they are gone (stored moments).
    """

    mean: np.ndarray
    count: int
    divisor: float
    rows: np.ndarray | None = None
    scatter: np.ndarray | None = None
    pieces: Callable[[], Iterator[np.ndarray]] | None = None

    @cached_property
    def trace(self) -> float:
        """Trace of the covariance."""
        if self.rows is not None:
            return float(np.einsum("ij,ij->", self.rows, self.rows)) / self.divisor
        assert self.scatter is not None
        return float(np.trace(self.scatter)) / self.divisor

    @cached_property
    def cholesky(self) -> np.ndarray | None:
        """Lower triangle L with L L^T the covariance, where that is well enough conditioned; else None."""
        if self.scatter is None:
            return None
        try:
            lower: np.ndarray = np.linalg.cholesky(self.scatter / self.divisor)
        except np.linalg.LinAlgError:
            return None
        pivots = np.diagonal(lower) ** 2
        return lower if pivots.min() > _PIVOTS * pivots.max() else None

    @cached_property
    def factor(self) -> np.ndarray:
        """F (r, d) with F^T F the covariance, r at most d: the rows, the Cholesky or the QR factor of them."""
        found: np.ndarray
        if self.rows is not None:
            found = self.rows / np.sqrt(self.divisor)
            return found
        if self.cholesky is not None:
            return np.ascontiguousarray(self.cholesky.T)
        if self.pieces is not None:
            found = triangle(self.pieces()) / np.sqrt(self.divisor)
            return found
        assert self.scatter is not None
        values, vectors = np.linalg.eigh(self.scatter / self.divisor)
        # What rounding leaves of a null direction is no variance, and its root would be half the digits wrong.
        floor = len(values) * np.finfo(np.float64).eps * max(float(values[-1]), 0.0)
        kept = values > floor
        found = np.sqrt(values[kept])[:, None] * vectors[:, kept].T
        return found


def triangle(pieces: Iterator[np.ndarray]) -> np.ndarray:
    """R (r, d), r at most d, with R^T R the scatter of all rows that the (b, d) pieces hold; one piece at a time."""
    found: np.ndarray | None = None
    for piece in pieces:
        stacked = piece if found is None else np.concatenate([found, piece])
        found = np.asarray(np.linalg.qr(stacked, mode="r")) if len(stacked) > stacked.shape[1] else stacked
    assert found is not None
    return found


def spread_of(x: Features, ddof: int, scale: float = 1.0) -> Spread:
    """The spread of (n, d) feature rows, n >= 2; as many as fit no longer than wide are kept, else their scatter."""
    mean = mean_of(x, scale)
    if len(x) <= x.shape[1]:
        return Spread(mean, len(x), len(x) - ddof, rows=centred(x, mean, scale))
    pieces = _pieces(x, mean, scale)
    return Spread(mean, len(x), len(x) - ddof, scatter=scatter_of(x, mean, scale), pieces=pieces)


def spread_of_moments(moments: Moments, ddof: int) -> Spread:
    """The spread that stored moments (covariance divided by n - 1) stand for."""
    cov = np.asarray(moments.cov, dtype=np.float64)
    scatter = (cov + cov.T) * ((moments.n - 1) / 2.0)
    return Spread(np.asarray(moments.mean, dtype=np.float64), moments.n, moments.n - ddof, scatter=scatter)


def _pieces(x: Features, mean: np.ndarray, scale: float) -> Callable[[], Iterator[np.ndarray]]:
    return lambda: (centred(block, mean, scale) for block in blocks(x))
