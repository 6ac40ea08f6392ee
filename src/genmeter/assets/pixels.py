"""From Pillow's modes and from arrays to 8-bit RGB or RGBA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from genmeter.errors import GenmeterError

if TYPE_CHECKING:
    from PIL import Image

    from genmeter.assets.limits import PixelLimit

# Above this many pixels the copy out of Pillow goes band by band, so that its working copies stay small.
_BAND_PIXELS = 8_000_000
_WITH_ALPHA = frozenset({"RGBA", "LA", "PA", "La", "RGBa"})
# Half a level: what lies this close outside [0, 1] rounds to an end of it.
_HALF_LEVEL = 1 / 510


def to_pixels(image: Image.Image, wide: np.ndarray | None = None) -> np.ndarray:
    """8-bit pixels of a loaded Pillow image.

    Args:
        image: Loaded; any mode that Pillow reads.
        wide: (H, W, 3 or 4) uint16 that replaces what the image holds, for 16-bit files.

    Returns:
        (H, W, 3) or (H, W, 4) uint8, straight alpha, C-contiguous.

    Raises:
        GenmeterError: ``non_finite``; ``unsupported_media`` for floats outside [0, 1] and for 32-bit integers whose
            scale cannot be told.
    """
    key = image.info.get("transparency")
    mode = image.mode
    if wide is not None:
        return _keyed(wide, key)
    if mode == "RGB" and key is None:
        return _array(image, 3)
    if mode == "RGBA":
        return _array(image, 4)
    if mode == "P":
        return _array(_converted(image, "RGBA" if image.has_transparency_data else "RGB"))
    if mode == "RGB":
        return _keyed(_array(image, 3), key)
    if mode in ("L", "1"):
        grey = _array(image.convert("L") if mode == "1" else image, 1)
        if mode == "1" and isinstance(key, int):
            key = 255 if key else 0
        return _keyed(grey, key)
    if mode.startswith("I;16"):
        return _keyed(np.asarray(image).astype(np.uint16)[..., None], key)
    if mode == "I":
        return _keyed(_integers(np.asarray(image))[..., None], key)
    if mode == "F":
        return _spread(floats_to_bytes(np.asarray(image))[..., None])
    if mode == "La":
        image = image.convert("LA")
    return _array(_converted(image, "RGBA" if mode in _WITH_ALPHA else "RGB"))


def upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Turn and mirror (H, W, C) pixels as EXIF orientation 2-8 asks (TIFF 6.0, tag 274); C-contiguous."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def from_array(value: np.ndarray, policy: PixelLimit) -> np.ndarray:
    """Pixels of an array in memory; see :func:`genmeter.assets.image.from_object`."""
    from genmeter.assets.image import check_pixels

    array = value[..., None] if value.ndim == 2 else value
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        hint = "channels come last: transpose (C, H, W) to (H, W, C)" if _channels_first(value) else None
        shape = "x".join(str(side) for side in value.shape)
        raise GenmeterError(
            "unsupported_media", f"expected an array (H, W), (H, W, 3) or (H, W, 4), found {shape}", hint
        )
    check_pixels(array.shape[1], array.shape[0], policy)
    if array.dtype == np.uint8:
        # A copy: the caller may go on writing into its array.
        return _spread(np.array(array, order="C"))
    if array.dtype == np.uint16:
        return _spread(shorts_to_bytes(array))
    # Floats are refused: nothing says whether they run over [0, 1], [-1, 1] or [0, 255], and a wrong guess scores well.
    raise GenmeterError(
        "unsupported_media",
        f"expected an array of uint8 (or uint16), found {array.dtype}",
        "scale the values to 0..255 and convert to uint8",
    )


def shorts_to_bytes(values: np.ndarray) -> np.ndarray:
    """uint16 0..65535 to uint8 0..255 by ``round(v / 257)``, the inverse of repeating a byte."""
    out = np.empty(values.shape, np.uint8)
    step = max(1, _BAND_PIXELS // 16 // max(1, values[:1].size))
    for top in range(0, len(values), step):
        # With v = 256 h + l, v / 257 = h + (l - h) / 257: h is off by one where the two bytes lie more than 128 apart.
        high, low = values[top : top + step] >> 8, values[top : top + step] & 255
        out[top : top + step] = high + (low > high + 128) - (high > low + 128)
    return out


def floats_to_bytes(values: np.ndarray) -> np.ndarray:
    """Floats in [0, 1] to uint8 by ``round(255 v)``. Raises ``non_finite``, or ``unsupported_media`` out of range."""
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise GenmeterError("non_finite", "the image holds NaN or infinity", "write it again from finite values")
    if low < -_HALF_LEVEL or high > 1 + _HALF_LEVEL:
        raise GenmeterError(
            "unsupported_media",
            f"the float image ranges from {low:.6g} to {high:.6g}; expected 0 to 1",
            "no scale is assumed: divide by the value that stands for white, or store 8 or 16 bits",
        )
    scaled: np.ndarray = np.rint(np.clip(values, 0.0, 1.0) * 255.0)
    return scaled.astype(np.uint8)


def _integers(values: np.ndarray) -> np.ndarray:
    """Mode I as uint16. Pillow uses it for 16-bit files as well as for 32-bit ones, and only the values tell."""
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65_535 or 0 < high <= 255:
        raise GenmeterError(
            "unsupported_media",
            f"the 32-bit integer image ranges from {low} to {high}; only the 16-bit range 0 to 65535 has a known white",
            "no scale is assumed: store it as 8 or 16 bits",
        )
    return values.astype(np.uint16)


def _keyed(values: np.ndarray, key: Any) -> np.ndarray:
    """(H, W, C) uint8 or uint16 to bytes, with an alpha channel where one colour is transparent (PNG tRNS, GIF)."""
    alpha = None
    if key is not None and values.shape[2] in (1, 3):
        colour = np.asarray(key if isinstance(key, tuple) else (key,) * values.shape[2])
        alpha = np.where((values == colour).all(axis=2), 0, 255).astype(np.uint8)
    colours = shorts_to_bytes(values) if values.dtype == np.uint16 else values
    return _spread(colours, alpha)


def _spread(values: np.ndarray, alpha: np.ndarray | None = None) -> np.ndarray:
    """(H, W, 1, 3 or 4) to (H, W, 3 or 4), with ``alpha`` (H, W) as the last channel when given."""
    if alpha is None and values.shape[2] != 1:
        return values
    height, width = values.shape[:2]
    out = np.empty((height, width, 3 if alpha is None else 4), np.uint8)
    out[..., :3] = values
    if alpha is not None:
        out[..., 3] = alpha
    return out


def _converted(image: Image.Image, mode: str) -> Image.Image:
    return image if image.mode == mode else image.convert(mode)


def _array(image: Image.Image, channels: int = 0) -> np.ndarray:
    """(H, W, C) uint8 of an 8-bit image; the copy goes in bands when the image is large."""
    channels = channels or len(image.mode)
    width, height = image.size
    if width * height <= _BAND_PIXELS:
        return np.frombuffer(image.tobytes(), np.uint8).reshape(height, width, channels)
    out = np.empty((height, width, channels), np.uint8)
    step = max(1, _BAND_PIXELS // 16 // width)
    for top in range(0, height, step):
        band = image.crop((0, top, width, min(top + step, height)))
        out[top : top + band.height] = np.frombuffer(band.tobytes(), np.uint8).reshape(-1, width, channels)
    return out


def _channels_first(value: np.ndarray) -> bool:
    return value.ndim == 3 and value.shape[0] in (1, 3, 4)
