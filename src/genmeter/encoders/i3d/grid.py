"""Where a 224-pixel frame of I3D looks in the original: bilinear taps of each published way to resize.

Nothing is antialiased: each pixel is made of the two nearest on either axis, however large the original is. So no
more than 448 rows and columns of it are ever needed.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

SIDE = 224
GRIDS = ("tf1", "half-pixel", "short-side")


class Taps(NamedTuple):
    """One axis of a resize.

    Attributes:
        low: (224,) int32, the nearer pixel towards 0; the other is the one after it, or itself at the end.
        share: (224,) float32 in [0, 1), the weight of the other.
    """

    low: np.ndarray
    share: np.ndarray


@lru_cache(maxsize=256)
def taps(grid: str, height: int, width: int) -> tuple[Taps, Taps]:
    """Taps along rows and along columns.

    Args:
        grid: ``tf1``: both sides to 224 on TF1's legacy grid, source = target * size / 224. ``half-pixel``: both sides
            to 224 with pixel centres aligned, as ``F.interpolate(align_corners=False)``. ``short-side``: on that grid
            the short side to 224 and the long one to the next whole number in proportion, then the centre.
        height, width: Of the original, in pixels.

    Raises:
        ValueError: An unknown grid.
    """
    if grid == "tf1":
        return _legacy(height), _legacy(width)
    if grid == "half-pixel":
        return _centred(height, SIDE, 0), _centred(width, SIDE, 0)
    if grid != "short-side":
        raise ValueError(f"grid {grid!r} is not among {', '.join(GRIDS)}")
    # In double precision and rounded up, as VideoGPT's script computes the long side.
    long = math.ceil(max(height, width) * (SIDE / min(height, width)))
    high, wide = (SIDE, long) if height < width else (long, SIDE)
    return _centred(height, high, (high - SIDE) // 2), _centred(width, wide, (wide - SIDE) // 2)


def reduce(frames: np.ndarray, down: Taps, across: Taps) -> tuple[np.ndarray, Taps, Taps]:
    """Keep the rows and columns that the taps need, where that is less than half of a long axis.

    Args:
        frames: (T, H, W, 3) uint8.
        down, across: Taps into its rows and columns.

    Returns:
        Frames (T, h, w, 3) with h and w at most 448 or as they were, and the taps into those.
    """
    if frames.shape[1] > 2 * SIDE:
        frames, down = np.take(frames, _pairs(down, frames.shape[1]), axis=1), _paired(down)
    if frames.shape[2] > 2 * SIDE:
        frames, across = np.take(frames, _pairs(across, frames.shape[2]), axis=2), _paired(across)
    return frames, down, across


def _legacy(size: int) -> Taps:
    # In float32, as TF1 computes it.
    source = np.arange(SIDE, dtype=np.float32) * (np.float32(size) / np.float32(SIDE))
    low = source.astype(np.int32)
    return Taps(low, source - low.astype(np.float32))


def _centred(size: int, side: int, start: int) -> Taps:
    """224 pixels from ``start`` on of an axis of ``size`` that is resized to ``side``."""
    scale = np.float32(size) / np.float32(side)
    source = (np.arange(start, start + SIDE, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
    source = np.maximum(source, np.float32(0))
    low = np.minimum(source.astype(np.int32), size - 1)
    return Taps(low, source - low.astype(np.float32))


def _pairs(axis: Taps, size: int) -> np.ndarray:
    pairs: np.ndarray = np.stack([axis.low, np.minimum(axis.low + 1, size - 1)], axis=1).reshape(-1)
    return pairs


def _paired(axis: Taps) -> Taps:
    return Taps(np.arange(0, 2 * SIDE, 2, dtype=np.int32), axis.share)
