"""From the journal and the shards of a run to the rows of a set metric, in an order that the input cannot change."""

from __future__ import annotations

import errno
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from genmeter.contract import Rows
from genmeter.engine.journal import Journal
from genmeter.engine.setfacts import FactsReader, FileFacts
from genmeter.engine.store import FeatureStore
from genmeter.errors import GenmeterError

_IN_MEMORY = 64 << 20


class LostFeaturesError(OSError):
    """Shards of the run are gone or damaged; ``lines`` are those whose features have to be encoded again."""

    def __init__(self, lines: Sequence[int], folder: Path | None = None) -> None:
        message = f"the features of {len(lines)} samples are damaged or gone; is something else writing there?"
        super().__init__(errno.EIO, message, str(folder) if folder else None)
        self.lines = lines


class Gathered(NamedTuple):
    """The files of one side and their feature rows.

    Attributes:
        values: (n, d) float32; mapped where it is large.
        unit: (n,) int64: the file of each row, ascending.
        digests: (u,) S32: SHA-256 of each file, ascending.
        lines: (u,) int64: the line of each file; -1 on the reference side, where a file may be of many.
        places: (u,) int64: which candidate of its line it is.
        facts: What is known of each file.
    """

    values: np.ndarray
    unit: np.ndarray
    digests: np.ndarray
    lines: np.ndarray
    places: np.ndarray
    facts: FileFacts

    def rows(self, keep: np.ndarray | None = None, scratch: Path | None = None) -> Rows:
        """The rows of the files for which ``keep`` (u,) is true; all of them for None.

        Args:
            keep: Which files.
            scratch: A file for values that are too many for memory.
        """
        if keep is None or keep.all():
            values, units = self.values, self.unit
        else:
            picked = np.flatnonzero(keep[self.unit])
            units = self.unit[picked]
            values = matrix(scratch, len(picked), self.values.shape[1])
            for start in range(0, len(picked), 4096):
                values[start : start + 4096] = self.values[picked[start : start + 4096]]
        return Rows(values, self.digests[units], self.lines[units], None, units)


class References(NamedTuple):
    """The reference side, and which lines hold which of its files.

    Attributes:
        files: Each different file once.
        line: (k,) int64, ascending: the line of each mention.
        unit: (k,) int64: the file that is mentioned; mentions of a line stand in their order.
        failed: How many mentions could not be encoded, by error code.
    """

    files: Gathered
    line: np.ndarray
    unit: np.ndarray
    failed: Counter[str]


def gather_predictions(journal: Journal, store: FeatureStore, metric: str, scratch: Path) -> Gathered:
    """Every candidate of every line, with multiplicity.

    Raises:
        LostFeaturesError: Features are not in the store.
        GenmeterError: ``internal`` for features of several encoders.
    """
    members = _members(journal, metric, 0)
    order = np.lexsort((members.places, members.lines, members.digests))
    return _load(members, order, store, scratch / "predictions.f32")


def gather_references(journal: Journal, store: FeatureStore, metric: str, scratch: Path, side: int = 1) -> References:
    """Every reference of every line, distinct by digest, whether or not the line's prediction could be scored.

    Args:
        journal: Says which features belong to which side.
        store: Holds them.
        metric: Name of the metric.
        scratch: Folder for what is too large for memory.
        side: 0 takes the predictions in their place.

    Raises:
        As :func:`gather_predictions`.
    """
    members = _members(journal, metric, side)
    digests, first, unit = np.unique(members.digests, return_index=True, return_inverse=True)
    files = _load(members, first, store, scratch / "references.f32")._replace(
        lines=np.full(len(digests), -1, dtype=np.int64)
    )
    return References(files, members.lines, unit.reshape(-1), members.failed)


def first_of_line(references: References, lines: np.ndarray) -> np.ndarray:
    """The file of the first reference of each line, (n,) int64; -1 where it has none."""
    known, first = np.unique(references.line, return_index=True)
    found = np.full(len(lines), -1, dtype=np.int64)
    if len(known):
        at = np.minimum(np.searchsorted(known, lines), len(known) - 1)
        has = known[at] == lines
        found[has] = references.unit[first[at[has]]]
    return found


def matrix(path: Path | None, rows: int, width: int) -> np.ndarray:
    """(rows, width) float32 to write to: in memory, or mapped to a file where it is large."""
    if path is None or rows * width * 4 <= _IN_MEMORY:
        return np.zeros((rows, width), dtype=np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # an array that is still mapped to the old file keeps it
    return np.memmap(path, dtype=np.float32, mode="w+", shape=(rows, width))


class _Members(NamedTuple):
    lines: np.ndarray
    places: np.ndarray
    digests: np.ndarray
    keys: np.ndarray
    encoder: str
    failed: Counter[str]


def _members(journal: Journal, metric: str, side: int) -> _Members:
    """The members of one side by line and place."""
    lines, places = array("q"), array("q")
    digests, keys = bytearray(), bytearray()
    encoders: set[str] = set()
    failed: Counter[str] = Counter()
    for line, place, encoder, key, digest in journal.members(metric, side):
        if not key:
            failed[encoder] += 1
            continue
        encoders.add(encoder)
        lines.append(line)
        places.append(place)
        digests += digest.ljust(32, b"\0")
        keys += key.ljust(32, b"\0")
    if len(encoders) > 1:
        raise GenmeterError(
            "internal", "the set holds features of two devices or library versions", "score again with --fresh"
        )
    return _Members(
        np.array(lines, dtype=np.int64),
        np.array(places, dtype=np.int64),
        np.frombuffer(bytes(digests), dtype="S32"),
        np.frombuffer(bytes(keys), dtype="S32"),
        encoders.pop() if encoders else "",
        failed,
    )


def _load(members: _Members, order: np.ndarray, store: FeatureStore, path: Path) -> Gathered:
    """The features of chosen members in a chosen order."""
    sizes, lost, width = [], [], 0
    facts = FactsReader()
    for index in order:
        feature = store.find(members.encoder, bytes(members.keys[index]))
        if feature is None:
            lost.append(int(members.lines[index]))
            continue
        sizes.append(len(feature.values))
        width = feature.values.shape[1]
        facts.add(feature.detail)
    if lost:
        raise LostFeaturesError(lost)
    values = matrix(path, sum(sizes), width)
    start = 0
    for index, size in zip(order, sizes, strict=True):
        feature = store.find(members.encoder, bytes(members.keys[index]))
        if feature is None:
            raise LostFeaturesError([int(members.lines[index])])
        values[start : start + size] = feature.values
        start += size
    unit = np.repeat(np.arange(len(order)), np.array(sizes, dtype=np.int64))
    lines, places = members.lines[order], members.places[order]
    return Gathered(values, unit, members.digests[order], lines, places, facts.read())
