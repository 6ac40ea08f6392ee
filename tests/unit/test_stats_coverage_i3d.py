"""Intervals of FVD on what they are for: real I3D features, far from Gaussian and of few effective dimensions.

The truth is known because samples are drawn, with replacement, from the features of a few hundred clips: the distance
of those two finite distributions is what the intervals have to cover. Measured: .98, .95 and .97 at 64, 128 and 256.
"""

from __future__ import annotations

import numpy as np
import pytest
from i3d_clips import logits
from set_coverage import difference_coverage, draws, frechet_coverage, resamples

from genmeter.stats import frechet_distance

pytestmark = [pytest.mark.slow, pytest.mark.weights, pytest.mark.timeout(3600)]
CLIPS = 240


@pytest.fixture(scope="module")
def populations():
    """Features of references, of a model and of a worse one (further clips of the same, with some of another kind)."""
    reference, model = logits(CLIPS, 1, False), logits(CLIPS, 2, True)
    worse = np.concatenate([model[CLIPS // 4 :], model[: CLIPS // 4] * 1.3 + 0.5])
    return reference, model, worse


@pytest.mark.parametrize("n", [64, 128, 256])
def test_coverage(populations, n):
    reference, model, _ = populations
    truth = frechet_distance(model, reference, ddof=0)
    spread = np.linalg.eigvalsh(np.cov(reference, rowvar=False))
    assert spread.sum() ** 2 / (spread**2).sum() < 15, "few of the 400 dimensions matter: features of the real kind"
    found = frechet_coverage(draws(150, 1, resamples(model, reference, n=n)), truth)
    assert 0.90 <= found.covered <= 0.99, found
    assert found.plug_in <= found.covered - 0.2, "the interval belongs to the corrected value"
    assert abs(found.corrected - truth) < 0.5 * abs(found.raw - truth)


@pytest.mark.parametrize("n", [128])
def test_coverage_of_a_difference(populations, n):
    reference, model, worse = populations
    truth = frechet_distance(worse, reference, ddof=0) - frechet_distance(model, reference, ddof=0)
    found = difference_coverage(draws(100, 2, resamples(worse, model, reference, n=n)), truth)
    assert 0.90 <= found.covered <= 1.0, found
