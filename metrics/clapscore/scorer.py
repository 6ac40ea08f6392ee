"""CLAPScore: how well a sound fits its text (CLAP: Wu et al., ICASSP 2023, arXiv 2211.06687)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from genmeter.contract import Feature, Params, Score, Unscored
from genmeter.stats.cosine import cosines, weighted_mean


class ClapScore:
    """The cosine of sound and text, averaged over windows by their seconds; one window up to 10 s."""

    def score(self, items: Sequence[Mapping[str, Feature]], params: Params) -> list[Score | Unscored]:
        """Score sounds against their texts.

        Args:
            items: Each with ``audio``: (k, d), one row a window, weights in seconds; ``text``: (1, d). Rows are
                features of one CLAP.
            params: ``convention`` (``standard`` where it has one) and what it is compared with.

        Returns:
            One score an item in [-1, 1], never clipped. ``detail`` holds ``seconds`` and ``windows``, and
            ``per_window`` where there are several; ``non_finite`` where a feature has no direction.
        """
        standard = params.convention.get("standard", {})
        flags = ("nonstandard_convention",) if any(params[key] != value for key, value in standard.items()) else ()
        return [self._score(item["audio"], item["text"], flags) for item in items]

    def _score(self, audio: Feature, text: Feature, flags: tuple[str, ...]) -> Score | Unscored:
        try:
            cosine = cosines(audio.values, text.values)
        except FloatingPointError as error:
            return Unscored("non_finite", str(error))
        detail: dict[str, Any] = {**audio.detail, **text.detail}
        if len(cosine) > 1:
            detail["per_window"] = [float(value) for value in cosine]
        own = dict.fromkeys((*audio.flags, *text.flags, *flags))
        return Score(weighted_mean(cosine, audio.weights), detail=detail, flags=tuple(own))
