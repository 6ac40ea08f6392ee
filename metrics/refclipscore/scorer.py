"""RefCLIPScore: CLIPScore joined with reference captions (Hessel et al., EMNLP 2021, arXiv 2104.08718)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from genmeter.contract import Feature, Params, Score, Unscored
from genmeter.stats.cosine import cosines, weighted_mean


class RefClipScore:
    """Harmonic mean of the image's CLIPScore and the caption's likeness to a reference caption."""

    def score(self, items: Sequence[Mapping[str, Feature]], params: Params) -> list[Score | Unscored]:
        """Score images with their caption against one reference caption each.

        The harmonic mean grows with the second half, so the greatest of several scores is the score of the closest
        reference, as published.

        Args:
            items: Each with ``image`` (k, d), ``text`` and ``reference`` (1, d), prefixed as the convention says, and
                ``plain`` (1, d), the caption without a prefix.
            params: ``convention.scale``; ``convention.standard`` is what ``model`` and ``prefix`` are compared with.

        Returns:
            One score an item in [0, 10/7], 0 where both halves are; ``non_finite`` where a feature has no direction.
        """
        convention = params.convention
        departs = any(params[key] != value for key, value in convention.standard.items())
        flags = ("nonstandard_convention",) if departs else ()
        return [self._score(item, convention.scale, flags) for item in items]

    def _score(self, item: Mapping[str, Feature], scale: float, flags: tuple[str, ...]) -> Score | Unscored:
        image, text, plain, reference = (item[name] for name in ("image", "text", "plain", "reference"))
        try:
            cosine = weighted_mean(cosines(image.values, text.values), image.weights)
            bare = weighted_mean(cosines(image.values, plain.values), image.weights)
            likeness = float(cosines(text.values, reference.values)[0])
        except FloatingPointError as error:
            return Unscored("non_finite", str(error))
        first, second = scale * max(cosine, 0.0), max(likeness, 0.0)
        value = 2.0 * first * second / (first + second) if first + second > 0.0 else 0.0
        detail = {
            "clipscore": first,
            "cosine": cosine,
            "cosine_noprefix": bare,
            "cosine_reference": likeness,
            **image.detail,
            **text.detail,
        }
        own = dict.fromkeys((*image.flags, *text.flags, *plain.flags, *reference.flags, *flags))
        return Score(value, detail=detail, flags=tuple(own))
