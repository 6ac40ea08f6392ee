"""A run: one input, one run directory, resumable; from lines to ``samples.jsonl``."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from genmeter import __version__
from genmeter.config import RunConfig
from genmeter.contract import Json
from genmeter.engine.catalog import Catalog
from genmeter.engine.core import Tally, WindowRunner
from genmeter.engine.describe import describe_run, row_constants
from genmeter.engine.device import DeviceLostError, device_kind, resolve_device
from genmeter.engine.evaluation import Evaluation, lacking_defaults
from genmeter.engine.features import Features
from genmeter.engine.gather import LostFeaturesError
from genmeter.engine.into import targets, write_into
from genmeter.engine.journal import Journal
from genmeter.engine.ledger import LineNote, Stamp, file_time
from genmeter.engine.linefacts import LineFacts
from genmeter.engine.offer import PlanOptions, requested_metrics
from genmeter.engine.plan import Task, Window, plan
from genmeter.engine.pool import EncoderPool
from genmeter.engine.prepare import Done, Preparer
from genmeter.engine.reference import ReferenceSet, open_reference_set
from genmeter.engine.sets import SetOutcomes, finish_set, refused_set
from genmeter.engine.settings import catalog_of, run_settings, settings_changed
from genmeter.engine.store import FeatureStore, sweep, write_atomic
from genmeter.engine.watch import Watch
from genmeter.engine.writer import LineWriter
from genmeter.errors import RETRYABLE, GenmeterError
from genmeter.inputs.lines import InputChanged
from genmeter.inputs.source import InputLine, Source
from genmeter.schema import jsonio
from genmeter.schema.snapshot import fill
from genmeter.weights.home import cache_home

_WINDOW_LINES = 4096
_WINDOW_BYTES = 64 << 20
# In the journal: first line of the last window that was begun; its features are not sealed yet, or were the last to be.
_OPEN = "open"
_ATTEMPTS = 4  # at reading the features of sets
_SCRATCH = "scratch"  # under features/: sets too large for memory, while they are computed
# What a sample that was not read from a line counts for.
_LINE_BYTES = 2_000


class Progress(NamedTuple):
    """How far a run is: lines done, lines in all, cells scored and failed so far."""

    done: int
    total: int
    scored: int
    failed: int


class Observer:
    """What a run tells its caller. Override what is of interest; called from the engine's thread."""

    def started(self, total: int, resumed: int) -> None:
        """The input was read once; ``resumed`` cells are already finished."""

    def progress(self, progress: Progress) -> None:
        """Some lines are done."""

    def download(self) -> Any:
        """A progress callback for the weight manager, or None."""
        return None

    def note(self, message: str) -> None:
        """Something the user should know."""

    def writing(self, run: Mapping[str, Json]) -> None:
        """All is scored; ``run`` is the content of run.json, and the rows follow."""

    def row(self, eval_result: Mapping[str, Json], sample: Mapping[str, Any] | None) -> None:
        """A finished line, in input order, while samples.jsonl is written."""


class Finished(NamedTuple):
    """A finished run: its directory and the content of its run.json."""

    folder: Path
    run: dict[str, Json]


def execute(
    source: Source,
    folder: Path,
    config: RunConfig,
    *,
    observer: Observer | None = None,
    command: str = "",
    into: bool = False,
) -> Finished:
    """Score an input into a run directory; finished work of an earlier process is kept.

    Args:
        source: The input.
        folder: The run directory; made when absent.
        config: All settings.
        observer: Told about progress and finished lines.
        command: What the user typed, for the record.
        into: Write the results back into the input's files too; see :mod:`genmeter.engine.into`.

    Raises:
        InputChanged: The input changed while it was scored.
        ValueError: The directory was made with other settings, belongs to another running process, or a setting is
            not one (unknown device, parameter ...).
        GenmeterError: An unknown metric was asked for by name.
        StoppedEarly: The first samples all failed for one reason.
    """
    with _opened(source, folder, config, observer) as run:
        return run.execute(command, into)


class Encoded(NamedTuple):
    """An input whose features are in the run directory; no set has been computed from them."""

    catalog: Catalog
    journal: Journal
    store: FeatureStore


@contextlib.contextmanager
def encoded(source: Source, folder: Path, config: RunConfig, *, observer: Observer | None = None) -> Iterator[Encoded]:
    """Encode an input into a run directory, as :func:`execute` does, and look at what is there.

    Args:
        source: The input.
        folder: The run directory; finished work of an earlier process is kept.
        config: All settings.
        observer: Told about progress.

    Raises:
        As :func:`execute`.
    """
    with _opened(source, folder, config, observer) as run:
        run.patient = True
        run.encode()
        store = FeatureStore(folder / "features")
        try:
            yield Encoded(run.catalog, run.journal, store)
        finally:
            store.close()


@contextlib.contextmanager
def _opened(source: Source, folder: Path, config: RunConfig, observer: Observer | None) -> Iterator[_Run]:
    observer = observer or Observer()
    place = resolve_device(config.device)
    catalog = catalog_of(config, device_kind(place))
    stored = open_reference_set(config, catalog, observer)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder}: cannot be made ({error.strerror}); give another directory with -o") from None
    journal = Journal(folder / "journal.sqlite")
    try:
        _sweep(folder)
        yield _Run(source, folder, config, observer, catalog, place, journal, stored)
    except sqlite3.DatabaseError as error:
        raise journal.damaged(error) from None
    finally:
        journal.close()


class _Run:
    def __init__(
        self,
        source: Source,
        folder: Path,
        config: RunConfig,
        observer: Observer,
        catalog: Catalog,
        place: str,
        journal: Journal,
        stored: ReferenceSet | None = None,
    ) -> None:
        self.stored = stored
        self.patient = False  # never stop early: samples that hold only references have no score
        self.source, self.folder, self.config, self.observer = source, folder, config, observer
        self.catalog, self.place, self.journal = catalog, place, journal
        self.options = PlanOptions.of(config)
        self._open: int = journal.meta(_OPEN, 0)

    def execute(self, command: str, into: bool = False) -> Finished:
        created, began = time.time(), time.monotonic()
        settings, tally = self.encode()
        for attempt in range(_ATTEMPTS):  # damage may show on one side of a set after the other
            try:
                outcomes = self._sets()
                break
            except LostFeaturesError as lost:
                if attempt == _ATTEMPTS - 1:
                    raise
                self._encode_again(lost.lines)
                tally = self._score()
        run = describe_run(
            self.source, self.config, self.catalog, self.place, settings, self.journal.snapshots(), tally
        )
        run |= {"command": command, "created": _utc(created)}
        if self.stored:
            for name in (name for name, found in outcomes.items() if not found.lacking):
                run["metrics"][name]["reference_set"] = self.stored.describe(self.catalog.variant(name), self.catalog)
        run["seconds"] = {"total": round(time.monotonic() - began, 3), **run["seconds"]}
        files = targets(self.source.paths) if into else []
        self._write(run, outcomes)
        if into:
            changed = write_into(files, self.source.count, self.folder / "samples.jsonl")
            self.observer.note(_say_written(self.source.files, changed))
        return Finished(self.folder, run)

    def encode(self) -> tuple[dict[str, Json], Tally]:
        """Do all that is to be done line by line; the settings it was done with, and what it cost."""
        before = self.journal.meta("settings")
        settings = self._settings(self._catalog_of(before))
        changed = settings_changed(before, settings)
        if changed:
            raise ValueError(
                f"{self.folder} holds a run with other settings: {'; '.join(changed)}. "
                "Give another directory with -o, or score again with --fresh"
            )
        self.journal.set_meta("settings", settings)
        self._take_up()
        try:
            tally = self._score()
        except InputChanged:
            # What was scored may belong to lines that are no longer there, so nothing may build on it.
            self.journal.set_meta("settings", {**settings, "input": "changed while it was scored"})
            raise
        # Samples may have brought metrics of their own by now.
        settings = self._settings(self.catalog)
        self.journal.set_meta("settings", settings)
        return settings, tally

    def _settings(self, catalog: Catalog) -> dict[str, Json]:
        return run_settings(self.config, catalog, self.source.digest, self.stored.digest if self.stored else None)

    def _catalog_of(self, before: Mapping[str, Json] | None) -> Catalog:
        """What the metrics of an earlier process mean now, where they were the samples' own choice."""
        if before is None or self.catalog.explicit is not None:
            return self.catalog
        now = catalog_of(self.config, self.catalog.device_kind)
        for name in before["metrics"]:
            now.know(name)
        return now

    def _take_up(self) -> None:
        """On resume, drop what no longer holds: files that changed, and failures that a second attempt may cure."""
        if self.journal.resumed:
            for uri, stamp in self.journal.stamps():
                now = _stat(uri)
                if now is None or (now.st_size, file_time(now.st_mtime_ns)) == stamp[:2]:
                    continue
                digest = _sha256(Path(uri))
                if digest == stamp.digest:
                    self.journal.restamp(uri, Stamp(now.st_size, file_time(now.st_mtime_ns), digest))
                elif lines := self.journal.forget_asset(uri):
                    self.observer.note(f"{uri} changed since it was scored; {lines} samples are scored again")
            self.journal.retry(RETRYABLE | set(self.config.retry_failed))
        finished = sum(sum(counts.values()) for counts in self.journal.codes().values())
        self.observer.started(self.source.count, finished)

    def _score(self) -> Tally:
        config = self.config
        pool = EncoderPool(
            self.catalog,
            self.place,
            config.precision,
            offline=config.offline,
            batch_size=config.batch_size,
            progress=self.observer.download(),
        )
        features = Features(self.catalog, self.folder / "features", cache_home() if config.cache else None)
        tally = Tally(sum(counts.get(None, 0) for counts in self.journal.codes().values()) + self.patient)
        features.recall(self.journal.unsealed())
        with Preparer.of(config, self.source.roots, self.source.folders) as preparer:
            runner = WindowRunner(
                self.catalog,
                pool,
                preparer,
                features,
                self.journal,
                tally,
                candidate=config.candidate,
                partial=config.partial_candidates,
                suspects=self.journal.suspects(),
                stop_when_lost=True,
            )
            watch = Watch(self.journal)
            try:
                for lines in windows(self.source):
                    self._window(lines, runner, features, tally, watch)
                watch.finished()
                self.journal.acquit()
            except DeviceLostError:
                raise  # its batch may be what the device failed at
            except BaseException:
                with contextlib.suppress(OSError):
                    self.journal.forgive(runner.begun)
                raise
            finally:
                watch.close()
        features.close()
        return tally

    def _window(
        self, lines: Iterator[InputLine], runner: WindowRunner, features: Features, tally: Tally, watch: Watch
    ) -> None:
        first = next(lines)
        span = range(first.index, first.index + _WINDOW_LINES)
        finished, noted = self.journal.finished(span), self.journal.noted(span)
        whole = features.interrupted and span.start >= self._open
        read = _counted(chain([first], lines), tally)
        window = plan(read, self.catalog, self.options, finished, noted, watch.given_up, whole=whole)
        tally.check()
        if window.cells or window.tasks:
            parts: dict[int, bytes | None] = {}
            tasks = {task.line: task for task in window.tasks}

            def done(result: Done) -> None:
                parts[result.line] = _snapshot_part(tasks[result.line], result, window)
                self.journal.read(result.line, result.stamps)
                if len(parts) % 8 == 0:
                    self._progress(span.start + len(parts), tally)

            self.journal.set_meta(_OPEN, max(span.start, self._open))
            watch.window()
            runner.run(window, done, watch.line if watch.careful else None)
            watch.passed()
            self.journal.note_lines([LineNote(line, part) for line, part in parts.items()])
        # What an interrupted process had of a later window stays in the journal, where it keeps its place in the plan.
        unsealed = self.journal.unsealed() if span.start >= self._open else []
        if unsealed:
            features.seal(unsealed)
            self.journal.seal()
        self._progress(window.lines.stop, tally)

    def _progress(self, done: int, tally: Tally) -> None:
        self.observer.progress(Progress(done, self.source.count, tally.scored, tally.codes.total()))

    def _sets(self) -> dict[str, SetOutcomes]:
        known = self.journal.codes()
        names = [
            name for name, variant in self.catalog.variants.items() if variant.spec.scope == "set" and name in known
        ]
        if not names:
            return {}
        facts = LineFacts(self.config.group_by, self.config.cluster_by, self.config.prompt_field)
        for line in self.source.lines(lambda index: True):
            facts.add(line.index, line.sample)
        store = FeatureStore(self.folder / "features")
        scratch = self.folder / "features" / _SCRATCH
        outcomes, lost = {}, set()
        for name in names:
            variant = self.catalog.variant(name)
            try:
                reference = self.stored.of(variant, self.catalog) if self.stored else None
                outcomes[name] = finish_set(self.journal, store, variant, scratch, facts, reference)
            except LostFeaturesError as error:
                lost |= set(error.lines)
            except ValueError as error:  # a metric that samples chose, and that the stored set was not made for
                outcomes[name] = refused_set(GenmeterError("no_reference", str(error)))
        store.close()
        shutil.rmtree(scratch, ignore_errors=True)
        if lost:
            raise LostFeaturesError(sorted(lost), store.folder)
        return outcomes

    def _lacking_sets(self, outcomes: Mapping[str, SetOutcomes]) -> frozenset[str]:
        """Default set metrics that nobody asked for by name, where the whole set has no reference."""
        if self.catalog.explicit is not None or self.stored is not None:
            return frozenset()
        return frozenset(n for n, found in outcomes.items() if found.lacking and n in self.catalog.default_names)

    def _encode_again(self, lines: Sequence[int]) -> None:
        """Forget the set rows of lines whose features are lost, so that they are scored once more."""
        names = [name for name, variant in self.catalog.variants.items() if variant.spec.scope == "set"]
        self.journal.drop((line, name) for line in lines for name in names)
        self.observer.note(f"features of {len(lines)} samples are damaged or gone from the run; they are encoded again")

    def _write(self, run: dict[str, Json], outcomes: Mapping[str, SetOutcomes]) -> None:
        provenance = {
            "run_id": run["run_id"],
            "genmeter": __version__,
            "models": run["models"],
            "snapshot": run["snapshot"],
        }
        evaluation = Evaluation(
            self.catalog,
            provenance,
            thresholds=self.config.thresholds,
            overall_metric=self.config.overall.metric,
            sets=outcomes,
            lacking=lacking_defaults(self.journal.codes(), self.catalog) | self._lacking_sets(outcomes),
            constants=row_constants(run) if self.config.rows == "full" else None,
        )
        self.observer.writing(run)
        rows = self.journal.rows()
        pending = next(rows, None)

        def scored(index: int) -> bool:
            return pending is not None and pending[0] == index

        explicit = None if self.config.metrics_from == "sample" else self.catalog.explicit
        wanted = frozenset(explicit or ())
        with LineWriter(self.folder / "samples.jsonl") as writer:
            for line in self.source.lines(scored):
                cells: dict[str, dict[str, Json]] = {}
                while pending is not None and pending[0] <= line.index:
                    cells = pending[1] if pending[0] == line.index else cells
                    pending = next(rows, None)
                if line.sample is not None:
                    if explicit is None:
                        wanted = frozenset(requested_metrics(line.sample, self.catalog, self.options))
                    if not wanted.issuperset(cells):
                        cells = {name: row for name, row in cells.items() if name in wanted}
                    result = evaluation.build(line.index, cells, line.sample)
                else:
                    assert line.error is not None
                    result = {"error": line.error.to_dict()}
                self.observer.row(result, line.sample)
                writer.write(line, result, finite=not outcomes)  # else all of it has come from JSON
        write_atomic(self.folder / "run.json", jsonio.dumps(run) + b"\n")


def _sweep(folder: Path) -> None:
    """Remove what killed processes left half written; the journal's lock says that none of them is at work."""
    sweep(folder)
    for part in (folder / "features").glob("*/"):
        sweep(part)
    shutil.rmtree(folder / "features" / _SCRATCH, ignore_errors=True)


def windows(source: Source) -> Iterator[Iterator[InputLine]]:
    """Consecutive lines in bounded pieces (4,096 lines or about 64 MB), each to be read to its end before the next."""
    lines = iter(source)
    for line in lines:
        yield _window_of(line, lines)


def _window_of(line: InputLine, following: Iterator[InputLine]) -> Iterator[InputLine]:
    held = 0
    for count in range(1, _WINDOW_LINES + 1):
        yield line
        held += line.nbytes or _LINE_BYTES
        if count == _WINDOW_LINES or held >= _WINDOW_BYTES:
            return
        after = next(following, None)
        if after is None:
            return
        line = after


def _counted(lines: Iterable[InputLine], tally: Tally) -> Iterator[InputLine]:
    """Lines that cannot be read count as failures."""
    for line in lines:
        if line.error is not None:
            tally.fail(line.error.to_dict())
        yield line


def _snapshot_part(task: Task, done: Done, window: Window) -> bytes | None:
    """The line's part of the snapshot: its content with each input and reference replaced by what is in the file."""
    if task.outline is None:
        return None
    digests = []
    for source in task.snapshot:
        value = window.assets[source].value
        found = done.assets.get(source) if isinstance(value, str) else None
        if isinstance(found, bytes):
            digests.append(f"sha256:{found.hex()}")
        else:
            digests.append(f"unread:{found.code}" if isinstance(found, GenmeterError) else f"uri:{value}")
    return hashlib.sha256(fill(task.outline, digests)).digest()


def _stat(uri: str) -> os.stat_result | None:
    try:
        return os.stat(uri)
    except (OSError, ValueError):
        return None


def _sha256(path: Path) -> bytes | None:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError:
        return None
    return digest.digest()


def _say_written(files: Sequence[str], changed: int) -> str:
    names = ", ".join(files)
    return f"the results are in {names} too" if changed else f"{names} held these results already"


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
