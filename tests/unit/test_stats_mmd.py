"""The polynomial MMD against the double sum as it is written, published values and known distributions."""

from __future__ import annotations

import numpy as np
import pytest

from genmeter.stats import polynomial_mmd
from genmeter.stats.groups import deal
from genmeter.stats.jackknife import delete_a_group
from genmeter.stats.mmd import CUBIC, Kernel, kernel_sums, mmd_influences, mmd_jackknife, mmd_of
from genmeter.stats.permutation import mmd_permutation_test


def gaussian(n, d, seed, shift=0.0):
    return np.random.default_rng(seed).standard_normal((n, d)) + shift


def double_loop(x, y, kernel=CUBIC):
    """Means over all pairs of different rows within each set and over all pairs across."""
    gamma = 1.0 / x.shape[1] if kernel.gamma is None else kernel.gamma

    def k(a, b):
        return (gamma * float(a @ b) + kernel.coef0) ** kernel.degree

    within = [
        np.mean([k(rows[i], rows[j]) for i in range(len(rows)) for j in range(len(rows)) if i != j]) for rows in (x, y)
    ]
    across = np.mean([k(a, b) for a in x for b in y])
    return float(within[0] + within[1] - 2 * across)


@pytest.mark.parametrize("kernel", [CUBIC, Kernel(2, 0.0), Kernel(1, 0.5, 2.0), Kernel(4, 1.0)])
@pytest.mark.parametrize("block", [512, 7])
def test_against_a_double_loop(kernel, block, monkeypatch):
    monkeypatch.setattr("genmeter.stats.mmd._BLOCK", block)
    x, y = gaussian(23, 5, 1), gaussian(31, 5, 2, shift=0.3)
    assert polynomial_mmd(x, y, **kernel._asdict()) == pytest.approx(double_loop(x, y, kernel), rel=1e-11)


def test_jedi_examples():
    a = np.arange(1, 10).reshape(3, 3)
    b = np.array([[7, 6, 5], [4, 3, 2], [1, 1, 8], [0, 2, 5]])
    assert polynomial_mmd(a, b, degree=2, coef0=0, estimator="v") == pytest.approx(270.722, abs=1e-3)
    assert polynomial_mmd(a, b, degree=3, coef0=1, estimator="v") == pytest.approx(23088.0833, abs=1e-3)
    assert polynomial_mmd(a, b, degree=2, coef0=0, gamma=1.0, estimator="v") == pytest.approx(2436.5, abs=1e-6)


def test_the_linear_kernel_is_the_gap_of_means():
    x, y = gaussian(40, 6, 1), gaussian(50, 6, 2, shift=0.5)
    gap = x.mean(axis=0) - y.mean(axis=0)
    assert polynomial_mmd(x, y, degree=1, coef0=0, gamma=1.0, estimator="v") == pytest.approx(float(gap @ gap))


def test_no_bias_where_nothing_differs():
    found = [polynomial_mmd(gaussian(30, 20, 2 * s), gaussian(30, 20, 2 * s + 1)) for s in range(300)]
    assert abs(np.mean(found)) < 3 * np.std(found) / np.sqrt(300)
    assert min(found) < 0 < max(found)
    biased = [polynomial_mmd(gaussian(30, 20, s), gaussian(30, 20, s + 500), estimator="v") for s in range(20)]
    assert min(biased) > 0


def test_order_sides_and_types_do_not_matter():
    x, y = gaussian(700, 8, 1).astype(np.float32), gaussian(520, 8, 2, shift=0.2).astype(np.float32)
    value = polynomial_mmd(x, y)
    rng = np.random.default_rng(0)
    assert polynomial_mmd(rng.permutation(x), rng.permutation(y)) == pytest.approx(value, rel=1e-9)
    assert polynomial_mmd(y, x) == pytest.approx(value, rel=1e-9)
    assert polynomial_mmd(x.astype(np.float64), y) == value


@pytest.mark.parametrize("bad", [np.zeros(9), np.zeros((1, 8)), np.full((5, 8), np.nan), np.zeros((5, 7))])
def test_refused(bad):
    with pytest.raises(ValueError, match=r"expected|at least|NaN"):
        polynomial_mmd(bad, gaussian(9, 8, 0))


def test_interval_equals_refits():
    x, y = gaussian(90, 6, 1), gaussian(70, 6, 2, shift=0.3)
    labels = np.repeat(np.arange(45), 2), np.arange(70)
    groups, count = deal(list(labels))
    found = mmd_jackknife(kernel_sums(x, y, CUBIC, tuple(groups), count), tuple(groups), count)
    parts = np.array([polynomial_mmd(x[groups[0] != g], y[groups[1] != g]) for g in range(count)])
    whole = polynomial_mmd(x, y)
    assert found.interval == pytest.approx(delete_a_group(whole, parts, unbiased=True).interval, rel=1e-8)
    assert found.corrected == pytest.approx(whole)
    assert sum(found.interval) / 2 == pytest.approx(whole)


def test_interval_covers():
    d, n, shift = 10, 60, 0.4
    truth = np.mean([polynomial_mmd(gaussian(2000, d, s), gaussian(2000, d, s + 50, shift)) for s in range(4)])
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(200):
        x, y = rng.standard_normal((n, d)), rng.standard_normal((n, d)) + shift
        groups, count = deal([np.arange(n), np.arange(n, 2 * n)])
        low, high = mmd_jackknife(kernel_sums(x, y, CUBIC, tuple(groups), count), tuple(groups), count).interval
        inside += low <= truth <= high
    assert 0.90 <= inside / 200 <= 0.99


def test_too_little_left():
    x = gaussian(2, 3, 1)
    groups, count = deal([np.arange(2), np.arange(2)])
    assert mmd_jackknife(kernel_sums(x, x, CUBIC, tuple(groups), count), tuple(groups), count) is None
    assert mmd_influences(x, kernel_sums(x, x)) is None


@pytest.mark.parametrize("k", [1, 3])
def test_influence_equals_refits(k):
    units = np.random.default_rng(0).permutation(np.repeat(np.arange(20), k))
    x, y = gaussian(len(units), 5, 1), gaussian(40, 5, 2)
    found = mmd_influences(x, kernel_sums(x, y), units)
    whole = polynomial_mmd(x, y)
    expected = np.array([whole - polynomial_mmd(x[units != unit], y) for unit in range(20)]) * 19
    assert found == pytest.approx(expected - expected.mean(), rel=1e-8, abs=1e-10)


# The permutation test.


def test_permutation_test_says_what_a_naive_one_says():
    x, y = gaussian(12, 4, 1), gaussian(9, 4, 2, shift=0.35)
    pooled = np.concatenate([x, y])
    rng = np.random.default_rng(5)
    whole = mmd_of(kernel_sums(x, y))
    values = []
    for _ in range(400):
        order = rng.permutation(21)
        values.append(polynomial_mmd(pooled[order[:12]], pooled[order[12:]]))
    naive = (1 + sum(v >= whole for v in values)) / 401
    assert mmd_permutation_test(x, y, permutations=1999) == pytest.approx(naive, abs=0.08)


def test_permutation_test_is_level_and_has_power():
    same = [
        mmd_permutation_test(gaussian(30, 6, 2 * s), gaussian(30, 6, 2 * s + 1), permutations=99) for s in range(100)
    ]
    assert sum(p <= 0.1 for p in same) <= 18
    assert np.mean(same) == pytest.approx(0.5, abs=0.1)
    assert mmd_permutation_test(gaussian(60, 6, 1), gaussian(60, 6, 2, shift=0.6)) == 1 / 500
    assert mmd_permutation_test(gaussian(60, 6, 1), gaussian(60, 6, 1)) > 0.9


def test_pairs_change_sides_together():
    """Outputs that resemble their own references: shuffled freely, sets that share so much look suspiciously equal."""
    rng = np.random.default_rng(2)
    levels, labels = [], np.arange(40)
    for _ in range(60):
        shared = rng.standard_normal((40, 6))
        x, y = (shared + 0.3 * rng.standard_normal((40, 6)) for _ in range(2))
        levels.append(
            (
                mmd_permutation_test(x, y, (labels, labels), permutations=99),
                mmd_permutation_test(x, y, permutations=99),
            )
        )
    paired, free = np.array(levels).T
    assert paired.mean() == pytest.approx(0.5, abs=0.12), "a p value is even where nothing differs"
    assert free.mean() > 0.8


def test_windows_of_a_file_move_together():
    rng = np.random.default_rng(4)
    labels = np.repeat(np.arange(15), 4), np.repeat(np.arange(15, 30), 4)
    levels = []
    for _ in range(60):
        x, y = (np.repeat(rng.standard_normal((15, 6)), 4, axis=0) + 0.2 * rng.standard_normal((60, 6)) for _ in "xy")
        levels.append(
            (mmd_permutation_test(x, y, labels, permutations=99), mmd_permutation_test(x, y, permutations=99))
        )
    whole, single = np.array(levels).T
    assert (whole <= 0.1).mean() <= 0.2
    assert (single <= 0.1).mean() >= 0.5, "four windows are not four sounds"


def test_blocks_change_nothing(monkeypatch):
    x, y = gaussian(33, 4, 1), gaussian(21, 4, 2, shift=0.2)
    whole = mmd_permutation_test(x, y)
    monkeypatch.setattr("genmeter.stats.permutation._BLOCK", 10)
    assert mmd_permutation_test(x, y) == whole
