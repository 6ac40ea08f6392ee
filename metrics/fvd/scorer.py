"""FVD: Frechet distance of two sets of videos in I3D's logits (Unterthiner et al., 2018, arXiv 1812.01717)."""

from __future__ import annotations

from genmeter.contract import Moments, Params, Rows, SetScore, Unscored
from genmeter.stats.setscores import frechet_score


class Fvd:
    """The statistics are those of :mod:`genmeter.stats`; what is left is the convention's covariance."""

    def score_set(self, prediction: Rows, reference: Rows | Moments, params: Params) -> SetScore | Unscored:
        """Score a set of videos against a set of references.

        Args:
            prediction: (n, 400) logits, one row a video, n >= 2.
            reference: (m, 400) logits, m >= 2, or their moments.
            params: ``convention.ddof``: covariances are divided by n - ddof.

        Returns:
            The plug-in value, at least 0; detail, rows and flags as :func:`genmeter.stats.setscores.frechet_score`.
        """
        return frechet_score(prediction, reference, ddof=params.convention.ddof, name="FVD")
