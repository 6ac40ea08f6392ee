"""FAD(CLAP): Frechet distance of two sets of sounds in CLAP space.

FAD: Kilgour et al., Interspeech 2019, arXiv 1812.08466, on VGGish; on CLAP: Gui et al., ICASSP 2024, arXiv 2311.01616.
"""

from __future__ import annotations

import numpy as np

from genmeter.contract import Moments, Params, Rows, SetScore, Unscored
from genmeter.stats.setscores import frechet_score


class Fad:
    """The statistics are those of :mod:`genmeter.stats`; what is left is the precision in which features are kept."""

    def score_set(self, prediction: Rows, reference: Rows | Moments, params: Params) -> SetScore | Unscored:
        """Score a set of sounds against a set of references.

        Args:
            prediction: (n, d) CLAP features of length 1, one row a window, n >= 2; ``units`` says which windows are of
                one file.
            reference: (m, d) likewise, m >= 2, or their moments.
            params: ``convention.half``: features are rounded to float16 first, as fadtk stores them.

        Returns:
            The plug-in value, at least 0; detail, rows and flags as :func:`genmeter.stats.setscores.frechet_score`.
            Counts are of windows, with the files beside them; influence and feature_distance are the file's.
        """
        if params.convention.half:
            prediction = prediction._replace(values=_half(prediction.values))
            if isinstance(reference, Rows):
                reference = reference._replace(values=_half(reference.values))
        return frechet_score(prediction, reference, name="FAD")


def _half(values: np.ndarray) -> np.ndarray:
    """The same rows in float16; a quarter of what they take in float64, so they are held as they are."""
    return np.asarray(values, dtype=np.float16)
