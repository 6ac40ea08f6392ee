"""The files of one line: each read and hashed once, decoded once, and noted with what it was when it was read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Protocol

from genmeter.assets.decode import decode
from genmeter.assets.load import Blob, load
from genmeter.assets.resolve import Location, Resolver, shorten
from genmeter.assets.workers import DecodePool
from genmeter.config import Policy
from genmeter.contract import Decoding, Media, Modality
from genmeter.engine.catalog import Catalog
from genmeter.engine.keys import text_digest
from genmeter.engine.ledger import Stamp, file_time
from genmeter.engine.plan import Window
from genmeter.errors import GenmeterError


class Reading(Protocol):
    """What reading the files of a window needs to know; see :mod:`genmeter.engine.prepare`."""

    window: Window
    catalog: Catalog
    resolver: Resolver
    policy: Policy
    decoders: DecodePool
    films: bool

    def refuse_other(self, source: int, digest: bytes) -> None:
        """Raise ``changed_during_run`` when another line of the window has read other content from the same place."""
        ...

    def decoding(self, encoder: int, view: int) -> tuple[str, Decoding]:
        """What decoding has to deliver for a view, and its name."""
        ...


class Files:
    """The assets of one task, each read and hashed once; hash and decode see the same bytes."""

    def __init__(self, work: Reading, units: Sequence[int]) -> None:
        self._work, self._units = work, units
        self._blobs: dict[int, Blob] = {}
        self._media: dict[tuple[int, Modality], Mapping[str, Media | GenmeterError]] = {}
        self.digests: dict[int, bytes | GenmeterError] = {}
        self.stamps: dict[str, Stamp] = {}

    def name(self, source: int) -> str:
        """How the sample wrote the asset, short enough for a message."""
        value = self._work.window.assets[source].value
        return shorten(value) if isinstance(value, str) else f"<{type(value).__name__}>"

    def source_digest(self, source: int, modality: Modality) -> bytes:
        """SHA-256 of a text or of an asset's bytes."""
        if modality == "text":
            return text_digest(self._work.window.texts[source])
        return self.blob(source).digest

    def blob(self, source: int) -> Blob:
        """An asset's bytes, read on first use; the error is kept and raised again."""
        if source in self._blobs:
            return self._blobs[source]
        known = self.digests.get(source)
        if isinstance(known, GenmeterError):
            raise known
        location = None
        try:
            value, folders = self._work.window.assets[source].value, self._is_video(source)
            location = self._work.resolver.resolve(value, folders=folders)
            blob = load(location, self._work.policy)
            self._work.refuse_other(source, blob.digest)
            self._note(location, blob)
        except GenmeterError as error:
            self._note_unread(location, error.code)
            self.digests[source] = named = error.with_asset(self.name(source))
            raise named from None
        self._blobs[source] = blob
        self.digests[source] = blob.digest
        return blob

    def media(self, source: int, encoder: int, view: int) -> Media:
        """The decoded asset as a view needs it; decoded once for all views of the task."""
        modality = self._modality(view)
        key = (source, modality)
        if key not in self._media:
            self._media[key] = self._decode(source, modality)
        found = self._media[key][self._work.decoding(encoder, view)[0]]
        if isinstance(found, GenmeterError):
            raise found.with_asset(self.name(source))
        return found

    def _decode(self, source: int, modality: Modality) -> Mapping[str, Media | GenmeterError]:
        """One decoding for everything that the task's units ask of an asset."""
        blob = self.blob(source)
        if modality == "image" and self._work.policy.isolate != "all":
            try:
                return {"{}": decode(blob, modality, self._work.policy)}
            except GenmeterError as error:
                return {"{}": error}
        asked: dict[str, Decoding] = {}
        for unit in (self._work.window.units[index] for index in self._units):
            if unit.encoder >= 0 and source in unit.sources and self._modality(unit.view) == modality:
                name, request = self._work.decoding(unit.encoder, unit.view)
                asked[name] = request
        return dict(zip(asked, self._work.decoders.decode(blob, modality, list(asked.values())), strict=True))

    def _is_video(self, source: int) -> bool:
        """Whether an asset is wanted as a video, which a folder of frames may be."""
        if not self._work.films:
            return False
        units = (self._work.window.units[index] for index in self._units)
        return any(source in unit.sources and self._modality(unit.view) == "video" for unit in units)

    def _modality(self, view: int) -> Modality:
        return self._work.catalog.views[view].modality

    def digest_for_snapshot(self, source: int) -> None:
        """Hash an asset that is not scored; remote ones are never fetched for that alone."""
        if source in self.digests:
            return
        try:
            location = self._work.resolver.resolve(self._work.window.assets[source].value)
            if location.kind == "http":
                self.digests[source] = GenmeterError("fetch_failed", "not fetched: only the snapshot names it")
                return
            blob = load(location, self._work.policy)
            self._note(location, blob)
            self.digests[source] = blob.digest
        except GenmeterError as error:
            self.digests[source] = error
        except Exception as error:
            self.digests[source] = GenmeterError("internal", f"hashing failed: {type(error).__name__}: {error}")

    def _note(self, location: Location, blob: Blob) -> None:
        if location.path is not None and blob.mtime_ns is not None:
            self.stamps[location.path] = Stamp(blob.size, file_time(blob.mtime_ns), blob.digest)
        for path, size, mtime_ns, digest in blob.files:
            self.stamps[path] = Stamp(size, file_time(mtime_ns), digest)

    def _note_unread(self, location: Location | None, code: str) -> None:
        """What was found of a file that a later process need only look at again if it is another one then."""
        if location is None or location.path is None or location.path in self.stamps:
            return
        if code == "changed_during_run":
            self.stamps[location.path] = Stamp(-1, 0, b"")
        elif code in ("empty_media", "too_large"):
            with contextlib.suppress(OSError):
                now = os.stat(location.path)
                self.stamps[location.path] = Stamp(now.st_size, file_time(now.st_mtime_ns), b"")
