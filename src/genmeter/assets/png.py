"""The PNG that nearly everybody writes, straight to Pillow's decompressor.

8 bits a sample, grey, RGB or RGBA, not interlaced, and nothing beside the image data that pixels depend on. For small
files of this kind Pillow's file plugin takes longer than the decompression. Whatever is out of the ordinary, damage
included, is left to it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

_HEADER = b"\0\0\0\rIHDR"
_MODES = {0: "L", 2: "RGB", 6: "RGBA"}


# Decompressed at a time where only the length counts.
_BLOCK = 1 << 18


def decode_plain(data: bytes, pieces: Sequence[memoryview], max_pixels: int) -> Image.Image | None:
    """The loaded image, or ``None`` where Pillow's plugin has to look at the file itself.

    Args:
        data: The file, from its signature on.
        pieces: The content of its IDAT chunks, which follow each other and are all that it holds but IHDR and IEND.
        max_pixels: Largest width x height.
    """
    if data[8:16] != _HEADER or data[24] != 8 or data[26:29] != b"\0\0\0":
        return None
    mode = _MODES.get(data[25])
    if mode is None or zlib.crc32(data[12:29]) != int.from_bytes(data[29:33], "big"):
        return None
    size = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    if not 0 < size[0] * size[1] <= max_pixels:
        return None
    from PIL import Image

    try:
        return Image.frombytes(mode, size, b"".join(pieces), "zip", mode)
    except ValueError:
        return None  # too little data, or damaged: the plugin says which


def ends_early(image: Image.Image, pieces: Sequence[memoryview]) -> bool:
    """Whether the image data of a plain PNG ends before the picture does; Pillow leaves the rest of it black.

    Args:
        image: What :func:`decode_plain` returned.
        pieces: What it was given.
    """
    wanted = image.height * (1 + image.width * len(image.getbands()))
    engine = zlib.decompressobj()
    try:
        for piece in pieces:
            rest = bytes(piece)
            while rest and wanted > 0 and not engine.eof:
                wanted -= len(engine.decompress(rest, _BLOCK))
                rest = engine.unconsumed_tail
    except zlib.error:
        return False  # a checksum behind the last row, which Pillow does not look at either
    return wanted > 0
