"""Inputs as one re-iterable sequence of lines, each with its sample or the reason why there is none."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import sys
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from genmeter.errors import GenmeterError
from genmeter.inputs.folder import Folder, open_folder
from genmeter.inputs.lines import numbered_lines
from genmeter.schema.forms import read_form, sample_path
from genmeter.schema.fragments import json_name
from genmeter.schema.jsonio import dumps, loads


class InputLine(NamedTuple):
    """One line of the input.

    Attributes:
        index: Its position among all lines of all inputs, from 0; blank lines do not count.
        file: The input it comes from, as given (``stdin`` for ``-``).
        number: Its number in that file, from 1; blank lines count. In a folder, the position of its media file.
        record: The object as it was parsed, which is what is written back; ``None`` if the line is no object. A short
            record without an id has one filled in, so that its row can be found again.
        sample: The sample in the standard's shape, its id a string; ``None`` if there is an error.
        path: Where ``eval_result`` goes in the record.
        error: ``bad_line`` or ``bad_sample``, if there is no sample.
        nbytes: Length of the line as it was read; 0 for a file of a folder.
    """

    index: int  # type: ignore[assignment]
    file: str
    number: int
    record: dict[str, Any] | None
    sample: dict[str, Any] | None
    path: tuple[str, ...]
    error: GenmeterError | None
    nbytes: int = 0


class InputChanged(ValueError):
    """An input is not what it was when it was first read, so that its lines no longer fit their results."""


class Source:
    """The lines of all inputs, in order. May be iterated any number of times; nothing is kept in memory.

    Once :attr:`digest` or :attr:`count` has been asked for, every further pass ends with :class:`InputChanged` unless
    it read the same lines.

    Attributes:
        files: The inputs as given.
        roots: Default media roots: the folder of each input, then the current folder.
        name: A default name for the run.
        notes: What the reader of a folder should know (matched and unmatched counts).
    """

    def __init__(
        self,
        inputs: Sequence[tuple[str, Path]],
        *,
        roots: Sequence[Path],
        name: str,
        folder: Folder | None = None,
        limit: int | None = None,
    ) -> None:
        self._inputs = tuple(inputs)
        self._folder = folder
        self._limit = limit
        self._scan: tuple[str, int] | None = None
        self.files = tuple(shown for shown, _ in inputs)
        self.roots = tuple(roots)
        self.name = name
        self.notes: list[str] = list(folder.notes) if folder else []

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over the lines, less blank ones, encoding marks, line ends and compression."""
        return self._scanned()[0]

    @property
    def count(self) -> int:
        """How many lines there are, good and bad."""
        return self._scanned()[1]

    def __iter__(self) -> Iterator[InputLine]:
        """Read and check line by line. Lines added to a file after it was counted are left out."""
        return self.lines()

    def lines(self, known: Callable[[int], bool] | None = None) -> Iterator[InputLine]:
        """Like iteration, but without checking again the samples that are known to be good.

        Args:
            known: Whether the sample at an index was found good by an earlier pass. That it is still the same one is
                certain only once the pass has come to its end, so nothing may be published before.

        Raises:
            InputChanged: After the last line.
        """
        known = known or _nothing
        if self._scan is None or self._folder is not None:
            for index, (place, number, raw) in enumerate(islice(self._raw(), self._limit)):
                yield self._read(index, place, number, raw, known(index))
            return
        digest = _Digest()
        for place, number, raw in islice(self._raw(), self._scan[1]):
            index = digest.count
            digest.add(place, raw if type(raw) is bytes else self._identity(number, raw))
            yield self._read(index, place, number, raw, known(index))
        if digest.result() != self._scan:
            raise InputChanged(
                f"{', '.join(self.files)} changed while it was being scored; let its writer finish, then score again "
                "with --fresh"
            )

    def _raw(self) -> Iterator[tuple[int, int, bytes | GenmeterError | dict[str, Any]]]:
        if self._folder is not None:
            for number, record in enumerate(self._folder.records(), 1):
                yield 0, number, record
            return
        for place, (_, path) in enumerate(self._inputs):
            for number, line in numbered_lines(path):
                yield place, number, line

    def placed(self) -> Iterator[tuple[int, InputLine]]:
        """Like iteration, each line with the position of its input."""
        for index, (place, number, raw) in enumerate(islice(self._raw(), self._limit)):
            yield place, self._read(index, place, number, raw)

    def _read(
        self, index: int, place: int, number: int, raw: bytes | GenmeterError | dict[str, Any], known: bool = False
    ) -> InputLine:
        file = self.files[place]
        size = len(raw) if isinstance(raw, bytes) else 0
        try:
            record = raw if isinstance(raw, dict) else parse_line(raw, number)
        except GenmeterError as error:
            return InputLine(index, file, number, None, None, (), error, size)
        try:
            form = read_form(record, check=not known)
        except GenmeterError as error:
            return InputLine(index, file, number, record, None, sample_path(record), error, size)
        sample = form.sample
        if sample["id"] is None:
            identity = f"line-{number}" if place == 0 else f"{place + 1}-line-{number}"
            sample["id"] = identity
            record = _with_id(record, form.path, identity)
        return InputLine(index, file, number, record, sample, form.path, None, size)

    def _scanned(self) -> tuple[str, int]:
        if self._scan is None:
            digest = _Digest()
            for place, number, raw in islice(self._raw(), self._limit):
                digest.add(place, raw if type(raw) is bytes else self._identity(number, raw))
            self._scan = digest.result()
        return self._scan

    def _identity(self, number: int, raw: bytes | GenmeterError | dict[str, Any]) -> bytes:
        """What stands for a line in the digest."""
        if isinstance(raw, GenmeterError):
            return f"line {number}: {raw.message}".encode()
        if isinstance(raw, dict):
            return self._folder.identity(raw) if self._folder else dumps(raw)
        return raw


class _Digest:
    """SHA-256 over lines as they are read, and their count."""

    def __init__(self) -> None:
        self._hash, self._place = hashlib.sha256(), 0
        self.count = 0

    def add(self, place: int, line: bytes) -> None:
        if place != self._place:
            self._hash.update(b"\0")  # no line holds it, so parts cannot be shifted unseen
            self._place = place
        self._hash.update(line)
        self._hash.update(b"\n")
        self.count += 1

    def result(self) -> tuple[str, int]:
        return self._hash.hexdigest(), self.count


def open_source(
    inputs: Sequence[str | Path],
    *,
    references: Path | None = None,
    prompts: Path | None = None,
    spool: Path | None = None,
    limit: int | None = None,
) -> Source:
    """Open what people have on disk as one :class:`Source`.

    Args:
        inputs: JSONL files (plain or gzip), ``-`` for standard input, or one folder of media.
        references: For a folder: a folder of references, paired by the path less its suffix.
        prompts: For a folder: a file of prompts; see :func:`genmeter.inputs.folder.open_folder`.
        spool: Where standard input and pipes are kept, since a run reads its input more than once; a temporary folder
            that goes with the source if absent.
        limit: Read no more than this many lines, over all inputs.

    Raises:
        ValueError: An input does not exist, is no text, or holds no media; an id comes back in another file; options
            that do not fit.
    """
    if not inputs:
        raise ValueError("no input given; expected JSONL files, '-' for standard input, or a folder of media")
    if limit is not None and limit < 0:
        raise ValueError(f"limit {limit}: expected 0 or more")
    folders = [item for item in inputs if str(item) != "-" and os.path.isdir(item)]
    if folders:
        if len(inputs) > 1:
            raise ValueError(f"{folders[0]} is a folder, and can only be scored alone: give one folder, or JSONL files")
        folder = open_folder(Path(folders[0]), references=references, prompts=prompts)
        return Source(
            [(str(folders[0]), folder.root)],
            roots=_unique([folder.root, *([folder.references] if folder.references else []), Path.cwd()]),
            name=run_name(Path(folders[0])),
            folder=folder,
            limit=limit,
        )
    if references is not None or prompts is not None:
        option = "references" if references is not None else "prompts"
        raise ValueError(f"--{option} pairs a folder of media; in JSONL they stand in each line")
    if sum(str(item) == "-" for item in inputs) > 1:
        raise ValueError("'-' is given twice; standard input can be read only once")
    opened: list[tuple[str, Path]] = []
    roots: list[Path] = []
    cleanup: Path | None = None
    for item in inputs:
        shown = "stdin" if str(item) == "-" else str(item)
        if str(item) == "-" or _is_pipe(Path(item)):
            if spool is None and cleanup is None:
                cleanup = Path(tempfile.mkdtemp(prefix="genmeter-"))
            path = _spooled(item, spool or cleanup or Path(), len(opened))
        else:
            path = Path(os.path.abspath(item))
            roots.append(path.parent)
        opened.append((shown, path))
        _check_readable(shown, path)
    name = "stdin" if str(inputs[0]) == "-" else run_name(Path(inputs[0]))
    source = Source(opened, roots=_unique([*roots, Path.cwd()]), name=name, limit=limit)
    if cleanup is not None:
        weakref.finalize(source, shutil.rmtree, cleanup, True)
    if len(opened) > 1:
        _check_ids(source)
    return source


def parse_line(raw: bytes | GenmeterError, number: int) -> dict[str, Any]:
    """Parse one line. Raises ``bad_line``, which names the line and what is wrong, never its content."""
    if isinstance(raw, GenmeterError):
        raise raw
    try:
        record = loads(raw, nan_as_null=True)
    except ValueError as error:
        spread = raw.strip() in (b"{", b"[")
        hint = "JSONL has one whole object in each line" if spread else None
        raise GenmeterError("bad_line", f"line {number} is {error}", hint) from None
    if not isinstance(record, dict):
        hint = "write each object of the list on a line of its own" if isinstance(record, list) else None
        raise GenmeterError("bad_line", f"line {number}: expected an object, found {json_name(record)}", hint)
    return record


def run_name(path: Path) -> str:
    """A name for a run: the input's file name less its suffixes, made safe for a folder name."""
    name = Path(os.path.abspath(path)).name
    name = re.sub(r"(\.jsonl|\.ndjson|\.json)?(\.gz)?$", "", name, flags=re.IGNORECASE) or name
    return re.sub(r"[^\w.+-]+", "_", name).strip("._") or "run"


def _with_id(record: dict[str, Any], path: tuple[str, ...], identity: str) -> dict[str, Any]:
    if not path:
        return {"id": identity, **{key: value for key, value in record.items() if key != "id"}}
    return {**record, path[0]: _with_id(record[path[0]], path[1:], identity)}


def _is_pipe(path: Path) -> bool:
    """Whether a path can be read only once (a pipe or a terminal, as shells make for ``<(command)``)."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


def _spooled(item: str | Path, folder: Path, position: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"stdin-{position}.jsonl"
    part = target.with_suffix(".part")
    with open(part, "wb") as out:
        if str(item) == "-":
            shutil.copyfileobj(sys.stdin.buffer, out, 1 << 20)
        else:
            with open(item, "rb") as file:
                shutil.copyfileobj(file, out, 1 << 20)
    os.replace(part, target)
    return target


def _check_readable(shown: str, path: Path) -> None:
    try:
        with open(path, "rb") as file:
            head = file.read(512)
    except FileNotFoundError:
        raise ValueError(f"{shown}: no such file or folder") from None
    except OSError as error:
        raise ValueError(f"{shown}: cannot be read ({error.strerror})") from None
    if b"\0" in head and head[:2] not in (b"\x1f\x8b", b"\xff\xfe", b"\xfe\xff"):
        raise ValueError(f"{shown}: expected JSONL, found binary data; to score media files, give their folder")


def _nothing(index: int) -> bool:
    return False


def _unique(paths: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(paths))


def _check_ids(source: Source) -> None:
    """Refuse an id that stands in two files. Keeps eight bytes an id; only a clash is looked at by name."""
    files = len(source.files)
    keys = [array("Q") for _ in range(files)]
    for place, line in source.placed():
        if line.sample is not None:
            keys[place].append(_key(line.sample["id"]))
    known = np.empty(0, np.uint64)
    for place in range(files):
        own = np.unique(np.frombuffer(keys[place], np.uint64)) if keys[place] else np.empty(0, np.uint64)
        clash = np.intersect1d(known, own, assume_unique=True)
        if clash.size:
            _report_clash(source, set(clash[:100].tolist()))
        known = np.union1d(known, own)


def _key(identity: str) -> int:
    data = identity.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _report_clash(source: Source, suspects: set[int]) -> None:
    first: dict[str, tuple[int, InputLine]] = {}
    for place, line in source.placed():
        if line.sample is None or _key(line.sample["id"]) not in suspects:
            continue
        home, earlier = first.setdefault(line.sample["id"], (place, line))
        if home != place:
            raise ValueError(
                f"id {line.sample['id']!r} stands in {earlier.file} (line {earlier.number}) and in {line.file} "
                f"(line {line.number}); several inputs are parts of one set. To compare models, make one run per "
                f"model, then `genmeter compare`"
            )
