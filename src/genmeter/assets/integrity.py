"""Damage that the decoders let pass: files that load without an error and show grey, blur or wrong pixels.

PNG: the checksums of the image data, which Pillow skips. JPEG: a missing end marker, restart markers that are fewer
than the size asks for, progressive scans that stop short, and an end marker that somebody wrote behind a cut (libjpeg
fills what is missing with mid grey and only warns). A JPEG whose middle was overwritten with bytes that happen to
decode cannot be told from a whole one.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np

from genmeter.errors import GenmeterError

# Metadata that no score depends on. It is cut out before Pillow sees it: Pillow inflates it, and gives up a whole image
# over a text of more than a megabyte, such as the workflow that an image generator writes into its files.
_METADATA = frozenset({b"iCCP", b"zTXt", b"iTXt", b"tEXt"})
# ... except for texts that can hold an orientation, as long as they are of a size to do so.
_ORIENTATION_TEXTS = (b"XML:com.adobe.xmp\0", b"Raw profile type exif\0")
_ORIENTATION_TEXT_LIMIT = 65_536

_EOI = b"\xff\xd9"
_RESTART = re.compile(rb"\xff[\xd0-\xd7]")
# The chunk that ends a PNG, and what the checksum of image data starts from.
_END, _IDAT = b"\0\0\0\0IEND\xaeB`\x82", zlib.crc32(b"IDAT")
# Frame headers of the baseline and extended sequential processes; the others (progressive ...) have many scans.
_SEQUENTIAL = frozenset({0xC0, 0xC1, 0xC9})
_PROGRESSIVE = frozenset({0xC2, 0xCA})
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_NO_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})
_GREY = (127, 128)
# Any bytes that are no marker: read as image data, they change the picture; behind its end, they are skipped.
_PADDING = bytes((37 * i + 11) % 251 for i in range(96))


class PngScan(NamedTuple):
    """What a walk over the chunks of a PNG finds.

    Attributes:
        data: The file as it is handed to Pillow.
        icc_profile: Whether a colour profile was left out of it.
        pieces: The content of its IDAT chunks, where it holds nothing else that pixels depend on; else None.
    """

    data: bytes
    icc_profile: bool
    pieces: tuple[memoryview, ...] | None


def scan_png(data: bytes) -> PngScan:
    """Check the image data's checksums and leave out metadata. Raises ``decode_failed``."""
    if data.startswith(_END, -12) and data[37:41] == b"IDAT":  # as a rule: a header, one piece of image data, the end
        after = 45 + int.from_bytes(data[33:37], "big")
        piece = memoryview(data)[41 : after - 4]
        if after == len(data) - 12 and zlib.crc32(piece, _IDAT) == int.from_bytes(data[after - 4 : after], "big"):
            return PngScan(data, False, (piece,))
    at = 8
    end = len(data)
    kept: list[bytes] | None = None
    kept_until = 0
    profile = whole = False
    plain = True
    pieces: list[memoryview] = []
    view = memoryview(data)
    while at + 12 <= end:
        length = int.from_bytes(data[at : at + 4], "big")
        name = data[at + 4 : at + 8]
        after = at + 12 + length
        if after > end:
            break  # cut short: Pillow says so, unless all pixels are there
        if name == b"IDAT":
            if zlib.crc32(view[at + 4 : after - 4]) != int.from_bytes(data[after - 4 : after], "big"):
                raise GenmeterError(
                    "decode_failed",
                    "the PNG's image data does not match its checksum: the file is damaged",
                    "write or download the file again",
                )
            pieces.append(view[at + 8 : after - 4])
        elif name in _METADATA and not _may_orient(data, at, length):
            profile = profile or name == b"iCCP"
            kept = kept if kept is not None else []
            kept.append(data[kept_until:at])
            kept_until = after
        elif name == b"IEND":
            whole = True
            break
        elif at != 8:  # IHDR comes first, and at its place only
            plain = False
        at = after
    if kept is not None:
        kept.append(data[kept_until:])
        data = b"".join(kept)
    return PngScan(data, profile, tuple(pieces) if plain and whole and pieces else None)


def _may_orient(data: bytes, at: int, length: int) -> bool:
    return length <= _ORIENTATION_TEXT_LIMIT and data.startswith(_ORIENTATION_TEXTS, at + 8)


def check_jpeg(data: bytes, image: Any) -> None:
    """Find a JPEG that Pillow has loaded although part of it is missing.

    Args:
        data: The file.
        image: Pillow's image of it, loaded.

    Raises:
        GenmeterError: ``decode_failed``.
    """
    scan = _walk_jpeg(data)
    if scan is None:
        return
    stop = data.find(_EOI, scan.start)
    if stop < 0:
        raise cut("the JPEG has no end marker")
    if scan.restarts is not None:
        found = len(_RESTART.findall(data, scan.start, stop))
        if found < scan.restarts:
            raise cut(f"the JPEG holds {found} of {scan.restarts} restart markers")
    if scan.progressive and not _scans_complete(data, scan.first, stop):
        raise cut("the JPEG's last scans are missing")
    if _ends_grey(image) and _wants_more(data, stop):
        raise cut("the JPEG's data ends before the picture does")


class _JpegScan(NamedTuple):
    first: int  # where the header of the first scan begins
    start: int  # where its compressed data begins
    progressive: bool
    restarts: int | None  # how many restart markers it must hold; None: not known


def _walk_jpeg(data: bytes) -> _JpegScan | None:
    """The segments up to the first scan; ``None`` when they are in disorder that Pillow has tolerated."""
    at = 2
    interval = frame = 0
    units: int | None = None
    components = 0
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        if marker in _NO_LENGTH:
            at += 2
            continue
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        body = at + 4
        at += 2 + length
        if length < 2 or at > len(data):
            return None
        if marker == 0xDA:
            whole = units is not None and interval and data[body] == components
            restarts = -(-units // interval) - 1 if whole and units else None
            return _JpegScan(body - 4, at, frame in _PROGRESSIVE, restarts)
        if marker == 0xDD and length >= 4:
            interval = int.from_bytes(data[body : body + 2], "big")
        elif marker in _FRAMES and length >= 8:
            frame, components = marker, data[body + 5]
            if marker in _SEQUENTIAL:
                units = _coded_units(data[body:at])
    return None


def _coded_units(frame: bytes) -> int | None:
    """How many minimum coded units a frame of one interleaved scan has (ITU T.81, A.2)."""
    height, width, components = struct.unpack_from(">HHB", frame, 1)
    factors = [frame[6 + 3 * i + 1] for i in range(components) if 6 + 3 * i + 1 < len(frame)]
    if not factors or not height:
        return None
    across = down = 8
    if components > 1:
        across, down = 8 * max(f >> 4 for f in factors), 8 * max(f & 15 for f in factors)
    return -(-width // across) * -(-height // down) if across and down else None


def _scans_complete(data: bytes, first: int, stop: int) -> bool:
    """Whether the scans of a progressive JPEG bring every coefficient that they begin to its last bit (T.81, G.1).

    Of the first component, the brightness, all 64 must be there; an encoder may leave out the colour's.
    """
    missing_bits: dict[int, list[int]] = {}
    at = first
    main = None
    while 0 <= at < stop:
        count = data[at + 4]
        if at + 8 + 2 * count > stop:
            return False
        begin, end, bits = data[at + 5 + 2 * count : at + 8 + 2 * count]
        for i in range(count):
            component = data[at + 5 + 2 * i]
            main = component if main is None else main
            levels = missing_bits.setdefault(component, [-1] * 64)
            for k in range(begin, min(end, 63) + 1):
                levels[k] = bits & 15
        at = data.find(b"\xff\xda", at + 8, stop)
    return all(
        levels[0] == 0 and all(level == 0 or (level < 0 and component != main) for level in levels[1:])
        for component, levels in missing_bits.items()
    )


def _ends_grey(image: Any) -> bool:
    """Whether the last block of the picture is the mid grey that stands for missing data (127 in an inverted CMYK)."""
    width, height = image.size
    last = image.getpixel((width - 1, height - 1))
    if any(value not in _GREY for value in (last if isinstance(last, tuple) else (last,))):
        return False
    block = np.asarray(image.crop(((width - 1) // 8 * 8, (height - 1) // 8 * 8, width, height)))
    return bool((block == block[:1, :1]).all())


def _wants_more(data: bytes, stop: int) -> bool:
    """Whether bytes put in front of the end marker change the picture, which they cannot do when it is complete.

    Both pictures are decoded at an eighth of their size. Only asked for the rare picture that ends in mid grey.
    """
    whole, padded = (_eighth(data[:stop] + extra + _EOI) for extra in (b"", _PADDING))
    return not np.array_equal(whole, padded)


def _eighth(data: bytes) -> np.ndarray:
    from PIL.JpegImagePlugin import JpegImageFile

    with JpegImageFile(io.BytesIO(data)) as image:
        image.draft(image.mode, (max(1, image.width // 8), max(1, image.height // 8)))
        image.load()
        return np.asarray(image)


def cut(what: str) -> GenmeterError:
    return GenmeterError(
        "decode_failed", f"{what}: the file is cut short or damaged", "write or download the file again"
    )
