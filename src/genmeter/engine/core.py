"""The heart of the engine: one planned window through preparing, encoding and scoring into the ledger."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from genmeter.contract import Feature, SampleMetric
from genmeter.engine import rows
from genmeter.engine.batching import Batch, Batcher
from genmeter.engine.catalog import Catalog
from genmeter.engine.device import DeviceLostError
from genmeter.engine.features import Features
from genmeter.engine.keys import text_digest
from genmeter.engine.ledger import Encoded, Entry, Ledger, Member
from genmeter.engine.plan import RAW, Cell, Window
from genmeter.engine.pool import EncoderPool
from genmeter.engine.prepare import Done, Fresh, Known, Outcome, Preparer
from genmeter.engine.setfacts import KEYS
from genmeter.errors import SKIPPED, GenmeterError
from genmeter.registry import make_scorer

_EARLY_STOP_LINES = 200
_COMMIT_CELLS, _COMMIT_CELLS_AT_FIRST = 512, 32
# A batch that took the process down twice runs item by item; an item that does so alone is given up.
_ALONE_AFTER, _GIVE_UP_AFTER = 2, 3


class StoppedEarly(Exception):
    """The first samples all failed for one reason, so the rest would too.

    Attributes:
        error: The error they share, as one of them had it.
        lines: How many lines were tried.
    """

    def __init__(self, error: Mapping[str, Any], lines: int) -> None:
        super().__init__(str(error.get("message", "")))
        self.error, self.lines = error, lines


class Tally:
    """Counts that decide whether going on makes sense, and what the run cost."""

    def __init__(self, scored: int = 0) -> None:
        self.scored = scored
        self.waiting = 0  # units that are in a batch which has not run
        self.codes: Counter[str] = Counter()
        self.example: Mapping[str, Any] = {}
        self.seconds: dict[str, float] = {"decode": 0.0, "encode": 0.0, "score": 0.0}
        self.encoded = 0

    def add(self, entry: Entry) -> None:
        """Count one finished cell."""
        error = entry.row.get("error")
        pending = error is not None and error["code"] == "set_pending"  # its feature is there, so all is well so far
        if entry.row.get("score") is not None or pending or (error and error["code"] in SKIPPED):
            self.scored += pending or entry.row.get("score") is not None
        elif error:
            self.fail(error)

    def fail(self, error: Mapping[str, Any]) -> None:
        """Count one failure."""
        self.codes[error["code"]] += 1
        self.example = self.example or error

    def check(self) -> None:
        """Raise when the first samples all failed with one code (a wrong media root must not burn a night)."""
        hopeless = not self.scored and not self.waiting and len(self.codes) == 1
        if hopeless and self.codes.total() >= _EARLY_STOP_LINES:
            raise StoppedEarly(self.example, self.codes.total())


class WindowRunner:
    """Runs windows one after another; holds what outlives a window.

    Args:
        catalog: Variants, encoders and views.
        pool: Loaded encoders.
        preparer: The decode threads.
        features: Finished features.
        ledger: Where finished work is written down.
        tally: The run's counts.
        candidate: How candidates reduce.
        partial: What happens when some candidates fail.
        suspects: Units of unfinished batches, and how often they were begun.
        stop_when_lost: Raise when the device fails for good, rather than give every sample from there on an error.
    """

    def __init__(
        self,
        catalog: Catalog,
        pool: EncoderPool,
        preparer: Preparer,
        features: Features,
        ledger: Ledger,
        tally: Tally,
        *,
        candidate: str | int = "all",
        partial: str = "fail",
        suspects: Mapping[bytes, int] | None = None,
        stop_when_lost: bool = False,
    ) -> None:
        self.catalog, self.pool, self.preparer = catalog, pool, preparer
        self.features, self.ledger, self.tally = features, ledger, tally
        self.candidate, self.partial = candidate, partial
        self.suspects, self.stop_when_lost = dict(suspects or {}), stop_when_lost
        self.begun: list[bytes] = []  # keys of the batch that is noted and not committed
        self._scorers: dict[str, SampleMetric | GenmeterError] = {}
        self._widths: dict[str, int] = {}

    def run(
        self,
        window: Window,
        on_done: Callable[[Done], None],
        alone: Callable[[int | None], None] | None = None,
    ) -> None:
        """Score one window; every cell of it is in the ledger afterwards.

        Args:
            window: As planned.
            on_done: Told what became of each line's assets, in input order.
            alone: Read one line at a time; see :meth:`genmeter.engine.prepare.Preparer.run`.
        """
        state = _State(window)
        batcher = Batcher(self.pool.batch_limit)
        for done in self.preparer.run(window, self.catalog, self.pool.encoders(window), self._find, alone):
            self.tally.seconds["decode"] += done.seconds
            state.take_assets(done.assets)
            on_done(done)  # first, so that a cell is never committed before the files that it was scored from
            for unit, outcome in done.units.items():
                for batch in self._admit(state, batcher, unit, outcome):
                    self._run_batch(state, batch)
            # Until something is scored, look often whether everything fails alike.
            if len(state.ready) >= (_COMMIT_CELLS if self.tally.scored else _COMMIT_CELLS_AT_FIRST):
                self._commit(state, [], [])
        for batch in batcher.rest():
            self._run_batch(state, batch)
        self._commit(state, [], [])

    def _find(self, encoder: int, view: int, key: bytes) -> Known | None:
        error = self.pool.failure(encoder)
        known = self.features.find(encoder, view, key)
        if known is None and error is not None:
            raise error
        return known

    def _admit(self, state: _State, batcher: Batcher, unit: int, outcome: Outcome) -> list[Batch]:
        if isinstance(outcome, GenmeterError):
            state.settle(unit, outcome)
            return []
        source = state.window.units[unit]
        if source.encoder == RAW:
            state.settle(unit, state.window.texts[source.sources[0]])
            return []
        state.keys[unit] = outcome.key
        if isinstance(outcome, Known) and not outcome.bucket:
            state.settle(unit, outcome.feature)
            if outcome.lent:
                state.borrowed.add(unit)
            return []
        if outcome.key in state.in_plan:  # the same content under another name: encoded once
            first = state.in_plan[outcome.key]
            if state.units[first] is None:
                state.twins.setdefault(first, []).append(unit)
            else:
                state.settle(unit, state.units[first])
            return []
        state.in_plan[outcome.key] = unit
        try:
            if isinstance(outcome, Fresh):
                self.pool.load(source.encoder)
                self.pool.refuse_giant(source.encoder, outcome.prepared)
            due = batcher.add(source.encoder, unit, outcome)
        except GenmeterError as error:
            state.settle(unit, error if isinstance(outcome, Fresh) else outcome.feature)
            return []
        if isinstance(outcome, Fresh):
            self.tally.waiting += 1
        else:
            state.settle(unit, outcome.feature)
        return due

    def _run_batch(self, state: _State, batch: Batch) -> None:
        fresh = batch.fresh
        if not fresh:
            return
        self.tally.waiting -= len(fresh)
        began = time.perf_counter()
        worst = max(self.suspects.get(item.key, 0) for item in fresh)
        groups = [fresh] if worst < _ALONE_AFTER else [[item] for item in fresh]
        for group in groups:
            keys = [item.key for item in group]
            if worst >= _ALONE_AFTER and self.suspects.get(keys[0], 0) >= _GIVE_UP_AFTER:
                error = GenmeterError(
                    "internal", "encoding this item took the process down three times", "please report it"
                )
                state.settle(group[0].unit, error)
                self._commit(state, [], [])  # it stays a suspect until the run is over
                continue
            self.begun = keys
            self.ledger.begin(keys)
            prepared = [item.prepared for item in group if item.prepared is not None]
            try:
                results = self.pool.encode(batch.encoder, prepared)
            except DeviceLostError as error:
                if self.stop_when_lost:
                    raise
                results = [GenmeterError("internal", str(error), "start the program again")] * len(prepared)
            encoded = []
            for item, result in zip(group, results, strict=True):
                unit = state.window.units[item.unit]
                fingerprint = self.catalog.fingerprint(unit.encoder, unit.view).hex
                result = self._of_one_width(fingerprint, result)
                state.settle(item.unit, result)
                if isinstance(result, Feature) and item.prepared is not None:
                    encoded.append(Encoded(item.key, fingerprint, result, batch.bucket, item.prepared.nbytes))
            self.tally.encoded += len(encoded)
            seconds = time.perf_counter() - began
            self.tally.seconds["encode"] += seconds
            self.preparer.pace.encoded(seconds)
            self._commit(state, encoded, keys)
            self.begun = []
            began = time.perf_counter()

    def _of_one_width(self, fingerprint: str, result: Feature | GenmeterError) -> Feature | GenmeterError:
        """Features of one encoder form one matrix; one of another width than the first would spoil a whole set."""
        if isinstance(result, Feature):
            width = result.values.shape[1]
            known = self._widths.setdefault(fingerprint, width)
            if width != known:
                message = f"the encoder returned {width} columns, and {known} before"
                return GenmeterError("internal", message, "please report it")
        return result

    def _commit(self, state: _State, encoded: list[Encoded], landed: list[bytes]) -> None:
        began = time.perf_counter()
        cells, state.ready = state.ready, []
        entries: list[Entry] = []
        members: list[Member] = []
        by_metric: dict[str, list[Cell]] = {}
        for cell in cells:
            if cell.fault is None or cell.grid:
                by_metric.setdefault(cell.metric, []).append(cell)
            else:
                entries.append(rows.fault_entry(cell, cell.fault))
        for metric, group in by_metric.items():
            variant = self.catalog.variant(metric)
            inputs = state.inputs()
            if variant.spec.scope == "set":
                for cell in group:
                    entry, rows_of_sets, borrowed = self._set_cell(state, cell)
                    entries.append(entry)
                    members += rows_of_sets
                    encoded += borrowed
                continue
            scorer = self._scorer(metric)
            if isinstance(scorer, GenmeterError):
                entries += [rows.fault_entry(cell, scorer, inputs) for cell in group]
                continue
            entries += rows.score_cells(group, variant, scorer, inputs, candidate=self.candidate, partial=self.partial)
        if encoded or entries or landed:
            self.ledger.commit(encoded, entries, members, landed)
        for entry in entries:
            self.tally.add(entry)
        self.tally.seconds["score"] += time.perf_counter() - began
        self.tally.check()

    def _scorer(self, metric: str) -> SampleMetric | GenmeterError:
        """The scorer of a variant; a metric of another package that cannot be imported costs its own cells alone."""
        if metric not in self._scorers:
            try:
                self._scorers[metric] = make_scorer(self.catalog.variant(metric))
            except ImportError as error:
                message = f"the scorer of {metric} needs {error.name or error}, which is not installed"
                self._scorers[metric] = GenmeterError("extra_missing", message, "install it with pip")
            except (Exception, SystemExit) as error:
                message = f"the scorer of {metric} cannot be made: {type(error).__name__}: {error}"
                self._scorers[metric] = GenmeterError("internal", message, "please report it to the metric's authors")
        return self._scorers[metric]

    def _set_cell(self, state: _State, cell: Cell) -> tuple[Entry, list[Member], list[Encoded]]:
        """A set metric's row stays pending until the run is over; its features join the sets."""
        inputs = state.inputs()
        error = cell.fault
        members: list[Member] = []
        borrowed: list[Encoded] = []
        for side, places in enumerate(cell.grid):
            for position, (unit,) in enumerate(places):
                value = state.units[unit]
                if isinstance(value, GenmeterError):
                    error = error or (value if side == 0 else None)
                    if side == 1:  # no failure of the sample, but the set must say that it lacks it
                        members.append(Member(cell.metric, cell.line, side, position, value.code, b"", b""))
                    continue
                planned = state.window.units[unit]
                fingerprint = self.catalog.fingerprint(planned.encoder, planned.view).hex
                key = state.keys[unit]
                digest = inputs.assets.get(planned.sources[0])
                members.append(
                    Member(
                        cell.metric,
                        cell.line,
                        side,
                        position,
                        fingerprint,
                        key,
                        digest if isinstance(digest, bytes) else b"",
                    )
                )
                if unit in state.borrowed:  # the run keeps its own copy, so that a cleared cache cannot break a resume
                    borrowed.append(Encoded(key, fingerprint, value, "", 0))
        pending = error or GenmeterError("set_pending", "computed when the whole set has been read")
        row = rows.fault_entry(cell, pending, inputs)
        flags = {flag for places in cell.grid for (unit,) in places for flag in _flags(state.units[unit])}
        if flags or cell.flags:
            row = row._replace(row={**row.row, "flags": [*cell.flags, *sorted(flags - set(cell.flags))]})
        if cell.grid and len(cell.grid[0]) == 1 and isinstance(only := state.units[cell.grid[0][0][0]], Feature):
            facts = {key: only.detail[key] for key in KEYS if key in only.detail}
            row = row._replace(row={**row.row, "detail": facts}) if facts else row
        return row, members, borrowed


def _flags(value: Any) -> tuple[str, ...]:
    return value.flags if isinstance(value, Feature) else ()


class _State:
    """What is known so far about the units and cells of one window."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.units: list[Any] = [None] * len(window.units)
        self.keys: dict[int, bytes] = {}
        self.assets: dict[int, bytes | GenmeterError] = {}
        self.in_plan: dict[bytes, int] = {}
        self.twins: dict[int, list[int]] = {}
        self.borrowed: set[int] = set()
        self.ready: list[Cell] = []
        # How many units each cell waits for, and the cells that wait for each unit: one, as a rule.
        self._open: list[int] = []
        self._users: dict[int, int | list[int]] = {}
        for index, cell in enumerate(window.cells):
            places = cell.grid[0] if len(cell.grid) == 1 else [place for row in cell.grid for place in row]
            wanted = places[0] if len(places) == 1 else [unit for place in places for unit in place]
            if len(wanted) > 1:
                wanted = tuple(dict.fromkeys(wanted))
            self._open.append(len(wanted))
            if not wanted:
                self.ready.append(cell)
            for unit in wanted:
                known = self._users.setdefault(unit, index)
                if known != index:
                    self._users[unit] = [*(known if isinstance(known, list) else (known,)), index]

    def take_assets(self, assets: Mapping[int, bytes | GenmeterError]) -> None:
        """Note what assets came to; a digest is never replaced by a later failure to read the same file again."""
        for source, found in assets.items():
            if isinstance(found, bytes) or source not in self.assets:
                self.assets[source] = found

    def settle(self, unit: int, value: Any) -> None:
        """A unit has its feature, raw value or error; cells that waited for it alone become ready."""
        if self.units[unit] is not None:
            return
        self.units[unit] = value
        users = self._users.pop(unit, ())
        for index in (users,) if isinstance(users, int) else users:
            self._open[index] -= 1
            if self._open[index] == 0:
                self.ready.append(self.window.cells[index])
        for twin in self.twins.pop(unit, ()):
            self.settle(twin, value)

    def inputs(self) -> rows.Inputs:
        """The window as scoring sees it."""
        return rows.Inputs(self.units, self.assets, _TextDigests(self.window.texts))


class _TextDigests(Mapping[int, bytes]):
    """Digests of texts, computed when a row names them."""

    def __init__(self, texts: list[Any]) -> None:
        self._texts = texts

    def get(self, index: int, default: Any = None) -> Any:
        return self[index]

    def __getitem__(self, index: int) -> bytes:
        value = self._texts[index]
        return text_digest(value if isinstance(value, str) else repr(value))

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._texts)))

    def __len__(self) -> int:
        return len(self._texts)
