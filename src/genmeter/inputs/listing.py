"""Outputs of a folder that were grouped into samples: what layouts and ``--match`` come to."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from genmeter.schema.jsonio import dumps
from genmeter.schema.media import kind_of_name


class Listing:
    """Samples of a folder, in order. Stands where a :class:`genmeter.inputs.folder.Folder` does.

    Attributes:
        root: The folder, absolute; output paths are relative to it.
        references: The folder of references, absolute, or ``None``.
        notes: Sentences with matched and unmatched counts, both ways.
    """

    def __init__(self, root: Path, records: Sequence[dict[str, Any]], references: Path | None = None) -> None:
        self.root, self.references = root, references
        self.notes: list[str] = []
        self._records = list(records)

    def records(self) -> Iterator[dict[str, Any]]:
        """A short record a sample; a reference is written with its whole path."""
        for record in self._records:
            names = record.get("reference")
            if names is not None and self.references is not None:
                yield {**record, "reference": [str(self.references / name) for name in names]}
            else:
                yield record

    def identity(self, record: dict[str, Any]) -> bytes:
        """What of a record belongs to the input's digest: everything but where the references lie."""
        names = record.get("reference")
        if names is None or self.references is None:
            return dumps(record)
        return dumps({**record, "reference": [os.path.relpath(name, self.references) for name in names]})


def media_below(root: Path) -> list[str]:
    """Media of a folder and its subfolders, relative, known by their suffix; 2.png before 10.png; hidden ones not."""
    found = []
    for where, folders, names in os.walk(root, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and kind_of_name(name):
                found.append(Path(where, name).relative_to(root).as_posix())
    return sorted(found, key=natural)


def natural(path: str) -> tuple[list[str | int], str]:
    """Sorts 2.png before 10.png, which is what a list of prompts beside numbered files means."""
    parts = re.split(r"([0-9]+)", unicodedata.normalize("NFC", path))
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], path


def one_or_all(names: list[str]) -> str | list[str]:
    """A lone output as a string, several as a list: candidates of one prompt."""
    return names[0] if len(names) == 1 else names


def unreadable(error: OSError) -> None:
    """What ``os.walk`` is to do about a folder that cannot be read: raise ``ValueError`` with its name."""
    raise ValueError(f"{error.filename}: cannot be read ({error.strerror})") from None
