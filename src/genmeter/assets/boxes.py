"""Formats of nested pieces: MP4 and QuickTime (boxes), Matroska and WebM (EBML elements)."""

from __future__ import annotations

import struct

from genmeter.assets.containers import cut_short

# What a decoder needs whole; a cut in padding or in tags loses nothing.
_NEEDED = frozenset({b"mdat", b"moov", b"moof", b"ftyp"})
_SEGMENT, _CLUSTER = 0x18538067, 0x1F43B675


def check_boxes(data: memoryview) -> None:
    """Walk the outer boxes of an MP4 (ISO 14496-12, 4.2). Raises ``decode_failed``."""
    at = 0
    index = False
    while at + 8 <= len(data):
        (size,) = struct.unpack_from(">I", data, at)
        name = bytes(data[at + 4 : at + 8])
        head = 8
        if size == 1 and at + 16 <= len(data):
            (size,) = struct.unpack_from(">Q", data, at + 8)
            head = 16
        if size == 0:
            size = len(data) - at
        if size < head:
            break  # no box: what follows is no part of the file
        if name == b"moov":
            index = True
        if at + size > len(data) and name in _NEEDED:
            held = len(data) - at
            raise cut_short(f"the file's {name.decode()} box says that it holds {size} bytes, and holds {held}")
        at += size
    if not index:
        raise cut_short("the file's index (its moov box) is missing")


def check_elements(data: memoryview) -> None:
    """Walk the elements of a Matroska file down to its blocks (RFC 8794, RFC 9559). Raises ``decode_failed``."""
    at = 0
    around: list[tuple[int, int]] = []  # identity and end of the elements around this place
    while at < len(data):
        while around and at >= around[-1][1]:
            identity, end = around.pop()
            if at > end:
                raise cut_short("a Matroska element runs over the end of the one around it")
            if identity == _SEGMENT:
                return  # what follows is no part of the file
        identity, start = _identity(data, at)
        size, start = _size(data, start)
        if start > len(data):
            raise cut_short("the last Matroska element is not whole")
        end = len(data) if size is None else start + size
        if end > len(data):
            raise cut_short(f"a Matroska element says that it holds {size} bytes, and holds {len(data) - start}")
        if identity in (_SEGMENT, _CLUSTER):
            if size is not None:
                around.append((identity, end))
            at = start
        else:
            at = end


def _identity(data: memoryview, at: int) -> tuple[int, int]:
    """An element's identity, of one to four bytes, and where it ends."""
    length = 9 - data[at].bit_length()
    if length > 4:
        raise cut_short("the Matroska file holds something that is no element")
    if at + length > len(data):
        raise cut_short("the last Matroska element is not whole")
    return int.from_bytes(data[at : at + length], "big"), at + length


def _size(data: memoryview, at: int) -> tuple[int | None, int]:
    """An element's size and where it ends: beyond the data when it is cut. None: not known when it was written."""
    length = 9 - data[at].bit_length() if at < len(data) else 8
    if length > 8 or at + length > len(data):
        return None, len(data) + 1
    most = (1 << 7 * length) - 1
    value = int.from_bytes(data[at : at + length], "big") & most
    return (None if value == most else value), at + length
