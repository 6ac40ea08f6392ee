"""CLIP directional similarity of an edit (Gal et al., StyleGAN-NADA, SIGGRAPH 2022, arXiv 2108.00946)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from genmeter.contract import Feature, Params, Score, Unscored
from genmeter.stats.cosine import cosines

# A change of unit vectors that is shorter than this is rounding, and its direction noise.
SHORTEST = 1e-4


class ClipDirectional:
    """The cosine of two changes: from the input image to the output, and from the source text to the target text."""

    def score(self, items: Sequence[Mapping[str, Feature]], params: Params) -> list[Score | Unscored]:
        """Score edits.

        Args:
            items: Each with ``image`` (the output), ``source`` (the input image), ``source_text`` and
                ``target_text``: (1, d) features of one CLIP, taken at length 1.
            params: The variant's parameters; none of them changes anything here.

        Returns:
            One score an item in [-1, 1], with the lengths of both changes in the detail. ``non_finite`` where the
            output equals its input (the change has no direction) or a feature has none; ``not_applicable`` where the
            two texts are the same, so that there is nothing to edit.
        """
        return [self._score(item) for item in items]

    def _score(self, item: Mapping[str, Feature]) -> Score | Unscored:
        source, target = _unit(item["source_text"]), _unit(item["target_text"])
        before, after = _unit(item["source"]), _unit(item["image"])
        texts, images = target - source, after - before
        lengths = {"image_change": float(np.linalg.norm(images)), "text_change": float(np.linalg.norm(texts))}
        if not np.isfinite(list(lengths.values())).all():
            return Unscored("non_finite", "a feature has no direction: it is zero, or holds NaN or infinity")
        if lengths["text_change"] < SHORTEST:
            return Unscored(
                "not_applicable",
                "source and target text are the same to the network: there is no edit to follow",
                "let metadata.source_prompt describe the input, and metadata.target_prompt the output",
            )
        if lengths["image_change"] < SHORTEST:
            return Unscored(
                "non_finite",
                "the output is the input image to the network: a change of length 0 has no direction",
                "the model changed nothing; clip_i/input and lpips/input say so with a number",
            )
        value = float(cosines(images[None], texts[None])[0])
        flags = dict.fromkeys(flag for feature in item.values() for flag in feature.flags)
        return Score(value, detail={**lengths, **item["target_text"].detail}, flags=tuple(flags))


def _unit(feature: Feature) -> np.ndarray:
    """(d,) float64 of length 1; NaN where the feature has no direction."""
    vector = np.asarray(feature.values, dtype=np.float64)[0]
    with np.errstate(all="ignore"):
        unit: np.ndarray = vector / np.linalg.norm(vector)
    return unit
