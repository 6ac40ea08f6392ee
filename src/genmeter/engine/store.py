"""Feature shards: append-only safetensors files that hold features by their content keys.

A shard is written once, under a temporary name, and renamed into place; it is never changed afterwards. Any number of
processes may add shards to one directory, and a reader needs nothing but the files. Shards of a run and of the shared
cache have one format, so merging is moving files together.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from genmeter.contract import Feature

_SCHEMA = "genmeter.features/1"
_OPEN_SHARDS = 64  # mapped at a time; each holds at most one window


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

    def find(self, key: bytes) -> list[tuple[int, int]]:
        """Every (shard, row) that holds the key, newest level first."""
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
        self._open: dict[Path, tuple[dict[str, np.ndarray], list[Any]]] = {}
        self._lock = threading.Lock()

    def find(self, encoder: str, key: bytes) -> Feature | None:
        """The feature of one key (32 bytes) under one encoder fingerprint (hex), or None.

        A shard that is damaged or was deleted meanwhile counts as absent: its features are computed again.
        """
        with self._lock:
            index = self._load(encoder)
            for shard, row in index.find(key):
                try:
                    return self._read(index.paths[shard], row)
                except (OSError, KeyError, ValueError):
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
                self._index[encoder].add(path, _tensors(path)["keys"])
        return path

    def close(self) -> None:
        """Let go of the mapped files."""
        with self._lock:
            self._open.clear()
            self._index.clear()

    def _folder(self, encoder: str) -> Path:
        return self.folder / encoder[:32]

    def _load(self, encoder: str) -> _Index:
        if encoder not in self._index:
            index = self._index[encoder] = _Index()
            for path in sorted(self._folder(encoder).glob("*.safetensors")):
                try:
                    index.add(path, _tensors(path)["keys"])
                except (OSError, KeyError, ValueError):
                    continue
        return self._index[encoder]

    def _read(self, path: Path, row: int) -> Feature:
        if path not in self._open:
            if len(self._open) >= _OPEN_SHARDS:
                self._open.pop(next(iter(self._open)))
            tensors = _tensors(path)
            self._open[path] = (tensors, json.loads(bytes(tensors["notes"]).decode()))
        tensors, notes = self._open[path]
        start, stop = (int(v) for v in tensors["offsets"][row : row + 2])
        detail, flags = notes[row] if notes else ({}, [])
        return Feature(
            np.array(tensors["values"][start:stop]), np.array(tensors["weights"][start:stop]), detail, tuple(flags)
        )


def write_shard(path: Path, items: Sequence[tuple[bytes, Feature]]) -> None:
    """Write features to one file under a temporary name, flush it to disk and rename it into place."""
    from safetensors.numpy import save

    counts = [len(feature.values) for _, feature in items]
    notes = [[dict(f.detail), list(f.flags)] for _, f in items]
    tensors: dict[str, np.ndarray] = {
        "keys": np.frombuffer(b"".join(key for key, _ in items), dtype=np.uint8).reshape(-1, 32).copy(),
        "offsets": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        "values": np.ascontiguousarray(np.concatenate([f.values for _, f in items]), dtype=np.float32),
        "weights": np.ascontiguousarray(np.concatenate([f.weights for _, f in items]), dtype=np.float32),
        "notes": np.frombuffer(json.dumps(notes if any(d or f for d, f in notes) else []).encode(), dtype=np.uint8),
    }
    write_atomic(path, save(tensors, metadata={"schema": _SCHEMA}))


def write_atomic(path: Path, data: bytes) -> None:
    """Write a whole file so that a reader sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _tensors(path: Path) -> dict[str, np.ndarray]:
    """Memory-mapped arrays of a shard; raises ValueError when the file is not whole."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < 8:
            raise ValueError("too short")
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8:
            raise ValueError("header cut")
        header = json.loads(file.read(length))
    if header.get("__metadata__", {}).get("schema") != _SCHEMA:
        raise ValueError("not a feature shard")
    arrays = {}
    types = {"U8": np.uint8, "I64": np.int64, "F32": np.float32}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, stop = entry["data_offsets"]
        if 8 + length + stop > size:
            raise ValueError("data cut")
        shape = tuple(entry["shape"])
        dtype = types[entry["dtype"]]
        if stop == start:
            arrays[name] = np.zeros(shape, dtype)
        else:
            arrays[name] = np.memmap(path, dtype=dtype, mode="r", offset=8 + length + start, shape=shape)
    return arrays
