"""What kind of content some bytes are, by their first bytes and never by a file name or a declared type."""

from __future__ import annotations

import struct

IMAGE_FORMATS = frozenset({"JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"})
"""The image formats that are decoded; others are recognised for their error messages only."""

_STARTS: tuple[tuple[bytes, str, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image", "PNG"),
    (b"\xff\xd8\xff", "image", "JPEG"),
    (b"GIF87a", "image", "GIF"),
    (b"GIF89a", "image", "GIF"),
    (b"II*\0", "image", "TIFF"),
    (b"MM\0*", "image", "TIFF"),
    (b"II+\0", "image", "TIFF"),
    (b"MM\0+", "image", "TIFF"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "image", "JPEG XL"),
    (b"\xff\x0a", "image", "JPEG XL"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "image", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "image", "JPEG 2000"),
    (b"8BPS", "image", "PSD"),
    (b"v/1\x01", "image", "OpenEXR"),
    (b"#?RADIANCE", "image", "Radiance HDR"),
    (b"\0\0\x01\0", "image", "ICO"),
    (b"DDS ", "image", "DDS"),
    (b"qoif", "image", "QOI"),
    (b"fLaC", "audio", "FLAC"),
    (b".snd", "audio", "AU"),
    (b"caff\0\x01", "audio", "CAF"),
    (b"riff\x2e\x91\xcf\x11", "audio", "W64"),
    (b"wvpk", "audio", "WavPack"),
    (b"TTA1", "audio", "TTA"),
    (b"MAC \x96\x0f", "audio", "Monkey's Audio"),
    (b"#!AMR", "audio", "AMR"),
    (b"\x0b\x77", "audio", "AC-3"),
    (b"\x1aE\xdf\xa3", "video", "Matroska/WebM"),
    (b"\0\0\x01\xba", "video", "MPEG-PS"),
    (b"\0\0\x01\xb3", "video", "MPEG"),
    (b"FLV\x01", "video", "FLV"),
    (b"0&\xb2u\x8ef\xcf\x11", "video", "ASF"),
    (b"\x93NUMPY", "unknown", "a numpy array file"),
    (b"PK\x03\x04", "unknown", "a zip archive"),
    (b"\x1f\x8b", "unknown", "gzip data"),
    (b"%PDF", "unknown", "PDF"),
    (b"\x7fELF", "unknown", "a program"),
)
_RIFF = {b"WEBP": ("image", "WEBP"), b"WAVE": ("audio", "WAV"), b"AVI ": ("video", "AVI")}
_HEIF = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})
_M4A = frozenset({b"M4A ", b"M4B ", b"M4P "})
_LFS = b"version https://git-lfs.github.com/spec/"
_HTML = (b"<!doctype html", b"<html", b"<head", b"<body", b"<title", b"<script")


def kind(data: bytes | memoryview) -> tuple[str, str]:
    """What the content is.

    Returns:
        ``(modality, format)``. The modality is ``image``, ``audio``, ``video``, ``text`` or ``unknown``; the format of
        an image that can be decoded is one of :data:`IMAGE_FORMATS`, any other is a word for a message.
    """
    start = bytes(data[:8])
    if start == b"\x89PNG\r\n\x1a\n":
        return "image", "PNG"
    if start.startswith(b"\xff\xd8\xff"):
        return "image", "JPEG"
    head = bytes(data[:1024])
    if head.startswith(b"ID3"):
        return _behind_tag(data)
    if head.startswith(b"RIFF"):
        return _RIFF.get(head[8:12], ("unknown", "a RIFF file"))
    if head.startswith((b"RF64", b"BW64")):
        return "audio", "WAV"
    if head.startswith(b"FORM"):
        return ("audio", "AIFF") if head[8:12] in (b"AIFF", b"AIFC") else ("unknown", "an IFF file")
    if head[:1] == head[188:189] == head[376:377] == b"G":
        return "video", "MPEG-TS"
    if head[4:8] == b"ftyp":
        return _iso_media(head)
    for start, modality, name in _STARTS:
        if head.startswith(start):
            return modality, name
    if head.startswith(b"BM") and _is_bmp(head):
        return "image", "BMP"
    if head.startswith(b"OggS"):
        return ("video", "Ogg video") if b"theora" in head[:128] else ("audio", "Ogg")
    if len(head) >= 4 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0 and head[1] & 0x06:
        return "audio", "MP3"
    if len(head) >= 4 and head[0] == 0xFF and head[1] & 0xF6 == 0xF0:
        return "audio", "AAC"
    return _textual(head)


def describe(modality: str, name: str) -> str:
    """The content in words, for a message: ``an HTML page``, ``audio (WAV)``, ``a TIFF image``."""
    if modality in ("text", "unknown"):
        return name
    return f"{modality} ({name})"


def after_id3(data: bytes | memoryview, at: int = 0) -> int:
    """Where the ID3v2 tags that stand at ``at`` end (their size is in 7-bit bytes, id3v2.4.0, 3.1); ``at`` if none."""
    while at + 10 <= len(data) and bytes(data[at : at + 3]) == b"ID3":
        size = 0
        for byte in data[at + 6 : at + 10]:
            size = size << 7 | byte & 0x7F
        at = min(len(data), at + 10 + size + (10 if data[at + 5] & 0x10 else 0))
    return at


def _behind_tag(data: bytes | memoryview) -> tuple[str, str]:
    """An ID3 tag mostly stands before an MP3, but some programs write it before FLAC and AAC too."""
    at = after_id3(data)
    found = kind(data[at : at + 1024]) if at < len(data) and at else ("audio", "MP3")
    return found if found[1] in ("FLAC", "AAC", "TTA") else ("audio", "MP3")


def _is_bmp(head: bytes) -> bool:
    if len(head) < 18:
        return False
    return struct.unpack_from("<I", head, 14)[0] in (12, 16, 40, 52, 56, 64, 108, 124)


def _iso_media(head: bytes) -> tuple[str, str]:
    """MP4, QuickTime, AVIF and HEIF share one container; the brands tell them apart."""
    size = min(max(struct.unpack_from(">I", head)[0], 16), len(head))
    major = head[8:12]
    brands = {head[at : at + 4] for at in range(16, size - 3, 4)} | {major}
    if brands & {b"avif", b"avis"}:
        return "image", "AVIF"
    if brands & _HEIF:
        return "image", "HEIC"
    if major in _M4A:
        return "audio", "M4A"
    return "video", "QuickTime" if major == b"qt  " else "MP4"


def _textual(head: bytes) -> tuple[str, str]:
    if head.startswith(_LFS):
        return "text", "a git-lfs pointer, not the file itself (run git lfs pull)"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    lower = text[:256].lower()
    if lower.startswith(_HTML) or (lower.startswith(b"<!--") and b"<html" in head.lower()):
        return "text", "an HTML page"
    if lower.startswith(b"<svg") or (
        lower.startswith((b"<?xml", b"<!--", b"<!doctype svg")) and b"<svg" in head.lower()
    ):
        return "image", "SVG"
    if lower.startswith(b"<?xml"):
        return "text", "an XML document" if b"<html" not in head.lower() else "an HTML page"
    if not text:
        return "text", "only white space"
    if _is_text(head):
        return "text", "a JSON document" if text[:1] in b"{[" else "plain text"
    return "unknown", "content of an unknown kind"


def _is_text(head: bytes) -> bool:
    if any(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in head):
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > 0 and error.start >= len(head) - 3  # a character cut by the 1024-byte window
    return True
