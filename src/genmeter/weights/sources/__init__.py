"""Where files come from. A kind is one module with ``fetch`` and ``describe``; :func:`get_source` finds it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Protocol, TypeAlias

from genmeter.weights.lock import PartSpec

Progress: TypeAlias = Callable[[str, int, int], None]
"""``progress(what, done, total)``: bytes so far and in all; a total of 0 is unknown."""


class Source(Protocol):
    """One kind of source: a module of this package named in ``_KINDS``."""

    def fetch(self, part: PartSpec, target: Path, progress: Progress) -> None:
        """Bring the file of ``part`` to ``target`` (whose folder exists). The caller checks its hash.

        Raises:
            GenmeterError: ``weights_unavailable`` when it cannot be had, saying why and what to do.
        """
        ...

    def describe(self, part: PartSpec) -> str:
        """What a message calls the place: a URL, a package and version, a path."""
        ...

    def local(self, part: PartSpec) -> Path | None:
        """The file's place on this machine if the kind is local and it is there; such a file is used in place."""
        ...


_KINDS = {kind: f"genmeter.weights.sources.{kind}" for kind in ("pypi", "url", "hub", "file")}


def get_source(kind: str) -> Source:
    """The module of this kind. Raises ``ValueError`` for one that is not installed."""
    if kind not in _KINDS:
        raise ValueError(f"source kind {kind!r} is not one of {', '.join(_KINDS)}")
    module: Source = import_module(_KINDS[kind])
    return module
