"""Means and intervals against closed forms, scipy and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from genmeter.stats.means import exact_mean, mean_summary
from genmeter.stats.tdist import t_quantile


def test_against_scipy_without_clusters() -> None:
    from scipy import stats

    x = np.random.default_rng(1).normal(3, 2, 37)
    found = mean_summary(x)
    assert found["mean"] == pytest.approx(x.mean(), rel=1e-14)
    assert found["sem"] == pytest.approx(stats.sem(x), rel=1e-13)
    low, high = stats.t.interval(0.95, 36, x.mean(), stats.sem(x))
    assert found["interval95"] == pytest.approx([low, high], rel=1e-10)
    assert found["median"] == np.median(x)
    assert found["quantiles"] == {"p05": np.quantile(x, 0.05), "p95": np.quantile(x, 0.95)}
    assert found["clusters"] == 37


def test_by_hand() -> None:
    # 1, 2, 3, 4: mean 2.5, s^2 = 5/3, sem = sqrt(5/12), t(3) = 3.182446
    found = mean_summary(np.array([1.0, 2.0, 3.0, 4.0]))
    assert found["sem"] == pytest.approx(math.sqrt(5 / 12), rel=1e-15)
    half = 3.182446305284263 * math.sqrt(5 / 12)
    assert found["interval95"] == pytest.approx([2.5 - half, 2.5 + half], rel=1e-12)


def test_clustered_by_hand() -> None:
    # clusters (0, 2), (4, 6), (9): mean 4.2; sums of deviations -6.4, 1.6, 4.8
    found = mean_summary(np.array([0.0, 2.0, 4.0, 6.0, 9.0]), np.array(["a", "a", "b", "b", "c"]))
    expected = math.sqrt(3 / 2 * (6.4**2 + 1.6**2 + 4.8**2)) / 5
    assert found["sem"] == pytest.approx(expected, rel=1e-14)
    assert found["clusters"] == 3
    # Older releases of SciPy give the quantile to eleven digits.
    assert found["interval95"][1] - found["mean"] == pytest.approx(4.302652729749464 * expected, rel=1e-9)


def test_one_sample_a_cluster_is_the_plain_interval() -> None:
    x = np.random.default_rng(2).random(50)
    found, plain = mean_summary(x, np.arange(50)[::-1]), mean_summary(x)
    assert found["sem"] == pytest.approx(plain["sem"], rel=1e-13)
    assert found["interval95"] == pytest.approx(plain["interval95"], rel=1e-13)
    assert found["clusters"] == plain["clusters"] == 50


def test_copies_of_each_sample_add_no_certainty() -> None:
    x = np.random.default_rng(3).random(30)
    once = mean_summary(x)
    copied = mean_summary(np.repeat(x, 8), np.repeat(np.arange(30), 8))
    assert copied["sem"] == pytest.approx(once["sem"], rel=1e-12)
    assert copied["interval95"] == pytest.approx(once["interval95"], rel=1e-12)
    assert mean_summary(np.repeat(x, 8))["sem"] < once["sem"] / 2


def test_nothing_and_one() -> None:
    none = mean_summary(np.array([]))
    assert none["mean"] is none["sem"] is none["median"] is none["interval95"] is None
    assert none["quantiles"] == {"p05": None, "p95": None}
    one = mean_summary(np.array([0.25]))
    assert (one["mean"], one["median"], one["sem"], one["interval95"]) == (0.25, 0.25, None, None)


def test_one_cluster_has_a_mean_but_no_interval() -> None:
    found = mean_summary(np.array([1.0, 2.0, 3.0]), np.zeros(3))
    assert found["mean"] == 2.0
    assert found["sem"] is None
    assert found["interval95"] is None


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-300, 1e300, -7.7])
@pytest.mark.parametrize("n", [2, 3, 10, 999])
def test_equal_values_have_exactly_that_mean(value: float, n: int) -> None:
    found = mean_summary(np.full(n, value))
    assert found["mean"] == value
    assert found["sem"] == 0.0
    assert found["interval95"] == [value, value]


def test_order_does_not_change_the_mean() -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(0, 1, 5000) * 10.0 ** rng.integers(-8, 8, 5000)
    means = {exact_mean(rng.permutation(x)) for _ in range(5)}
    assert len(means) == 1


def test_values_are_finite_or_refused() -> None:
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite"):
            mean_summary(np.array([1.0, bad]))
    huge = mean_summary(np.array([1e308, 1.7e308, -1.7e308]))
    assert math.isfinite(huge["mean"])
    assert huge["sem"] is None or math.isfinite(huge["sem"])
    with pytest.raises(ValueError, match="2 values but 3"):
        mean_summary(np.array([1.0, 2.0]), np.arange(3))


def test_results_are_plain_numbers() -> None:
    found = mean_summary(np.array([1, 2, 3], dtype=np.float32), np.array([1, 1, 2]))
    assert {type(found[k]) for k in ("mean", "sem", "median")} == {float}
    assert {type(v) for v in [*found["interval95"], *found["quantiles"].values()]} == {float}


@pytest.mark.parametrize("df", [1, 2, 5, 30, 1000, 1e6])
def test_t_quantile(df: float) -> None:
    from scipy import stats

    assert t_quantile(0.975, df) == pytest.approx(stats.t.ppf(0.975, df), rel=1e-9)


def test_coverage_of_independent_samples() -> None:
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(1500):
        low, high = mean_summary(rng.normal(1.0, 2.0, 8))["interval95"]
        hits += low <= 1.0 <= high
    assert 0.93 <= hits / 1500 <= 0.97  # binomial sd 0.006


def test_coverage_when_outputs_share_a_prompt() -> None:
    """25 prompts with 6 outputs each, most of the variance between prompts: the plain interval is far too narrow."""
    rng = np.random.default_rng(6)
    clusters = np.repeat(np.arange(25), 6)
    clustered = plain = 0
    for _ in range(1000):
        x = rng.normal(0, 1, 25)[clusters] + rng.normal(0, 0.6, 150)
        low, high = mean_summary(x, clusters)["interval95"]
        clustered += low <= 0.0 <= high
        low, high = mean_summary(x)["interval95"]
        plain += low <= 0.0 <= high
    assert 0.925 <= clustered / 1000 <= 0.975
    assert plain / 1000 < 0.75
