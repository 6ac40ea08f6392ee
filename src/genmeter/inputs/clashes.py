"""Ids that stand in two inputs: several inputs are parts of one set, so that each id may be in one of them."""

from __future__ import annotations

import hashlib
from array import array
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from genmeter.inputs.source import InputLine, Source


def refuse_clashes(source: Source) -> None:
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
