"""Preparing: resolve, hash, decode and view the assets of a window, ahead of the network and in input order.

Worker threads take one line each. Results come back in input order whatever finishes first, so that what is batched
together depends on the input alone; how far the workers run ahead is bounded in bytes.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

import numpy as np

from genmeter.assets.resolve import Resolver
from genmeter.assets.workers import DecodePool
from genmeter.config import Policy, RunConfig
from genmeter.contract import Decoding, Encoder, Feature, MediaEncoder, PairEncoder, Prepared
from genmeter.engine.catalog import Catalog
from genmeter.engine.files import Files
from genmeter.engine.keys import text_digest, unit_key, view_id
from genmeter.engine.ledger import Stamp
from genmeter.engine.pace import Pace
from genmeter.engine.plan import Task, Window
from genmeter.errors import GenmeterError

_AHEAD_BYTES = 256 << 20
_SHARED_BYTES = 128 << 20
_CHUNK_BYTES = 32 << 20


class Known(NamedTuple):
    """A unit whose feature is already there."""

    key: bytes
    feature: Feature
    # The place in the batch plan of a unit that an interrupted process encoded; empty for one from a store.
    bucket: str = ""
    nbytes: int = 0
    # It comes from the shared cache, and the run holds no copy of it.
    lent: bool = False


class Fresh(NamedTuple):
    """A unit ready to be encoded."""

    key: bytes
    prepared: Prepared


Outcome: TypeAlias = Known | Fresh | GenmeterError
Lookup: TypeAlias = Callable[[int, int, bytes], Known | None]


class Done(NamedTuple):
    """What came of one line's task.

    Attributes:
        line: Global line index.
        units: Outcome of each unit the task named.
        assets: Digest (32 bytes) or error of each asset that was looked at, by window index.
        stamps: What each local file was when it was read, by its path.
        seconds: Time spent on reading and decoding, for the run's own account.
        nbytes: Bytes of decoded media the result holds.
    """

    line: int
    units: dict[int, Outcome]
    assets: dict[int, bytes | GenmeterError]
    stamps: dict[str, Stamp]
    seconds: float
    nbytes: int


class Preparer:
    """Decode threads, and processes for audio and video, for one run. Use as a context manager.

    Args:
        resolver: From a URI to a location the policy allows.
        policy: Limits for reading and decoding.
        workers: Number of threads.
    """

    def __init__(self, resolver: Resolver, policy: Policy, workers: int) -> None:
        self.resolver, self.policy, self.workers = resolver, policy, workers
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="genmeter-decode")
        self.decoders = DecodePool(policy, workers)
        self.pace = Pace(workers)

    @classmethod
    def of(cls, config: RunConfig, roots: Sequence[Path], apart: Sequence[Path] = ()) -> Preparer:
        """The pool that a configuration asks for; ``roots`` and ``apart`` stand where it names no media root."""
        asked = [config.media_root] if isinstance(config.media_root, str) else config.media_root
        resolver = Resolver(config.policy, [Path(root) for root in asked] or roots, () if asked else apart)
        return cls(resolver, config.policy, decode_workers(config))

    def __enter__(self) -> Preparer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.decoders.close()  # first, so that no thread waits for a decoder that takes its time
        self._pool.shutdown(wait=True, cancel_futures=True)

    def run(
        self,
        window: Window,
        catalog: Catalog,
        encoders: Mapping[int, Encoder],
        lookup: Lookup,
        alone: Callable[[int | None], None] | None = None,
    ) -> Iterator[Done]:
        """Yield the outcome of each task of a window, in task order.

        Args:
            window: The planned window.
            catalog: What encoder and view indices stand for.
            encoders: An encoder for each index in use.
            lookup: Finds a finished unit by encoder, view and key; called from the worker threads.
            alone: Read one line at a time; told the line before it is read, and None after it.
        """
        shared = _Shared(window)
        work = _Work(self, window, catalog, encoders, lookup, shared)
        if alone is not None:
            yield from self._one_by_one(work, window.tasks, alone)
            return
        waiting: deque[tuple[Sequence[Task], Future[list[Done]]]] = deque()
        ahead = _Ahead()
        position, chunk = 0, 1
        try:
            while waiting or position < len(window.tasks):
                if self.pace.by_caller and not waiting:
                    results = work.run(window.tasks[position : position + chunk])
                    position += len(results)
                    yield from results
                    chunk = self._next_chunk(results)
                    continue
                while (
                    position < len(window.tasks)
                    and len(waiting) < self.pace.chunks
                    and not (waiting and self.pace.by_caller)
                    and (not waiting or ahead.bytes < _AHEAD_BYTES)
                ):
                    tasks: Sequence[Task] = window.tasks[position : position + chunk]
                    waiting.append((tasks, self._submit(work, tasks, ahead)))
                    position += len(tasks)
                tasks, future = waiting.popleft()
                results = future.result()
                ahead.take(results)
                yield from results
                if len(results) < len(tasks):  # a chunk stops early when its media turn out large
                    rest = tasks[len(results) :]
                    waiting.appendleft((rest, self._submit(work, rest, ahead)))
                chunk = self._next_chunk(results)
        finally:
            for _, future in waiting:
                future.cancel()

    def _one_by_one(self, work: _Work, tasks: Sequence[Task], alone: Callable[[int | None], None]) -> Iterator[Done]:
        for task in tasks:
            alone(task.line)
            [done] = self._pool.submit(work.run, [task]).result()
            alone(None)
            yield done

    def _next_chunk(self, results: Sequence[Done]) -> int:
        self.pace.note(len(results), _bytes(results), sum(done.seconds for done in results))
        return _largest_chunk(results)

    def _submit(self, work: _Work, tasks: Sequence[Task], ahead: _Ahead) -> Future[list[Done]]:
        future = self._pool.submit(work.run_in_turn if self.pace.in_turn else work.run, tasks)
        future.add_done_callback(ahead.give)
        return future


def decode_workers(config: RunConfig) -> int:
    """Decode threads of a configuration: as many as cores unless it says otherwise."""
    return config.workers or os.cpu_count() or 1


def _largest_chunk(results: Sequence[Done]) -> int:
    """Lines a worker takes at once: many when they are small, so that handing over costs little."""
    if not results:
        return 1
    largest = max(done.nbytes for done in results)
    return max(1, min(16, _CHUNK_BYTES // 8 // max(largest, 1)))


def _bytes(results: Sequence[Done]) -> int:
    """Bytes that were read from files, and what was made of them."""
    return sum(done.nbytes + sum(stamp.size for stamp in done.stamps.values()) for done in results)


class _Ahead:
    """Bytes that are decoded and not yet taken."""

    def __init__(self) -> None:
        self.bytes = 0
        self._lock = threading.Lock()

    def give(self, future: Future[list[Done]]) -> None:
        if not future.cancelled() and future.exception() is None:
            size = sum(done.nbytes for done in future.result())
            with self._lock:
                self.bytes += size

    def take(self, results: Sequence[Done]) -> None:
        with self._lock:
            self.bytes -= sum(done.nbytes for done in results)


class _Shared:
    """Digests, and views, of assets that several lines of a window use: read once, kept while they are wanted."""

    def __init__(self, window: Window) -> None:
        users: dict[int, set[int]] = {}
        for task in window.tasks:
            for unit in task.units:
                if window.units[unit].encoder >= 0:
                    for source in window.units[unit].sources:
                        users.setdefault(source, set()).add(task.line)
        self.repeated = {source for source, lines in users.items() if len(lines) > 1}
        self._locks = {source: threading.Lock() for source in self.repeated}
        self._first: dict[int, bytes] = {}
        self._views: dict[tuple[bytes, int, int], Prepared] = {}
        self._bytes = 0

    def lock(self, source: int) -> threading.Lock | None:
        return self._locks.get(source)

    def refuse_other(self, source: int, digest: bytes) -> None:
        """Raise ``changed_during_run`` when another line of the window has read other content from the same place."""
        if self._first.setdefault(source, digest) != digest:
            raise GenmeterError(
                "changed_during_run",
                "the file was replaced since another sample of this run read it",
                "let its writer finish, then run the same command again",
            )

    def get(self, digest: bytes, encoder: int, view: int) -> Prepared | None:
        return self._views.get((digest, encoder, view))

    def put(self, digest: bytes, encoder: int, view: int, prepared: Prepared) -> None:
        if self._bytes + prepared.nbytes <= _SHARED_BYTES:
            self._views[digest, encoder, view] = prepared
            self._bytes += prepared.nbytes


class _Work:
    """The work of the threads on one window."""

    def __init__(
        self,
        preparer: Preparer,
        window: Window,
        catalog: Catalog,
        encoders: Mapping[int, Encoder],
        lookup: Lookup,
        shared: _Shared,
    ) -> None:
        self.resolver, self.policy, self.decoders = preparer.resolver, preparer.policy, preparer.decoders
        self.window, self.catalog, self.encoders = window, catalog, encoders
        self.lookup, self.shared = lookup, shared
        self.refuse_other = shared.refuse_other
        self.films = any(view.modality == "video" for view in catalog.views)
        self._decodings: dict[tuple[int, int], tuple[str, Decoding]] = {}
        self._turn = threading.Lock()

    def run_in_turn(self, tasks: Sequence[Task]) -> list[Done]:
        """Like :meth:`run`, but one thread at a time."""
        with self._turn:
            return self.run(tasks)

    def run(self, tasks: Sequence[Task]) -> list[Done]:
        results: list[Done] = []
        held = 0
        for task in tasks:
            done = self._task(task)
            results.append(done)
            held += done.nbytes
            if held > _CHUNK_BYTES:
                break
        return results

    def _task(self, task: Task) -> Done:
        began = time.perf_counter()
        files = Files(self, task.units)
        units = {unit: self._outcome(unit, files) for unit in task.units}
        for asset in task.snapshot:
            files.digest_for_snapshot(asset)
        held = sum([item.prepared.nbytes for item in units.values() if isinstance(item, Fresh)])
        return Done(task.line, units, files.digests, files.stamps, time.perf_counter() - began, held)

    def _outcome(self, index: int, files: Files) -> Outcome:
        unit = self.window.units[index]
        view = self.catalog.views[unit.view]
        try:
            if unit.encoder < 0:
                value = self.window.texts[unit.sources[0]]
                return Known(text_digest(repr(value)), _NO_FEATURE)
            digests = [files.source_digest(source, view.modality) for source in unit.sources]
            key = unit_key(self.catalog.fingerprint(unit.encoder, unit.view).hex, view.id, digests)
            known = self.lookup(unit.encoder, unit.view, key)
            if known is not None:
                return known
            encoder = self.encoders[unit.encoder]
            parts = [self._part(source, unit.encoder, unit.view, files) for source in unit.sources]
            if len(parts) == 1:
                return Fresh(key, parts[0])
            return Fresh(key, _checked(cast(PairEncoder, encoder).join(parts, view.view)))
        except GenmeterError as error:
            return error
        except MemoryError:
            return GenmeterError("out_of_memory", "decoding did not fit into memory", "lower policy.max_pixels")
        except (Exception, SystemExit) as error:  # a fault of ours must cost one sample, not the run
            return GenmeterError("internal", f"preparing failed: {type(error).__name__}: {error}", "please report it")

    def _part(self, source: int, encoder: int, view: int, files: Files) -> Prepared:
        lock = self.shared.lock(source)
        if lock is None:
            return self._view(source, encoder, view, files)
        # By content: a file that another line has read may have been replaced since.
        digest = files.source_digest(source, self.catalog.views[view].modality)
        prepared = self.shared.get(digest, encoder, view)
        if prepared is None:
            with lock:
                prepared = self.shared.get(digest, encoder, view)
                if prepared is None:
                    prepared = self._view(source, encoder, view, files)
                    self.shared.put(digest, encoder, view, prepared)
        return prepared

    def _view(self, source: int, encoder: int, view: int, files: Files) -> Prepared:
        use = self.catalog.views[view]
        media = self.window.texts[source] if use.modality == "text" else files.media(source, encoder, view)
        try:
            return _checked(self.encoders[encoder].prepare(media, use.view))
        except GenmeterError as error:
            raise error if use.modality == "text" else error.with_asset(files.name(source)) from None

    def decoding(self, encoder: int, view: int) -> tuple[str, Decoding]:
        """What decoding has to deliver for a view, and its name."""
        known = self._decodings.get((encoder, view))
        if known is None:
            use, made = self.catalog.views[view], self.encoders[encoder]
            plain = use.modality == "image" or not isinstance(made, MediaEncoder)
            request: Decoding = {} if plain else cast(MediaEncoder, made).decoding(use.view)
            known = self._decodings[encoder, view] = view_id(request), request
        return known


_NO_FEATURE = cast(Feature, None)


def _checked(prepared: Prepared) -> Prepared:
    """What an encoder prepared, if it can be batched. Raises ``internal``."""
    if isinstance(prepared, Prepared) and prepared.arrays and isinstance(prepared.arrays[0], np.ndarray):
        return prepared
    what = "no array" if isinstance(prepared, Prepared) else f"a {type(prepared).__name__}"
    raise GenmeterError("internal", f"the encoder prepared {what} where arrays were expected", "please report it")
