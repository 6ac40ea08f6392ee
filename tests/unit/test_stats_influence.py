"""Influence by leave-one-out against refitting the distance without each sample."""

from __future__ import annotations

import numpy as np
import pytest

from genmeter.stats import frechet_distance
from genmeter.stats.influence import closed_form, influences
from genmeter.stats.moments import moments_of
from genmeter.stats.spread import spread_of, spread_of_moments


def gaussian(n, d, seed, decay=0.05, shift=0.0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) * np.exp(-np.arange(d) * decay) + shift


def refitted(x, y, units, ddof=1):
    """The definition: (F - 1)(FD - FD without the sample), less its mean."""
    count = units.max() + 1
    whole = frechet_distance(x, y, ddof=ddof)
    found = np.array([whole - frechet_distance(x[units != unit], y, ddof=ddof) for unit in range(count)])
    return (count - 1) * (found - found.mean())


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize(("n", "m", "d"), [(40, 40, 90), (80, 150, 20), (30, 200, 30), (60, 25, 40), (3, 9, 4)])
def test_against_refits(n, m, d, ddof):
    x, y = gaussian(n, d, 1), gaussian(m, d, 2, shift=0.1)
    x[0] += 3.0
    found = influences(x, spread_of(x, ddof), spread_of(y, ddof), ddof=ddof)
    expected = refitted(x, y, np.arange(n), ddof)
    assert found == pytest.approx(expected, abs=1e-7 * np.abs(expected).max())
    assert found.sum() == pytest.approx(0.0, abs=1e-9 * np.abs(found).sum())
    assert found.argmax() == 0, "an outlier raises the distance most"


@pytest.mark.parametrize("k", [2, 5, 12])
@pytest.mark.parametrize("d", [15, 150])
def test_files_of_several_rows(k, d):
    units = np.random.default_rng(3).permutation(np.concatenate([np.repeat(np.arange(6), k), np.arange(6, 50)]))
    x, y = gaussian(len(units), d, 1), gaussian(100, d, 2)
    found = influences(x, spread_of(x, 1), spread_of(y, 1), units)
    expected = refitted(x, y, units)
    assert found == pytest.approx(expected, abs=1e-7 * np.abs(expected).max())


def test_duplicates_and_dead_columns():
    x, y = gaussian(60, 20, 1), gaussian(80, 20, 2)
    x[10:20] = x[0]
    x[:, 3] = y[:, 3] = 2.0
    found = influences(x, spread_of(x, 1), spread_of(y, 1))
    expected = refitted(x, y, np.arange(60))
    assert found == pytest.approx(expected, abs=1e-7 * np.abs(expected).max())
    assert found[10:20] == pytest.approx(np.full(10, found[0]))


def test_against_stored_moments_and_a_constant_reference():
    x, y = gaussian(60, 20, 1), gaussian(80, 20, 2)
    found = influences(x, spread_of(x, 1), spread_of_moments(moments_of(y), 1))
    assert found == pytest.approx(influences(x, spread_of(x, 1), spread_of(y, 1)), rel=1e-6)
    still = np.full((5, 20), 0.5)
    found = influences(x, spread_of(x, 1), spread_of(still, 1))
    assert found == pytest.approx(refitted(x, still, np.arange(60)), rel=1e-9)


def test_scale_and_blocks_change_nothing(monkeypatch):
    x, y = gaussian(60, 20, 1), gaussian(80, 20, 2)
    plain = influences(x, spread_of(x, 1), spread_of(y, 1))
    scale = 2.0**200
    far = influences(x * scale, spread_of(x * scale, 1, scale), spread_of(y * scale, 1, scale), scale=scale)
    assert far == pytest.approx(plain * scale * scale, rel=1e-12)
    monkeypatch.setattr("genmeter.stats.moments.BLOCK_BYTES", 8 * 20 * 7)
    assert influences(x, spread_of(x, 1), spread_of(y, 1)) == pytest.approx(plain, rel=1e-8, abs=1e-12)


def test_nothing_to_leave_out():
    two, y = gaussian(2, 5, 1), gaussian(9, 5, 2)
    assert influences(two, spread_of(two, 1), spread_of(y, 1)) is None
    x = gaussian(10, 5, 1)
    one_file = np.zeros(10, int)
    assert influences(x, spread_of(x, 1), spread_of(y, 1), one_file) is None
    nearly = np.array([0] * 9 + [1])
    assert influences(x, spread_of(x, 1), spread_of(y, 1), nearly) is None


def test_closed_form_is_the_limit_of_many():
    x, y = gaussian(3000, 10, 1), gaussian(3000, 10, 2, shift=0.2)
    exact, limit = influences(x, spread_of(x, 1), spread_of(y, 1)), closed_form(x, spread_of(x, 1), spread_of(y, 1))
    assert np.corrcoef(exact, limit)[0, 1] > 0.9999
    assert limit == pytest.approx(exact, abs=0.02 * np.abs(exact).max())


def test_closed_form_is_the_derivative():
    """Moving a small share of the weight to one point changes the distance by its influence."""
    from genmeter.contract import Moments
    from genmeter.stats import frechet_distance_from_moments

    x, y = gaussian(200, 6, 1), gaussian(300, 6, 2, shift=0.3)
    found = closed_form(x, spread_of(x, 0), spread_of(y, 1))
    mean, cov = x.mean(axis=0), np.cov(x, rowvar=False, ddof=0)
    share = 1e-5
    for row in (0, 7, 50):
        u = x[row] - mean
        moved = Moments(mean + share * u, (1 - share) * (cov + share * np.outer(u, u)), 10**9)
        before = frechet_distance_from_moments(Moments(mean, cov, 10**9), moments_of(y))
        slope = (frechet_distance_from_moments(moved, moments_of(y)) - before) / share
        assert slope == pytest.approx(found[row], rel=2e-3, abs=1e-3)


def test_closed_form_overstates_outliers_of_small_sets():
    x, y = gaussian(128, 400, 1, decay=0.02), gaussian(128, 400, 2, decay=0.02)
    x[0] += 4.0 * np.exp(-np.arange(400) * 0.02)
    exact, limit = (f(x, spread_of(x, 1), spread_of(y, 1)) for f in (influences, closed_form))
    assert np.corrcoef(exact, limit)[0, 1] > 0.9
    assert limit[0] > 1.2 * exact[0]
