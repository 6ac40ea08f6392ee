"""How much each sample moves a Frechet distance: leave-one-out for any number of samples, without refitting any.

Leaving a sample out changes the scatter of its set by a matrix of low rank. What that does to the sum of singular
values is an integral of the logarithm of a small determinant (from sqrt(a) = 1/pi int a / (t + a) t^(-1/2) dt, the
matrix determinant lemma and integration by parts):

    sum_j (s'_j - s_j) = 1/pi int_0^inf log det(I - M W(s) M^T) ds,   W(s) = diag(s_j^2 / (s_j^2 + s^2)),

with M the sample's part of the left singular vectors. On a logarithmic grid the trapezoidal rule converges faster than
any power, so about 200 nodes leave an error near rounding (1e-8 of the smallest singular value where a sample takes a
whole direction with it, as it does below n = d), for all samples in one matrix product.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from genmeter.stats.moments import BLOCK_BYTES, blocks, centred
from genmeter.stats.spread import Spread, triangle

_STEP = 0.3  # error exp(-pi^2 / step) = 5e-15
_REACH = 32.0  # e-folds to either side of the largest singular value
_NEGLIGIBLE = 1e-14
# A file of more rows than this is left out by a decomposition of its own, which is then the cheaper way.
_MANY_ROWS = 8


class _Basis(NamedTuple):
    """The singular value decomposition of the centred rows times the other side's factor, without its left vectors.

    Attributes:
        project: (d, r) float64: a centred row times this is its left singular vector.
        sigma: (r,) singular values, descending, above rounding.
    """

    project: np.ndarray
    sigma: np.ndarray


def influences(
    x: np.ndarray, own: Spread, other: Spread, units: np.ndarray | None = None, *, ddof: int = 1, scale: float = 1.0
) -> np.ndarray | None:
    """Influence of each sample on FD(x, other) by leave-one-out: (F - 1)(FD - FD without it), less its mean.

    Args:
        x: (n, d) feature rows; may be memory-mapped.
        own: Their spread.
        other: The spread of the reference set.
        units: (n,) int64 in [0, F): the sample (file) of each row, where one may have several. None: a row each.
        ddof: As for :func:`genmeter.stats.frechet.frechet_distance`.
        scale: What both spreads were divided by.

    Returns:
        (F,) float64 in units of FD; positive where the sample raises it. None where leaving one out would leave
        fewer than 2 rows.
    """
    n = len(x)
    counts = np.ones(n, dtype=np.int64) if units is None else np.bincount(units)
    if n - int(counts.max()) < 2 or len(counts) < 2:
        return None
    basis = _basis(x, own, other, scale)
    base = _distance_terms(own, other)
    found = np.empty(len(counts))
    start = 0
    for block in _few(x):
        rows = centred(block, own.mean, scale)
        where = np.arange(start, start + len(rows)) if units is None else units[start : start + len(rows)]
        alone = counts[where] == 1
        found[where[alone]] = base - _without_rows(rows[alone], basis, own, other, ddof)
        start += len(rows)
    if units is not None:
        order = np.argsort(units, kind="stable")
        ends = np.cumsum(counts)
        for unit in np.flatnonzero(counts > 1):
            members = order[ends[unit] - counts[unit] : ends[unit]]
            found[unit] = base - _without_unit(centred(x[members], own.mean, scale), basis, own, other, ddof)
    result: np.ndarray = (found - found.mean()) * ((len(counts) - 1) * scale * scale)
    return result


def closed_form(x: np.ndarray, own: Spread, other: Spread, *, scale: float = 1.0) -> np.ndarray:
    """The influence function of FD(x, other) at each row: what one row moves in the limit of many, less its mean.

    2 u.(m1 - m2) + u^T (I - T) u for the centred row u, T the transport map between the two Gaussians. With few rows
    it overstates outliers, up to twice and more; :func:`influences` is exact and costs the same.

    Returns:
        (n,) float64 in units of FD.
    """
    basis = _basis(x, own, other, scale)
    gap = own.mean - other.mean
    parts = []
    for block in blocks(x):
        rows = centred(block, own.mean, scale)
        transported = ((rows @ basis.project) ** 2) @ basis.sigma * np.sqrt(own.divisor)
        parts.append(2.0 * rows @ gap + np.einsum("ij,ij->i", rows, rows) - transported)
    found = np.concatenate(parts)
    result: np.ndarray = (found - found.mean()) * (scale * scale)
    return result


def _few(x: np.ndarray) -> Iterator[np.ndarray]:
    """Pieces of rows for which a number at each node of the grid takes no more than a block."""
    step = max(1, BLOCK_BYTES // (16 * int(2 * _REACH / _STEP)))
    for block in blocks(x):
        for start in range(0, len(block), step):
            yield block[start : start + step]


def _basis(x: np.ndarray, own: Spread, other: Spread, scale: float) -> _Basis:
    factor = other.factor
    _, sigma, right = np.linalg.svd(
        triangle(centred(block, own.mean, scale) @ factor.T for block in blocks(x)), full_matrices=False
    )
    kept = sigma > _NEGLIGIBLE * sigma[0] if len(sigma) and sigma[0] > 0.0 else np.zeros(len(sigma), dtype=bool)
    sigma = sigma[kept]
    return _Basis((factor.T @ right[kept].T) / sigma, sigma)


def _distance_terms(own: Spread, other: Spread) -> float:
    """What of FD changes with one sample, for the whole set; the singular values are accounted for by their change."""
    gap = own.mean - other.mean
    return float(gap @ gap) + own.trace


def _without_rows(rows: np.ndarray, basis: _Basis, own: Spread, other: Spread, ddof: int) -> np.ndarray:
    """FD without each of (b, d) rows, less what does not change, (b,)."""
    n = own.count
    left = n - 1
    squares = np.einsum("ij,ij->i", rows, rows)
    gap = own.mean - other.mean
    means = gap @ gap - 2.0 * (rows @ gap) / left + squares / left**2
    traces = (own.trace * own.divisor - squares * (n / left)) / (left - ddof)
    nodes, weights = _grid(basis.sigma)
    leverage = ((rows @ basis.project) ** 2) * (n / left)
    inner = leverage @ _filter(basis.sigma, nodes).T
    change = np.log1p(-np.minimum(inner, 1.0 - 1e-16)) @ weights
    result: np.ndarray = means + traces - _cross(basis, own, change, left - ddof)
    return result


def _without_unit(rows: np.ndarray, basis: _Basis, own: Spread, other: Spread, ddof: int) -> float:
    """FD without the (k, d) rows of one sample, less what does not change."""
    k, left = len(rows), own.count - len(rows)
    total = rows.sum(axis=0)
    gap = own.mean - other.mean - total / left
    gone = float(np.einsum("ij,ij->", rows, rows)) + float(total @ total) / left
    trace = (own.trace * own.divisor - gone) / (left - ddof)
    part = rows @ basis.project
    # What leaves the scatter is U^T (I + 11^T / left) U: the root of the bracket, applied to the sample's rows.
    part = part + (np.sqrt(1.0 + k / left) - 1.0) * part.mean(axis=0)
    if k <= _MANY_ROWS:
        nodes, weights = _grid(basis.sigma)
        filtered = part[None] * _filter(basis.sigma, nodes)[:, None, :]
        inner = np.linalg.eigvalsh(filtered @ part.T)
        change = float(np.log1p(-np.minimum(inner, 1.0 - 1e-16)).sum(axis=1) @ weights)
    else:
        _, leverage, right = np.linalg.svd(part, full_matrices=False)
        lost = 1.0 - np.sqrt(np.clip(1.0 - leverage**2, 0.0, None))
        rest = np.diag(basis.sigma) - (right.T * lost) @ (right * basis.sigma)
        change = float(np.linalg.svd(rest, compute_uv=False).sum() - basis.sigma.sum())
    return float(gap @ gap) + trace - float(_cross(basis, own, np.array(change), left - ddof))


def _cross(basis: _Basis, own: Spread, change: np.ndarray, divisor: float) -> np.ndarray:
    """2 tr (S1 S2)^(1/2) without a sample, less that of all of them."""
    total = float(basis.sigma.sum())
    root: np.ndarray = 2.0 * ((total + change) / np.sqrt(divisor) - total / np.sqrt(own.divisor))
    return root


def _grid(sigma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nodes s (q,) and weights of 1/pi int_0^inf f(s) ds."""
    if not len(sigma):
        return np.ones(1), np.zeros(1)
    nodes = float(sigma[0]) * np.exp(np.arange(-_REACH, _REACH + _STEP, _STEP))
    return nodes, nodes * (_STEP / np.pi)


def _filter(sigma: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """(q, r): W(s) at each node."""
    ratio = nodes[:, None] / sigma[None, :]
    found: np.ndarray = 1.0 / (1.0 + ratio * ratio)
    return found
