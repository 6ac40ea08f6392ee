"""Reading content fragments in all the shapes that people and APIs write.

The standard's form is ``{"type": "image_url", "image_url": {"url": ...}}``. Also read: a string payload, a bare
``url`` key, ``image``/``audio``/``video`` types with a payload of their own, ``input_audio`` with base64 data,
typed ``source`` objects, fragments without a type, and plain strings.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from genmeter.contract import Modality
from genmeter.schema.media import is_media_object, kind_of_value, scheme_of

_MEDIA = ("image", "audio", "video", "file")
_TYPES: dict[str, str] = {
    **{kind: kind for kind in _MEDIA},
    **{f"{kind}_url": kind for kind in _MEDIA},
    **{f"input_{kind}": kind for kind in _MEDIA},
    **{f"output_{kind}": kind for kind in _MEDIA},
    "document": "file",
}
_TEXT_TYPES = frozenset({"text", "input_text", "output_text"})
_MIME_KEYS = ("media_type", "mime_type", "mimeType", "format")
_URL_KEYS = ("url", "uri", "path")
_BASE64_KEYS = ("data", "b64_json", "base64")


class Part(NamedTuple):
    """One fragment, read.

    Attributes:
        kind: ``text``, ``image``, ``audio``, ``video``, ``file`` (a file of no known kind), or ``bad``.
        value: The text, the path or URI, or an in-memory object; for ``bad`` what is wrong with the fragment.
        keys: Where the value stands inside the fragment, outermost first.
    """

    kind: str
    value: Any
    keys: tuple[str, ...]

    def path(self, base: str) -> str:
        """The field path of the value, given the fragment's."""
        return ".".join((base, *self.keys))


def read_part(fragment: Any) -> Part:
    """Read one fragment. Never raises: what cannot be understood comes back as ``bad`` with the reason."""
    if isinstance(fragment, str):
        return Part("text", fragment, ())
    if not isinstance(fragment, dict):
        if is_media_object(fragment):
            return Part(kind_of_value(fragment) or "file", fragment, ())
        if isinstance(fragment, (int, float)) and not isinstance(fragment, bool):
            return Part("text", str(fragment), ())
        return Part("bad", f"expected a fragment, found {json_name(fragment)}", ())
    name = fragment.get("type")
    if name is not None and not isinstance(name, str):
        return Part("bad", f"expected a type, found {json_name(name)}", ("type",))
    if name in _TEXT_TYPES or (name is None and "text" in fragment):
        text = fragment.get("text")
        if isinstance(text, str):
            return Part("text", text, ("text",))
        return Part("bad", f"expected a text, found {json_name(text)}", ("text",))
    if name is None:
        name = next((key for key in _TYPES if key in fragment), None)
        if name is None:
            return _read_payload("file", fragment, (), fragment)
    kind = _TYPES.get(name)
    if kind is None:
        return Part("bad", "the fragment's type is not known", ("type",))
    for key in (name, f"{kind}_url", kind, "source"):
        if key in fragment:
            return _read_payload(kind, fragment[key], (key,), fragment)
    return _read_payload(kind, fragment, (), fragment)


def read_content(content: Any) -> list[tuple[Part, str]]:
    """Read a message's content: each fragment with its path below the content (``[1]``, or ``""`` for a string)."""
    if isinstance(content, list):
        return [(read_part(fragment), f"[{i}]") for i, fragment in enumerate(content) if fragment is not None]
    return [] if content is None else [(read_part(content), "")]


def replace_value(fragment: Any, keys: tuple[str, ...], value: Any) -> Any:
    """A copy of a fragment with the value at ``keys`` replaced; the fragment itself is left alone."""
    if not keys:
        return value
    return {**fragment, keys[0]: replace_value(fragment[keys[0]], keys[1:], value)}


def json_name(value: Any) -> str:
    """What a value is, in the words of JSON (``a string``, ``an object`` ...)."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    for types, name in (((int, float), "a number"), (str, "a string"), (list, "a list"), (dict, "an object")):
        if isinstance(value, types):
            return name
    return f"a Python {type(value).__name__}"


def _read_payload(kind: str, payload: Any, keys: tuple[str, ...], fragment: dict[str, Any]) -> Part:
    if isinstance(payload, dict):
        for key in _URL_KEYS:
            if payload.get(key) is not None:
                return _media(kind, payload[key], (*keys, key))
        for key in _BASE64_KEYS:
            if payload.get(key) is not None:
                return _encoded(kind, payload[key], (*keys, key), {**fragment, **payload})
        if payload is not fragment:
            return Part("bad", f"expected a path or URL, found an object without {' or '.join(_URL_KEYS[:1])}", keys)
        return Part("bad", "the fragment names no text, path or URL", keys)
    if payload is None:
        # {"type": "image", "image": null, "url": ...}: the value may stand beside an empty payload.
        for key in _URL_KEYS:
            if fragment.get(key) is not None:
                return _media(kind, fragment[key], (key,))
    return _media(kind, payload, keys)


def _media(kind: str, value: Any, keys: tuple[str, ...]) -> Part:
    if isinstance(value, os.PathLike):
        value = os.fsdecode(value)
    if not isinstance(value, str) and not is_media_object(value):
        return Part("bad", f"expected a path or URL, found {json_name(value)}", keys)
    if kind == "file":
        kind = kind_of_value(value) or "file"
    return Part(kind, value, keys)


def _encoded(kind: str, data: Any, keys: tuple[str, ...], fragment: dict[str, Any]) -> Part:
    """Base64 with its format beside it, as a data: URI; some write a path or URI where the data belong."""
    if not isinstance(data, str) or scheme_of(data) or kind_of_value(data) is not None:
        return _media(kind, data, keys)
    mime = next((str(fragment[key]) for key in _MIME_KEYS if fragment.get(key)), "")
    if mime and "/" not in mime:
        mime = f"{kind if kind != 'file' else 'application'}/{mime}"
    mime = mime or (f"{kind}/*" if kind != "file" else "application/octet-stream")
    return _media(kind, f"data:{mime};base64,{data}", keys)


def modality_of(part: Part) -> Modality | None:
    """The modality of a media or text part; ``None`` for a file of unknown kind and for a bad part."""
    return part.kind if part.kind in ("text", "image", "audio", "video") else None  # type: ignore[return-value]
