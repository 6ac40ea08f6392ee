"""CLAP-A: likeness of two sounds in CLAP space (CLAP: Wu et al., ICASSP 2023, arXiv 2211.06687)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from genmeter.contract import Feature, Params, Score, Unscored
from genmeter.stats.cosine import cosines


class ClapA:
    """The cosine of the two sounds' features; a long one has the mean over its windows, weighted by their seconds."""

    def score(self, items: Sequence[Mapping[str, Feature]], params: Params) -> list[Score | Unscored]:
        """Score predictions against one other sound each.

        Args:
            items: Each with ``audio`` (k, d) and ``other`` (m, d): features of one CLAP, one row a window, weights in
                seconds.
            params: The variant's parameters; none of them changes anything here.

        Returns:
            One score an item in [-1, 1], 1 for equal sounds; ``non_finite`` where a feature has no direction.
        """
        return [self._score(item["audio"], item["other"]) for item in items]

    def _score(self, audio: Feature, other: Feature) -> Score | Unscored:
        try:
            value = float(cosines(_mean(audio), _mean(other))[0])
        except FloatingPointError as error:
            return Unscored("non_finite", str(error))
        detail = {
            **audio.detail,
            **{f"reference_{key}": other.detail[key] for key in ("seconds", "windows") if key in other.detail},
        }
        return Score(value, detail=detail, flags=tuple(dict.fromkeys((*audio.flags, *other.flags))))


def _mean(sound: Feature) -> np.ndarray:
    """(k, d) to (1, d) in float64."""
    mean: np.ndarray = np.average(sound.values.astype(np.float64), axis=0, weights=sound.weights)[None]
    return mean
