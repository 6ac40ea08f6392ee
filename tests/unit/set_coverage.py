"""How often do intervals of set metrics cover the truth? The harness; where the features come from is the caller's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from genmeter.stats.frechet import frechet_distance
from genmeter.stats.jackknife import Jackknife, frechet_jackknife
from genmeter.stats.paired import frechet_difference

Sides = tuple[np.ndarray, ...]


class Coverage(NamedTuple):
    """What repeated samples came to.

    Attributes:
        covered: Share of the intervals that hold the truth.
        plug_in: Share of intervals of the same width around the plug-in value that do.
        corrected: Mean corrected value.
        raw: Mean plug-in value.
    """

    covered: float
    plug_in: float
    corrected: float
    raw: float


def frechet_coverage(samples: Iterator[Sides], truth: float) -> Coverage:
    """Coverage of the jackknife interval of FD(x, y) over samples (x, y)."""
    found = []
    for x, y in samples:
        jackknife = frechet_jackknife(x, y)
        assert jackknife is not None
        found.append((jackknife, frechet_distance(x, y)))
    return _count(found, truth)


def difference_coverage(samples: Iterator[Sides], truth: float) -> Coverage:
    """Coverage of the paired jackknife of FD(x1, y) - FD(x2, y) over samples (x1, x2, y); rows of one number belong."""
    found = []
    for first, second, y in samples:
        labels = np.arange(len(y))
        jackknife = frechet_difference(first, second, y, (labels, labels, labels))
        assert jackknife is not None
        found.append((jackknife, frechet_distance(first, y) - frechet_distance(second, y)))
    return _count(found, truth)


def draws(repeats: int, seed: int, draw: Callable[[np.random.Generator], Sides]) -> Iterator[Sides]:
    """``repeats`` samples from one seeded generator."""
    rng = np.random.default_rng(seed)
    return (draw(rng) for _ in range(repeats))


def resamples(*populations: np.ndarray, n: int) -> Callable[[np.random.Generator], Sides]:
    """Samples of n independent rows from finite distributions; with replacement, so that their truth is theirs."""

    def draw(rng: np.random.Generator) -> Sides:
        return tuple(rows[rng.integers(0, len(rows), n)] for rows in populations)

    return draw


def _count(found: list[tuple[Jackknife, float]], truth: float) -> Coverage:
    inside = [j.interval[0] <= truth <= j.interval[1] for j, _ in found]
    naive = [abs(raw - truth) <= j.corrected - j.interval[0] for j, raw in found]
    return Coverage(
        float(np.mean(inside)),
        float(np.mean(naive)),
        float(np.mean([j.corrected for j, _ in found])),
        float(np.mean([raw for _, raw in found])),
    )
