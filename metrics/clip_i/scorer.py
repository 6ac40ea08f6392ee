"""CLIP-I: likeness of two images in CLIP space (Ruiz et al., DreamBooth, CVPR 2023, arXiv 2208.12242)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from genmeter.contract import Feature, Params, Score, Unscored
from genmeter.stats.cosine import cosines, weighted_mean


class ClipI:
    """The cosine of the two images' features, averaged over frames; one frame for an image."""

    def score(self, items: Sequence[Mapping[str, Feature]], params: Params) -> list[Score | Unscored]:
        """Score predictions against one other image each.

        Args:
            items: Each with ``image`` (k, d) and ``other`` (k, d) or (1, d): features of one CLIP.
            params: The variant's parameters; none of them changes anything here.

        Returns:
            One score an item in [-1, 1], 1 for equal images; ``non_finite`` where a feature has no direction.
        """
        return [self._score(item["image"], item["other"]) for item in items]

    def _score(self, image: Feature, other: Feature) -> Score | Unscored:
        try:
            value = weighted_mean(cosines(image.values, other.values), image.weights)
        except FloatingPointError as error:
            return Unscored("non_finite", str(error))
        return Score(value, detail=dict(image.detail), flags=tuple(dict.fromkeys((*image.flags, *other.flags))))
