"""What passes between this process and its decoders: frames of a JSON header and raw buffers over pipes.

Never pickle: a decoder that a file has taken over must not run code here. The parent reads a reply as it would read a
file from a stranger: every size in it is checked against the policy before memory is taken for it, and every word of
it must be of the expected kind.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from genmeter.assets.limits import Limits
from genmeter.contract import AudioMedia, Decoding, ImageMedia, Media, Scalar, VideoMedia
from genmeter.errors import CODES, FLAGS, GenmeterError

MAX_RATE = 1_536_000
"""Highest sample rate that is decoded, in Hz."""
Buffer: TypeAlias = Any  # bytes, a memoryview or an array: numpy of the oldest version is no Buffer to a type checker

_MAGIC = b"GMW1"
_HEAD = struct.Struct("<4sI")
_HEADER_LIMIT = 1 << 20
_JOINED = 1 << 16  # a small buffer goes out in one write with its header
_LONGEST_TEXT = 2000
_MOST_DETAILS = 64
_LARGEST = 2**63


class Closed(Exception):
    """The other end of the pipe is gone."""


class Broken(Exception):
    """The other end says what the protocol does not know."""


class Pipe(Protocol):
    """An unbuffered binary file."""

    def write(self, data: Any, /) -> int | None:
        """Write some of it; returns how many bytes."""
        ...

    def readinto(self, buffer: Any, /) -> int | None:
        """Fill some of it; returns how many bytes, 0 at the end."""
        ...


class Part(NamedTuple):
    """One outcome as it is sent: what the header says of it, and its buffers."""

    said: dict[str, Any]
    buffers: tuple[Buffer, ...] = ()


def send(pipe: Pipe, header: Mapping[str, Any], buffers: Sequence[Buffer] = ()) -> None:
    """Send a header and buffers, whose sizes the receiver must be able to tell from the header. Raises ``Closed``."""
    text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > _HEADER_LIMIT:
        raise Broken(f"a header of {len(text)} bytes")
    views = [memoryview(buffer).cast("B") for buffer in buffers if memoryview(buffer).nbytes]
    head = _HEAD.pack(_MAGIC, len(text)) + text
    if views and views[0].nbytes <= _JOINED:
        head += views.pop(0)
    try:
        for view in (memoryview(head), *views):
            sent = 0
            while sent < len(view):
                sent += pipe.write(view[sent:]) or 0
    except (OSError, ValueError):  # a file that another thread has closed raises ValueError
        raise Closed from None


def receive(pipe: Pipe) -> dict[str, Any] | None:
    """The next header; None when the other end closed the pipe between two frames. Raises ``Closed``, ``Broken``."""
    head = bytearray(_HEAD.size)
    if not fill(pipe, memoryview(head), may_end=True):
        return None
    magic, length = _HEAD.unpack(head)
    if magic != _MAGIC or length > _HEADER_LIMIT:
        raise Broken("no header")
    text = bytearray(length)
    fill(pipe, memoryview(text))
    try:
        header = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise Broken("no JSON") from None
    if not isinstance(header, dict):
        raise Broken("no JSON object")
    return header


def fill(pipe: Pipe, view: memoryview, *, may_end: bool = False) -> bool:
    """Fill a buffer from the pipe; False when ``may_end`` and it ended before the first byte. Raises ``Closed``."""
    got = 0
    try:
        while got < len(view):
            count = pipe.readinto(view[got:])
            if not count:
                if may_end and not got:
                    return False
                raise Closed
            got += count
    except (OSError, ValueError):
        raise Closed from None
    return True


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def outcome(found: Media | GenmeterError) -> Part:
    """What a decoder says of one request's outcome."""
    if isinstance(found, GenmeterError):
        return Part({"error": [found.code, found.message[:_LONGEST_TEXT], found.hint and found.hint[:_LONGEST_TEXT]]})
    if isinstance(found, str):
        raise TypeError("a text is not decoded")
    said: dict[str, Any] = {"flags": list(found.flags), "detail": dict(found.detail)}
    if isinstance(found, ImageMedia):
        return Part({"kind": "image", "shape": list(found.pixels.shape), **said}, (_raw(found.pixels),))
    if isinstance(found, AudioMedia):
        said.update(kind="audio", shape=[len(found.samples)], rate=found.rate)
        return Part(said, (_raw(found.samples),))
    return Part({"kind": "video", "shape": list(found.frames.shape), **said}, (_raw(found.frames), _raw(found.times)))


def _raw(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values)


def read_outcomes(
    pipe: Pipe, header: Mapping[str, Any], modality: str, requests: Sequence[Decoding], limits: Limits
) -> list[Media | GenmeterError]:
    """Read what a decoder answers: one outcome for each request.

    Args:
        pipe: Where the buffers come from.
        header: The reply's header.
        modality: What was asked for: ``image``, ``audio`` or ``video``.
        requests: What each outcome had to deliver.
        limits: Bounds on every size, checked before memory is taken.

    Returns:
        Media with read-only arrays, or typed errors.

    Raises:
        Closed: The decoder is gone.
        Broken: The reply is not one.
    """
    results = header.get("results")
    if not isinstance(results, list) or len(results) != len(requests):
        raise Broken("the number of results")
    return [_read_one(pipe, said, modality, request, limits) for said, request in zip(results, requests, strict=True)]


def _read_one(pipe: Pipe, said: Any, modality: str, request: Decoding, limits: Limits) -> Media | GenmeterError:
    if not isinstance(said, dict):
        raise Broken("a result")
    if "error" in said:
        return _error(said["error"])
    if said.get("kind") != modality:
        raise Broken("the kind of media")
    flags, detail = _flags(said.get("flags")), _detail(said.get("detail"))
    shape = said.get("shape")
    if not isinstance(shape, list) or not all(type(side) is int and side > 0 for side in shape):
        raise Broken("a shape")
    if modality == "image":
        _check(len(shape) == 3 and shape[2] in (3, 4) and shape[0] * shape[1] <= limits.max_pixels)
        return ImageMedia(_take(pipe, shape, np.uint8, limits), flags, detail)
    if modality == "audio":
        rate = said.get("rate")
        if type(rate) is not int:
            raise Broken("a rate")
        _check(0 < rate <= MAX_RATE and rate == (request.get("rate") or rate))
        _check(len(shape) == 1 and shape[0] <= math.ceil(limits.max_seconds * rate) + 1)
        return AudioMedia(_take(pipe, shape, np.float32, limits), rate, flags, detail)
    _check(len(shape) == 4 and shape[3] == 3)
    _check(shape[0] <= limits.max_frames and shape[1] * shape[2] <= limits.max_pixels)
    frames = _take(pipe, shape, np.uint8, limits)
    return VideoMedia(frames, _take(pipe, shape[:1], np.float64, limits), flags, detail)


def _check(holds: bool) -> None:
    if not holds:
        raise Broken("a size beyond its limit")


def _take(pipe: Pipe, shape: Sequence[int], dtype: Any, limits: Limits) -> np.ndarray:
    _check(math.prod(shape) * np.dtype(dtype).itemsize <= limits.decode_memory)
    values = np.empty(shape, dtype)
    fill(pipe, memoryview(values.data).cast("B"))
    values.flags.writeable = False
    return values


def _error(said: Any) -> GenmeterError:
    if not isinstance(said, list) or len(said) != 3:
        raise Broken("an error")
    code, message, hint = said
    if not isinstance(code, str) or not isinstance(message, str) or not isinstance(hint, str | None):
        raise Broken("an error's words")
    if code not in CODES:
        raise Broken("an error's code")
    return GenmeterError(code, message[:_LONGEST_TEXT], hint and hint[:_LONGEST_TEXT])


def _flags(said: Any) -> tuple[str, ...]:
    if not isinstance(said, list) or len(said) > len(FLAGS):
        raise Broken("the flags")
    if not all(isinstance(flag, str) and flag in FLAGS for flag in said):
        raise Broken("a flag")
    return tuple(said)


def _detail(said: Any) -> dict[str, Scalar]:
    if not isinstance(said, dict) or len(said) > _MOST_DETAILS:
        raise Broken("the detail")
    for value in said.values():
        if isinstance(value, str):
            if len(value) > _LONGEST_TEXT:
                raise Broken("a detail's length")
        elif not isinstance(value, int | float | None):
            raise Broken("a detail's kind")
        elif value is not None and not abs(value) < _LARGEST:  # NaN too
            raise Broken("a detail's size")
    return said
