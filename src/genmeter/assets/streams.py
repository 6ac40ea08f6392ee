"""Formats that are one run of frames or pages: MP3, AAC in ADTS, and Ogg."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import NamedTuple

from genmeter.assets.containers import cut_short, no_samples
from genmeter.assets.sniff import after_id3

_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
# kbit/s by (is MPEG-1, layer): ISO 11172-3 and 13818-3, table "bitrate_index"; 0 is free format, 15 is forbidden.
_KBITS = {
    (True, 1): (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_SEARCHED = 65_536
_TAGS = (b"TAG", b"APETAGEX", b"LYRICSBEGIN", b"3DI")
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_FIRST_PAGE, _LAST_PAGE = 2, 4


def mp3_frame(data: memoryview, at: int) -> int | None:
    """Bytes of the MPEG audio frame whose header stands at ``at``; None where no header does, or a free-format one."""
    if at + 4 > len(data) or data[at] != 0xFF or data[at + 1] & 0xE0 != 0xE0:
        return None
    version, layer = data[at + 1] >> 3 & 3, 4 - (data[at + 1] >> 1 & 3)
    index, rate_index, padding = data[at + 2] >> 4, data[at + 2] >> 2 & 3, data[at + 2] >> 1 & 1
    if version == 1 or layer == 4 or rate_index == 3 or index in (0, 15):
        return None
    bits = _KBITS[version == 3, layer][index] * 1000
    rate = _RATES[version][rate_index]
    if layer == 1:
        return (12 * bits // rate + padding) * 4
    return (72 if layer == 3 and version != 3 else 144) * bits // rate + padding


def adts_frame(data: memoryview, at: int) -> int | None:
    """Bytes of the AAC frame whose ADTS header stands at ``at`` (ISO 13818-7, 6.2); None where none does."""
    if at + 7 > len(data) or data[at] != 0xFF or data[at + 1] & 0xF6 != 0xF0:
        return None
    length = (data[at + 3] & 3) << 11 | data[at + 4] << 3 | data[at + 5] >> 5
    return length if length >= 7 else None


def check_frames(data: memoryview, name: str) -> None:
    """Walk the frames of an MP3 or an ADTS stream. Raises ``decode_failed`` and ``empty_media``."""
    frame = mp3_frame if name == "MP3" else adts_frame
    start = at = _first(data, after_id3(data), frame)
    if at is None or start is None:
        if not len(data) - after_id3(data):
            raise no_samples(name)
        return  # free format, or nothing that this walk knows: the decoder decides
    count = 0
    while at < len(data):
        length = frame(data, at)
        if length is None:
            after = _after_tag(data, at)
            if after is None:
                break
            at = after
            continue
        if at + length > len(data):
            raise cut_short(f"the last {name} frame is not whole")
        at += length
        count += 1
    if 0 < len(data) - at < 4 and data[at] == 0xFF:
        raise cut_short(f"the last {name} frame is not whole")
    if _first(data, at, frame) is not None:
        raise cut_short(f"{name} frames are missing within the file")
    said = _xing_frames(data, start) if name == "MP3" else None
    # The frame that holds the count is itself counted by some encoders, so one less proves nothing.
    if said is not None and said > count:
        raise cut_short(f"the MP3 says that it holds {said} frames, and holds {count - 1}")


def _first(data: memoryview, at: int, frame: Callable[[memoryview, int], int | None]) -> int | None:
    """Where the first of two frames in a row (or one that ends the file) begins, near ``at``."""
    for position in range(at, min(len(data), at + _SEARCHED)):
        length = frame(data, position) if data[position] == 0xFF else None
        if length is not None:
            after = position + length
            if after == len(data) or frame(data, after) is not None:
                return position
    return None


def _after_tag(data: memoryview, at: int) -> int | None:
    """Where the tag at ``at`` ends; None when there is no tag. Tags other than ID3v2 end the file."""
    after = after_id3(data, at)
    if after > at:
        return after
    head = bytes(data[at : at + 11])
    return len(data) if head.startswith(_TAGS) else None


def _xing_frames(data: memoryview, start: int) -> int | None:
    """The count of frames in the header that encoders hide in the first frame's side information."""
    mono, mpeg1 = data[start + 3] >> 6 == 3, data[start + 1] >> 3 & 3 == 3
    side = (17 if mono else 32) if mpeg1 else (9 if mono else 17)
    at = start + 4 + side
    if bytes(data[at : at + 4]) in (b"Xing", b"Info") and at + 12 <= len(data) and data[at + 7] & 1:
        return int.from_bytes(data[at + 8 : at + 12], "big")
    at = start + 36
    if bytes(data[at : at + 4]) == b"VBRI" and at + 18 <= len(data):
        return int.from_bytes(data[at + 14 : at + 18], "big")
    return None


class _Stream(NamedTuple):
    page: int
    open: bool


def check_pages(data: memoryview) -> None:
    """Walk the pages of an Ogg file (RFC 3533). Raises ``decode_failed``."""
    streams: dict[int, _Stream] = {}
    at = 0
    while at < len(data):
        if bytes(data[at : at + 4]) != b"OggS":
            if not any(data[at:]) or bytes(data[at : at + 3]) == b"TAG":
                break  # padding, or a tag, behind the last page
            raise cut_short("the Ogg file holds something that is no page")
        segments = at + 27
        if segments > len(data) or segments + data[at + 26] > len(data):
            raise cut_short("the last Ogg page is not whole")
        end = segments + data[at + 26] + sum(data[segments : segments + data[at + 26]])
        if end > len(data):
            raise cut_short("the last Ogg page is not whole")
        _check_page(data[at:end], streams)
        at = end
    if any(stream.open for stream in streams.values()):
        raise cut_short("the last page of an Ogg stream is missing")


def _check_page(page: memoryview, streams: dict[int, _Stream]) -> None:
    if ogg_checksum(page) != int.from_bytes(page[22:26], "little"):
        raise cut_short("an Ogg page does not match its checksum")
    serial, number = int.from_bytes(page[14:18], "little"), int.from_bytes(page[18:22], "little")
    known = streams.get(serial)
    if known is not None and not page[5] & _FIRST_PAGE and number != (known.page + 1) & 0xFFFFFFFF:
        raise cut_short("pages are missing within the Ogg file")
    streams[serial] = _Stream(number, not page[5] & _LAST_PAGE)


def ogg_checksum(page: memoryview) -> int:
    """The CRC-32 of a page with its checksum taken as 0: zlib's polynomial, most significant bit first, from 0."""
    raw = bytes(page[:22]) + b"\0\0\0\0" + bytes(page[26:])
    reflected = zlib.crc32(raw.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{reflected:032b}"[::-1], 2)
