"""The mean of per-sample scores with an honest interval: Student's t, clustered where outputs share a prompt."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from genmeter.stats.tdist import t_quantile

CONFIDENCE = 0.95


def mean_summary(values: np.ndarray, clusters: np.ndarray | None = None) -> dict[str, Any]:
    """Describe one column of scores.

    With clusters the standard error is the cluster-robust one, sqrt(G/(G-1) * sum_g (sum_{i in g} (x_i - m))^2) / n,
    and the interval is m +- t(G-1) * sem (Liang and Zeger 1986; for evaluations Miller, arXiv 2411.00640). With one
    sample a cluster this is exactly s/sqrt(n) and t(n-1).

    Args:
        values: (n,) finite numbers; any real dtype, taken as float64.
        clusters: (n,) labels of any dtype that sorts; rows of one label are not independent. ``None``: all are.

    Returns:
        ``mean``, ``sem``, ``median``, ``quantiles`` (``p05``, ``p95``; linear interpolation), ``interval95``
        ([low, high]) and ``clusters`` (G). What is undefined is ``None``, never NaN: all of it for n = 0; ``sem`` and
        ``interval95`` below two clusters.

    Raises:
        ValueError: A value is not finite, or the two arrays differ in length.
    """
    x = np.asarray(values, dtype=np.float64).ravel()
    if not np.isfinite(x).all():
        raise ValueError("mean_summary expects finite values; a failed sample has no value and must be left out")
    if clusters is not None and len(clusters) != len(x):
        raise ValueError(f"{len(x)} values but {len(clusters)} cluster labels")
    if len(x) == 0:
        return {
            "mean": None,
            "sem": None,
            "median": None,
            "quantiles": {"p05": None, "p95": None},
            "interval95": None,
            "clusters": 0,
        }
    mean = exact_mean(x)
    # Values near the largest float overflow in between; what comes of it is None, not infinity.
    with np.errstate(over="ignore", invalid="ignore"):
        count, sem = _standard_error(x - mean, clusters)
        p05, median, p95 = (float(q) if np.isfinite(q) else None for q in np.quantile(x, (0.05, 0.5, 0.95)))
    interval = None
    if sem is not None:
        half = t_quantile(0.5 + CONFIDENCE / 2, count - 1) * sem
        if math.isfinite(half):
            interval = [mean - half, mean + half]
    return {
        "mean": mean,
        "sem": sem,
        "median": median,
        "quantiles": {"p05": p05, "p95": p95},
        "interval95": interval,
        "clusters": count,
    }


def exact_mean(x: np.ndarray) -> float:
    """Mean of (n,) float64, n > 0, correctly rounded in the sum: the order of the rows cannot change it."""
    try:
        mean = math.fsum(x) / len(x)
    except OverflowError:
        mean = float(np.mean(x / 2.0)) * 2.0
    # Division can leave the range of the data by one unit in the last place; equal values must have that mean.
    return float(min(max(mean, float(x.min())), float(x.max())))


def _standard_error(deviations: np.ndarray, clusters: np.ndarray | None) -> tuple[int, float | None]:
    """The number of clusters and the standard error of the mean; ``None`` where it is undefined."""
    n = len(deviations)
    if clusters is None:
        sums = deviations
    else:
        labels, inverse = np.unique(np.asarray(clusters), return_inverse=True)
        sums = np.bincount(inverse.ravel(), weights=deviations, minlength=len(labels))
    count = len(sums)
    if count < 2:
        return count, None
    sem = math.sqrt(count / (count - 1)) * float(np.linalg.norm(sums)) / n
    return count, sem if math.isfinite(sem) else None
