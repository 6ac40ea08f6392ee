"""Where finished features are looked for and where new ones go: this window, the run's own shards, the shared cache."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from genmeter.contract import Feature
from genmeter.engine.catalog import Catalog
from genmeter.engine.ledger import Encoded
from genmeter.engine.prepare import Known
from genmeter.engine.store import FeatureStore, temporary_name


class Features:
    """Features by key. Look-ups are called from decode threads; everything else from the engine's own.

    Args:
        catalog: The run's encoders.
        run_folder: ``features/`` of the run directory, or None for a session without one.
        cache_folder: The shared cache, or None when it is off.
    """

    def __init__(self, catalog: Catalog, run_folder: Path | None, cache_folder: Path | None) -> None:
        self._catalog = catalog
        self._run = FeatureStore(run_folder) if run_folder else None
        self._cache = FeatureStore(cache_folder) if cache_folder else None
        self._window: dict[bytes, Encoded] = {}

    def recall(self, ghosts: list[Encoded]) -> None:
        """Take over what an interrupted process had finished of its last window."""
        self._window = {ghost.key: ghost for ghost in ghosts}

    @property
    def interrupted(self) -> bool:
        """Whether the window that comes next was begun by an interrupted process."""
        return bool(self._window)

    def find(self, encoder: int, view: int, key: bytes) -> Known | None:
        """A finished unit; one of the unfinished window keeps its place in the batch plan."""
        ghost = self._window.get(key)
        if ghost is not None:
            return Known(key, ghost.feature, ghost.bucket, ghost.nbytes)
        fingerprint = self._catalog.fingerprint(encoder, view)
        feature = self._run.find(fingerprint.hex, key) if self._run else None
        if feature is not None:
            return Known(key, feature)
        feature = self._cache.find(fingerprint.hex, key) if self._cache and fingerprint.stable else None
        return None if feature is None else Known(key, feature, lent=True)

    def seal(self, encoded: list[Encoded]) -> None:
        """Write a finished window's features into one shard for each encoder, and offer the shard to the cache."""
        stable = {
            self._catalog.fingerprint(encoder, view).hex
            for encoder in range(len(self._catalog.encoders))
            for view in range(len(self._catalog.views))
            if self._catalog.fingerprint(encoder, view).stable
        }
        by_encoder: dict[str, list[Encoded]] = {}
        for item in encoded:
            by_encoder.setdefault(item.encoder, []).append(item)
        for fingerprint, items in by_encoder.items():
            # The cache has what came from it. What fell back to another device is right to keep for this run, but must
            # not answer for the usual one.
            new = [item for item in items if item.bucket and "device" not in item.feature.detail]
            path = self._run.add(fingerprint, _pairs(items)) if self._run else None
            if self._cache and fingerprint in stable:
                if path is not None and len(new) == len(items):
                    adopt(path, self._cache.folder / path.parent.name)
                else:
                    with contextlib.suppress(OSError):  # as in adopt
                        self._cache.add(fingerprint, _pairs(new))
        self._window = {}

    def close(self) -> None:
        """Let go of the mapped files."""
        for store in (self._run, self._cache):
            if store:
                store.close()


def _pairs(items: list[Encoded]) -> list[tuple[bytes, Feature]]:
    return [(item.key, item.feature) for item in items]


def adopt(shard: Path, folder: Path) -> None:
    """Put a finished shard into another folder: as a hard link where the file system allows, else as a copy."""
    target = folder / shard.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            os.link(shard, target)
        except OSError:
            temporary = temporary_name(target)
            try:
                shutil.copyfile(shard, temporary)
                os.replace(temporary, target)
            finally:
                temporary.unlink(missing_ok=True)
    except OSError:
        return  # a full or read-only cache costs time later, never a score now
