"""What a media file says of its own length, held against the bytes that are there: a cut file is no shorter clip.

Demuxers read a cut file up to the cut and report no error, so it is found here, from the container alone:

========================  ==============================================================================================
WAV, RF64, W64, AIFF,     The chunk that holds the samples must end within the file. A size of 0 or near the largest
CAF, AU, AVI              one stands for "until the end", as programs write it that cannot go back to their header.
MP3, AAC (ADTS)           Frames must follow one another from the first to the end of the file, tags apart, and the last
                          must be whole; a Xing or Info header must not count more frames than there are.
Ogg                       Pages must be whole, in order, match their checksums, and close every stream they open.
MP4, QuickTime            No media data, index or fragment may run over the end of the file.
Matroska, WebM            No element may run over the end of the file, or of the one around it.
MPEG-TS, MPEG-PS, FLV     Packets must follow one another from the first to the end; a transport stream's are counted.
FLAC                      The stream's own count of samples is compared with what was decoded (and frames' checksums).
others                    Only what their decoder finds.
========================  ==============================================================================================

What cannot be told: that an MP3 without a Xing header, an AAC, MPEG or FLV stream, or a Matroska file of unknown length
was cut just between two of its pieces.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from genmeter.errors import GenmeterError

# Sizes that mean "not known": programs that write into a pipe leave 0xFFFFFFFF, 0x7FFFFFFF or a little less.
_UNKNOWN_32 = 0x7FFF0000
_UNKNOWN_64 = 1 << 62
_W64_DATA = b"data\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"
_KNOWN = frozenset({b"data", b"fmt ", b"fact", b"LIST", b"SSND", b"COMM"})
_AGAIN = "write or download the file again"


class Checked(NamedTuple):
    """A file that is whole, as far as its container tells.

    Attributes:
        pieces: What to decode, in order; the file itself for most kinds.
        samples: How many samples a channel the container counts, where it counts them exactly.
    """

    pieces: tuple[memoryview, ...]
    samples: int | None = None


def check(data: memoryview, name: str) -> Checked:
    """Hold a file against its own sizes.

    Args:
        data: The whole file.
        name: Its format, as :func:`genmeter.assets.sniff.kind` calls it.

    Raises:
        GenmeterError: ``decode_failed`` when part of it is missing; ``empty_media`` when it holds no samples.
    """
    if name == "WAV":
        return _wav(data)
    if name == "AIFF":
        return _aiff(data)
    if name == "FLAC":
        return Checked((data,), _flac_samples(data))
    if name == "AU":
        return _au(data)
    if name in ("W64", "CAF"):
        _long_chunks(data, name)
    elif name == "AVI":
        _avi(data)
    elif name in ("MP3", "AAC"):
        from genmeter.assets.streams import check_frames

        check_frames(data, name)
    elif name in ("Ogg", "Ogg video"):
        from genmeter.assets.streams import check_pages

        check_pages(data)
    elif name in ("MP4", "M4A", "QuickTime"):
        from genmeter.assets.boxes import check_boxes

        check_boxes(data)
    elif name in ("MPEG-TS", "MPEG-PS", "FLV"):
        from genmeter.assets import transport

        walks = {"MPEG-TS": transport.check_transport, "MPEG-PS": transport.check_program, "FLV": transport.check_tags}
        walks[name](data)
    elif name == "Matroska/WebM":
        from genmeter.assets.boxes import check_elements

        check_elements(data)
    return Checked((data,))


def cut_short(what: str) -> GenmeterError:
    """The error for a file whose end is missing, or that is damaged within."""
    return GenmeterError("decode_failed", f"{what}: the file is cut short or damaged", _AGAIN)


def no_samples(name: str) -> GenmeterError:
    """The error for a file that is whole and holds no sound."""
    return GenmeterError("empty_media", f"the {name} file holds no samples")


def _chunks(data: memoryview, at: int, size: struct.Struct) -> Iterator[tuple[bytes, int, int]]:
    """``(id, start of the body, size)`` of RIFF-like chunks. Ends at a name that is none, or at the end of the data."""
    while at + 8 <= len(data):
        name = bytes(data[at : at + 4])
        (length,) = size.unpack_from(data, at + 4)
        yield name, at + 8, length
        after = at + 8 + length
        at = after + (length & 1)
        # Some programs forget the byte that evens out an odd chunk.
        if length & 1 and bytes(data[after : after + 4]) in _KNOWN and bytes(data[at : at + 4]) not in _KNOWN:
            at = after


def _is_name(data: memoryview, at: int) -> bool:
    name = bytes(data[at : at + 4])
    return len(name) == 4 and all(32 <= byte < 127 for byte in name)


_LITTLE, _BIG = struct.Struct("<I"), struct.Struct(">I")


def _wav(data: memoryview) -> Checked:
    """A WAV with nothing but its format and its samples, so that no other chunk can be taken for either."""
    large = bytes(data[:4]) in (b"RF64", b"BW64")
    kept: list[bytes] = []
    size_64 = None
    for name, start, size in _chunks(data, 12, _LITTLE):
        if name == b"data":
            if not any(chunk.startswith(b"fmt ") for chunk in kept):
                raise GenmeterError("decode_failed", "the WAV file names no format before its samples", _AGAIN)
            if large and size == 0xFFFFFFFF and size_64 is not None:
                size, unknown = size_64, size_64 == 0 or size_64 >= _UNKNOWN_64
            else:
                unknown = size == 0 or size >= _UNKNOWN_32
            body = _wav_samples(data[start:], size, unknown)
            return Checked((memoryview(_wav_header(b"".join(kept), len(body))), body))
        if start + size > len(data):
            raise cut_short(f"the WAV file ends within its {_name(name)} chunk")
        if name in (b"fmt ", b"fact"):
            kept.append(name + _LITTLE.pack(size) + bytes(data[start : start + size]) + b"\0" * (size & 1))
        elif name == b"ds64" and size >= 16:
            (size_64,) = struct.unpack_from("<Q", data, start + 8)
    raise cut_short("the WAV file has no chunk of samples")


def _wav_header(chunks: bytes, size: int) -> bytes:
    """A header for ``size`` bytes of samples; beyond 4 GiB it is that of an RF64 (EBU Tech 3306)."""
    short = size + len(chunks) + 12 < 0xFFFFFFFF
    if short:
        return b"RIFF" + _LITTLE.pack(size + len(chunks) + 12) + b"WAVE" + chunks + b"data" + _LITTLE.pack(size)
    long = b"ds64" + struct.pack("<IQQQI", 28, size + len(chunks) + 48, size, 0, 0)
    return b"RF64\xff\xff\xff\xffWAVE" + long + chunks + b"data\xff\xff\xff\xff"


def _wav_samples(rest: memoryview, size: int, unknown: bool) -> memoryview:
    if not len(rest) or (size == 0 and _only_chunks(rest)):
        if size and not unknown:
            raise cut_short(f"the WAV file says that it holds {size} bytes of samples, and holds none")
        raise no_samples("WAV")
    if unknown:
        return rest
    if size > len(rest):
        raise cut_short(f"the WAV file says that it holds {size} bytes of samples, and holds {len(rest)}")
    return rest[:size]


def _only_chunks(data: memoryview) -> bool:
    """Whether all of it is chunks, to the last byte: then it is what follows an empty chunk of samples."""
    end = 0
    for name, start, size in _chunks(data, 0, _LITTLE):
        if not _is_name(memoryview(name), 0) or start + size > len(data):
            return False
        end = start + size + (size & 1)
    return len(data) <= end <= len(data) + 1


def _name(name: bytes) -> str:
    text = name.decode("latin-1").strip()
    return repr(text) if text.isascii() and text.isprintable() else "unnamed"


def _aiff(data: memoryview) -> Checked:
    frames = None
    for name, start, size in _chunks(data, 12, _BIG):
        if name == b"COMM" and size >= 18 and start + 6 <= len(data):
            (frames,) = struct.unpack_from(">I", data, start + 2)
        elif name == b"SSND":
            if start + size > len(data) and size < _UNKNOWN_32:
                raise cut_short(
                    f"the AIFF file says that it holds {size} bytes of samples, and holds {len(data) - start}"
                )
            if frames == 0 or size <= 8 or len(data) <= start + 8:
                raise no_samples("AIFF")
            return Checked((data,))
        if start + size > len(data):
            raise cut_short(f"the AIFF file ends within its {_name(name)} chunk")
    if frames == 0:
        raise no_samples("AIFF")
    raise cut_short("the AIFF file has no chunk of samples")


def _au(data: memoryview) -> Checked:
    if len(data) < 24:
        raise cut_short("the AU file ends within its header")
    start, size = struct.unpack_from(">II", data, 4)
    if size >= _UNKNOWN_32:
        return Checked((data,))
    if start + size > len(data):
        held = max(len(data) - start, 0)
        raise cut_short(f"the AU file says that it holds {size} bytes of samples, and holds {held}")
    return Checked((data[: start + size],))


def _long_chunks(data: memoryview, name: str) -> None:
    at = 8 if name == "CAF" else 40
    head, wanted = (12, b"data") if name == "CAF" else (24, _W64_DATA)
    while at + head <= len(data):
        found = bytes(data[at : at + len(wanted)])
        (size,) = struct.unpack_from(">q" if name == "CAF" else "<q", data, at + head - 8)
        body = size if name == "CAF" else size - head
        if found == wanted:
            if 0 <= body < _UNKNOWN_64 and at + head + body > len(data):
                raise cut_short(f"the {name} file says that it holds {body} bytes of samples, and holds fewer")
            return
        if body < 0 or at + head + body > len(data):
            break
        at += head + body
        at += 0 if name == "CAF" else -at % 8
    raise cut_short(f"the {name} file has no chunk of samples")


def _avi(data: memoryview) -> None:
    """The first RIFF holds the index and, up to 1 GB, all data; longer files go on in further ones."""
    for name, start, size in _chunks(data, 0, _LITTLE):
        if name != b"RIFF":
            return
        if 0 < size < _UNKNOWN_32 and start + size > len(data):
            raise cut_short(f"the AVI file says that it holds {size} bytes, and holds {len(data) - start}")
        if not 0 < size < _UNKNOWN_32:
            return


def _flac_samples(data: memoryview) -> int | None:
    """The count of samples in STREAMINFO (RFC 9639, 8.2); None where the encoder did not know it."""
    from genmeter.assets.sniff import after_id3

    at = after_id3(data)
    if bytes(data[at : at + 4]) != b"fLaC" or len(data) < at + 42:
        raise cut_short("the FLAC file ends within its header")
    (packed,) = struct.unpack_from(">Q", data, at + 18)
    return int(packed & (1 << 36) - 1) or None
