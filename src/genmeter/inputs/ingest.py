"""Whatever :func:`genmeter.inputs.source.open_source` reads, written as samples of the standard, one a line."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from genmeter.errors import GenmeterError
from genmeter.inputs.source import Source
from genmeter.schema.jsonio import dumps
from genmeter.schema.media import scheme_of

_URLS = ("image_url", "audio_url", "video_url", "file_url")
_KINDS = {
    b"\x89PNG": ".png",
    b"\xff\xd8\xff": ".jpg",
    b"GIF8": ".gif",
    b"fLaC": ".flac",
    b"OggS": ".ogg",
    b"ID3": ".mp3",
}


class Ingested(NamedTuple):
    """What was written.

    Attributes:
        written: Number of samples.
        errors: An error for each line or row that is no sample.
        outside: Whether media lie outside the folder of the new file, so that scoring needs to be told their root.
    """

    written: int
    errors: list[GenmeterError]
    outside: bool


class MediaFolder:
    """Where media go that stand in a table as bytes: ``<name>_media/<digest>``, made when the first one comes.

    Args:
        out: The file of samples that is being written.
    """

    def __init__(self, out: Path) -> None:
        self.path = out.with_name(f"{out.name.partition('.')[0]}_media")

    def put(self, data: bytes, column: str) -> str:
        """Write the bytes, once, and return the file's path."""
        self.path.mkdir(parents=True, exist_ok=True)
        file = self.path / f"{hashlib.sha256(data).hexdigest()[:32]}{_suffix(data)}"
        if not file.exists():
            part = file.with_name(f".{file.name}.part")
            part.write_bytes(data)
            os.replace(part, file)
        return str(file)


def write_samples(source: Source, out: Path) -> Ingested:
    """Write the samples of an input; paths become relative to the new file, which appears whole or not at all.

    Args:
        source: Any input.
        out: A file, which is replaced.

    Returns:
        Counts, and an error for each line or row that is no sample; the others are written.
    """
    errors: list[GenmeterError] = []
    written, outside = 0, False
    part = out.with_name(f".{out.name}.part")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(part, "wb") as file:
            for line in source:
                if line.sample is None:
                    errors.append(line.error or GenmeterError("bad_line", f"line {line.number} holds no sample"))
                    continue
                sample = dict(line.sample)
                _move_paths(sample, source.roots, Path(os.path.abspath(out.parent)))
                outside = outside or any(path.startswith("..") for path in _paths(sample))
                file.write(dumps(sample) + b"\n")
                written += 1
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)
    return Ingested(written, errors, outside)


def _move_paths(sample: dict[str, Any], roots: tuple[Path, ...], folder: Path) -> None:
    """Rewrite relative paths so that they lead to the same files from another folder."""
    for key in ("messages", "references", "predict_result"):
        if key in sample:
            sample[key] = _moved(sample[key], roots, folder)


def _moved(value: Any, roots: tuple[Path, ...], folder: Path) -> Any:
    if isinstance(value, list):
        return [_moved(item, roots, folder) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _moved(item, roots, folder) for key, item in value.items()}
    for key in _URLS:
        payload = found.get(key)
        if isinstance(payload, str):
            found[key] = _path(payload, roots, folder)
        elif isinstance(payload, dict) and isinstance(payload.get("url"), str):
            found[key] = {**payload, "url": _path(payload["url"], roots, folder)}
    return found


def _paths(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _paths(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "url" and isinstance(item, str):
                yield item
            else:
                yield from _paths(item)


def _path(uri: str, roots: tuple[Path, ...], folder: Path) -> str:
    if scheme_of(uri):
        return uri
    place = next((root / uri for root in roots if os.path.lexists(root / uri)), roots[0] / uri)
    return os.path.relpath(place, folder) if not os.path.isabs(uri) or place.is_relative_to(folder) else uri


def _suffix(data: bytes) -> str:
    if data[:4] == b"RIFF":
        return {b"WAVE": ".wav", b"WEBP": ".webp", b"AVI ": ".avi"}.get(data[8:12], ".bin")
    if data[4:8] == b"ftyp":
        return ".avif" if data[8:12] in (b"avif", b"avis") else ".mp4"
    return next((suffix for head, suffix in _KINDS.items() if data.startswith(head)), ".bin")


def problems(found: Ingested, most: int = 3) -> Iterator[str]:
    """Sentences on what could not be read, the first ones with their reason."""
    for error in found.errors[:most]:
        yield error.message + (f"; {error.hint}" if error.hint else "")
    if len(found.errors) > most:
        yield f"and {len(found.errors) - most} more"
