"""Quantiles of Student's t without scipy, whose import alone takes longer than most of what needs them."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

_EPS = 2.0**-53
_TINY = 1e-300
# Above this many degrees of freedom the asymptotic series is exact to rounding.
_NORMAL_ABOVE = 1e6


@cache
def t_quantile(p: float, df: float) -> float:
    """Quantile of Student's t distribution, within 1e-10 relative of the exact one.

    Args:
        p: Probability in (0, 1).
        df: Degrees of freedom, above 0; need not be whole.

    Raises:
        ValueError: ``p`` or ``df`` is out of range.
    """
    if not 0.0 < p < 1.0 or not df > 0.0:
        raise ValueError(f"expected p in (0, 1) and df above 0, found p = {p!r}, df = {df!r}")
    if p == 0.5:
        return 0.0
    if p > 0.5:  # the tails are symmetric, and a small probability holds more digits than one near 1
        return -t_quantile(1.0 - p, df)
    if df > _NORMAL_ABOVE:
        return _from_normal(p, df)
    low, high = _bracket(p, df)
    t = min(max(_from_normal(p, df), low), high)
    for _ in range(200):
        tail = t_tail(-t, df)
        low, high = (t, high) if tail < p else (low, t)
        # Newton on the logarithm of the tail, which is close to straight where the tail itself is not.
        step = tail * math.log(tail / p) / t_density(t, df) if tail > 0.0 else math.inf
        nearer = t - step
        if not low < nearer < high:
            nearer = (low + high) / 2.0
        if abs(nearer - t) <= 4.0 * _EPS * abs(t):
            return nearer
        t = nearer
    return t


def t_tail(t: float, df: float) -> float:
    """Probability that a Student's t with ``df`` degrees of freedom exceeds ``t`` >= 0; at most 0.5."""
    square = t * t
    return 0.5 * _beta_ratio(df / 2.0, df / (df + square), square / (df + square))


def t_density(t: float, df: float) -> float:
    """Density of Student's t with ``df`` degrees of freedom at ``t``."""
    log_scale = _half_step(df / 2.0) - 0.5 * math.log(df * math.pi)
    return math.exp(log_scale - (df + 1.0) / 2.0 * math.log1p(t * t / df))


def _bracket(p: float, df: float) -> tuple[float, float]:
    """An interval below 0 that holds the quantile of ``p`` < 0.5."""
    low = -1.0
    while t_tail(-low, df) > p:
        low *= 4.0
    return low, 0.0


def _from_normal(p: float, df: float) -> float:
    """Cornish and Fisher's expansion of the quantile in 1/df (Abramowitz and Stegun 26.7.5)."""
    z = NormalDist().inv_cdf(p)
    s = z * z
    terms = (
        (s + 1.0) / 4.0,
        ((5.0 * s + 16.0) * s + 3.0) / 96.0,
        (((3.0 * s + 19.0) * s + 17.0) * s - 15.0) / 384.0,
    )
    return z * (1.0 + sum(term / df**power for power, term in enumerate(terms, 1)))


def _beta_ratio(a: float, x: float, y: float) -> float:
    """The regularised incomplete beta function I_x(a, 1/2); ``y`` is 1 - x, to more digits than x has."""
    half = 0.5
    if x <= 0.0 or y <= 0.0:
        return 0.0 if x <= 0.0 else 1.0
    log_x = math.log(x) if x < 0.5 else math.log1p(-y)
    front = math.exp(_half_step(a) - 0.5 * math.log(math.pi) + a * log_x + half * math.log(y))
    # The continued fraction converges fast on one side of the mean; the other is its complement.
    if x < (a + 1.0) / (a + half + 2.0):
        return front * _fraction(a, half, x) / a
    return 1.0 - front * _fraction(half, a, y) / half


def _half_step(a: float) -> float:
    """log gamma(a + 1/2) - log gamma(a); for large ``a`` by its series, where the difference would lose digits."""
    if a < 50.0:
        return math.lgamma(a + 0.5) - math.lgamma(a)
    inverse = 1.0 / (a * a)
    series = -1.0 / 8.0 + inverse * (1.0 / 192.0 - inverse * (1.0 / 640.0 - inverse * 17.0 / 14336.0))
    return 0.5 * math.log(a) + series / a


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's method."""
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    found = d
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        for term in (even, odd):
            d = 1.0 + term * d
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = 1.0 + term / c
            c = c if abs(c) > _TINY else _TINY
            found *= c * d
        if abs(c * d - 1.0) <= 2.0 * _EPS:
            break
    return found
