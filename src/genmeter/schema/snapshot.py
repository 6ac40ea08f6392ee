"""What of a sample belongs to the evaluation set, in canonical bytes: predictions and paths stay outside."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from genmeter.contract import Modality
from genmeter.schema.fragments import read_part, replace_value
from genmeter.schema.jsonio import canonical, dumps
from genmeter.schema.media import is_media_object, names_media
from genmeter.schema.roles import output_modality

_FIELDS = ("id", "messages", "options", "references", "label", "raw_assets", "eval_config", "data_tag")
_METADATA = ("set", "split", "annotation_version")
# Stands for a digest that is not known yet. Drawn anew in each process, so that no input can hold it.
_GAP = f"gap-{secrets.token_hex(16)}-"
_GAPS = re.compile(rf"{_GAP}(\d+);".encode())
_ASSET_KEYS = frozenset(f"{kind}{tail}" for kind in ("image", "audio", "video", "file") for tail in ("", "s", "_url"))


def snapshot_record(sample: dict[str, Any], digest_of: Callable[[Any], str]) -> bytes:
    """Canonical JSON of the fields that make up the evaluation set, each asset replaced by its digest.

    Args:
        sample: A sample in the standard's shape.
        digest_of: Called with each path, URI or in-memory object of the inputs, references and raw assets; returns
            what identifies its content.

    Returns:
        UTF-8 bytes with sorted keys. Absent, null and empty fields are the same; so are samples of different models
        over one set, wherever its files lie.

    Raises:
        ValueError: If a field holds what JSON has no form for.
    """
    data: dict[str, Any] = {}
    for key in _FIELDS:
        value = sample.get(key)
        if value is not None and (value or not isinstance(value, (list, dict, str))):
            data[key] = value
    known: dict[str, str] = {}
    media = output_modality(sample)

    def digest(value: Any) -> str:
        if not isinstance(value, str):
            return digest_of(value)
        if value not in known:
            known[value] = digest_of(value)
        return known[value]

    if isinstance(data.get("messages"), list):
        data["messages"] = [_message(message, digest) for message in data["messages"]]
    if "references" in data:
        data["references"] = _references(data["references"], digest, media)
    if isinstance(data.get("raw_assets"), dict):
        data["raw_assets"] = {
            key: _asset(value, digest) if key in _ASSET_KEYS else value for key, value in data["raw_assets"].items()
        }
    # The label of a generation task is its reference's path, which is no part of the content.
    if isinstance(data.get("label"), str) and data["label"] in known:
        data["label"] = known[data["label"]]
    metadata = sample.get("metadata")
    if isinstance(metadata, dict):
        chosen = {key: metadata[key] for key in _METADATA if metadata.get(key) is not None}
        if chosen:
            data["metadata"] = chosen
    return canonical(data)


# What :func:`snapshot_record` returns, in pieces. Between them stands, for each digest that is not known yet, the
# position in :func:`snapshot_uris` of what it is of. A plain tuple, which the garbage collector need not look at.
Outline: TypeAlias = tuple[bytes | int, ...]


def fill(outline: Outline, digests: Sequence[str]) -> bytes:
    """The record of an outline, given what :func:`snapshot_record` would be told of each of the URIs."""
    return b"".join([part if isinstance(part, bytes) else dumps(digests[part])[1:-1] for part in outline])


def snapshot_outline(sample: dict[str, Any]) -> tuple[list[Any], Outline]:
    """Both :func:`snapshot_uris` and the record around their digests, so that the sample need not be kept for it.

    Raises:
        ValueError: As :func:`snapshot_record`.
    """
    uris: list[Any] = []
    known: dict[str, str] = {}

    def mark(value: Any) -> str:
        place = known.get(value) if isinstance(value, str) else None
        if place is None:
            place = f"{_GAP}{len(uris)};"
            uris.append(value)
            if isinstance(value, str):
                known[value] = place
        return place

    record = snapshot_record(sample, mark)
    if not uris:
        return uris, (record,)
    pieces = _GAPS.split(record)
    return uris, tuple([int(part) if position % 2 else part for position, part in enumerate(pieces)])


def snapshot_uris(sample: dict[str, Any]) -> list[Any]:
    """The paths, URIs and in-memory objects that :func:`snapshot_record` asks digests of, in order, each once."""
    seen: list[Any] = []
    strings: set[str] = set()

    def note(value: Any) -> str:
        if not isinstance(value, str):
            seen.append(value)
        elif value not in strings:
            strings.add(value)
            seen.append(value)
        return ""

    if isinstance(sample.get("messages"), list):
        for message in sample["messages"]:
            _message(message, note)
    _references(sample.get("references"), note, output_modality(sample))
    assets = sample.get("raw_assets")
    for key, value in assets.items() if isinstance(assets, dict) else ():
        if key in _ASSET_KEYS:
            _asset(value, note)
    return seen


def _message(message: Any, digest: Callable[[Any], str]) -> Any:
    if not isinstance(message, dict) or not isinstance(message.get("content"), (list, dict)):
        return message
    content = message["content"]
    if isinstance(content, dict):
        return {**message, "content": _fragment(content, digest)}
    return {**message, "content": [_fragment(item, digest) for item in content]}


def _fragment(fragment: Any, digest: Callable[[Any], str]) -> Any:
    part = read_part(fragment)
    if part.kind in ("text", "bad"):
        return fragment
    return replace_value(fragment, part.keys, digest(part.value))


def _references(value: Any, digest: Callable[[Any], str], media: Modality | None) -> Any:
    if isinstance(value, list):
        return [_references(item, digest, media) for item in value]
    if isinstance(value, dict) and "answer" in value:
        return {**value, "answer": _references(value["answer"], digest, media)}
    if isinstance(value, str):
        is_path = media is not None and names_media(value, media)
        return digest(value.strip()) if is_path else value
    return _fragment(value, digest) if isinstance(value, dict) or is_media_object(value) else value


def _asset(value: Any, digest: Callable[[Any], str]) -> Any:
    if isinstance(value, list):
        return [_asset(item, digest) for item in value]
    if isinstance(value, str):
        return digest(value)
    return _fragment(value, digest) if isinstance(value, dict) or is_media_object(value) else value
