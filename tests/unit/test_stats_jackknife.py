"""Groups, the delete-a-group jackknife, paired differences and FD-infinity, against refits and known truths."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from set_coverage import difference_coverage, draws, frechet_coverage

from genmeter.contract import Moments
from genmeter.stats import frechet_distance, frechet_distance_from_moments
from genmeter.stats.extrapolate import frechet_infinity
from genmeter.stats.groups import GROUPS, deal, half, stable_order
from genmeter.stats.jackknife import LeftOut, delete_a_group, frechet_jackknife
from genmeter.stats.moments import moments_of
from genmeter.stats.paired import frechet_difference
from genmeter.stats.tdist import t_quantile


def gaussian(n, d, seed, decay=0.05, shift=0.0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) * np.exp(-np.arange(d) * decay) + shift


# Groups.


def test_groups_are_even_and_keep_clusters_whole():
    labels = np.repeat(np.arange(90), 3)
    (left, right), count = deal([labels, labels[::-1]])
    assert count == GROUPS
    for label in range(90):
        assert len({*left[labels == label], *right[labels[::-1] == label]}) == 1, (
            "both sides of a cluster leave together"
        )
    sizes = np.bincount(left)
    assert sizes.max() - sizes.min() <= 3
    assert len(sizes) == GROUPS


def test_there_are_no_more_groups_than_the_poorer_side_has_clusters():
    (left, right), count = deal([np.arange(7), np.arange(100, 1100)])
    assert count == 7
    assert sorted(left) == list(range(7))
    assert np.bincount(right).min() >= 142
    assert deal([np.zeros(5, int), np.arange(5)])[1] == 1


def test_groups_follow_content_and_not_order():
    labels = np.array([f"prompt {i}".encode() for i in range(100)], dtype="S32")
    (group,), _ = deal([labels])
    shuffle = np.random.default_rng(0).permutation(100)
    (other,), _ = deal([labels[shuffle]])
    assert np.array_equal(other, group[shuffle])


def test_groups_are_the_same_in_every_process():
    code = (
        "import numpy as np; from genmeter.stats.groups import stable_order;"
        "print(stable_order(np.array(['a', 'bc', 'def', 'x'])).tolist(), stable_order(np.arange(5)).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = f"{stable_order(np.array(['a', 'bc', 'def', 'x'])).tolist()} {stable_order(np.arange(5)).tolist()}"
    assert done.stdout.strip() == here


def test_halves_share_no_row_and_hardly_a_cluster():
    clusters = np.random.default_rng(1).integers(0, 60, 200)
    first, last = half(clusters, 100), half(clusters, 100, last=True)
    assert len(first) == len(last) == 100
    assert not set(first) & set(last)
    assert len(set(clusters[first]) & set(clusters[last])) <= 1


# The jackknife.


def test_the_mean_has_no_bias_and_the_usual_error():
    x = np.random.default_rng(0).standard_normal(40)
    parts = np.array([np.delete(x, i).mean() for i in range(40)])
    found = delete_a_group(float(x.mean()), parts)
    assert found.corrected == pytest.approx(x.mean())
    assert found.error == pytest.approx(x.std(ddof=1) / np.sqrt(40))
    width = t_quantile(0.975, 39) * found.error
    assert found.interval == pytest.approx((x.mean() - width, x.mean() + width))


def test_the_variance_of_a_sample_loses_its_bias_exactly():
    x = np.random.default_rng(0).standard_normal(40)
    parts = np.array([np.delete(x, i).var() for i in range(40)])
    assert delete_a_group(float(x.var()), parts).corrected == pytest.approx(x.var(ddof=1), rel=1e-12)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize(("n", "m", "d"), [(50, 60, 90), (200, 150, 30), (35, 300, 33), (41, 41, 40)])
def test_parts_equal_refits(n, m, d, ddof):
    x, y = gaussian(n, d, 1), gaussian(m, d, 2, shift=0.1)
    labels = np.arange(n), np.arange(m)
    (first, second), count = deal(list(labels))
    found = frechet_jackknife(x, y, labels, ddof=ddof)
    parts = [frechet_distance(x[first != g], y[second != g], ddof=ddof) for g in range(count)]
    expected = delete_a_group(frechet_distance(x, y, ddof=ddof), np.array(parts))
    assert found.groups == expected.groups == min(GROUPS, n)
    assert found.corrected == pytest.approx(expected.corrected, rel=1e-8)
    assert found.error == pytest.approx(expected.error, rel=1e-8)


def test_a_singular_covariance_is_no_trouble():
    x, y = gaussian(200, 30, 1), gaussian(200, 30, 2)
    x[:, 4] = y[:, 4] = 1.0
    found = frechet_jackknife(x, y)
    without = frechet_jackknife(np.delete(x, 4, axis=1), np.delete(y, 4, axis=1))
    assert found.corrected == pytest.approx(without.corrected, rel=1e-6)
    assert found.error == pytest.approx(without.error, rel=1e-6)


def test_stored_moments_stay_as_they_are():
    x, y = gaussian(120, 20, 1), gaussian(5000, 20, 2)
    found = frechet_jackknife(x, moments_of(y))
    (group,), count = deal([np.arange(120)])
    parts = [frechet_distance(x[group != g], y) for g in range(count)]
    expected = delete_a_group(frechet_distance(x, y), np.array(parts))
    assert found.corrected == pytest.approx(expected.corrected, rel=1e-8)
    assert found.interval == pytest.approx(expected.interval, rel=1e-8)


def test_scale_comes_out_squared():
    x, y = gaussian(60, 20, 1), gaussian(60, 20, 2)
    plain, scaled = frechet_jackknife(x, y), frechet_jackknife(x * 1e100, y * 1e100)
    assert scaled.corrected == pytest.approx(plain.corrected * 1e200, rel=1e-9)
    assert scaled.interval == pytest.approx(tuple(v * 1e200 for v in plain.interval), rel=1e-9)


def test_too_little_left():
    assert frechet_jackknife(gaussian(2, 5, 0), gaussian(2, 5, 1)) is None
    one = np.zeros(9, int)
    assert frechet_jackknife(gaussian(9, 5, 0), gaussian(9, 5, 1), (one, one)) is None
    assert LeftOut(gaussian(3, 5, 0), np.array([0, 0, 1]), 1).without(0) is None
    assert frechet_jackknife(gaussian(3, 5, 0), gaussian(3, 5, 1)).groups == 3


def test_identical_sets_have_no_bias_and_no_width():
    x = gaussian(100, 30, 1)
    labels = np.arange(100)
    found = frechet_jackknife(x, x, (labels, labels))
    assert abs(found.corrected) < 1e-9
    assert found.error < 1e-9


# Paired differences.


def test_difference_equals_refits():
    first, second, y = gaussian(80, 15, 1), gaussian(80, 15, 2, shift=0.2), gaussian(80, 15, 3)
    labels = np.repeat(np.arange(40), 2)
    found = frechet_difference(first, second, y, (labels, labels, labels))
    (group, _, _), count = deal([labels, labels, labels])
    parts = [
        frechet_distance(first[group != g], y[group != g]) - frechet_distance(second[group != g], y[group != g])
        for g in range(count)
    ]
    whole = frechet_distance(first, y) - frechet_distance(second, y)
    assert found.interval == pytest.approx(delete_a_group(whole, np.array(parts)).interval, rel=1e-8)


def test_difference_of_a_model_and_itself_is_nothing():
    x, y, labels = gaussian(60, 15, 1), gaussian(60, 15, 3), np.arange(60)
    found = frechet_difference(x, x, y, (labels, labels, labels))
    assert (found.corrected, found.error) == (0.0, 0.0)


def test_difference_against_moments():
    first, second, y = gaussian(80, 15, 1), gaussian(80, 15, 2, shift=0.2), gaussian(500, 15, 3)
    labels = np.arange(80)
    found = frechet_difference(first, second, moments_of(y), (labels, labels, None))
    apart = [frechet_jackknife(x, moments_of(y), (labels, None)) for x in (first, second)]
    assert found.corrected == pytest.approx(apart[0].corrected - apart[1].corrected, rel=1e-9)


# Coverage where the truth is known. Nominal 95 %; 150 repeats put two standard errors at 3.6 points.

TRUTHS = {"n above d": (16, 0.0, 60), "n near d": (32, 0.1, 50), "n below d": (60, 0.08, 40)}


def setting(name):
    """Spreads of both sides, mean of the second, rows, and the true distance."""
    d, decay, n = TRUTHS[name]
    s1 = np.exp(-np.arange(d) * decay)
    s2, mean = 1.3 * s1, 0.3 * s1
    truth = float((mean**2).sum() + ((s1 - s2) ** 2).sum())
    sides = (np.zeros(d), np.diag(s1**2), 9), (mean, np.diag(s2**2), 9)
    assert truth == pytest.approx(frechet_distance_from_moments(*sides))
    return s1, s2, mean, n, truth


@pytest.mark.parametrize("name", TRUTHS)
def test_coverage_of_the_interval(name):
    s1, s2, mean, n, truth = setting(name)

    def draw(rng):
        return rng.standard_normal((n, len(s1))) * s1, rng.standard_normal((n, len(s1))) * s2 + mean

    found = frechet_coverage(draws(150, 1, draw), truth)
    assert 0.90 <= found.covered <= 0.99
    assert found.plug_in < 0.25, "the interval belongs to the corrected value"
    assert found.corrected == pytest.approx(truth, rel=0.08)
    assert found.raw > 1.5 * truth


@pytest.mark.parametrize("name", TRUTHS)
def test_coverage_of_the_difference(name):
    s1, s2, mean, n, truth = setting(name)
    nearer = float((0.25 * mean**2).sum() + ((s1 - s2) ** 2).sum())

    def draw(rng):
        # Two models of one prompt and its reference have something in common.
        shared = rng.standard_normal((n, len(s1)))
        parts = [np.sqrt(0.5) * (shared + rng.standard_normal(shared.shape)) for _ in range(3)]
        return parts[0] * s2 + mean, parts[1] * s2 + 0.5 * mean, parts[2] * s1

    found = difference_coverage(draws(80, 2, draw), truth - nearer)
    assert 0.90 <= found.covered <= 1.0
    assert found.corrected == pytest.approx(truth - nearer, rel=0.15)


# FD-infinity.


def test_infinity_points_to_the_truth():
    d, n = 20, 400
    truth = d * 0.3**2
    found = [
        frechet_infinity(gaussian(n, d, 2 * seed, decay=0), gaussian(n, d, 2 * seed + 1, decay=0, shift=0.3))
        for seed in range(30)
    ]
    assert np.mean([fit.value for fit in found]) == pytest.approx(truth, rel=0.05)
    assert all(fit.sizes == (100, 400) for fit in found)
    assert np.median([fit.r2 for fit in found]) > 0.8
    raw = np.mean([frechet_distance(gaussian(n, d, 0, 0), gaussian(n, d, 1, 0, 0.3))])
    assert raw > 1.15 * truth


def test_infinity_is_refused_below_three_times_the_width():
    assert frechet_infinity(gaussian(59, 20, 1), gaussian(600, 20, 2)) is None
    assert frechet_infinity(gaussian(600, 20, 1), gaussian(59, 20, 2)) is None
    fit = frechet_infinity(gaussian(60, 20, 1), gaussian(600, 20, 2))
    assert fit.sizes == (40, 60)
    assert fit == frechet_infinity(gaussian(60, 20, 1), gaussian(600, 20, 2)), "the draws are seeded"


def test_infinity_draws_files_whole():
    x, y = gaussian(120, 20, 1), gaussian(120, 20, 2)
    # 40 windows that repeat themselves: whole files say so, single rows would look like three times the data.
    repeated = np.repeat(x[:40], 3, axis=0)
    by_row = frechet_infinity(repeated, y)
    by_file = frechet_infinity(repeated, y, (np.repeat(np.arange(40), 3), np.arange(120)))
    assert by_file.slope > 1.1 * by_row.slope
    assert by_file.value < by_row.value


def test_moments_are_a_reference_too():
    assert isinstance(moments_of(gaussian(30, 4, 0)), Moments)
