"""The journal: what a run has finished, so that killing it at any moment loses at most the batch in flight.

One SQLite file with one writer. Features and the cells scored from them are committed together, a batch a transaction;
at the end of a window its features move into a shard (:mod:`genmeter.engine.store`) and leave the journal.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from genmeter.contract import Feature, Json
from genmeter.engine.ledger import Encoded, Entry, LineNote, Member, Stamp
from genmeter.engine.netfs import on_network as _on_network
from genmeter.schema import jsonio

# Version of the journal's own layout; another one is refused rather than guessed at.
_LAYOUT = 2
_TABLES = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS cell (line INTEGER, metric TEXT, code TEXT, row BLOB NOT NULL, sum INTEGER NOT NULL,
    PRIMARY KEY (line, metric)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS line (line INTEGER PRIMARY KEY, snapshot BLOB NOT NULL, sum INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS asset (uri TEXT PRIMARY KEY, size INTEGER, mtime INTEGER, digest BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS use (uri TEXT, line INTEGER, PRIMARY KEY (uri, line)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS member (metric TEXT, line INTEGER, side INTEGER, position INTEGER, encoder TEXT, key BLOB,
    digest BLOB, sum INTEGER NOT NULL, PRIMARY KEY (metric, line, side, position)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS feature (key BLOB PRIMARY KEY, encoder TEXT, bucket TEXT, nbytes INTEGER, size INTEGER,
    vectors BLOB, weights BLOB, notes TEXT, sum INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS inflight (key BLOB PRIMARY KEY, attempts INTEGER NOT NULL) WITHOUT ROWID;
"""


class Journal:
    """The ledger of a run directory.

    Args:
        path: ``journal.sqlite``; made when absent.

    Raises:
        ValueError: Another process runs on the directory, or the file is no journal of this version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.resumed = path.exists()
        self._files: list[tuple[int, Mapping[str, Stamp]]] = []
        self._unsealed: dict[bytes, Encoded] | None = None
        try:
            self._db = sqlite3.connect(path, isolation_level=None, timeout=0.2, check_same_thread=False)
            # Exclusive before WAL: then no shared memory file is made and a second run on the directory is refused.
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute(f"PRAGMA journal_mode={'DELETE' if _on_network(path.parent) else 'WAL'}")
            self._db.execute("PRAGMA synchronous=NORMAL")
            if self.resumed and (found := self._db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise self.damaged(str(found).replace("\n", " "))
            self._db.execute("BEGIN IMMEDIATE")
            for statement in _TABLES.split(";"):
                self._db.execute(statement)
            self._db.execute("COMMIT")
            self._place = _place(path)
            if self.meta("layout", _LAYOUT) != _LAYOUT:
                raise ValueError(f"{path}: was written by another version of genmeter; score again with --fresh")
            self.set_meta("layout", _LAYOUT)
        except sqlite3.OperationalError as error:
            if _locked(error):
                raise _in_use(path) from None
            raise ValueError(
                f"{path}: cannot be used as a journal ({error}); give a directory that can be written with -o"
            ) from None
        except sqlite3.DatabaseError as error:
            raise self.damaged(error) from None

    def damaged(self, what: object) -> ValueError:
        """The error for a file whose content cannot be relied upon; it says what to do about it."""
        return ValueError(
            f"{self.path}: is damaged or no journal ({what}); score again with --fresh or move the directory away"
        )

    def meta(self, name: str, default: Json = None) -> Json:
        """A stored setting (JSON), or the default."""
        found = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        try:
            return default if found is None else json.loads(found[0])
        except (ValueError, TypeError):
            raise self.damaged(f"the setting {name!r} cannot be read") from None

    def set_meta(self, name: str, value: Json) -> None:
        """Store a setting."""
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, json.dumps(value)))

    def finished(self, lines: range) -> dict[int, set[str]]:
        """Names of the finished metrics of each line."""
        found: dict[int, set[str]] = {}
        for line, metric in self._db.execute(
            "SELECT line, metric FROM cell WHERE line >= ? AND line < ?", (lines.start, lines.stop)
        ):
            found.setdefault(line, set()).add(_text(metric))
        return found

    def noted(self, lines: range) -> set[int]:
        """Lines whose part of the snapshot is known."""
        found = self._db.execute("SELECT line FROM line WHERE line >= ? AND line < ?", (lines.start, lines.stop))
        return {line for (line,) in found}

    def rows(self) -> Iterator[tuple[int, dict[str, dict[str, Json]]]]:
        """All finished rows, line by line in input order."""
        current: int | None = None
        rows: dict[str, dict[str, Json]] = {}
        for line, metric, row, total in self._db.execute(
            "SELECT line, metric, row, sum FROM cell ORDER BY line, metric"
        ):
            metric = _text(metric)
            if total != _sum(line, metric, row):
                raise self.damaged("a row does not match its checksum")
            if line != current:
                if current is not None:
                    yield current, rows
                current, rows = line, {}
            rows[metric] = jsonio.loads(row)
        if current is not None:
            yield current, rows

    def codes(self) -> dict[str, dict[str | None, int]]:
        """How many cells of each metric ended with which error code; None counts the scored ones."""
        counts: dict[str, dict[str | None, int]] = {}
        for metric, code, n in self._db.execute("SELECT metric, code, COUNT(*) FROM cell GROUP BY metric, code"):
            counts.setdefault(_text(metric), {})[code] = n
        return counts

    def retry(self, codes: Iterable[str]) -> int:
        """Forget the cells that failed with one of these codes, so that they are tried again. Returns how many."""
        cells = []
        for code in codes:
            cells += self._db.execute("SELECT line, metric FROM cell WHERE code = ?", (code,)).fetchall()
            lacking = "SELECT DISTINCT line, metric FROM member WHERE length(key) = 0 AND encoder = ?"
            cells += self._db.execute(lacking, (code,)).fetchall()
        self.drop(cells)
        return len(cells)

    def drop(self, cells: Iterable[tuple[int, str | bytes]]) -> None:
        """Forget cells and their lines' parts of the snapshot, so that they are scored and read again."""
        with self._transaction():
            for line, metric in cells:
                self._db.execute("DELETE FROM cell WHERE line = ? AND metric = ?", (line, metric))
                self._db.execute("DELETE FROM member WHERE line = ? AND metric = ?", (line, metric))
                self._db.execute("DELETE FROM line WHERE line = ?", (line,))

    def stamps(self) -> Iterator[tuple[str, Stamp]]:
        """Every file that was read, and what it was then."""
        for uri, size, mtime, digest in self._db.execute("SELECT uri, size, mtime, digest FROM asset").fetchall():
            yield _text(uri), Stamp(size, mtime, digest)

    def forget_asset(self, uri: str) -> int:
        """Drop every cell of the lines that used a file. Returns how many lines that concerns."""
        name = _bound(uri)
        lines = [line for (line,) in self._db.execute("SELECT line FROM use WHERE uri = ?", (name,))]
        with self._transaction():
            for line in lines:
                for table in ("cell", "member", "line"):
                    self._db.execute(f"DELETE FROM {table} WHERE line = ?", (line,))
            self._db.execute("DELETE FROM asset WHERE uri = ?", (name,))
        return len(lines)

    def restamp(self, uri: str, stamp: Stamp) -> None:
        """Note that a file was touched without being changed."""
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO asset VALUES (?, ?, ?, ?)", (_bound(uri), *stamp))

    def suspects(self) -> dict[bytes, int]:
        """Units of batches that were begun and never finished, and how often."""
        return dict(self._db.execute("SELECT key, attempts FROM inflight"))

    def begin(self, keys: Sequence[bytes]) -> None:
        """Write down a batch before it runs."""
        with self._transaction():
            self._db.executemany(
                "INSERT INTO inflight VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET attempts = attempts + 1",
                [(key,) for key in keys],
            )

    def acquit(self) -> None:
        """The run is through: what was given up may be tried again by a later process."""
        if self.suspects():
            with self._transaction():
                self._db.execute("DELETE FROM inflight")

    def forgive(self, keys: Sequence[bytes]) -> None:
        """A batch was left in order (an interrupt, a full disk): that it did not finish says nothing against it."""
        with self._transaction():
            each = [(key,) for key in keys]
            self._db.executemany("UPDATE inflight SET attempts = attempts - 1 WHERE key = ?", each)
            self._db.execute("DELETE FROM inflight WHERE attempts <= 0")

    def commit(
        self,
        encoded: Sequence[Encoded],
        entries: Sequence[Entry],
        members: Sequence[Member] = (),
        landed: Sequence[bytes] = (),
    ) -> None:
        """Commit features, the cells scored from them and the end of their batch, all or nothing.

        Args:
            encoded: Features of the batch.
            entries: Rows of cells that are finished now.
            members: Rows of sets.
            landed: Keys of the batch, whether they came to a feature or to an error.
        """
        with self._transaction():
            self._note_files()
            self._db.executemany(
                "INSERT OR REPLACE INTO feature VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", [_feature_row(e) for e in encoded]
            )
            self._db.executemany("DELETE FROM inflight WHERE key = ?", [(key,) for key in landed])
            self._db.executemany("INSERT OR REPLACE INTO cell VALUES (?, ?, ?, ?, ?)", [_cell_row(e) for e in entries])
            self._db.executemany(
                "INSERT OR REPLACE INTO member VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [(*member, _sum(member.line, member.key, member.digest)) for member in members],
            )
        if self._unsealed is not None:
            for item in encoded:
                self._unsealed.pop(item.key, None)  # what replaces a row comes last, as in the table
                self._unsealed[item.key] = item

    def read(self, line: int, files: Mapping[str, Stamp]) -> None:
        """Note which files a line used and what they were then; written with the next commit, before its cells count.

        Of a file that several lines read, the first stamp is kept: if it changed in between, the next process sees that
        and scores all of them again.
        """
        if files:
            self._files.append((line, files))

    def _note_files(self) -> None:
        noted, self._files = self._files, []
        self._db.executemany(
            "INSERT OR IGNORE INTO use VALUES (?, ?)", [(_bound(uri), line) for line, files in noted for uri in files]
        )
        self._db.executemany(
            "INSERT OR IGNORE INTO asset VALUES (?, ?, ?, ?)",
            [(_bound(uri), *stamp) for _, files in noted for uri, stamp in files.items()],
        )

    def note_lines(self, notes: Sequence[LineNote]) -> None:
        """Record each line's part of the snapshot, and which files it used and what they were when they were read."""
        for note in notes:
            self.read(note.line, note.files)
        with self._transaction():
            self._note_files()
            parts = [
                (note.line, note.snapshot, _sum(note.line, "", note.snapshot))
                for note in notes
                if note.snapshot is not None
            ]
            self._db.executemany("INSERT OR REPLACE INTO line VALUES (?, ?, ?)", parts)

    def snapshots(self) -> Iterator[bytes]:
        """The parts of the snapshot in ascending order, so that the order of lines does not matter."""
        for line, part, total in self._db.execute("SELECT line, snapshot, sum FROM line ORDER BY snapshot"):
            if total != _sum(line, "", part):
                raise self.damaged("a line's part of the snapshot does not match its checksum")
            yield part

    def unsealed(self) -> list[Encoded]:
        """Features of the window that is not finished yet, in the order in which they were committed."""
        if self._unsealed is None:
            self._unsealed = {item.key: item for item in self._read_unsealed()}
        return list(self._unsealed.values())

    def _read_unsealed(self) -> Iterator[Encoded]:
        for *row, total in self._db.execute(
            "SELECT key, encoder, bucket, nbytes, size, vectors, weights, notes, sum FROM feature ORDER BY rowid"
        ):
            if total != _sum(*row):
                raise self.damaged("a feature does not match its checksum")
            key, encoder, bucket, nbytes, size, vectors, weights, notes = row
            values = np.frombuffer(vectors, dtype=np.float32).reshape(size, -1)
            detail, flags = json.loads(notes)
            feature = Feature(values, np.frombuffer(weights, dtype=np.float32), detail, tuple(flags))
            yield Encoded(key, encoder, feature, bucket, nbytes)

    def seal(self) -> None:
        """Forget the features of the finished window; they stand in a shard now."""
        with self._transaction():
            self._db.execute("DELETE FROM feature")
        self._unsealed = {}

    def members(self, metric: str, side: int) -> Iterator[tuple[int, int, str, bytes, bytes]]:
        """(line, position, encoder, key, digest) of a set's rows, in input order."""
        for *row, total in self._db.execute(
            "SELECT line, position, encoder, key, digest, sum FROM member WHERE metric = ? AND side = ?"
            " ORDER BY line, position",
            (metric, side),
        ):
            line, position, encoder, key, digest = row
            if total != _sum(line, key, digest):
                raise self.damaged("a row of a set does not match its checksum")
            yield line, position, encoder, key, digest

    def close(self) -> None:
        """Close the file; everything committed is on disk."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of a block or none of it. Raises ``OSError`` when the disk is full or fails, or the file is gone."""
        if _place(self.path) != self._place:
            what = "the run directory was removed or replaced while the run was going on"
            raise OSError(errno.ENOENT, what, str(self.path))
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            self._roll_back()
            number = errno.ENOSPC if "full" in str(error) else errno.EIO
            raise OSError(number, f"the journal cannot be written ({error})", str(self.path)) from None
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")


def refuse_in_use(path: Path) -> None:
    """Raise ``ValueError`` when another process runs on the directory of a journal."""
    if path.exists():
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0.2)) as db:
            try:
                db.execute("PRAGMA locking_mode=EXCLUSIVE")
                db.execute("BEGIN IMMEDIATE")
            except sqlite3.DatabaseError as error:
                if _locked(error):
                    raise _in_use(path) from None


def _locked(error: sqlite3.DatabaseError) -> bool:
    return "locked" in str(error) or "busy" in str(error)


def _in_use(path: Path) -> ValueError:
    return ValueError(
        f"{path.parent}: another genmeter process is running on this directory; wait for it, or give another directory "
        "with -o"
    )


def _feature_row(item: Encoded) -> tuple[Any, ...]:
    feature = item.feature
    vectors = np.ascontiguousarray(feature.values, dtype=np.float32)
    weights = np.ascontiguousarray(feature.weights, dtype=np.float32)
    notes = json.dumps([dict(feature.detail), list(feature.flags)])
    row = (
        item.key,
        item.encoder,
        item.bucket,
        item.nbytes,
        len(vectors),
        vectors.tobytes(),
        weights.tobytes(),
        notes,
    )
    return *row, _sum(*row)


def _cell_row(entry: Entry) -> tuple[Any, ...]:
    row = jsonio.dumps(entry.row)
    code = (entry.row.get("error") or {}).get("code")
    return entry.line, _bound(entry.metric), code, row, _sum(entry.line, entry.metric, row)


def _bound(text: str) -> str | bytes:
    """A name as SQLite takes it: one that is no Unicode (file names may be any bytes) as a blob."""
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def _text(bound: str | bytes) -> str:
    """The name that :func:`_bound` was given."""
    return bound if isinstance(bound, str) else bound.decode("utf-8", "surrogatepass")


def _sum(*parts: bytes | str | int) -> int:
    """CRC-32 over the columns of a row: SQLite finds torn pages, not what was overwritten inside of one."""
    columns = [part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass") for part in parts]
    return zlib.crc32(b"".join(columns))


def _place(path: Path) -> tuple[int, int] | None:
    """Which file lies at a path, or None."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
