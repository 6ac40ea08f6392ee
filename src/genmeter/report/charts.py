"""Charts as inline SVG without script or style attributes (a strict content policy forbids both)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from genmeter.report.text import format_value

if TYPE_CHECKING:
    from markupsafe import Markup

_WIDTH, _HEIGHT = 980, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 14, 14, 26


def histogram(values: np.ndarray, mean: float | None, interval: Any, label: str) -> Markup:
    """How (n,) finite values are spread: bars, the mean, and its 95 % interval as a band.

    Args:
        values: At least one number.
        mean: Where to draw the line; ``None`` draws none.
        interval: [low, high] of the band, or ``None``.
        label: What a screen reader says before the numbers.
    """
    from markupsafe import Markup, escape

    counts, edges = bins(values)
    low, high = float(edges[0]), float(edges[-1])
    top = int(counts.max())
    wide, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(value: float) -> float:
        return _LEFT + wide * ((min(max(value, low), high) - low) / (high - low))

    def y(count: float) -> float:
        return _TOP + tall * (1 - count / top)

    parts = [_line("axis", _LEFT, y(0), _WIDTH - _RIGHT, y(0))]
    for level in sorted({0, top // 2, top}):
        parts.append(_line("grid", _LEFT, y(level), _WIDTH - _RIGHT, y(level)))
        parts.append(_text("end", _LEFT - 6, y(level) + 4, f"{level:,}"))
    for count, left, right in zip(counts, edges[:-1], edges[1:], strict=True):
        if count:
            tip = f"{format_value(float(left))} to {format_value(float(right))}: {int(count):,}"
            box = f'x="{x(left):.2f}" y="{y(count):.2f}" width="{max(x(right) - x(left) - 1, 0.6):.2f}"'
            bar = f'<rect class="bar" {box} height="{max(y(0) - y(count), 0.8):.2f}"><title>{tip}</title></rect>'
            parts.append(bar)
    if interval and None not in interval:
        start, stop = x(interval[0]), x(interval[1])
        box = f'x="{start:.2f}" y="{_TOP}" width="{max(stop - start, 1):.2f}" height="{tall}"'
        parts.append(f'<rect class="band" {box}/>')
    if mean is not None:
        parts.append(_line("mean", x(mean), _TOP, x(mean), y(0)))
    for tick in ticks(low, high):
        parts.append(_text("middle", x(tick), _HEIGHT - 8, format_tick(tick, high - low)))
    title = f"{label}: {len(values):,} values from {format_value(float(values.min()))} to "
    title += format_value(float(values.max()))
    head = f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
    return Markup(head + "".join(parts) + "</svg>")


def whisker(mean: float, interval: Any, low: float, high: float) -> Markup:
    """One mean with its interval on the scale [low, high] that the rows of a table share; what lies outside is cut."""
    from markupsafe import Markup

    def x(value: float) -> float:
        return 4 + 152 * ((min(max(value, low), high) - low) / (high - low if high > low else 1.0))

    parts = [_line("grid", 4, 8, 156, 8)]
    if interval and None not in interval:
        parts.append(_line("range", x(interval[0]), 8, x(interval[1]), 8))
    parts.append(f'<circle class="dot" cx="{x(mean):.2f}" cy="8" r="3.5"/>')
    return Markup(f'<svg class="whisker" viewBox="0 0 160 16" aria-hidden="true">{"".join(parts)}</svg>')


def meter(share: float) -> Markup:
    """A thin bar filled to ``share`` in [0, 1]."""
    from markupsafe import Markup

    filled = f'<rect class="filled" x="0" y="0" width="{100 * min(max(share, 0.0), 1.0):.2f}" height="4"/>'
    track = '<rect class="track" x="0" y="0" width="100" height="4"/>'
    head = '<svg class="meter" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
    return Markup(f"{head}{track}{filled}</svg>")


def bins(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Counts (b,) and edges (b+1,), 8 to 40 bins of one width by the rule of Freedman and Diaconis."""
    low, high = float(values.min()), float(values.max())
    # Neighbouring floats leave no room for bins between them.
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-300) or not math.isfinite(high - low):
        pad = max(abs(low) * 0.05, 1e-3)
        return np.array([0, len(values), 0]), np.array([low - 3 * pad, low - pad, low + pad, low + 3 * pad])
    q1, q3 = np.quantile(values, (0.25, 0.75))
    width = 2 * float(q3 - q1) / len(values) ** (1 / 3)
    number = math.ceil((high - low) / width) if width > 0 and (high - low) / width < 1e6 else 40
    return np.histogram(values, bins=min(max(number, 8), 40), range=(low, high))


def ticks(low: float, high: float, count: int = 9) -> list[float]:
    """Round numbers within [low, high], about ``count`` of them."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def format_tick(value: float, span: float) -> str:
    """A tick with just the decimals that tell neighbours apart."""
    digits = max(0, min(8, 2 - math.floor(math.log10(span))))
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}"/>'


def _text(anchor: str, x: float, y: float, text: str) -> str:
    return f'<text text-anchor="{anchor}" x="{x:.2f}" y="{y:.2f}">{text}</text>'
