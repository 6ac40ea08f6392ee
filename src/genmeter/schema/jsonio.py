"""JSON in and out: tolerant of what other tools write, strict in what is written.

orjson does the work. The standard library takes over for what orjson refuses or would change in silence:
bare ``NaN``, integers of more than 64 bits (orjson rounds them to floats) and lone surrogates.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import isfinite
from typing import Any

import orjson

MAX_DEPTH = 200
"""Deepest nesting that is read. Below every encoder's own limit, so that what was read can be written."""

# Long integers are found without parsing twice: digits become "0", all else a space.
_DIGITS = bytes(48 if 48 <= c <= 57 else 32 for c in range(256))
_LONG = b"0" * 19


def loads(data: bytes | str, *, nan_as_null: bool = False) -> Any:
    """Parse one JSON document.

    Args:
        data: UTF-8 bytes, or text. Of a key that comes twice the last value is kept.
        nan_as_null: Read ``NaN``, ``Infinity`` and numbers beyond a float's range as ``None``, since strict
            JSON cannot hold them; otherwise they become floats.

    Raises:
        ValueError: Not JSON, not UTF-8, or nested deeper than :data:`MAX_DEPTH`. The message says what and
            where, and never quotes the content.
    """
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    try:
        parsed = orjson.loads(raw) if _LONG not in raw.translate(_DIGITS) else _loads_standard(data, nan_as_null)
    except orjson.JSONDecodeError:
        parsed = _loads_standard(data, nan_as_null)
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _depth_above(parsed, MAX_DEPTH):
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return parsed


def dumps(obj: Any, *, finite: bool = False) -> bytes:
    """Write strict JSON in UTF-8: no spaces, insertion order, non-ASCII as it is, no NaN or infinity.

    Lone surrogates are written as escapes and long integers in full, so that both survive a round trip. numpy
    scalars are written as the plain numbers they hold.

    Args:
        obj: What is written.
        finite: Whether it is known to hold no NaN or infinity, as what has come out of JSON: nobody looks for them.

    Raises:
        ValueError: The object holds NaN, an infinity, or something that JSON has no form for.
    """
    try:
        out = orjson.dumps(obj)
    except TypeError:
        return _dumps_standard(obj, sort_keys=False)
    # orjson writes a non-finite float as null, so only output with a null in it can hide one.
    if not finite and b"null" in out and not all_finite(obj):
        raise ValueError("NaN and infinity have no form in JSON")
    return out


def canonical(obj: Any) -> bytes:
    """Like :func:`dumps`, with sorted keys: equal content gives equal bytes. Raises ``ValueError`` as it does."""
    try:
        out = orjson.dumps(obj, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return _dumps_standard(obj, sort_keys=True)
    if b"null" in out and not all_finite(obj):
        raise ValueError("NaN and infinity have no form in JSON")
    return out


def all_finite(obj: Any) -> bool:
    """Whether no float in nested dicts, lists and tuples is NaN or infinite."""
    stack: list[Iterable[Any]] = [(obj,)]
    while stack:
        for value in stack.pop():
            if isinstance(value, float):
                if not isfinite(value):
                    return False
            elif isinstance(value, dict):
                stack.append(value.values())
            elif isinstance(value, (list, tuple)):
                stack.append(value)
    return True


def _loads_standard(data: bytes | str, nan_as_null: bool) -> Any:
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start + 1})") from None
    hooks: dict[str, Any] = {}
    if nan_as_null:
        hooks = {"parse_constant": lambda _: None, "parse_float": _finite_or_none}
    try:
        return json.loads(text, **hooks)
    except json.JSONDecodeError as error:
        at_end = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        what = "it ends in the middle of a value" if at_end else error.msg[:1].lower() + error.msg[1:]
        raise ValueError(f"not valid JSON ({what}, character {error.pos + 1})") from None
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:
        # CPython refuses to parse integers of several thousand digits (a denial-of-service guard).
        raise ValueError("not readable: an integer in it has too many digits") from None


def _finite_or_none(text: str) -> float | None:
    value = float(text)
    return value if isfinite(value) else None


def _dumps_standard(obj: Any, *, sort_keys: bool) -> bytes:
    try:
        text = json.dumps(
            obj, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=sort_keys, default=_plain
        )
    except RecursionError:
        raise ValueError("nested too deeply to be written as JSON") from None
    except TypeError as error:
        raise ValueError(f"not JSON: {error}") from None
    # A surrogate can only stand inside a string, where its backslash form is the JSON escape.
    return text.encode("utf-8", "backslashreplace")


def _plain(value: Any) -> Any:
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _depth_above(obj: Any, limit: int) -> bool:
    """Whether dicts and lists are nested deeper than ``limit``; level by level, so no recursion."""
    level: list[Any] = [obj]
    for _ in range(limit):
        inner: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                inner.extend(v for v in node.values() if isinstance(v, (dict, list)))
            elif isinstance(node, list):
                inner.extend(v for v in node if isinstance(v, (dict, list)))
        if not inner:
            return False
        level = inner
    return True
