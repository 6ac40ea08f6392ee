"""The lines of a file: split on ``\\n`` only, plain or gzip, whatever its encoding mark and line ends."""

from __future__ import annotations

import codecs
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from genmeter.errors import GenmeterError

_CHUNK = 1 << 18
_PIECE = 1 << 15
_GZIP = b"\x1f\x8b"
_UTF8_MARK = codecs.BOM_UTF8
_UTF16_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
MAX_LINE = 1 << 30
"""Longest line that is read, in bytes; a longer one is an error of its own and is skipped."""


class InputChanged(ValueError):
    """An input is not what it was when it was first read, so that its lines no longer fit their results."""


def iter_lines(path: str | Path) -> Iterator[bytes]:
    """The lines of a file that hold more than white space, without their line ends.

    Args:
        path: A file, or ``-`` for standard input. Gzip is known by its first bytes, not by the name.

    Raises:
        GenmeterError: ``bad_line`` after the last good line, if compressed data are damaged or cut off.
        OSError: The file cannot be opened.
    """
    for _, line in numbered_lines(path):
        if isinstance(line, GenmeterError):
            raise line
        yield line


def numbered_lines(path: str | Path) -> Iterator[tuple[int, bytes | GenmeterError]]:
    """Like :func:`iter_lines`, each with its number in the file, which counts from 1 and counts blank lines.

    A line that cannot be read is a ``bad_line`` error in its place: one longer than :data:`MAX_LINE`, and the one
    at which compressed data are damaged or cut off, which is then the last.

    Raises:
        OSError: The file cannot be opened.
    """
    if str(path) == "-":
        yield from _numbered(sys.stdin.buffer)
        return
    with open(path, "rb") as file:
        yield from _numbered(file)


def _numbered(file: IO[bytes]) -> Iterator[tuple[int, bytes | GenmeterError]]:
    head = file.read(_CHUNK)
    if head[:2] != _GZIP and head[:2] not in _UTF16_MARKS and file.seekable():
        file.seek(-len(head), 1)
        raw = _plain_lines(file)
    else:
        raw = _split(_decoded(_with_head(head, file)))
    number = 0
    for number, line in enumerate(raw, 1):
        if isinstance(line, GenmeterError):
            yield number, GenmeterError("bad_line", f"line {number} {line.message}", line.hint)
            continue
        if number == 1 and line.startswith(_UTF8_MARK):
            line = line[3:]
        if line.endswith(b"\n"):
            line = line[:-1]
        if line.endswith(b"\r"):
            line = line[:-1]
        if line and not line.isspace():
            yield number, line


def _plain_lines(file: IO[bytes]) -> Iterator[bytes | GenmeterError]:
    while line := file.readline(MAX_LINE):
        if len(line) < MAX_LINE or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(_CHUNK)
        yield _too_long()


def _split(chunks: Iterable[bytes | GenmeterError]) -> Iterator[bytes | GenmeterError]:
    """Cut chunks into lines. An error among the chunks takes the place of the line that it interrupts."""
    pending: list[bytes] = []
    size = 0
    for chunk in chunks:
        if isinstance(chunk, GenmeterError):
            yield chunk
            return
        first, *rest = chunk.split(b"\n")
        size += len(first)
        if size <= MAX_LINE:
            pending.append(first)
        if not rest:
            continue
        yield b"".join(pending) if size <= MAX_LINE else _too_long()
        yield from rest[:-1]
        pending, size = [rest[-1]], len(rest[-1])
    if size > MAX_LINE:
        yield _too_long()
    elif size:
        yield b"".join(pending)


def _with_head(head: bytes, file: IO[bytes]) -> Iterator[bytes]:
    while head:
        yield head
        head = file.read(_CHUNK)


def _decoded(chunks: Iterator[bytes]) -> Iterator[bytes | GenmeterError]:
    """Undo gzip and UTF-16, each known by the first bytes."""
    first = next(chunks, b"")
    stream: Iterator[bytes | GenmeterError] = _with_first(first, chunks)
    if first[:2] == _GZIP:
        stream = _gunzip(_with_first(first, chunks))
        inner = next(stream, b"")
        if isinstance(inner, GenmeterError):
            yield inner
            return
        first = inner
        stream = _with_first(first, stream)
    encoding = _UTF16_MARKS.get(first[:2])
    yield from _from_utf16(stream, encoding) if encoding else stream


def _with_first(first: bytes, rest: Iterator[bytes | GenmeterError]) -> Iterator[bytes | GenmeterError]:
    if first:
        yield first
    yield from rest


def _gunzip(chunks: Iterator[bytes | GenmeterError]) -> Iterator[bytes | GenmeterError]:
    """Decompress one or several gzip members; what was read before damage comes out before the error."""
    engine = zlib.decompressobj(31)
    for piece in _pieces(chunks):
        while piece:
            if engine.eof:
                # Between members some tools pad with zeros.
                piece = piece.lstrip(b"\0")
                if not piece:
                    break
                engine = zlib.decompressobj(31)
            before = engine.copy()
            try:
                out = engine.decompress(piece, _CHUNK)
            except zlib.error:
                yield from _until_damage(before, piece)
                yield GenmeterError("bad_line", "cannot be read: the gzip data are damaged from here on")
                return
            piece = engine.unused_data if engine.eof else engine.unconsumed_tail
            if out:
                yield out
    if not engine.eof:
        yield GenmeterError("bad_line", "cannot be read: the gzip file is cut off here", "copy the file again")


def _pieces(chunks: Iterable[bytes | GenmeterError]) -> Iterator[bytes]:
    for chunk in chunks:
        assert isinstance(chunk, bytes)
        for start in range(0, len(chunk), _PIECE):
            yield chunk[start : start + _PIECE]


def _until_damage(engine: zlib._Decompress, piece: bytes) -> Iterator[bytes]:
    """What a piece with damage in it still holds: byte by byte, since zlib drops the output of a failed call."""
    try:
        for position in range(len(piece)):
            yield engine.decompress(piece[position : position + 1])
    except zlib.error:
        return


def _from_utf16(chunks: Iterator[bytes | GenmeterError], encoding: str) -> Iterator[bytes | GenmeterError]:
    """Re-encode as UTF-8. What is no UTF-16 becomes bytes that are no UTF-8, so that only its line fails."""
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    for chunk in chunks:
        if isinstance(chunk, GenmeterError):
            yield chunk
            return
        yield decoder.decode(chunk).encode("utf-8", "surrogatepass")


def _too_long() -> GenmeterError:
    return GenmeterError("bad_line", f"is longer than {MAX_LINE} bytes", "keep large media in files of their own")
