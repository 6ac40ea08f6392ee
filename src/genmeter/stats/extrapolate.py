"""FD-infinity: what the Frechet distances of growing subsets point to (Chong and Forsyth, CVPR 2020, 1911.07023)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from genmeter.stats.frechet import distance
from genmeter.stats.moments import Picked, power_of_two_scale
from genmeter.stats.spread import spread_of

POINTS = 15
# Below this many times the width a line in 1/n fits nothing.
LEAST = 3


class Extrapolation(NamedTuple):
    """The fit FD(n) = value + slope / n.

    Attributes:
        value: The intercept: FD at infinitely many samples.
        slope: The bias at one sample, so to speak; it depends on the model, which is why equal n is not enough.
        r2: Share of the variance of FD(n) that the line explains.
        sizes: Smallest and largest n.
    """

    value: float
    slope: float
    r2: float
    sizes: tuple[int, int]


def frechet_infinity(
    x: np.ndarray, y: np.ndarray, units: tuple[np.ndarray, np.ndarray] | None = None, *, ddof: int = 1, seed: int = 0
) -> Extrapolation | None:
    """Extrapolate the Frechet distance of two samples to infinitely many.

    Subsets are drawn without replacement (with it, the fit points to the plug-in value again, and corrects nothing) and
    of both sides together, since both are finite. Their sizes lie evenly in 1/n between max(2d, N/4) and N, the size of
    the smaller side.

    Args:
        x: (n, d) feature rows; may be memory-mapped.
        y: (m, d) rows.
        units: Labels of the file of each row of both sides; files are drawn whole, but for the last. None: by row.
        ddof: As for :func:`genmeter.stats.frechet.frechet_distance`.
        seed: Of the draws; they also depend on the order of the rows.

    Returns:
        None below 3d rows on either side.
    """
    width = x.shape[1]
    most = min(len(x), len(y))
    if most < LEAST * width:
        return None
    least = max(2 * width, most // 4)
    rng = np.random.default_rng(seed)
    scale = power_of_two_scale(x, y)
    sizes = np.unique(np.round(1.0 / np.linspace(1.0 / least, 1.0 / most, POINTS)).astype(int))
    found = []
    for size in sizes:
        sides = []
        for rows, labels in zip((x, y), units or (None, None), strict=True):
            kept = np.sort(_draw(len(rows), labels, rng)[:size])
            sides.append(spread_of(Picked(rows, kept), ddof, scale))
        found.append(distance(*sides) * scale * scale)
    return _fit(sizes, np.array(found))


def _draw(count: int, labels: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """All rows in random order, those of one file together."""
    if labels is None:
        return rng.permutation(count)
    _, codes = np.unique(labels, return_inverse=True)
    codes = codes.reshape(-1)
    return np.argsort(rng.permutation(int(codes.max()) + 1)[codes], kind="stable")


def _fit(sizes: np.ndarray, values: np.ndarray) -> Extrapolation:
    inverse = 1.0 / sizes
    centre = inverse - inverse.mean()
    slope = float(centre @ values) / float(centre @ centre)
    value = float(values.mean() - slope * inverse.mean())
    total = float(((values - values.mean()) ** 2).sum())
    residual = float(((values - value - slope * inverse) ** 2).sum())
    r2 = 1.0 - residual / total if total > 0.0 else 1.0
    return Extrapolation(value, slope, r2, (int(sizes[0]), int(sizes[-1])))
