"""16-bit colour in full. Pillow opens such files in 8-bit modes and keeps the high byte of each sample.

The low bytes are read by a second pass over the same file, with the raw mode that takes the other byte of each pair.
They matter twice: ``round(v / 257)`` needs them, and so does a 16-bit transparent colour, since many colours share
their high bytes with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

_BIG = {"RGB;16B": "RGB;16L", "RGBA;16B": "RGBA;16L", "RGBX;16B": "RGBX;16L"}
_SWAPPED = {
    **_BIG,
    **{low: high for high, low in _BIG.items()},
    # Native order, as libtiff delivers it.
    **{f"{mode};16N": f"{mode};16{'B' if sys.byteorder == 'little' else 'L'}" for mode in ("RGB", "RGBA", "RGBX")},
}


def sixteen_bit(image: Any, reopen: Callable[[], Any]) -> np.ndarray | None:
    """Both bytes of a 16-bit colour image.

    Args:
        image: An opened, unloaded Pillow image; it is loaded if it is a 16-bit one.
        reopen: Opens the same file again.

    Returns:
        (H, W, 3 or 4) uint16, or ``None`` for every other kind of image.
    """
    rawmode = _rawmode(image)
    if rawmode == "LA;16B":
        # Four bytes a pixel: taken as they are, they are both bytes of grey and of alpha.
        _set_rawmode(image, "RGBA")
        image.load()
        pairs = np.asarray(image).astype(np.uint16)
        values = pairs[..., 0::2] << 8 | pairs[..., 1::2]
        return np.ascontiguousarray(values[..., [0, 0, 0, 1]])
    if rawmode not in _SWAPPED:
        return None
    image.load()
    wide = np.asarray(image).astype(np.uint16) << 8
    with reopen() as second:
        _set_rawmode(second, _SWAPPED[rawmode])
        second.load()
        wide |= np.asarray(second)
    return wide


def _rawmode(image: Any) -> str | None:
    modes = {args if isinstance(args, str) else args[0] for _, _, _, args in image.tile if args}
    return modes.pop() if len(modes) == 1 else None


def _set_rawmode(image: Any, rawmode: str) -> None:
    image.tile = [
        tile._replace(args=rawmode if isinstance(tile.args, str) else (rawmode, *tile.args[1:])) for tile in image.tile
    ]
