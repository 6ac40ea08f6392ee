"""KVD: kernel distance of two sets of videos in I3D's logits (Unterthiner et al., 2018, arXiv 1812.01717)."""

from __future__ import annotations

from genmeter.contract import Moments, Params, Rows, SetScore, Unscored
from genmeter.stats.setscores import mmd_score


class Kvd:
    """The MMD of :mod:`genmeter.stats` with the kernel (x.y/d + 1)^3, on the whole sets."""

    def score_set(self, prediction: Rows, reference: Rows | Moments, params: Params) -> SetScore | Unscored:
        """Score a set of videos against a set of references.

        Args:
            prediction: (n, 400) logits, one row a video, n >= 2.
            reference: (m, 400) logits, m >= 2; moments are not enough.
            params: The variant's parameters; none of them changes anything here.

        Returns:
            The unbiased estimate, which may be below 0; detail, rows and flags as
            :func:`genmeter.stats.setscores.mmd_score`.
        """
        return mmd_score(prediction, reference, name="KVD")
