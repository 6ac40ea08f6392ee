"""From a location to bytes and their digest. What is hashed is what is decoded."""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import os
import re
import stat
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from genmeter.assets.resolve import Location, shorten
from genmeter.config import Policy
from genmeter.contract import Media
from genmeter.errors import GenmeterError

# O_NONBLOCK: a file that was swapped for a named pipe after it was checked must not block the run.
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/]")
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


class FileStamp(NamedTuple):
    """What a file was when it was read: path, size in bytes, modification time, and its SHA-256 (32 bytes)."""

    path: str
    size: int
    mtime_ns: int
    digest: bytes


class Blob(NamedTuple):
    """The content of one asset.

    Attributes:
        data: The encoded bytes; ``b""`` for an object in memory that is already decoded.
        digest: 32 bytes, the SHA-256 of ``data`` (of the decoded pixels or samples for an object in memory).
        size: Length in bytes of what the digest covers.
        mtime_ns: Modification time of a file, for the check on resume; ``None`` for other kinds.
        media: The decoded media of an object in memory (sound at its own rate, not clipped yet).
        parts: The files of a folder of frames, in order; ``data`` is empty then.
        files: What each of them, and the folder itself, was when it was read.
    """

    data: bytes
    digest: bytes
    size: int
    mtime_ns: int | None
    media: Media | None = None
    parts: tuple[bytes, ...] = ()
    files: tuple[FileStamp, ...] = ()


def load(location: Location, policy: Policy) -> Blob:
    """Read an asset whole.

    Raises:
        GenmeterError: ``not_found``, ``forbidden`` (no permission, or no regular file any more), ``too_large`` (above
            ``policy.max_bytes``, known before it is read), ``empty_media``, ``changed_during_run``, ``fetch_failed``,
            ``timed_out``, ``decode_failed`` (damaged base64); each names the asset.
    """
    try:
        if location.kind == "file":
            return _load_file(location, policy)
        if location.kind == "folder":
            from genmeter.assets.folder import load_folder

            return load_folder(location, policy)
        if location.kind == "memory":
            return _load_memory(location.payload, policy)
        if location.kind == "data":
            data = _decode_data_uri(location.payload, policy)
        else:
            from genmeter.assets.fetch import fetch

            data = fetch(location.payload, policy)
        return _blob(data)
    except GenmeterError as error:
        raise error.with_asset(location.uri if location.kind == "data" else shorten(location.uri)) from None


def _blob(data: bytes, mtime_ns: int | None = None) -> Blob:
    if not data:
        raise GenmeterError("empty_media", "the asset holds no bytes")
    return Blob(data, hashlib.sha256(data).digest(), len(data), mtime_ns)


def _load_file(location: Location, policy: Policy) -> Blob:
    assert location.path is not None
    try:
        descriptor = os.open(location.path, _OPEN_FLAGS)
        try:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise GenmeterError("forbidden", "expected a regular file")
            if not _opened(descriptor, location.path):
                raise GenmeterError("forbidden", "the path was changed to lead elsewhere after it was checked")
            _check_size(before.st_size, policy)
            data = _read(descriptor, before.st_size)
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _describe(error) from None
    # The time of the last change to its entry too: who writes into a file may put the time of writing back.
    looks = [(state.st_size, state.st_mtime_ns, state.st_ctime_ns) for state in (before, after)]
    if len(data) != before.st_size or looks[0] != looks[1]:
        raise GenmeterError(
            "changed_during_run", "the file changed while it was read", "let its writer finish, then run again"
        )
    return _blob(data, before.st_mtime_ns)


def _opened(descriptor: int, path: str) -> bool:
    """Whether this path is what was really opened: a folder on the way may have become a link since it was checked."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") in (path, f"{path} (deleted)")
    except OSError:
        return os.path.realpath(path) == path  # no /proc: the same question, a moment after the opening


def _read(descriptor: int, size: int) -> bytes:
    """Everything in the file, and one byte more if it has grown."""
    data = os.read(descriptor, size + 1)
    if len(data) == size:
        return data
    parts = [data]
    total = len(data)
    while data and total <= size:
        data = os.read(descriptor, size + 1 - total)
        parts.append(data)
        total += len(data)
    return b"".join(parts)


def _describe(error: OSError) -> GenmeterError:
    reason = error.strerror or "unknown reason"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return GenmeterError("not_found", "the file is gone")
    if error.errno == errno.ELOOP:
        return GenmeterError("forbidden", "the file was replaced by a link after it was checked")
    if isinstance(error, PermissionError):
        hint = "check its owner and mode, then run again with --retry-failed forbidden"
        return GenmeterError("forbidden", "no permission to read the file", hint)
    return GenmeterError("fetch_failed", f"the file cannot be read: {reason}", "check the disk, then run again")


def _check_size(size: int, policy: Policy) -> None:
    if size > policy.max_bytes:
        raise GenmeterError(
            "too_large",
            f"the asset holds {size} bytes; the limit is {policy.max_bytes}",
            "raise policy.max_bytes if it is meant to be this large",
        )


def _decode_data_uri(uri: str, policy: Policy) -> bytes:
    """The bytes of ``data:[type][;base64],content``; padding may be missing, the URL-safe alphabet is read too."""
    head, comma, content = uri.partition(",")
    if not comma:
        raise GenmeterError(
            "decode_failed", "the data: URI has no comma before its content", "write data:image/png;base64,..."
        )
    if not head.lower().rstrip().endswith(";base64"):
        _check_size(len(content) // 3, policy)
        data = unquote_to_bytes(content)
        _check_size(len(data), policy)
        return data
    _check_size(len(content) // 4 * 3 - 2, policy)
    try:
        raw = content.encode("ascii")
        if b"%" in raw:
            raw = unquote_to_bytes(raw)
        raw = raw.translate(_URL_SAFE, b" \t\r\n").rstrip(b"=")
        if len(raw) % 4 == 1 or _NOT_BASE64.search(raw):
            raise ValueError
        return base64.b64decode(raw + b"=" * (-len(raw) % 4))
    except (ValueError, binascii.Error):
        raise GenmeterError(
            "decode_failed", "the content of the data: URI is not base64, or is cut short", "encode the file again"
        ) from None


def _load_memory(value: Any, policy: Policy) -> Blob:
    if isinstance(value, bytes | bytearray | memoryview):
        _check_size(memoryview(value).nbytes, policy)
        return _blob(bytes(value))
    if isinstance(value, tuple):
        from genmeter.assets import waveform

        sound, found = waveform.from_object(value)
        return Blob(b"", found, sound.samples.nbytes, None, sound)
    if getattr(value, "ndim", 0) == 4:
        from genmeter.assets import clip

        film, found = clip.from_array(value, policy)
        return Blob(b"", found, film.frames.nbytes, None, film)
    from genmeter.assets.image import from_object

    media = from_object(value, policy)
    pixels = media.pixels
    head = f"genmeter/pixels/1 {pixels.shape[0]} {pixels.shape[1]} {pixels.shape[2]}\n".encode()
    digest = hashlib.sha256(head)
    digest.update(pixels.data)
    return Blob(b"", digest.digest(), pixels.nbytes, None, media)
