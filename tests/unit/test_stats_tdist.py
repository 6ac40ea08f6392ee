"""The t quantile against scipy, and against closed forms where there are any."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from scipy import special

from genmeter.stats.tdist import t_density, t_quantile, t_tail

DEGREES = [0.5, 1, 1.5, 2, 3, 5, 10, 39, 40, 127.5, 999, 1e4]
PROBABILITIES = [1e-6, 1e-3, 0.005, 0.025, 0.05, 0.25, 0.45, 0.6, 0.9, 0.975, 0.995]


@pytest.mark.parametrize("df", DEGREES)
@pytest.mark.parametrize("p", PROBABILITIES)
def test_against_scipy(p, df):
    # Older releases of scipy solve to about 1e-9 only, so the distribution function is asked as well.
    assert t_quantile(p, df) == pytest.approx(special.stdtrit(df, p), rel=1e-8)
    assert special.stdtr(df, t_quantile(p, df)) == pytest.approx(p, rel=1e-10)


@pytest.mark.parametrize("p", PROBABILITIES)
def test_closed_forms(p):
    assert t_quantile(p, 1) == pytest.approx(-1 / math.tan(math.pi * p), rel=1e-10)
    assert t_quantile(p, 2) == pytest.approx((2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p))), rel=1e-11)
    root = math.sqrt(4 * p * (1 - p))
    four = math.copysign(2 * math.sqrt(math.cos(math.acos(root) / 3) / root - 1), p - 0.5)
    assert t_quantile(p, 4) == pytest.approx(four, rel=1e-10)


def test_the_middle_the_signs_and_the_limit():
    assert t_quantile(0.5, 7) == 0.0
    assert t_quantile(0.25, 7) == -t_quantile(0.75, 7)
    # Both sides of the border where the series in 1/df takes over.
    assert t_quantile(0.975, 9.99e5) == pytest.approx(t_quantile(0.975, 1.001e6), rel=1e-8)
    assert t_quantile(0.975, 1e12) == pytest.approx(1.959963984540054, rel=1e-11)
    assert t_tail(0.0, 3) == 0.5
    assert t_density(0.0, 1) == pytest.approx(1 / math.pi)


@pytest.mark.parametrize(
    ("p", "df"), [(0.0, 3), (1.0, 3), (-0.1, 3), (0.5, 0), (0.5, -1), (math.nan, 3), (0.3, math.nan)]
)
def test_out_of_range(p, df):
    with pytest.raises(ValueError, match="expected p"):
        t_quantile(p, df)


def test_means_import_no_scipy():
    names = "genmeter.stats.means, genmeter.stats.setscores"
    code = f"import sys, {names}; print([m for m in ('scipy', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
