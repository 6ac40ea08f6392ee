"""LPIPS: learned perceptual distance of two images (Zhang et al., CVPR 2018, arXiv 1801.03924)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from genmeter.contract import Feature, Params, Score, Unscored


class Lpips:
    """The distances are the encoder's; what is left is the mean over frames (one frame for an image)."""

    def score(self, items: Sequence[Mapping[str, Feature]], params: Params) -> list[Score | Unscored]:
        """Score pairs.

        Args:
            items: Each with ``pair``: values (k, 1) distances of k frames, weights (k,).
            params: The variant's parameters; none of them changes anything here.

        Returns:
            One score an item, 0 for equal images and mostly below 1; ``non_finite`` where a distance is not a number.
        """
        return [self._score(item["pair"]) for item in items]

    def _score(self, pair: Feature) -> Score | Unscored:
        weights = np.asarray(pair.weights, dtype=np.float64)
        value = float(np.asarray(pair.values, dtype=np.float64)[:, 0] @ weights / weights.sum())
        if not np.isfinite(value):
            return Unscored("non_finite", "the network returned a distance that is not a number")
        return Score(value, detail=dict(pair.detail), flags=tuple(pair.flags))
