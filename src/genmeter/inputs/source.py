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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from genmeter.errors import GenmeterError
from genmeter.inputs.clashes import refuse_clashes
from genmeter.inputs.folder import Folder
from genmeter.inputs.lines import InputChanged, numbered_lines
from genmeter.inputs.listing import Listing
from genmeter.inputs.media import open_media
from genmeter.inputs.tables import Bytes, Table, data_uri, is_table, open_tables
from genmeter.schema.forms import read_form, sample_path
from genmeter.schema.fragments import json_name
from genmeter.schema.jsonio import dumps, loads
from genmeter.schema.splice import without_member

_RESULT = b'"eval_result"'


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


class Source:
    """The lines of all inputs, in order. May be iterated any number of times; nothing is kept in memory.

    Once :attr:`digest` or :attr:`count` has been asked for, every further pass ends with :class:`InputChanged` unless
    it read the same lines.

    Attributes:
        files: The inputs as given.
        roots: Default media roots: the folder of each input, then the current folder.
        folders: The folders that the inputs lie in; a relative path must not mean two files in them.
        name: A default name for the run.
        notes: What the reader of a folder should know (matched and unmatched counts).
    """

    def __init__(
        self,
        inputs: Sequence[tuple[str, Path]],
        *,
        roots: Sequence[Path],
        name: str,
        folder: Folder | Listing | Table | None = None,
        limit: int | None = None,
        limits: Mapping[int, int | None] | None = None,
    ) -> None:
        self._inputs = tuple(inputs)
        self._limits = dict(limits or {})
        self._folder = folder
        self._limit = limit
        self._scan: tuple[str, int] | None = None
        self.files = tuple(shown for shown, _ in inputs)
        self.roots = tuple(roots)
        self.folders = _unique(path.parent for _, path in inputs) if not isinstance(folder, Folder | Listing) else ()
        self.name = name
        self.notes: list[str] = list(folder.notes) if folder else []

    @property
    def paths(self) -> tuple[Path, ...]:
        """Where the inputs lie."""
        return tuple(path for _, path in self._inputs)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over the lines, less blank ones, encoding marks, line ends, compression and ``eval_result``.

        Results may be written back into an input (``score --into``), which is the same input afterwards.
        """
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
            digest.add(place, self._identity(number, raw))
            yield self._read(index, place, number, raw, known(index))
        if digest.result() != self._scan:
            raise InputChanged(
                f"{', '.join(self.files)} changed while it was being scored; let its writer finish, then score again "
                "with --fresh"
            )

    def _raw(self) -> Iterator[tuple[int, int, bytes | GenmeterError | dict[str, Any]]]:
        if isinstance(self._folder, Table):
            yield from self._folder.placed()
            return
        if self._folder is not None:
            for number, record in enumerate(self._folder.records(), 1):
                yield 0, number, record
            return
        for place, (_, path) in enumerate(self._inputs):
            for number, line in islice(numbered_lines(path), self._limits.get(place)):
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
                digest.add(place, self._identity(number, raw))
            self._scan = digest.result()
        return self._scan

    def _identity(self, number: int, raw: bytes | GenmeterError | dict[str, Any]) -> bytes:
        """What stands for a line in the digest."""
        if isinstance(raw, GenmeterError):
            return f"line {number}: {raw.message}".encode()
        if isinstance(raw, dict):
            return self._folder.identity(raw) if self._folder else dumps(raw)
        return _without_result(raw) if _RESULT in raw else raw


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
    match: str | None = None,
    layout: str | None = None,
    columns: Mapping[str, str] | None = None,
    put: Bytes = data_uri,
) -> Source:
    """Open what people have on disk as one :class:`Source`.

    Args:
        inputs: JSONL files (plain or gzip), dataset files (YAML; see :mod:`genmeter.inputs.dataset`), ``-`` for
            standard input, or one folder of media.
        references: For a folder: a folder of references, paired by the path less its suffix.
        prompts: For a folder: a file of prompts; see :func:`genmeter.inputs.folder.open_folder`.
        spool: Where standard input and pipes are kept, since a run reads its input more than once; a temporary folder
            that goes with the source if absent.
        limit: Read no more than this many lines, over all inputs.
        match: For a folder: how its files are paired; ``stem`` (the default), or see
            :func:`genmeter.inputs.matching.open_matched`.
        layout: For a folder: a name of :data:`genmeter.inputs.layouts.LAYOUTS`, or ``none`` to recognise none.
        columns: For tables (CSV, TSV, Parquet): field of the sample to column; see
            :func:`genmeter.inputs.tables.open_tables`.
        put: For tables: where media go that stand in them as bytes.

    Raises:
        ValueError: An input does not exist, is no text, or holds no media; an id comes back in another file; options
            that do not fit.
    """
    from genmeter.inputs.dataset import is_dataset_file, open_datasets  # it parses lines as is done here

    if not inputs:
        raise ValueError("no input given; expected JSONL files, '-' for standard input, or a folder of media")
    if limit is not None and limit < 0:
        raise ValueError(f"limit {limit}: expected 0 or more")
    folders = [item for item in inputs if str(item) != "-" and os.path.isdir(item)]
    if folders:
        if len(inputs) > 1:
            raise ValueError(f"{folders[0]} is a folder, and can only be scored alone: give one folder, or JSONL files")
        folder = open_media(Path(folders[0]), references, prompts, match, layout)
        return Source(
            [(str(folders[0]), folder.root)],
            roots=_unique([folder.root, *([folder.references] if folder.references else []), Path.cwd()]),
            name=run_name(Path(folders[0])),
            folder=folder,
            limit=limit,
        )
    tables = [item for item in inputs if str(item) != "-" and is_table(item)]
    if tables and len(tables) < len(inputs):
        raise ValueError(f"{tables[0]} is a table, and can only be scored with tables: give tables, or JSONL files")
    if tables and references is None and prompts is None:
        paths = [Path(os.path.abspath(item)) for item in tables]
        for item, path in zip(tables, paths, strict=True):
            _check_there(str(item), path)
        found = Source(
            [(str(item), path) for item, path in zip(tables, paths, strict=True)],
            roots=_unique([*(path.parent for path in paths), Path.cwd()]),
            name=run_name(paths[0].with_suffix("")),
            folder=open_tables(paths, columns, put),
            limit=limit,
        )
        if len(paths) > 1:
            refuse_clashes(found)
        return found
    if match or layout:
        raise ValueError(f"--{'match' if match else 'layout'} is for a folder of media; none is given")
    if columns:
        raise ValueError("--map names the columns of a table (CSV, TSV or Parquet); none is given")
    if references is not None or prompts is not None:
        option = "references" if references is not None else "prompts"
        raise ValueError(f"--{option} pairs a folder of media; in JSONL they stand in each line")
    if sum(str(item) == "-" for item in inputs) > 1:
        raise ValueError("'-' is given twice; standard input can be read only once")
    opened: list[tuple[str, Path]] = []
    roots: list[Path] = []
    limits: dict[int, int | None] = {}
    notes: list[str] = []
    cleanup: Path | None = None
    for item in inputs:
        if is_dataset_file(item):
            for spec, note in open_datasets(Path(item), limit):
                _check_readable(str(spec.path), spec.path)
                limits[len(opened)] = spec.limit
                opened.append((str(spec.path), spec.path))
                roots.append(spec.path.parent)
                notes += [note] if note else []
            continue
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
    source = Source(opened, roots=_unique([*roots, Path.cwd()]), name=name, limit=limit, limits=limits)
    source.notes += notes
    if cleanup is not None:
        weakref.finalize(source, shutil.rmtree, cleanup, True)
    if len(opened) > 1:
        refuse_clashes(source)
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
    name = re.sub(r"(\.jsonl|\.ndjson|\.json|\.ya?ml)?(\.gz)?$", "", name, flags=re.IGNORECASE) or name
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


def _check_there(shown: str, path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"{shown}: no such file or folder")


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


def _without_result(line: bytes) -> bytes:
    """A line less the ``eval_result`` of its sample; one that is no record is taken as it is."""
    try:
        return without_member(line, sample_path(parse_line(line, 0)), "eval_result")
    except (GenmeterError, ValueError):
        return line


def _nothing(index: int) -> bool:
    return False


def _unique(paths: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(paths))
