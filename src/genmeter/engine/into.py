"""``--into``: results written back into the files that their samples came from, which lose nothing by it.

Only ``eval_result`` changes, in the text of its line; lines that are no sample stay as they are. Each file is written
beside itself and renamed, so at any moment it is the old one or the new one. What identifies an input leaves
``eval_result`` out (:class:`genmeter.inputs.source.Source`), so a run goes on after its input was written to, and so do
other runs over the same file.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from genmeter.engine.store import replacing
from genmeter.errors import GenmeterError
from genmeter.inputs.dataset import is_dataset_file
from genmeter.inputs.lines import InputChanged, iter_lines
from genmeter.inputs.source import parse_line
from genmeter.inputs.tables import is_table
from genmeter.schema import jsonio
from genmeter.schema.forms import sample_path
from genmeter.schema.splice import put_member

_KEY = "eval_result"
_GZIP = b"\x1f\x8b"
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class Target(NamedTuple):
    """A file that is written back to: links followed, and what it was when scoring ended."""

    path: Path
    state: tuple[int, int, int]


def refuse_into(inputs: Sequence[str | Path]) -> None:
    """Refuse inputs that have no records to write to, before anything is scored.

    Raises:
        ValueError: An input is standard input, a pipe, a table, a folder, a dataset file, or no UTF-8 text.
    """
    for item in inputs:
        what = ""
        if str(item) == "-":
            what = "standard input"
        elif os.path.isdir(item):
            what = "a folder of media"
        elif is_table(item):
            what = "a table"
        elif is_dataset_file(item):
            what = "a dataset file; name the JSONL files themselves"
        elif os.path.exists(item) and not os.path.isfile(item):
            what = "a pipe"
        if what:
            raise ValueError(
                f"--into writes results back into JSONL files, and {item} is {what}: leave --into away; all results "
                "are in samples.jsonl of the run"
            )
        if os.path.exists(item):
            with contextlib.suppress(EOFError, OSError, zlib.error), _reading(Path(item)) as file:
                if file.read(2) in _UTF16_MARKS:
                    raise ValueError(f"--into keeps every byte of a file, and {item} is UTF-16: save it as UTF-8 first")


def targets(paths: Sequence[Path]) -> list[Target]:
    """The files behind the inputs as they are now, to be compared with what they are when they are written."""
    found = [Path(os.path.realpath(path)) for path in paths]
    return [Target(path, _state(os.stat(path))) for path in found]


def write_into(files: Sequence[Target], count: int, samples: Path) -> int:
    """Write the results of a finished run into the files of its input.

    Args:
        files: The input's files, in order, as they were before ``samples`` was written.
        count: How many lines of them were scored; further ones are kept as they are.
        samples: samples.jsonl of the run, a line for each of them.

    Returns:
        How many files have changed. One that already holds these results is not touched.

    Raises:
        InputChanged: A file is another one by now; it and those after it are untouched.
        ValueError: A file cannot be rewritten without loss, since its compressed data are damaged.
        OSError: A file cannot be written, and is untouched.
    """
    results = iter_lines(samples)
    changed = 0
    for file in files:
        used, differs = _write_one(file, count, results)
        count -= used
        changed += differs
    return changed


def _write_one(target: Target, count: int, results: Iterator[bytes]) -> tuple[int, bool]:
    used, differs = 0, False
    with _rewriting(target) as (source, out):
        try:
            for position, raw in enumerate(source):
                mark = len(_UTF8_MARK) if position == 0 and raw.startswith(_UTF8_MARK) else 0
                line = raw[mark:].removesuffix(b"\n").removesuffix(b"\r")
                if used < count and line and not line.isspace():
                    used += 1
                    new = _with_result(line, next(results, b"{}"), target.path)
                    differs |= new is not line
                    raw = raw[:mark] + new + raw[mark + len(line) :]
                out.write(raw)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise ValueError(
                f"{target.path}: its gzip data are damaged, so it cannot be written again without losing what is "
                "behind the damage; nothing was written into it"
            ) from None
        if not differs:
            raise _Unchanged
    return used, differs


def _with_result(line: bytes, result: bytes, path: Path) -> bytes:
    """The line with its result, or the line itself where it is no record or holds that result already."""
    try:
        record = parse_line(line, 0)
    except GenmeterError:
        return line
    scored = jsonio.loads(result)
    where = sample_path(record)
    for key in where:
        record, scored = record[key], scored[key] if isinstance(scored.get(key), dict) else {}
    if _KEY not in scored:
        raise InputChanged(f"{path} changed while it was being scored; nothing was written into it")
    if record.get(_KEY) == scored[_KEY]:
        return line
    return put_member(line, where, _KEY, jsonio.dumps(scored[_KEY]))


class _Unchanged(Exception):
    """Ends the writing of a file that would be the same again."""


@contextlib.contextmanager
def _rewriting(target: Target) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """The file's content to read and to write anew, compressed where it was, with the mode and owner that it had."""

    with contextlib.suppress(_Unchanged), replacing(target.path) as plain, _reading(target.path) as source:
        packed = isinstance(source, gzip.GzipFile)
        before = os.stat(target.path)
        with contextlib.ExitStack() as stack:
            out: Any = plain
            if packed:
                out = stack.enter_context(gzip.GzipFile("", "wb", 6, plain, mtime=0))
            yield source, out
        with contextlib.suppress(OSError):  # only root may give files away
            os.chown(plain.fileno(), before.st_uid, before.st_gid)
        os.fchmod(plain.fileno(), before.st_mode & 0o7777)
        if _state(os.stat(target.path)) != target.state:
            raise InputChanged(
                f"{target.path} changed while it was being scored; nothing was written into it. Let its writer finish, "
                "then give the same command again"
            )


def _reading(path: Path) -> IO[bytes]:
    with open(path, "rb") as file:
        packed = file.read(2) == _GZIP
    return gzip.open(path, "rb") if packed else open(path, "rb")  # type: ignore[return-value]


def _state(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_size, found.st_mtime_ns, found.st_ino
