"""What the engine writes down of finished work, and where: the types that a run's journal and a session share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from genmeter.contract import Feature, Json


class Stamp(NamedTuple):
    """What identified a file when it was read: size in bytes, mtime as :func:`file_time`, SHA-256 (32 bytes).

    The hash is empty where the file could not be read for a reason that only another file can cure.
    """

    size: int
    mtime_ns: int
    digest: bytes


def file_time(mtime_ns: int) -> int:
    """A modification time as a stamp holds it: file systems know times that do not fit into 64 signed bits."""
    return (mtime_ns + 2**63) % 2**64 - 2**63


class Encoded(NamedTuple):
    """A finished unit. ``bucket`` and ``nbytes`` let a resumed run repeat the batch plan without decoding it again."""

    key: bytes
    encoder: str
    feature: Feature
    bucket: str
    nbytes: int


class Member(NamedTuple):
    """One row of a set metric's prediction (side 0) or reference set (side 1).

    A reference that could not be encoded has an empty key, and its error code in place of the encoder.
    """

    metric: str
    line: int
    side: int
    position: int
    encoder: str
    key: bytes
    digest: bytes


class LineNote(NamedTuple):
    """What reading one line's assets came to: its part of the snapshot unless that is known, and the files it used."""

    line: int
    snapshot: bytes | None
    files: Mapping[str, Stamp] = {}


class Entry(NamedTuple):
    """One finished cell: the row as it goes into ``eval_result``."""

    line: int
    metric: str
    row: Mapping[str, Json]


class Ledger(Protocol):
    """Where the engine writes down what is finished."""

    def begin(self, keys: Sequence[bytes]) -> None: ...
    def commit(
        self,
        encoded: Sequence[Encoded],
        entries: Sequence[Entry],
        members: Sequence[Member] = (),
        landed: Sequence[bytes] = (),
    ) -> None: ...


class MemoryLedger:
    """The ledger of an in-memory session: nothing outlives the window."""

    def __init__(self) -> None:
        self.entries: dict[int, dict[str, Mapping[str, Json]]] = {}

    def begin(self, keys: Sequence[bytes]) -> None:
        """Nothing to write down."""

    def commit(
        self,
        encoded: Sequence[Encoded],
        entries: Sequence[Entry],
        members: Sequence[Member] = (),
        landed: Sequence[bytes] = (),
    ) -> None:
        """Keep the rows until the session hands them out."""
        for line, metric, row in entries:
            self.entries.setdefault(line, {})[metric] = row
