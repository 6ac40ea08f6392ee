"""A file of prompts beside a folder of outputs."""

from __future__ import annotations

import codecs
import csv
import io
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from genmeter.schema.fragments import json_name
from genmeter.schema.jsonio import loads

_KEYS = ("stem", "file", "file_name", "filename", "path", "image", "audio", "video", "output", "id", "name")
_TEXTS = ("prompt", "caption", "text")


class Prompts(NamedTuple):
    """Prompts as they were read.

    Attributes:
        by_key: The prompt or prompts of each id, stem or file name, in composed form; ``None`` if it has none.
        lines: One prompt each, in order, if the file names none.
    """

    by_key: dict[str, str | list[str]] | None
    lines: list[str]


def read_prompts(file: Path) -> Prompts:
    """Read a file of prompts.

    By the suffix: ``.jsonl`` (objects with ``prompt`` and one of ``id``, ``stem``, ``file``), ``.json`` (a list of such
    objects, or one object of name to prompt), ``.csv`` and ``.tsv`` with a header of the same names, and anything else
    as text, one prompt a line in the sorted order of the outputs. UTF-8, or UTF-16 with its mark.

    Raises:
        ValueError: Naming the file, the line, and what was expected.
    """
    text = _decode(file)
    suffix = file.suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return Prompts(_keyed(file, _json_rows(file, text)), [])
    if suffix == ".json":
        return Prompts(_keyed(file, _json_document(file, text)), [])
    if suffix in (".csv", ".tsv"):
        return Prompts(_keyed(file, _table_rows(file, text, "\t" if suffix == ".tsv" else ",")), [])
    lines = [line[:-1] if line.endswith("\r") else line for line in text.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise ValueError(f"{file}: holds no prompt")
    return Prompts(None, lines)


def _decode(file: Path) -> str:
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{file}: no such file") from None
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror})") from None
    encoding = "utf-16" if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        # A guess at the encoding would score wrong prompts in silence.
        raise ValueError(f"{file}: line {line} is not UTF-8; save the file as UTF-8") from None


def _keyed(file: Path, rows: Iterator[tuple[int, Mapping[str, Any]]]) -> dict[str, str | list[str]]:
    found: dict[str, str | list[str]] = {}
    for number, row in rows:
        key = next((row[name] for name in _KEYS if row.get(name) not in (None, "")), None)
        prompt = next((row[name] for name in _TEXTS if row.get(name) is not None), None)
        if key is None or isinstance(key, (bool, float, list, dict)):
            raise ValueError(f"{file}: line {number} names no output; expected one of id, stem, file")
        if not isinstance(prompt, str) and not (
            isinstance(prompt, list) and prompt and all(isinstance(item, str) for item in prompt)
        ):
            what = "nothing" if prompt is None else json_name(prompt)
            raise ValueError(f"{file}: line {number}: expected a prompt (a string), found {what}")
        name = _normal(str(key))
        if found.get(name, prompt) != prompt:
            raise ValueError(f"{file}: line {number} gives {name!r} a second, different prompt")
        found[name] = prompt
    if not found:
        raise ValueError(f"{file}: holds no prompt")
    return found


def _normal(key: str) -> str:
    key = unicodedata.normalize("NFC", key.strip()).replace("\\", "/")
    return key[2:] if key.startswith("./") else key


def _json_rows(file: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = loads(line)
        except ValueError as error:
            raise ValueError(f"{file}: line {number} is {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{file}: line {number}: expected an object, found {json_name(row)}")
        yield number, row


def _json_document(file: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        data = loads(text)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    if isinstance(data, dict) and isinstance(data.get("data"), list):
        # The evaluation lists of AudioLDM and its kin: files by their name, wherever the list says that they lie.
        rows = [row for row in data["data"] if isinstance(row, dict)]
        data = [{**row, "stem": Path(str(row["wav"])).stem} if row.get("wav") else row for row in rows]
    elif isinstance(data, dict):
        data = [{"stem": key, "prompt": value} for key, value in data.items()]
    if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
        raise ValueError(f"{file}: expected a list of objects with id and prompt, or an object of name to prompt")
    yield from enumerate(data, 1)


def _table_rows(file: Path, text: str, delimiter: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    names = [name.strip().lower() for name in reader.fieldnames or ()]
    if not any(name in names for name in _KEYS) or not any(name in names for name in _TEXTS):
        raise ValueError(f"{file}: expected a header with prompt and one of id, stem, file")
    reader.fieldnames = names
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise ValueError(f"{file}: line {reader.line_num}: {error}") from None
