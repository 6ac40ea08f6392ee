"""Tables as samples: CSV, TSV and Parquet, a row each, columns named by ``--map`` or taken by their obvious names."""

from __future__ import annotations

import base64
import codecs
import csv
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from genmeter.config import nearest
from genmeter.errors import GenmeterError
from genmeter.inputs.lines import InputChanged
from genmeter.schema.jsonio import dumps

SUFFIXES = (".csv", ".tsv", ".parquet")
# What a sample is built from, and the columns that obviously hold it, the more telling names first.
_OBVIOUS: dict[str, tuple[str, ...]] = {
    "id": ("id", "sample_id", "uid", "key"),
    "prompt": ("prompt", "caption", "text"),
    "output": ("output", "generated", "prediction", "image", "audio", "video", "file_name", "filename", "file", "path"),
    "reference": ("reference", "target", "ground_truth"),
    "input": ("input", "source", "source_image"),
    "task_type": ("task_type",),
}
_BATCH = 256
_LONGEST_CELL = 1 << 27
Bytes = Callable[[bytes, str], str]
"""Where encoded media of a cell go: bytes and the column's name to a path or URI."""


def is_table(path: str | os.PathLike[str]) -> bool:
    """Whether a path is one of a table, by its suffix."""
    return os.fspath(path).lower().endswith(SUFFIXES)


def data_uri(data: bytes, column: str) -> str:
    """Encoded media as a data: URI, whose kind the loader finds out."""
    return f"data:application/octet-stream;base64,{base64.b64encode(data).decode('ascii')}"


class Table:
    """Files of one shape, row after row. Made by :func:`open_tables`.

    Attributes:
        root: The folder of the first file.
        references: Always ``None``.
        notes: Which column stands for what.
        columns: Field of the sample (dotted) to column.
    """

    references = None

    def __init__(self, paths: Sequence[Path], columns: Mapping[str, str], names: Sequence[str], put: Bytes) -> None:
        self._paths, self._put = tuple(paths), put
        self._state = _state(paths)
        self.root = paths[0].parent
        self.columns = dict(columns)
        self._others = [name for name in names if name not in columns.values()]
        taken = ", ".join(f"{field} from {column!r}" for field, column in columns.items())
        self.notes = [f"columns: {taken}"]
        if self._others:
            self.notes.append(f"kept under metadata: {', '.join(map(repr, self._others))}")

    def records(self) -> Iterator[dict[str, Any] | GenmeterError]:
        """A short record a row, or a ``bad_line`` in its place. Raises as :meth:`placed`."""
        for _, _, record in self.placed():
            yield record

    def placed(self) -> Iterator[tuple[int, int, dict[str, Any] | GenmeterError]]:
        """Position of the file, number of the row in it, and its record.

        Raises:
            InputChanged: A file is not what it was when the table was opened.
        """
        if _state(self._paths) != self._state:
            raise InputChanged(f"{', '.join(p.name for p in self._paths)} changed while it was being scored")
        for place, path in enumerate(self._paths):
            for number, row in _rows(path):
                yield place, number, row if isinstance(row, GenmeterError) else self._record(number, row)

    def identity(self, record: dict[str, Any]) -> bytes:
        """What of a record belongs to the input's digest: all of it."""
        return dumps(record)

    def _record(self, number: int, row: Mapping[str, Any]) -> dict[str, Any] | GenmeterError:
        record: dict[str, Any] = {}
        try:
            for field, column in self.columns.items():
                value = self._value(column, row.get(column), media=field in ("output", "reference", "input"))
                if value is not None:
                    _put(record, field, str(value) if field == "id" else value)
            for column in self._others:
                value = self._value(column, row.get(column))
                if value is not None and column not in record.setdefault("metadata", {}):
                    record["metadata"][column] = value
        except ValueError as error:
            return GenmeterError("bad_line", f"row {number}: {error}")
        if not record.get("metadata", True):
            del record["metadata"]
        return record

    def _value(self, column: str, value: Any, media: bool = False) -> Any:
        """A cell as JSON. Media may be bytes, or a struct of bytes and path; a text may be a JSON list of texts."""
        if value is None or value == "":
            return None
        if isinstance(value, dict) and media and {"bytes", "path"} & value.keys():
            data, path = value.get("bytes"), value.get("path")
            return self._put(data, column) if data else path
        if isinstance(value, (bytes, bytearray)):
            return self._put(bytes(value), column)
        if isinstance(value, list):
            return [self._value(column, item, media) for item in value]
        if isinstance(value, dict):
            return {str(key): self._value(column, item) for key, item in value.items()}
        if isinstance(value, str):
            return _listed(value) if value.startswith("[") else value
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        return value if isinstance(value, (bool, int)) else str(value)


def open_tables(paths: Sequence[Path], mapping: Mapping[str, str] | None = None, put: Bytes = data_uri) -> Table:
    """Open tables that are parts of one set.

    Args:
        paths: CSV, TSV or Parquet files that all hold the columns that are asked for.
        mapping: Field of the sample to column: ``prompt``, ``output``, ``reference``, ``input``, ``id``, ``task_type``,
            or a dotted path such as ``metadata.model``. It adds to the obvious names, and wins over them.
        put: Where media go that stand in the table as bytes; by default into the record, as data: URIs.

    Raises:
        ValueError: A file cannot be read or has no header; a column is not there; nothing names an output. With the
            columns that there are.
    """
    names = [_header(path) for path in paths]
    columns: dict[str, str] = {}
    for field, column in (mapping or {}).items():
        if field not in _OBVIOUS and "." not in field:
            raise ValueError(
                f"--map {field}={column}: expected one of {', '.join(_OBVIOUS)}, or a path such as metadata.model"
                f"{nearest(field, list(_OBVIOUS))}"
            )
        for path, own in zip(paths, names, strict=True):
            if column not in own:
                raise ValueError(f"--map {field}={column}: {path} has no such column; it has {_named(own)}")
        columns[field] = column
    lowered = {name.strip().lower(): name for name in reversed(names[0])}
    for field, known in _OBVIOUS.items():
        found = next(
            (lowered[word] for word in known if word in lowered and lowered[word] not in columns.values()), None
        )
        if field not in columns and found is not None:
            columns[field] = found
    if "output" not in columns and not any(field.startswith("predict_result") for field in columns):
        raise ValueError(
            f"{paths[0]}: no column obviously holds the outputs; name one with --map output=COLUMN. "
            f"It has {_named(names[0])}"
        )
    for path, own in zip(paths[1:], names[1:], strict=True):
        missing = [column for column in columns.values() if column not in own]
        if missing:
            raise ValueError(f"{path}: has no column {missing[0]!r}, which {paths[0]} has; it has {_named(own)}")
    return Table(paths, columns, names[0], put)


def read_mapping(items: Sequence[str]) -> dict[str, str]:
    """``prompt=caption,output=path`` (may repeat) as field to column; empty for none. Raises ``ValueError``."""
    found: dict[str, str] = {}
    for pair in (pair for item in items for pair in item.split(",") if pair.strip()):
        field, equals, column = pair.strip().partition("=")
        if not equals or not field or not column:
            raise ValueError(f"--map {pair!r}: expected FIELD=COLUMN, as in prompt=caption,output=path")
        if found.setdefault(field, column) != column:
            raise ValueError(f"--map names two columns for {field}: {found[field]!r} and {column!r}")
    return found


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:20]))
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown


def _put(record: dict[str, Any], field: str, value: Any) -> None:
    *outer, last = field.split(".")
    for key in outer:
        record = record.setdefault(key, {})
        if not isinstance(record, dict):
            raise ValueError(f"{field}: {key} holds a value already")
    record[last] = value


def _listed(text: str) -> Any:
    """A text that is a JSON list of texts, as several outputs of one prompt are written; else the text."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if found and all(isinstance(item, str) for item in found) else text


def _state(paths: Sequence[Path]) -> list[tuple[int, int]]:
    try:
        return [(found.st_size, found.st_mtime_ns) for found in map(os.stat, paths)]
    except OSError as error:
        raise ValueError(f"{error.filename}: cannot be read ({error.strerror})") from None


def _header(path: Path) -> list[str]:
    if path.suffix.lower() == ".parquet":
        names = list(_parquet(path).schema_arrow.names)
    else:
        with _opened(path) as (_, reader):
            names = next(reader, [])
    names = [name for name in names if name]
    if not names:
        raise ValueError(f"{path}: expected a header with the names of the columns, found nothing")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{path}: two columns are named {twice!r}")
    return names


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | GenmeterError]]:
    if path.suffix.lower() == ".parquet":
        number = 0
        for batch in _parquet(path).iter_batches(batch_size=_BATCH):
            for row in batch.to_pylist():
                number += 1
                yield number, row
        return
    with _opened(path) as (file, reader):
        names = next(reader, [])
        number = 0
        while True:
            number += 1
            try:
                cells = next(reader, None)
            except csv.Error as error:
                yield number, GenmeterError("bad_line", f"row {number} of {path.name}: {error}")
                continue
            except UnicodeDecodeError:
                yield number, GenmeterError("bad_line", f"row {number} of {path.name} is not {file.encoding}")
                return
            if cells is None:
                return
            if not cells:
                number -= 1  # a blank line is no row
            elif len(cells) != len(names):
                what = f"row {number} of {path.name}: expected {len(names)} cells, found {len(cells)}"
                yield number, GenmeterError("bad_line", what, "put quotes around cells that hold the separator")
            else:
                yield number, dict(zip(names, cells, strict=True))


class _opened:
    """A text table and its reader. The encoding goes by its mark, the separator by suffix and header."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> tuple[Any, Iterator[list[str]]]:
        try:
            with open(self._path, "rb") as file:
                head = file.read(1 << 16)
        except OSError as error:
            raise ValueError(f"{self._path}: cannot be read ({error.strerror})") from None
        encoding = "utf-16" if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
        try:
            first = head.decode(encoding, "ignore").split("\n", 1)[0]
        except UnicodeDecodeError:
            raise ValueError(f"{self._path}: is not {encoding}; save the table as UTF-8") from None
        separator = "\t" if self._path.suffix.lower() == ".tsv" else ";" if ";" in first and "," not in first else ","
        csv.field_size_limit(_LONGEST_CELL)
        self._file = open(self._path, encoding=encoding, newline="")
        return self._file, csv.reader(self._file, delimiter=separator, strict=True)

    def __exit__(self, *exc: object) -> None:
        self._file.close()


def _parquet(path: Path) -> Any:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise GenmeterError(
            "extra_missing",
            f"{path.name} is Parquet, and pyarrow cannot be imported: {error}",
            "pip install 'genmeter[tables]'",
        ) from None
    try:
        return parquet.ParquetFile(path)
    except Exception as error:
        raise ValueError(f"{path}: cannot be read as Parquet ({type(error).__name__})") from None
