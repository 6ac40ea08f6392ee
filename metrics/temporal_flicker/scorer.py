"""Temporal flicker: how still pixels are from frame to frame (VBench, Huang et al., CVPR 2024, arXiv 2311.17982)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from genmeter.contract import Feature, Params, Score, Unscored
from genmeter.stats.motion import motion_of


class TemporalFlicker:
    """``(255 - mean absolute difference of neighbouring frames) / 255``."""

    def score(self, items: Sequence[Mapping[str, Feature]], params: Params) -> list[Score | Unscored]:
        """Score videos by themselves.

        Args:
            items: Each with ``motion``: (k - 1, 2) changes from frame to frame, the first column the mean absolute
                difference of all bytes divided by 255.
            params: The variant's parameters; none of them changes anything here.

        Returns:
            One score an item in [0, 1], 1 for a video that stands still, with ``detail.motion`` and the flag
            ``static_video``; ``non_finite`` where a change is not a number.
        """
        return [self._score(item["motion"]) for item in items]

    def _score(self, changes: Feature) -> Score | Unscored:
        difference = np.asarray(changes.values, dtype=np.float64)[:, 0]
        value = 1.0 - float(np.average(difference, weights=np.asarray(changes.weights, dtype=np.float64)))
        motion, still = motion_of(changes)
        if not (np.isfinite(value) and np.isfinite(motion)):
            return Unscored("non_finite", "a change between frames is not a number")
        flags = tuple(dict.fromkeys((*changes.flags, *still)))
        return Score(value, detail={"motion": motion, **changes.detail}, flags=flags)
