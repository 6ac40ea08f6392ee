"""Which kind of media a path, URI or in-memory object holds, judged by its name or type.

This only decides what a sample means (its task, which field is the prediction). What a file really holds is
decided by its content, when it is loaded.
"""

from __future__ import annotations

import os
import re
from typing import Any

from genmeter.contract import Modality

_SUFFIXES: dict[Modality, str] = {
    "image": "jpg jpeg jpe jfif png apng webp gif bmp dib tif tiff avif heic heif jxl jp2 ppm pgm",
    "audio": "wav wave mp3 flac ogg oga opus m4a aac aif aiff aifc wma amr au caf",
    "video": "mp4 m4v mov webm mkv avi mpg mpeg ogv wmv flv m2ts 3gp",
}
_KIND_OF_SUFFIX: dict[str, Modality] = {suffix: kind for kind, known in _SUFFIXES.items() for suffix in known.split()}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")  # two letters at least: "C:" is a drive
_LONGEST_PATH = 4096


def scheme_of(uri: str) -> str:
    """The URI scheme in lower case (``file``, ``https``, ``data`` ...), or ``""`` for a plain path."""
    match = _SCHEME.match(uri) if ":" in uri else None
    if match is None:
        return ""
    scheme = match.group(1).lower()
    # "photo:1.png" is a file name; a scheme is followed by "//", except in data: and file: URIs.
    return scheme if scheme in ("data", "file") or uri.startswith("//", match.end()) else ""


def kind_of_name(name: str) -> Modality | None:
    """The media kind that the suffix of a file name or path stands for, if any; case does not matter."""
    stem, dot, suffix = name.rpartition(".")
    return _KIND_OF_SUFFIX.get(suffix.lower()) if dot and stem and not stem.endswith("/") else None


def kind_of_uri(uri: str) -> Modality | None:
    """The media kind of a path or URI by its suffix or, in a data: URI, its MIME type; ``None`` if unknown."""
    if ":" not in uri:
        return kind_of_name(uri)
    scheme = scheme_of(uri)
    if scheme == "data":
        family = uri[5:40].lstrip().partition("/")[0].lower()
        return family if family in ("image", "audio", "video") else None  # type: ignore[return-value]
    if scheme and scheme != "file":
        uri = uri.partition("#")[0].partition("?")[0]
    return kind_of_name(uri)


def names_media(text: str, modality: Modality) -> bool:
    """Whether a text is a path or URI of this modality, and not a sentence.

    A path must end in a suffix of the modality; a URI may leave its kind open, but not name another.
    """
    text = text.strip()
    scheme = scheme_of(text)
    if not text or (scheme != "data" and (len(text) > _LONGEST_PATH or "\n" in text)):
        return False
    kind = kind_of_uri(text)
    if not scheme:
        return kind == modality
    if scheme != "data" and any(c.isspace() for c in text):
        return scheme == "file" and kind == modality
    return kind in (None, modality) and not text[:10].lower().startswith("data:text/")


def is_sound(value: Any) -> bool:
    """Whether a value is ``(samples, rate)``: a tuple of an array and a number."""
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(getattr(value[0], "ndim", None), int)
        and not hasattr(value[1], "shape")
        and isinstance(value[1], (int, float))
    )


def kind_of_object(value: Any) -> Modality | None:
    """The media kind of an in-memory value: encoded bytes, a PIL image, an array or tensor, or (samples, rate)."""
    if is_sound(value):
        return "audio"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _kind_of_bytes(bytes(value[:16]))
    dimensions = getattr(value, "ndim", None)
    if isinstance(dimensions, int):
        return "video" if dimensions == 4 else "audio" if dimensions == 1 else "image"
    if hasattr(value, "getbands") and hasattr(value, "size"):
        return "image"
    return None


def kind_of_value(value: Any) -> Modality | None:
    """The media kind of a path, URI or in-memory object; ``None`` when neither name nor type tells."""
    if isinstance(value, str):
        return kind_of_uri(value)
    if isinstance(value, os.PathLike):
        return kind_of_name(os.fspath(value) if isinstance(os.fspath(value), str) else os.fsdecode(value))
    return kind_of_object(value)


def _kind_of_bytes(head: bytes) -> Modality | None:
    if head[:4] == b"RIFF" and head[8:12] in (b"WAVE", b"AVI "):
        return "audio" if head[8:12] == b"WAVE" else "video"
    if head[4:8] == b"ftyp":
        brand = head[8:12]
        return "image" if brand in (b"avif", b"avis", b"heic", b"mif1") else "audio" if brand == b"M4A " else "video"
    if head[:4] in (b"fLaC", b"OggS") or head[:3] == b"ID3" or head[:2] in (b"\xff\xfb", b"\xff\xf3", b"\xff\xf1"):
        return "audio"
    return "video" if head[:4] == b"\x1aE\xdf\xa3" else "image" if head else None


def is_media_object(value: Any) -> bool:
    """Whether a value is in-memory media (bytes, array, image, path object) and not JSON data."""
    return isinstance(value, os.PathLike) or kind_of_object(value) is not None
