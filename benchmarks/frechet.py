"""The statistics of set metrics: Frechet distances against scipy's matrix root, a whole report, the MMD."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from common import Row, interleaved


def run(rounds: int, quick: bool) -> list[dict[str, Any]]:
    """One row a question; ``ratio`` is what the target speaks of."""
    wide = 512 if quick else 2048
    rows = [_against_sqrtm(1, wide, name, power) for name, power in (("flat", 0.0), ("1/i", 0.5))]
    return [*rows, _small(rounds), *_report(rounds), _mmd(min(rounds, 3), 512 if quick else 2048)]


def features(n: int, d: int, seed: int, power: float = 0.0, scale: float = 1.0) -> np.ndarray:
    """(n, d) float32 rows whose covariance has eigenvalues i^(-2 power)."""
    spread = (1.0 + np.arange(d)) ** -power * scale
    return (np.random.default_rng(seed).standard_normal((n, d)) * spread).astype(np.float32)


def by_sqrtm(x: np.ndarray, y: np.ndarray) -> float:
    """The distance as most tools compute it: np.cov, and scipy's root of the product."""
    from scipy import linalg

    first, second = (np.cov(rows.astype(np.float64), rowvar=False) for rows in (x, y))
    gap = x.mean(axis=0, dtype=np.float64) - y.mean(axis=0, dtype=np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = linalg.sqrtm(first @ second)
    return float(gap @ gap + np.trace(first) + np.trace(second) - 2.0 * np.trace(np.real(root)))


def _against_sqrtm(rounds: int, d: int, name: str, power: float) -> dict[str, Any]:
    from genmeter.stats import frechet_distance

    x, y = features(2 * d, d, 0, power), features(2 * d, d, 1, power, 1.1)
    found, expected = frechet_distance(x, y), by_sqrtm(x, y)
    if abs(found - expected) > 1e-6 * expected:
        raise RuntimeError(f"{found} is not {expected}")
    tasks = {"genmeter": lambda: frechet_distance(x, y), "scipy sqrtm": lambda: by_sqrtm(x, y)}
    rows = interleaved("frechet", 1, tasks, rounds)
    ratio = rows["scipy sqrtm"].median_s / rows["genmeter"].median_s
    case = f"Frechet, d = {d}, n = {2 * d}, spectrum {name}"
    return _row(case, rows["genmeter"], ratio, "times faster than scipy sqrtm; target 4")


def _small(rounds: int) -> dict[str, Any]:
    from genmeter.stats import frechet_distance

    x, y = features(128, 400, 0, 0.5), features(128, 400, 1, 0.5, 1.1)
    rows = interleaved("frechet", 1, {"genmeter": lambda: frechet_distance(x, y)}, max(rounds, 5))
    return _row("Frechet, d = 400, n = 128", rows["genmeter"], 0.02 / rows["genmeter"].median_s, "of 20 ms; target 1")


def _report(rounds: int) -> list[dict[str, Any]]:
    """The value with interval, floors, FD-infinity and an influence for each sample, against the value alone."""
    from genmeter.contract import Rows
    from genmeter.stats.frechet import frechet_distance
    from genmeter.stats.setscores import frechet_score

    found = []
    for n in (128, 1000):
        sides = []
        for side in (0, 1):
            digests = np.array([f"{side}-{i}".encode() for i in range(n)], dtype="S32")
            own = np.arange(n) if side == 0 else None
            sides.append(Rows(features(n, 400, side, 0.5), digests, np.arange(n), own))
        tasks = {
            "report": lambda sides=sides: frechet_score(*sides),
            "value": lambda sides=sides: frechet_distance(sides[0].values, sides[1].values),
        }
        rows = interleaved("report", 1, tasks, min(rounds, 3))
        ratio = rows["report"].median_s / rows["value"].median_s
        found.append(_row(f"whole report, d = 400, n = {n}", rows["report"], ratio, "times the value alone"))
    return found


def _mmd(rounds: int, n: int) -> dict[str, Any]:
    """The U-statistic in blocks, against three whole kernel matrices at once."""
    from genmeter.stats import polynomial_mmd

    x, y = features(n, 400, 0), features(n, 400, 1)

    def dense() -> float:
        first, second = x.astype(np.float64), y.astype(np.float64)
        within = [(rows @ rows.T / 400 + 1) ** 3 for rows in (first, second)]
        across = (first @ second.T / 400 + 1) ** 3
        return float(sum((k.sum() - np.trace(k)) / (n * (n - 1)) for k in within) - 2 * across.mean())

    if abs(dense() - polynomial_mmd(x, y)) > 1e-9:
        raise RuntimeError("the two do not agree")
    rows = interleaved("mmd", 1, {"genmeter": lambda: polynomial_mmd(x, y), "dense": dense}, rounds)
    ratio = rows["dense"].median_s / rows["genmeter"].median_s
    return _row(f"MMD, d = 400, n = {n}, in blocks", rows["genmeter"], ratio, "times faster than whole matrices")


def _row(case: str, row: Row, ratio: float, of: str) -> dict[str, Any]:
    return {"case": case, "ms": row.median_s * 1e3, "min ms": row.min_s * 1e3, "ratio": ratio, "of what": of}
