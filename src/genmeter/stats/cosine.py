"""Cosines of feature vectors, in float64 whatever the features were computed in."""

from __future__ import annotations

import numpy as np

# How far rounding may take the cosine of float32 or float16 features beyond 1.
SLACK = 1e-4


def cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Row-wise cosine of two sets of vectors.

    Norms are taken again in float64 and divided out: features that were rounded to float32 or float16 after they were
    normalised are no longer of length 1, and a product accumulated in half precision can exceed 1 by far.

    Args:
        x: (k, d) vectors, any real dtype.
        y: (k, d) or (1, d) vectors; a single one is compared with every row of the other set.

    Returns:
        (k,) float64 in [-1, 1].

    Raises:
        FloatingPointError: A vector without a direction: zero, or with NaN or infinity in it.
        ValueError: Different numbers of rows or columns.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1] or (len(x) != len(y) and 1 not in (len(x), len(y))):
        raise ValueError(f"expected as many rows and columns on both sides, found {x.shape} and {y.shape}")
    with np.errstate(all="ignore"):
        norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
        found: np.ndarray = np.einsum("ij,ij->i", *np.broadcast_arrays(x, y)) / norms
        sound = np.abs(found) <= 1.0 + SLACK
    if not sound.all():
        raise FloatingPointError("a feature has no direction: it is zero, or holds NaN or infinity")
    return found.clip(-1.0, 1.0)


def weighted_mean(values: np.ndarray, weights: np.ndarray) -> float:
    """Mean of (k,) values by (k,) weights, in float64.

    Raises:
        ValueError: Weights that are negative, not finite or all zero, or not as many as values.
    """
    values, weights = np.asarray(values, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    total = weights.sum()
    if values.shape != weights.shape or not np.isfinite(total) or total <= 0 or (weights < 0).any():
        raise ValueError(f"expected {len(values)} weights with a positive sum, found {weights.tolist()[:8]}")
    return float(values @ weights / total)
