"""One member of a JSON object changed in the text itself, every other byte left as it is.

Reading a record and writing it again keeps its meaning, but not how its writer put it: spaces, escapes, forms of
numbers, keys that come twice. What is written back into somebody's own file must keep those too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from json.decoder import JSONDecoder, scanstring  # type: ignore[attr-defined]
from typing import NamedTuple

_SPACE = re.compile(r"[ \t\n\r]*")
_decode = JSONDecoder(parse_int=str, parse_float=str, parse_constant=str).raw_decode  # only where values end matters


class _Member(NamedTuple):
    """Where a member stands: ``before`` is the end of the value before it, or just behind the opening brace."""

    before: int
    key: int
    start: int
    end: int


class _Object(NamedTuple):
    """The member that was looked for, and the end of the last one (just behind the brace of an empty object)."""

    found: _Member | None
    first: _Member | None
    last: int


def put_member(line: bytes, path: Sequence[str], key: str, value: bytes) -> bytes:
    """A JSON line with one member set: its value replaced, or the member added as the last one.

    Args:
        line: One JSON object, UTF-8.
        path: Keys of the objects, from the outside in, that hold the member; all are there.
        key: The member.
        value: Its new value as JSON.

    Raises:
        ValueError: The line is no JSON object, or an object of the path is not there.
    """
    text = line.decode("utf-8")
    place = _find(text, path, key)
    if place.found is not None:
        return _joined(text[: place.found.start], value, text[place.found.end :])
    comma = "" if place.first is None else ", "
    return _joined(f'{text[: place.last]}{comma}"{key}": ', value, text[place.last :])


def without_member(line: bytes, path: Sequence[str], key: str) -> bytes:
    """A JSON line less one member: the same bytes before and after any :func:`put_member` of it.

    Raises:
        ValueError: As :func:`put_member`.
    """
    text = line.decode("utf-8")
    place = _find(text, path, key)
    found = place.found
    if found is None:
        return line
    if found == place.first and place.last != found.end:
        after = _space(text, found.end) + 1  # a comma, since further members follow
        return (text[: found.before] + text[after:]).encode("utf-8")
    return (text[: found.before] + text[found.end :]).encode("utf-8")


def _joined(head: str, value: bytes, tail: str) -> bytes:
    return head.encode("utf-8") + value + tail.encode("utf-8")


def _find(text: str, path: Sequence[str], key: str) -> _Object:
    start = _space(text, 0)
    for step in path:
        found = _members(text, start, step).found
        if found is None:
            raise ValueError(f"no member {step!r}")
        start = found.start
    return _members(text, start, key)


def _members(text: str, start: int, key: str) -> _Object:
    """Walk the object that opens at ``start``. Of a key that comes twice the last one counts, as it does in reading."""
    if text[start : start + 1] != "{":
        raise ValueError("no JSON object")
    found = first = None
    end = start + 1
    position = _space(text, end)
    while text[position : position + 1] == '"':
        name, after = scanstring(text, position + 1, True)
        colon = _space(text, after)
        if text[colon : colon + 1] != ":":
            raise ValueError(f"no colon at character {colon + 1}")
        value = _space(text, colon + 1)
        member = _Member(end, position, value, _decode(text, value)[1])
        first = first or member
        found = member if name == key else found
        end = member.end
        position = _space(text, end)
        if text[position : position + 1] != ",":
            break
        position = _space(text, position + 1)
    if text[position : position + 1] != "}":
        raise ValueError(f"no end of the object at character {position + 1}")
    return _Object(found, first, end)


def _space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None
    return match.end()
