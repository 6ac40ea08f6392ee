"""Feature shards: append-only safetensors files that hold features by their content keys.

A shard is written once, under a temporary name, and renamed into place; it is never changed afterwards. Any number of
processes may add shards to one directory, and a reader needs nothing but the files. Shards of a run and of the shared
cache have one format, so merging is moving files together.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import threading
import uuid
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from genmeter.contract import Feature

_SCHEMA = "genmeter.features/2"
_TEMPORARY = re.compile(r"\..+\.\d+\.[0-9a-f]{8}\.tmp")
_MARKS = 1 << 10
_OPEN_SHARDS = 64  # at a time; each holds at most one window


class _Level(NamedTuple):
    """A sorted run of keys and where each one's feature lies."""

    keys: np.ndarray  # (n,) S32, ascending
    shard: np.ndarray  # (n,) int32, position in _Index.paths
    row: np.ndarray  # (n,) int32


class _Index:
    """All keys of one encoder. Levels double in size, so that adding n shards costs n log n and a look-up log n."""

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.levels: list[_Level] = []
        # One byte for each value that the first bits of a key may have, 1 where some key has it: most look-ups are for
        # what is not there, and end here.
        self._marks = np.zeros(_MARKS, dtype=np.uint8)

    def add(self, path: Path, keys: np.ndarray) -> None:
        flat = np.ascontiguousarray(keys).view("S32").reshape(-1)
        order = np.argsort(flat, kind="stable")
        self.paths.append(path)
        shard = np.full(len(flat), len(self.paths) - 1, dtype=np.int32)
        self.levels.append(_Level(flat[order], shard, order.astype(np.int32)))
        while len(self.levels) > 1 and 2 * len(self.levels[-1].keys) >= len(self.levels[-2].keys):
            newer, older = self.levels.pop(), self.levels.pop()
            joined = [np.concatenate(pair) for pair in zip(older, newer, strict=True)]
            order = np.argsort(joined[0], kind="stable")
            self.levels.append(_Level(*(part[order] for part in joined)))
        size = 1 << (8 * sum(len(level.keys) for level in self.levels)).bit_length()
        if size > 2 * len(self._marks):
            self._marks = np.zeros(size, dtype=np.uint8)
            for level in self.levels:
                self._mark(level.keys)
        else:
            self._mark(flat)

    def _mark(self, keys: np.ndarray) -> None:
        heads = keys.view(np.uint8).reshape(-1, 32)[:, :4].copy().view("<u4")
        self._marks[heads & (len(self._marks) - 1)] = 1

    def find(self, key: bytes) -> list[tuple[int, int]]:
        """Every (shard, row) that holds the key, newest level first."""
        if not self._marks[int.from_bytes(key[:4], "little") & (len(self._marks) - 1)]:
            return []
        hits = []
        key = key.rstrip(b"\0")  # as numpy hands fixed-width bytes back
        for level in reversed(self.levels):
            at = int(np.searchsorted(level.keys, np.bytes_(key)))
            while at < len(level.keys) and level.keys[at] == key:
                hits.append((int(level.shard[at]), int(level.row[at])))
                at += 1
        return hits


class FeatureStore:
    """Features of one directory, found by key. Look-ups are safe from many threads; shards are added from one.

    Args:
        folder: Holds one subfolder for each encoder fingerprint. Need not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._index: dict[str, _Index] = {}
        self._open: dict[Path, _Shard] = {}
        self._lock = threading.Lock()

    def find(self, encoder: str, key: bytes) -> Feature | None:
        """The feature of one key (32 bytes) under one encoder fingerprint (hex), or None.

        A shard that is damaged or was deleted meanwhile counts as absent: its features are computed again.
        """
        with self._lock:
            index = self._load(encoder)
            for shard, row in index.find(key):
                try:
                    return self._shard(index.paths[shard]).feature(row)
                except (OSError, ValueError):
                    continue
        return None

    def add(self, encoder: str, items: Sequence[tuple[bytes, Feature]]) -> Path | None:
        """Write one shard and make it findable. Returns its path, or None when there is nothing to write."""
        if not items:
            return None
        path = self._folder(encoder) / f"{uuid.uuid4().hex}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_shard(path, items)
        with self._lock:
            if encoder in self._index:
                self._index[encoder].add(path, _keys([key for key, _ in items]))
        return path

    def close(self) -> None:
        """Let go of the open files."""
        with self._lock:
            for shard in self._open.values():
                shard.close()
            self._open.clear()
            self._index.clear()

    def _folder(self, encoder: str) -> Path:
        return self.folder / encoder[:32]

    def _load(self, encoder: str) -> _Index:
        if encoder not in self._index:
            index = self._index[encoder] = _Index()
            for path in _shards(self._folder(encoder)):
                try:
                    shard = _Shard(path)
                except (OSError, ValueError):
                    continue
                index.add(path, shard.keys)
                shard.close()
        return self._index[encoder]

    def _shard(self, path: Path) -> _Shard:
        if path not in self._open:
            shard = _Shard(path)
            if len(self._open) >= _OPEN_SHARDS:
                self._open.pop(next(iter(self._open))).close()
            self._open[path] = shard
        return self._open[path]


def _shards(folder: Path) -> list[Path]:
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".safetensors") and not name.startswith(".")]
        return [folder / name for name in sorted(names)]
    except OSError:
        return []


def _keys(keys: Sequence[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(-1, 32)


def write_shard(path: Path, items: Sequence[tuple[bytes, Feature]]) -> None:
    """Write features to one file under a temporary name, flush it to disk and rename it into place."""
    from safetensors.numpy import save

    counts = [len(feature.values) for _, feature in items]
    notes = [[dict(f.detail), list(f.flags)] for _, f in items]
    written = json.dumps(notes if any(d or f for d, f in notes) else []).encode()
    arrays = [[np.ascontiguousarray(part, dtype=np.float32) for part in (f.values, f.weights)] for _, f in items]
    sums = [_checksum(key, *pair) for (key, _), pair in zip(items, arrays, strict=True)]
    tensors: dict[str, np.ndarray] = {
        "keys": _keys([key for key, _ in items]).copy(),
        "offsets": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        "values": np.concatenate([values for values, _ in arrays]),
        "weights": np.concatenate([weights for _, weights in arrays]),
        "notes": np.frombuffer(written, dtype=np.uint8),
        "sums": np.array([*sums, zlib.crc32(written)], dtype=np.uint32),
    }
    write_atomic(path, save(tensors, metadata={"schema": _SCHEMA}))


def temporary_name(path: Path) -> Path:
    """Where the content of a file is written before it takes the file's place; see :func:`sweep`."""
    return path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the place of ``path`` on a clean exit, whole; on any other nothing has changed there.

    Raises:
        OSError: Naming the file, whose old content is untouched.
    """
    temporary = temporary_name(path)
    try:
        with open(temporary, "wb", buffering=1 << 20) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise unwritable(error, path) from None
        raise


def write_atomic(path: Path, data: bytes) -> None:
    """Write a whole file so that a reader sees the old content or the new, never a part.

    Raises:
        OSError: Naming the file, whose old content is untouched.
    """
    with replacing(path) as file:
        file.write(data)


def unwritable(error: OSError, path: Path) -> OSError:
    """The same error, saying which file could not be written: the system names none when a write or a flush fails."""
    return OSError(error.errno or errno.EIO, f"cannot be written ({error.strerror or error})", str(path))


def sweep(folder: Path) -> None:
    """Remove what processes that were killed left half written in a folder that belongs to this process alone."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if _TEMPORARY.fullmatch(path.name):
                with contextlib.suppress(OSError):
                    path.unlink()


class _Block(NamedTuple):
    """Where an array lies in a shard."""

    dtype: Any
    shape: tuple[int, ...]
    start: int
    nbytes: int


class _Shard:
    """An open shard. Rows are read and checked one by one.

    They are read rather than mapped: of a file that was cut, or that another machine removed from a shared disk,
    reading fails with an error, and touching a mapped page kills the process.

    Raises:
        ValueError: The file is no shard, or not a whole one.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115, closed by close()
        try:
            self._blocks = _layout(self._file)
            self.keys = self._whole("keys")
            self._offsets, self._sums = self._whole("offsets"), self._whole("sums")
            if not len(self._offsets) == len(self._sums) == len(self.keys) + 1:
                raise ValueError("its arrays do not fit together")
        except BaseException as error:
            self._file.close()
            if isinstance(error, LookupError | TypeError | AttributeError | OverflowError | RecursionError):
                raise ValueError(f"not a feature shard ({type(error).__name__})") from None
            raise
        self._notes: list[Any] | None = None

    def feature(self, row: int) -> Feature:
        """The feature of a row; raises ``ValueError`` when its bytes are not those that were written."""
        start, stop = (int(v) for v in self._offsets[row : row + 2])
        values, weights = self._rows("values", start, stop), self._rows("weights", start, stop)
        if _checksum(self.keys[row].tobytes(), values, weights) != self._sums[row]:
            raise ValueError("a row does not match its checksum")
        if self._notes is None:
            data = self._whole("notes").tobytes()
            if zlib.crc32(data) != self._sums[-1]:
                raise ValueError("the notes do not match their checksum")
            self._notes = json.loads(data)
        detail, flags = self._notes[row] if self._notes else ({}, [])
        return Feature(values, weights, detail, tuple(flags))

    def close(self) -> None:
        self._file.close()

    def _whole(self, name: str) -> np.ndarray:
        block = self._blocks[name]
        return self._read(block.start, block.nbytes, block.dtype, block.shape)

    def _rows(self, name: str, start: int, stop: int) -> np.ndarray:
        block = self._blocks[name]
        if not 0 <= start <= stop <= block.shape[0]:
            raise ValueError("a row lies outside its array")
        width = block.nbytes // max(block.shape[0], 1)
        return self._read(block.start + start * width, (stop - start) * width, block.dtype, (-1, *block.shape[1:]))

    def _read(self, start: int, nbytes: int, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
        self._file.seek(start)
        data = self._file.read(nbytes)
        while len(data) < nbytes:  # one call reads at most 2 GB
            more = self._file.read(nbytes - len(data))
            if not more:
                raise ValueError("data cut")
            data += more
        return np.frombuffer(data, dtype).reshape(shape)


def _checksum(key: bytes, values: np.ndarray, weights: np.ndarray) -> int:
    return zlib.crc32(weights.data, zlib.crc32(values.data, zlib.crc32(key)))


def _layout(file: Any) -> dict[str, _Block]:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= size - 8:
        raise ValueError("header cut")
    header = json.loads(file.read(length))
    if header["__metadata__"]["schema"] != _SCHEMA:
        raise ValueError("not a feature shard")
    types = {"U8": np.uint8, "I64": np.int64, "F32": np.float32, "U32": np.uint32}
    blocks = {}
    for name in ("keys", "offsets", "values", "weights", "notes", "sums"):
        entry = header[name]
        start, stop = entry["data_offsets"]
        block = _Block(np.dtype(types[entry["dtype"]]), tuple(entry["shape"]), 8 + length + start, stop - start)
        if not 0 <= start <= stop <= size - 8 - length or block.nbytes != math.prod(block.shape) * block.dtype.itemsize:
            raise ValueError("data cut")
        blocks[name] = block
    return blocks
