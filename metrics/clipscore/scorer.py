"""CLIPScore: how well an image fits its text (Hessel et al., EMNLP 2021, arXiv 2104.08718)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from genmeter.contract import Feature, Params, Score, Unscored
from genmeter.stats.cosine import cosines, weighted_mean


class ClipScore:
    """``scale * max(cosine, floor)``, averaged over frames; one frame for an image."""

    def score(self, items: Sequence[Mapping[str, Feature]], params: Params) -> list[Score | Unscored]:
        """Score images or videos against their texts.

        Args:
            items: Each with ``image``: (k, d), one row a frame; ``text``: (1, d), prefixed as the convention says;
                ``plain``: (1, d), the same text without a prefix. Rows are features of one CLIP.
            params: ``convention`` (``scale``, and ``floor`` and ``standard`` where it has them) and what it is
                compared with, ``model`` and ``prefix``.

        Returns:
            One score an item, in the convention's range. ``detail.cosine`` is the mean cosine with ``text`` and
            ``detail.cosine_noprefix`` that with ``plain``, both in [-1, 1] and never clipped. ``non_finite`` where a
            feature has no direction.
        """
        standard = params.convention.get("standard", {})
        flags = ("nonstandard_convention",) if any(params[key] != value for key, value in standard.items()) else ()
        return [self._score(item["image"], item["text"], item["plain"], params.convention, flags) for item in items]

    def _score(
        self, image: Feature, text: Feature, plain: Feature, convention: Params, flags: tuple[str, ...]
    ) -> Score | Unscored:
        try:
            cosine = cosines(image.values, text.values)
            bare = cosine if plain is text else cosines(image.values, plain.values)
        except FloatingPointError as error:
            return Unscored("non_finite", str(error))
        value = convention.scale * np.maximum(cosine, convention.get("floor", -math.inf))
        detail = {
            "cosine": weighted_mean(cosine, image.weights),
            "cosine_noprefix": weighted_mean(bare, image.weights),
            **image.detail,
            **text.detail,
        }
        own = dict.fromkeys((*image.flags, *text.flags, *plain.flags, *flags))
        return Score(weighted_mean(value, image.weights), detail=detail, flags=tuple(own))
