"""Scenes to pixels, with numpy alone: each shape is a distance field, smoothed over one pixel at its edge."""

from __future__ import annotations

import math

import numpy as np

from genmeter.synth.scene import COLOURS, Group, Scene

# Region of a place as (x0, y0, x1, y1) in fractions of width and height.
_REGIONS = {
    "left": (0.03, 0.12, 0.48, 0.88),
    "right": (0.52, 0.12, 0.97, 0.88),
    "top": (0.12, 0.03, 0.88, 0.48),
    "bottom": (0.12, 0.52, 0.88, 0.97),
    "centre": (0.2, 0.2, 0.8, 0.8),
}
_RADIUS = {"small": 0.075, "large": 0.145}  # fraction of the picture's shorter side


def draw(scene: Scene, width: int = 256, height: int = 256, shift: tuple[float, float] = (0.0, 0.0)) -> np.ndarray:
    """Draw a scene.

    Args:
        scene: What to draw.
        width: Pixels, at least 16.
        height: Pixels, at least 16.
        shift: How far all shapes stand to the right and below where the scene puts them, in pixels; the background
            stays.

    Returns:
        (height, width, 3) uint8, sRGB.

    Raises:
        ValueError: For a side below 16.
    """
    if min(width, height) < 16:
        raise ValueError(f"a scene needs sides of at least 16 pixels, not {width}x{height}")
    rng = np.random.default_rng([scene.seed, 3])
    y, x = np.mgrid[0:height, 0:width] + 0.5
    # A faint light from one side keeps large areas from being one flat value.
    turn = rng.uniform(0, 2 * math.pi)
    light = 1 + 0.10 * (((x / width - 0.5) * math.cos(turn)) + ((y / height - 0.5) * math.sin(turn)))
    unit = min(width, height) / 8
    canvas = _paint(scene.background, scene.background_texture, x, y, unit, rng, contrast=0.14)
    for group in scene.groups:
        for cx, cy, radius in _spots(group, width, height, rng):
            cx, cy = cx + shift[0], cy + shift[1]
            box = _box(cy, radius, height), _box(cx, radius, width)
            u, v = x[box] - cx, y[box] - cy
            distance = _distance(group.shape, u, v, radius, rng.uniform(-0.35, 0.35))
            fill = _paint(group.colour, group.texture, u, v, radius / 1.7, rng, contrast=0.5)
            canvas[box] += (fill - canvas[box]) * np.clip(0.5 - distance, 0, 1)[..., None]
    pixels: np.ndarray = np.clip(np.rint(canvas * light[..., None]), 0, 255).astype(np.uint8)
    return pixels


def _box(centre: float, radius: float, side: int) -> slice:
    """The pixels along one axis that a shape and its smoothed edge can reach."""
    return slice(max(0, int(centre - radius - 1)), min(side, int(centre + radius + 2)))


def _spots(group: Group, width: int, height: int, rng: np.random.Generator) -> list[tuple[float, float, float]]:
    """Centre and radius in pixels of each shape: cells of a grid over the group's region, shaken within the cell."""
    x0, y0, x1, y1 = _REGIONS[group.place]
    left, top, w, h = x0 * width, y0 * height, (x1 - x0) * width, (y1 - y0) * height
    columns = max(range(1, group.count + 1), key=lambda c: min(w / c, h / math.ceil(group.count / c)))
    rows = math.ceil(group.count / columns)
    radius = min(_RADIUS[group.size] * min(width, height), 0.47 * min(w / columns, h / rows))
    spots = []
    for i in range(group.count):
        free_x, free_y = w / columns / 2 - radius, h / rows / 2 - radius
        cx = left + w * (i % columns + 0.5) / columns + rng.uniform(-1, 1) * free_x * 0.6
        cy = top + h * (i // columns + 0.5) / rows + rng.uniform(-1, 1) * free_y * 0.6
        spots.append((cx, cy, radius))
    return spots


def _paint(
    colour: str, texture: str, x: np.ndarray, y: np.ndarray, unit: float, rng: np.random.Generator, *, contrast: float
) -> np.ndarray:
    """(H, W, 3) float: the colour, with a texture of period about ``unit`` pixels in a lighter or darker tone."""
    base = np.asarray(COLOURS[colour], dtype=float)
    shift, turn = rng.uniform(0, unit), rng.uniform(0, math.pi)
    if texture == "plain":
        return np.tile(base, (*x.shape, 1))
    target = 255.0 if base.mean() < 128 else 0.0
    tone = base + (target - base) * contrast
    period = max(unit, 4.0)
    # Fields are in pixels from the nearest border of the pattern, so that they smooth like shapes do.
    if texture == "striped":
        field = period / 4 - np.abs(_wrap(x * math.cos(turn) + y * math.sin(turn) + shift, period))
    elif texture == "dotted":
        field = period * 0.3 - np.hypot(_wrap(x + shift, period), _wrap(y + shift, period))
    else:
        a = period / 4 - np.abs(_wrap(x + shift, period))
        b = period / 4 - np.abs(_wrap(y + shift, period))
        field = np.sign(a * b) * np.minimum(np.abs(a), np.abs(b))
    painted: np.ndarray = base + (tone - base) * np.clip(field + 0.5, 0, 1)[..., None]
    return painted


def _wrap(value: np.ndarray, period: float) -> np.ndarray:
    """``value`` modulo ``period``, in [-period/2, period/2)."""
    wrapped: np.ndarray = (value + period / 2) % period - period / 2
    return wrapped


def _distance(shape: str, x: np.ndarray, y: np.ndarray, radius: float, tilt: float) -> np.ndarray:
    """Signed distance in pixels (negative inside) to a shape of circumscribed radius ``radius`` about the origin."""
    distance: np.ndarray
    if shape == "circle":
        distance = np.hypot(x, y) - radius * 0.95
    elif shape == "ring":
        distance = np.abs(np.hypot(x, y) - radius * 0.72) - radius * 0.23
    elif shape == "cross":
        c, s = math.cos(tilt), math.sin(tilt)
        u, v = np.abs(x * c + y * s), np.abs(y * c - x * s)
        arm, half = radius * 0.93, radius * 0.3
        distance = np.minimum(np.maximum(u - arm, v - half), np.maximum(v - arm, u - half))
    elif shape == "diamond":
        distance = (np.abs(x) / 0.68 + np.abs(y) - radius) / math.hypot(1 / 0.68, 1)
    elif shape == "star":
        distance = _star(x, y, 5, radius, radius * 0.42, tilt)
    else:
        sides, turn = {"triangle": (3, 0.0), "square": (4, math.pi / 4 + tilt / 2), "hexagon": (6, tilt)}[shape]
        distance = _star(x, y, sides, radius, radius * math.cos(math.pi / sides), turn)
    return distance


def _star(x: np.ndarray, y: np.ndarray, points: int, outer: float, inner: float, turn: float) -> np.ndarray:
    """A star of ``points`` tips at radius ``outer`` and notches at ``inner``; a regular polygon when those align."""
    half = math.pi / points
    angle = np.arctan2(x, -y) - turn
    # Folded into half a sector, the outline is the one segment from a tip to the notch beside it.
    folded = np.abs(_wrap(angle, 2 * half))
    r = np.hypot(x, y)
    px, py = r * np.cos(folded), r * np.sin(folded)
    nx, ny = inner * math.cos(half), inner * math.sin(half)
    ex, ey = nx - outer, ny
    distance: np.ndarray = ((px - outer) * ey - py * ex) / math.hypot(ex, ey)
    return distance
