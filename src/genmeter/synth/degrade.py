"""Damage of a known kind and strength, as a poor generator or a poor channel would do it.

A strength is in [0, 1]: 0 changes nothing, and what 1 means stands in :data:`DEGRADATIONS`.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np

DEGRADATIONS = {
    "blur": "Gaussian blur, standard deviation 4 pixels at strength 1",
    "noise": "independent Gaussian noise, standard deviation 48 of 255 at strength 1",
    "jpeg": "JPEG, quality 4 at strength 1 and 95 near 0, chroma subsampled",
    "colour": "saturation down to 0 and a warm cast of up to 30 of 255 at strength 1",
    "shift": "the picture moved by 16 pixels right and 8 down at strength 1, edges repeated",
    "downscale": "shrunk by 8 at strength 1 (area average) and enlarged again (nearest)",
}


def degrade(pixels: np.ndarray, kind: str, strength: float, *, seed: int = 0) -> np.ndarray:
    """Degrade an image.

    Args:
        pixels: (H, W, 3) uint8.
        kind: A key of :data:`DEGRADATIONS`.
        strength: 0 (nothing) to 1.
        seed: For ``noise``.

    Returns:
        (H, W, 3) uint8, a new array.

    Raises:
        ValueError: For an unknown kind, or a strength outside [0, 1].
    """
    if kind not in _FUNCTIONS:
        raise ValueError(f"degradation {kind!r} is not among {', '.join(_FUNCTIONS)}")
    if not 0 <= strength <= 1:
        raise ValueError(f"strength must be in [0, 1], not {strength}")
    if strength == 0:
        return np.array(pixels)
    return _FUNCTIONS[kind](pixels, strength, seed)


def jpeg_quality(strength: float) -> int:
    """The JPEG quality that a strength in (0, 1] stands for."""
    return round(95 - 91 * strength)


def _uint8(values: np.ndarray) -> np.ndarray:
    rounded: np.ndarray = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return rounded


def _blur(pixels: np.ndarray, strength: float, seed: int) -> np.ndarray:
    sigma = 4.0 * strength
    reach = max(1, int(np.ceil(3 * sigma)))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    kernel /= kernel.sum()
    values = pixels.astype(float)
    for axis in (0, 1):
        pad = [(0, 0)] * 3
        pad[axis] = (reach, reach)
        padded = np.pad(values, pad, mode="edge")
        length = values.shape[axis]
        values = sum(k * np.take(padded, np.arange(i, i + length), axis=axis) for i, k in enumerate(kernel))
    return _uint8(values)


def _noise(pixels: np.ndarray, strength: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, 4])
    return _uint8(pixels + rng.normal(0, 48.0 * strength, pixels.shape))


def _jpeg(pixels: np.ndarray, strength: float, seed: int) -> np.ndarray:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=jpeg_quality(strength), subsampling=2)
    with Image.open(buffer) as image:
        return np.array(image.convert("RGB"))


def _colour(pixels: np.ndarray, strength: float, seed: int) -> np.ndarray:
    values = pixels.astype(float)
    grey = values @ np.array([0.299, 0.587, 0.114])
    values = values + (grey[..., None] - values) * strength
    return _uint8(values + np.array([30.0, 0.0, -30.0]) * strength)


def _shift(pixels: np.ndarray, strength: float, seed: int) -> np.ndarray:
    dx, dy = round(16 * strength), round(8 * strength)
    height, width = pixels.shape[:2]
    rows = np.clip(np.arange(height) - dy, 0, height - 1)
    columns = np.clip(np.arange(width) - dx, 0, width - 1)
    return np.ascontiguousarray(pixels[rows][:, columns])


def _downscale(pixels: np.ndarray, strength: float, seed: int) -> np.ndarray:
    factor = 1 + round(7 * strength)
    values = pixels.astype(float)
    for axis in (0, 1):
        starts = np.arange(0, values.shape[axis], factor)
        counts = np.diff(np.append(starts, values.shape[axis]))
        sums = np.add.reduceat(values, starts, axis=axis)
        shape = [1, 1, 1]
        shape[axis] = len(counts)
        values = np.repeat(sums / counts.reshape(shape), counts, axis=axis)
    return _uint8(values)


_FUNCTIONS: dict[str, Callable[[np.ndarray, float, int], np.ndarray]] = {
    "blur": _blur,
    "noise": _noise,
    "jpeg": _jpeg,
    "colour": _colour,
    "shift": _shift,
    "downscale": _downscale,
}
