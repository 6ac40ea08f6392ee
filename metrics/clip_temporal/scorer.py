"""CLIP temporal consistency: likeness of a video's frames (Esser et al., ICCV 2023, arXiv 2302.03011)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from genmeter.contract import Feature, Params, Score, Unscored
from genmeter.stats.cosine import cosines
from genmeter.stats.motion import motion_of


class ClipTemporal:
    """Mean cosine of frames with frames; which ones is the convention's choice."""

    def score(self, items: Sequence[Mapping[str, Feature]], params: Params) -> list[Score | Unscored]:
        """Score videos by themselves.

        Args:
            items: Each with ``frames``: (k, d) features of one CLIP in the order of time, and ``motion``: (k - 1, 2)
                changes from frame to frame.
            params: ``convention.pairs``: consecutive, all or first_and_before.

        Returns:
            One score an item in [-1, 1], 1 for a video that stands still; ``detail.motion`` and the flag
            ``static_video`` tell that from consistency. ``too_short`` below 2 frames, ``non_finite`` where a feature
            has no direction.
        """
        return [self._score(item["frames"], item["motion"], params.convention.pairs) for item in items]

    def _score(self, frames: Feature, changes: Feature, pairs: str) -> Score | Unscored:
        values = np.asarray(frames.values, dtype=np.float64)
        if len(values) < 2:
            return Unscored("too_short", "the video has 1 frame; consistency is between frames, from 2 on")
        try:
            value = _likeness(values, pairs)
        except FloatingPointError as error:
            return Unscored("non_finite", str(error))
        motion, still = motion_of(changes)
        flags = dict.fromkeys((*frames.flags, *changes.flags, *still))
        return Score(value, detail={"motion": motion, **frames.detail}, flags=tuple(flags))


def _likeness(values: np.ndarray, pairs: str) -> float:
    before = cosines(values[:-1], values[1:])
    if pairs == "consecutive":
        return float(before.mean())
    if pairs == "first_and_before":
        first = cosines(values[:1], values[1:])
        return float((np.maximum(before, 0.0) + np.maximum(first, 0.0)).mean() / 2.0)
    count = len(values)
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    # The squared length of a sum of unit vectors is their number and twice the cosine of every pair.
    total = float(np.square(unit.sum(axis=0)).sum())
    return min(1.0, max(-1.0, (total - count) / (count * (count - 1))))
