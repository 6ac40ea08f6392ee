"""The Frechet distance against closed forms, published values and scipy's matrix root."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import linalg

import genmeter.stats
from genmeter.contract import Moments
from genmeter.stats import frechet_distance, frechet_distance_from_moments
from genmeter.stats.moments import BLOCK_BYTES, Picked, moments_of
from genmeter.stats.spread import spread_of, triangle


def by_sqrtm(x, y, ddof=1):
    """The formula as it is written, with scipy's matrix root of the product of the covariances."""
    s1, s2 = (np.cov(rows, rowvar=False, ddof=ddof) for rows in (x, y))
    gap = x.mean(axis=0) - y.mean(axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = linalg.sqrtm(s1 @ s2)
    return float(gap @ gap + np.trace(s1) + np.trace(s2) - 2 * np.trace(np.real(root)))


def gaussian(n, d, seed, decay=0.0, shift=0.0, scale=1.0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n, d)) * np.exp(-np.arange(d) * decay) + shift) * scale


# Published values and cases.


def test_tf_gan_example():
    np.random.seed(0)
    x, y = (np.random.randn(512, 256).astype(np.float32) for _ in range(2))
    assert frechet_distance(x, y) == pytest.approx(65.7427236504353, rel=1e-9)
    assert frechet_distance(x, y, ddof=0) == pytest.approx(65.61650371103633, rel=1e-9)


def test_torch_fidelity_singular_example():
    rng = np.random.RandomState(1)
    x, y = rng.randn(4, 4), rng.randn(4, 4)
    assert frechet_distance(x, y) == pytest.approx(4.753837617472013, rel=1e-9)
    assert frechet_distance_from_moments(moments_of(x), moments_of(y)) == pytest.approx(4.753837617472013, rel=1e-5)


def test_pytorch_fid_examples():
    d = 2048
    assert frechet_distance_from_moments((np.zeros(d), np.eye(d), 9), (np.ones(d), np.eye(d), 9)) == pytest.approx(2048)
    constant = np.repeat([[0.0], [0.5], [1.0]], 7, axis=1)
    moments = moments_of(constant)
    assert moments.mean == pytest.approx(np.full(7, 0.5))
    assert moments.cov == pytest.approx(np.full((7, 7), 0.25))


@pytest.mark.parametrize(("n", "value"), [(2, 1092.445), (4, 955.020), (8, 810.533), (64, 549.817), (500, 162.090)])
def test_fewer_samples_than_dimensions(n, value):
    rng = np.random.default_rng(0)
    for m in (2, 4, 8, 64, 500):
        x, y = rng.standard_normal((m, 400)), rng.standard_normal((m, 400))
        if m == n:
            break
    assert frechet_distance(x, y) == pytest.approx(value, abs=1e-3)
    assert frechet_distance(x, x) <= 1e-9 * np.var(x, axis=0).sum()
    assert frechet_distance_from_moments(moments_of(x), moments_of(y)) == pytest.approx(value, abs=1e-2)


def test_zeros_against_constants_are_the_gap_of_means():
    x, y = np.zeros((16, 400), np.float32), np.full((16, 400), 0.5, np.float32)
    assert frechet_distance(x, y) == 100.0
    assert frechet_distance(x, x) == 0.0


# Closed forms.


def test_diagonal_covariances():
    s1, s2 = np.exp(-np.arange(30) / 7), np.linspace(0.1, 3, 30)
    mean = np.linspace(-1, 1, 30)
    value = frechet_distance_from_moments((np.zeros(30), np.diag(s1**2), 50), (mean, np.diag(s2**2), 50))
    assert value == pytest.approx((mean**2).sum() + ((s1 - s2) ** 2).sum(), rel=1e-10)


def test_one_dimension():
    x, y = gaussian(50, 1, 0), gaussian(70, 1, 1, shift=2.0, scale=3.0)
    sides = [(rows.mean(), rows.std(ddof=1)) for rows in (x, y)]
    value = (sides[0][0] - sides[1][0]) ** 2 + (sides[0][1] - sides[1][1]) ** 2
    assert frechet_distance(x, y) == pytest.approx(value, rel=1e-12)


def test_a_shift_adds_its_square_and_a_stretch_the_squared_difference_of_spreads():
    x = gaussian(300, 20, 3, decay=0.1)
    shift = np.linspace(0, 1, 20)
    assert frechet_distance(x, x + shift) == pytest.approx(float(shift @ shift), rel=1e-10)
    centred = x - x.mean(axis=0)
    trace = float(np.trace(np.cov(x, rowvar=False)))
    assert frechet_distance(centred, 3 * centred) == pytest.approx(4 * trace, rel=1e-10)


# scipy, side by side.


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize(("n", "m", "d"), [(200, 300, 30), (64, 64, 40), (500, 60, 50)])
def test_against_sqrtm(n, m, d, ddof):
    x, y = gaussian(n, d, 1, decay=0.02), gaussian(m, d, 2, decay=0.03, shift=0.2)
    expected = by_sqrtm(x, y, ddof)
    assert frechet_distance(x, y, ddof=ddof) == pytest.approx(expected, rel=1e-6)
    sides = moments_of(x), moments_of(y)
    assert frechet_distance_from_moments(*sides, ddof=ddof) == pytest.approx(expected, rel=1e-6)


# All routes agree: rows, Cholesky with eigenvalues, Cholesky with singular values, QR, moments.


@pytest.mark.parametrize("decay", [0.0, 0.1, 0.6, 1.5])
@pytest.mark.parametrize(("n", "m"), [(20, 20), (20, 200), (200, 20), (200, 300), (41, 40)])
def test_routes_agree(n, m, decay):
    x, y = gaussian(n, 40, 5, decay), gaussian(m, 40, 6, decay, shift=0.1)
    factors = [triangle(iter([rows - rows.mean(axis=0)])) / np.sqrt(len(rows) - 1) for rows in (x, y)]
    trace = sum(float((factor**2).sum()) for factor in factors)
    gap = x.mean(axis=0) - y.mean(axis=0)
    exact = float(gap @ gap) + trace - 2 * np.linalg.svd(factors[0] @ factors[1].T, compute_uv=False).sum()
    assert frechet_distance(x, y) == pytest.approx(exact, abs=1e-9 * trace)
    assert frechet_distance(y, x) == pytest.approx(exact, abs=1e-9 * trace)
    assert frechet_distance_from_moments(moments_of(x), moments_of(y)) == pytest.approx(exact, abs=1e-5 * trace)


@pytest.mark.parametrize("decay", [0.0, 0.05, 0.5, 2.0])
@pytest.mark.parametrize("n", [2, 3, 17, 60, 61, 62, 400])
def test_a_set_against_itself_is_zero(n, decay):
    x = gaussian(n, 60, 7, decay)
    trace = float(np.trace(np.cov(x, rowvar=False)))
    assert 0.0 <= frechet_distance(x, x) <= 1e-9 * trace
    assert 0.0 <= frechet_distance(x, x[::-1]) <= 1e-9 * trace
    assert frechet_distance_from_moments(moments_of(x), moments_of(x)) <= 1e-5 * trace


def test_duplicated_rows_and_dead_columns():
    x = gaussian(300, 40, 1)
    x[:, 7] = 3.0
    x[:, 9] = x[:, 8]
    x[100:] = np.tile(x[:100], (2, 1))
    y = gaussian(200, 40, 2)
    y[:, 7] = 3.0
    assert spread_of(x, 1).cholesky is None, "singular: the case is the one that is meant"
    trace = float(np.trace(np.cov(x, rowvar=False)))
    assert frechet_distance(x, x) <= 1e-9 * trace
    assert frechet_distance(x, y) == pytest.approx(by_eigenvalues(x, y), rel=1e-6)
    assert frechet_distance_from_moments(moments_of(x), moments_of(y)) == pytest.approx(
        frechet_distance(x, y), rel=1e-5
    )


def by_eigenvalues(x, y):
    """tr (S1 S2)^(1/2) from the eigenvalues of S2^(1/2) S1 S2^(1/2), which are those of the product."""
    s1, s2 = (np.cov(rows, rowvar=False) for rows in (x, y))
    values, vectors = np.linalg.eigh(s2)
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    cross = np.sqrt(np.linalg.eigvalsh(root @ s1 @ root).clip(0)).sum()
    gap = x.mean(axis=0) - y.mean(axis=0)
    return float(gap @ gap + np.trace(s1) + np.trace(s2) - 2 * cross)


# Invariances.


@pytest.mark.parametrize("n", [30, 300])
def test_order_of_rows_and_sides_does_not_matter(n):
    x, y = gaussian(n, 50, 1, 0.05), gaussian(n, 50, 2, 0.02)
    value = frechet_distance(x, y)
    rng = np.random.default_rng(0)
    assert frechet_distance(rng.permutation(x), rng.permutation(y)) == pytest.approx(value, rel=1e-10)
    assert frechet_distance(y, x) == pytest.approx(value, rel=1e-10)
    turn = np.linalg.qr(rng.standard_normal((50, 50)))[0]
    assert frechet_distance(x @ turn + 5, y @ turn + 5) == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("scale", [1e-120, 1e-30, 1e-3, 1e3, 1e30, 1e120])
@pytest.mark.parametrize("n", [30, 300])
def test_scale_comes_out_squared(n, scale):
    x, y = gaussian(n, 50, 1), gaussian(n, 50, 2)
    assert frechet_distance(x * scale, y * scale) == pytest.approx(frechet_distance(x, y) * scale * scale, rel=1e-9)


def test_a_power_of_two_changes_no_digit():
    x, y = gaussian(300, 50, 1), gaussian(300, 50, 2)
    assert frechet_distance(x * 2.0**300, y * 2.0**300) == frechet_distance(x, y) * 2.0**600


def test_beyond_the_largest_number():
    x = gaussian(10, 5, 1, scale=1e200)
    with pytest.raises(ValueError, match="largest"):
        frechet_distance(x, -x + 1e200)


def test_a_large_offset_costs_no_more_than_its_digits():
    x, y = gaussian(300, 50, 1), gaussian(300, 50, 2)
    assert frechet_distance(x + 1e6, y + 1e6) == pytest.approx(frechet_distance(x, y), rel=1e-6)


def test_float32_and_float16_are_taken_as_they_are():
    x, y = gaussian(300, 50, 1).astype(np.float16), gaussian(300, 50, 2).astype(np.float16)
    assert frechet_distance(x, y) == frechet_distance(x.astype(np.float64), y.astype(np.float64))
    assert frechet_distance(x.astype(np.float32), y) == frechet_distance(x, y)


def test_ddof_matters_as_the_counts_say():
    x = gaussian(16, 400, 1)
    zeros = np.zeros_like(x)
    assert frechet_distance(x, zeros, ddof=0) != frechet_distance(x, zeros)
    mean = float((x.mean(axis=0) ** 2).sum())
    ratio = (frechet_distance(x, zeros) - mean) / (frechet_distance(x, zeros, ddof=0) - mean)
    assert ratio == pytest.approx(16 / 15)


# Large sets are read in blocks, from a file too.


def test_blocks_and_mapped_files(tmp_path, monkeypatch):
    x, y = (gaussian(500, 30, seed).astype(np.float32) for seed in (1, 2))
    whole = frechet_distance(x, y)
    monkeypatch.setattr("genmeter.stats.moments.BLOCK_BYTES", 8 * 30 * 7)
    mapped = np.memmap(tmp_path / "x.f32", np.float32, "w+", shape=x.shape)
    mapped[:] = x
    assert frechet_distance(mapped, y) == pytest.approx(whole, rel=1e-12)
    pieces = spread_of(mapped, 1).pieces
    assert sum(len(piece) for piece in pieces()) == 500
    assert max(len(piece) for piece in pieces()) == 7
    found = triangle(pieces())
    assert found.T @ found == pytest.approx(spread_of(x, 1).scatter, rel=1e-9, abs=1e-9)
    assert BLOCK_BYTES > 1_000_000


def test_picked_rows_are_the_rows():
    x = gaussian(50, 4, 0)
    rows = np.array([3, 40, 7, 7])
    picked = Picked(x, rows)
    assert len(picked) == 4
    assert np.array_equal(picked[1:3], x[[40, 7]])
    assert spread_of(picked, 1).mean == pytest.approx(x[rows].mean(axis=0))


# What has no distance.


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros(8 * 400), "shape \\(N, D\\)|expected rows"),
        (np.zeros((1, 400)), "at least 2 rows; found 1"),
        (np.zeros((0, 400)), "at least 2 rows; found 0"),
        (np.zeros((8, 0)), "expected rows"),
        (np.zeros((2, 4, 100)), "expected rows"),
        (np.full((8, 400), np.nan), "NaN or infinity"),
        (np.full((8, 400), np.inf), "NaN or infinity"),
        (np.zeros((8, 399)), "one width"),
        (np.zeros((8, 400), complex), "real numbers"),
        (np.full((8, 400), "a"), "real numbers"),
    ],
)
def test_refused(x, message):
    good = gaussian(8, 400, 0)
    with pytest.raises(ValueError, match=message):
        frechet_distance(x, good)
    with pytest.raises(ValueError, match=message):
        frechet_distance(good, x)


def test_flattened_features_cannot_pass_for_a_perfect_score():
    """A buffer that lost its second axis gives a mean and a covariance of one number, and a distance near 0."""
    x, y = gaussian(8, 400, 0), gaussian(8, 400, 1, shift=3.0)
    assert frechet_distance(x, y) > 1000
    with pytest.raises(ValueError, match="expected rows"):
        frechet_distance(x.ravel(), y.ravel())


@pytest.mark.parametrize(
    "moments",
    [
        Moments(np.zeros(3), np.eye(4), 9),
        Moments(np.zeros((1, 3)), np.eye(3), 9),
        Moments(np.zeros(3), np.eye(3), 1),
        Moments(np.zeros(3), np.full((3, 3), np.nan), 9),
        Moments(np.zeros(0), np.zeros((0, 0)), 9),
        Moments(np.zeros(4), np.eye(4), 9),
    ],
)
def test_refused_moments(moments):
    with pytest.raises(ValueError, match=r"expected|at least|NaN"):
        frechet_distance_from_moments(moments, (np.zeros(3), np.eye(3), 9))


def test_refused_ddof():
    with pytest.raises(ValueError, match="ddof"):
        frechet_distance(gaussian(5, 3, 0), gaussian(5, 3, 1), ddof=2)


def test_public_names():
    for name in genmeter.stats.__all__:
        assert callable(getattr(genmeter.stats, name))
    assert "frechet_distance" in dir(genmeter.stats)
    with pytest.raises(AttributeError, match="nothing"):
        _ = genmeter.stats.nothing
