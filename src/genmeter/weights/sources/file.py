"""The kind ``file``: a file on this machine, used where it lies."""

from __future__ import annotations

from pathlib import Path

from genmeter.errors import GenmeterError
from genmeter.weights.lock import PartSpec
from genmeter.weights.sources import Progress


def local(part: PartSpec) -> Path | None:
    """The file's path when it is there."""
    path = Path(part.where["path"])
    return path if path.is_file() else None


def fetch(part: PartSpec, target: Path, progress: Progress) -> None:
    """Nothing to fetch: raises ``weights_unavailable``, since :func:`local` did not find the file."""
    raise GenmeterError("weights_unavailable", f"{part.where['path']} does not exist", "put the file there")


def describe(part: PartSpec) -> str:
    """The path."""
    return part.where["path"]
