"""The Frechet distance between two sets of features, exact at any number of samples.

FD = |m1 - m2|^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2)): Dowson and Landau 1982; FID Heusel et al. 2017 (arXiv 1706.08500), FVD
Unterthiner et al. 2018 (arXiv 1812.01717), FAD Kilgour et al. 2019 (arXiv 1812.08466).
"""

from __future__ import annotations

import math

import numpy as np

from genmeter.contract import Moments
from genmeter.stats.moments import checked_rows, power_of_two_scale
from genmeter.stats.spread import Spread, spread_of, spread_of_moments

# Bound on the error of tr (S1 S2)^(1/2) that the fast route may have, in units of tr S1 + tr S2. What it really has was
# below a fiftieth of the bound for every spectrum and orientation that was tried.
_LOSS = 1e-8


def frechet_distance(x: np.ndarray, y: np.ndarray, *, ddof: int = 1) -> float:
    """Frechet distance of two sets of feature rows.

    Args:
        x: (n, d), n >= 2, finite, of any real dtype; computed in float64. May be memory-mapped.
        y: (m, d), m >= 2, likewise.
        ddof: Covariances are divided by n - ddof: 1 as the original FVD and FID code does, 0 as StyleGAN-V does.

    Returns:
        The plug-in value, at least 0, in squared units of the features. |FD(x, x)| <= 1e-9 tr S. It is biased upwards
        by about b/n: values compare only at equal n (:mod:`genmeter.stats.jackknife` corrects it).

    Raises:
        ValueError: Not rows of one width, fewer than 2 of them, NaN or infinity among them, a ``ddof`` other than 0
            and 1, or a distance beyond the largest float64.
    """
    _check_ddof(ddof)
    x, y = checked_rows(x, "first set"), checked_rows(y, "second set")
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"expected features of one width, found {x.shape} and {y.shape}")
    scale = power_of_two_scale(x, y)
    value = max(0.0, distance(spread_of(x, ddof, scale), spread_of(y, ddof, scale))) * scale * scale
    if math.isinf(value):
        raise ValueError("the distance is beyond the largest float64")
    return value


def frechet_distance_from_moments(x: Moments | tuple, y: Moments | tuple, *, ddof: int = 1) -> float:
    """Frechet distance of two sets that are known by their moments alone.

    Args:
        x: Mean (d,), covariance (d, d; divided by n - 1) and count n >= 2.
        y: Likewise.
        ddof: As for :func:`frechet_distance`; with 0 the covariances are rescaled.

    Returns:
        The plug-in value, at least 0; within 1e-5 tr S of the distance of the features. A covariance from fewer rows
        than columns is singular, which costs digits here: use the features where they are at hand.

    Raises:
        ValueError: Shapes that do not fit, a count below 2, or NaN or infinity.
    """
    _check_ddof(ddof)
    sides = [checked_moments(Moments(*side)) for side in (x, y)]
    if len(sides[0].mean) != len(sides[1].mean):
        raise ValueError(f"expected features of one width, found {len(sides[0].mean)} and {len(sides[1].mean)}")
    return max(0.0, distance(*(spread_of_moments(side, ddof) for side in sides)))


def checked_moments(moments: Moments) -> Moments:
    """The same moments in float64. Raises ``ValueError`` where they are none."""
    mean, cov = np.asarray(moments.mean, dtype=np.float64), np.asarray(moments.cov, dtype=np.float64)
    if mean.ndim != 1 or cov.shape != (len(mean), len(mean)) or len(mean) == 0:
        raise ValueError(f"expected a mean (D,) and a covariance (D, D), found shapes {mean.shape} and {cov.shape}")
    if moments.n < 2:
        raise ValueError(f"a covariance needs at least 2 rows; found {moments.n}")
    if not (np.isfinite(mean).all() and np.isfinite(cov).all()):
        raise ValueError("the moments hold NaN or infinity")
    return Moments(mean, cov, int(moments.n))


def distance(x: Spread, y: Spread) -> float:
    """The distance of two spreads; rounding can take it below 0 where they are equal."""
    gap = x.mean - y.mean
    return float(gap @ gap) + x.trace + y.trace - 2.0 * cross_trace(x, y)


def cross_trace(x: Spread, y: Spread) -> float:
    """tr (S1 S2)^(1/2), at least 0."""
    if x.cholesky is not None and y.cholesky is not None and y.scatter is not None:
        loss = (x.trace + y.trace) * _LOSS
        if _least_error(x, y) <= loss:
            fast = _by_eigenvalues(x.cholesky, y.scatter / y.divisor, loss)
            if fast is not None:
                return fast
    return nuclear_norm(x.factor @ y.factor.T)


def nuclear_norm(matrix: np.ndarray) -> float:
    """Sum of the singular values of an (n, m) matrix."""
    return float(np.linalg.svd(matrix, compute_uv=False).sum()) if min(matrix.shape) else 0.0


def _least_error(x: Spread, y: Spread) -> float:
    """What :func:`_by_eigenvalues` would give as its bound at the least, from the factors alone.

    The mean of 1/root is no less than 1/root of the geometric mean, and the largest eigenvalue no less than their mean.
    """
    assert x.cholesky is not None
    assert y.cholesky is not None
    assert x.scatter is not None
    assert y.scatter is not None
    width = len(x.cholesky)
    logarithm = float(np.log(np.diagonal(x.cholesky)).sum() + np.log(np.diagonal(y.cholesky)).sum()) / width
    mean = float(np.einsum("ij,ij->", x.scatter, y.scatter)) / (x.divisor * y.divisor * width)
    return 0.5 * width * float(np.finfo(np.float64).eps) * mean * math.exp(-logarithm)


def _by_eigenvalues(lower: np.ndarray, cov: np.ndarray, loss: float) -> float | None:
    """Sum of the roots of the eigenvalues of L^T S L: four times faster than singular values, where it is exact.

    Eigenvalues are right to rounding of the largest one, so the root of a small one loses digits. None when that could
    add up to more than ``loss``.
    """
    inner = lower.T @ cov @ lower
    values = np.linalg.eigvalsh((inner + inner.T) / 2.0)
    error = float(np.finfo(np.float64).eps) * float(values[-1])
    if not values[0] > 0.0:
        return None
    roots = np.sqrt(values)
    return float(roots.sum()) if error * float((0.5 / roots).sum()) <= loss else None


def _check_ddof(ddof: int) -> None:
    if ddof not in (0, 1):
        raise ValueError(f"ddof: expected 0 or 1, found {ddof!r}")
