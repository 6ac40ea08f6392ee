"""Two models against one reference set: is the difference of their Frechet distances more than chance?"""

from __future__ import annotations

import numpy as np

from genmeter.contract import Moments
from genmeter.stats.frechet import distance
from genmeter.stats.groups import deal
from genmeter.stats.jackknife import Fixed, Jackknife, LeftOut, jackknife_of
from genmeter.stats.moments import power_of_two_scale
from genmeter.stats.spread import Spread


def frechet_difference(
    first: np.ndarray,
    second: np.ndarray,
    reference: np.ndarray | Moments,
    clusters: tuple[np.ndarray, np.ndarray, np.ndarray | None],
    *,
    ddof: int = 1,
) -> Jackknife | None:
    """FD(first, reference) - FD(second, reference) with a paired jackknife interval.

    A group is left out of all three sets at once, so what both models share (the prompts, the reference sample)
    cancels, as it does in the difference itself; two intervals that overlap say nothing about it.

    Args:
        first: (n, d) feature rows of one model.
        second: (m, d) rows of the other.
        reference: (k, d) rows, or moments.
        clusters: Labels of the rows of each, alike where they belong to one sample; None for moments.
        ddof: As for :func:`genmeter.stats.frechet.frechet_distance`.

    Returns:
        The corrected difference and its interval; None where a set is too small.
    """
    rows = [first, second] if isinstance(reference, Moments) else [first, second, reference]
    scale = 1.0 if isinstance(reference, Moments) else power_of_two_scale(*rows)
    labels = [label for label in clusters if label is not None]
    groups, count = deal(labels)
    sides: list[LeftOut | Fixed] = [LeftOut(x, group, ddof, scale) for x, group in zip(rows, groups, strict=True)]
    if isinstance(reference, Moments):
        sides.append(Fixed(reference, ddof))
    return jackknife_of(sides, count, _difference, scale * scale)


def _difference(found: list[Spread]) -> float:
    first, second, reference = found
    return distance(first, reference) - distance(second, reference)
