"""A run: one input, one run directory, resumable; from lines to ``samples.jsonl``."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from genmeter import __version__
from genmeter.config import RunConfig
from genmeter.contract import Json
from genmeter.engine.catalog import Catalog
from genmeter.engine.core import Tally, WindowRunner
from genmeter.engine.describe import describe_run, row_constants
from genmeter.engine.device import device_kind, resolve_device
from genmeter.engine.evaluation import Evaluation, lacking_defaults
from genmeter.engine.features import Features
from genmeter.engine.journal import Journal, LineNote, Stamp
from genmeter.engine.plan import PlanOptions, Window, plan, requested_metrics
from genmeter.engine.pool import EncoderPool
from genmeter.engine.prepare import Done, Preparer
from genmeter.engine.sets import SetOutcome, finish_set
from genmeter.engine.settings import catalog_of, run_settings, settings_changed
from genmeter.engine.store import FeatureStore, write_atomic
from genmeter.engine.watch import Watch
from genmeter.engine.writer import LineWriter
from genmeter.errors import RETRYABLE, GenmeterError
from genmeter.inputs.source import InputLine, Source
from genmeter.schema import jsonio
from genmeter.schema.snapshot import snapshot_record
from genmeter.weights.home import cache_home

_WINDOW_LINES = 4096
_WINDOW_BYTES = 64 << 20
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
    source: Source, folder: Path, config: RunConfig, *, observer: Observer | None = None, command: str = ""
) -> Finished:
    """Score an input into a run directory; finished work of an earlier process is kept.

    Args:
        source: The input.
        folder: The run directory; made when absent.
        config: All settings.
        observer: Told about progress and finished lines.
        command: What the user typed, for the record.

    Raises:
        ValueError: The directory was made with other settings, belongs to another running process, or a setting is
            not one (unknown device, parameter ...).
        GenmeterError: An unknown metric was asked for by name.
        StoppedEarly: The first samples all failed for one reason.
    """
    observer = observer or Observer()
    place = resolve_device(config.device)
    catalog = catalog_of(config, device_kind(place))
    folder.mkdir(parents=True, exist_ok=True)
    journal = Journal(folder / "journal.sqlite")
    try:
        run = _Run(source, folder, config, observer, catalog, place, journal)
        return run.execute(command)
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
    ) -> None:
        self.source, self.folder, self.config, self.observer = source, folder, config, observer
        self.catalog, self.place, self.journal = catalog, place, journal
        self.options = PlanOptions.of(config)

    def execute(self, command: str) -> Finished:
        began = time.time()
        before = self.journal.meta("settings")
        settings = run_settings(self.config, self._catalog_of(before), self.source.digest)
        changed = settings_changed(before, settings)
        if changed:
            raise ValueError(
                f"{self.folder} holds a run with other settings: {'; '.join(changed)}. "
                "Give another directory with -o, or score again with --fresh"
            )
        self.journal.set_meta("settings", settings)
        self._take_up()
        tally = self._score()
        # Samples may have brought metrics of their own by now.
        settings = run_settings(self.config, self.catalog, self.source.digest)
        self.journal.set_meta("settings", settings)
        outcomes = self._sets()
        run = describe_run(
            self.source, self.config, self.catalog, self.place, settings, self.journal.snapshots(), tally
        )
        run |= {"command": command, "created": _utc(began)}
        run["seconds"] = {"total": round(time.time() - began, 3), **run["seconds"]}
        self._write(run, outcomes)
        return Finished(self.folder, run)

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
                if now is None or (now.st_size, now.st_mtime_ns) == stamp[:2]:
                    continue
                digest = _sha256(Path(uri))
                if digest == stamp.digest:
                    self.journal.restamp(uri, Stamp(now.st_size, now.st_mtime_ns, digest))
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
        tally = Tally(sum(counts.get(None, 0) for counts in self.journal.codes().values()))
        features.recall(self.journal.unsealed())
        with Preparer.of(config, self.source.roots) as preparer:
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
            )
            watch = Watch(self.journal)
            try:
                for lines in windows(self.source):
                    self._window(lines, runner, features, tally, watch)
            finally:
                watch.close()
        features.close()
        return tally

    def _window(
        self, lines: list[InputLine], runner: WindowRunner, features: Features, tally: Tally, watch: Watch
    ) -> None:
        span = range(lines[0].index, lines[-1].index + 1)
        finished, noted = self.journal.finished(span), self.journal.noted(span)
        window = plan(lines, self.catalog, self.options, finished, noted, watch.given_up)
        for line in lines:
            if line.error is not None:
                tally.fail(line.error.to_dict())
        tally.check()
        if window.cells or window.tasks:
            notes: list[LineNote] = []
            by_index = {line.index: line for line in lines}

            def done(result: Done) -> None:
                part = None if result.line in noted else _snapshot_part(by_index[result.line], result, window)
                notes.append(LineNote(result.line, part, result.stamps))
                if len(notes) % 8 == 0:
                    self._progress(span.start + len(notes), tally)

            watch.window()
            runner.run(window, done, watch.line if watch.careful else None)
            watch.passed()
            self.journal.note_lines(notes)
        unsealed = self.journal.unsealed()
        if unsealed:
            features.seal(unsealed)
            self.journal.seal()
        self._progress(span.stop, tally)

    def _progress(self, done: int, tally: Tally) -> None:
        self.observer.progress(Progress(done, self.source.count, tally.scored, tally.codes.total()))

    def _sets(self) -> dict[str, SetOutcome]:
        names = [name for name, variant in self.catalog.variants.items() if variant.spec.scope == "set"]
        store = FeatureStore(self.folder / "features")
        scratch = self.folder / "features" / "scratch"
        outcomes = {
            name: finish_set(self.journal, store, self.catalog.variant(name), scratch)
            for name in names
            if name in self.journal.codes()
        }
        store.close()
        return outcomes

    def _write(self, run: dict[str, Json], outcomes: Mapping[str, SetOutcome]) -> None:
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
            lacking=lacking_defaults(self.journal.codes(), self.catalog),
            constants=row_constants(run) if self.config.rows == "full" else None,
        )
        self.observer.writing(run)
        rows = self.journal.rows()
        pending = next(rows, None)
        with LineWriter(self.folder / "samples.jsonl") as writer:
            for line in self.source:
                cells: dict[str, dict[str, Json]] = {}
                while pending is not None and pending[0] <= line.index:
                    cells = pending[1] if pending[0] == line.index else cells
                    pending = next(rows, None)
                if line.sample is not None:
                    wanted = set(requested_metrics(line.sample, self.catalog, self.options))
                    cells = {name: row for name, row in cells.items() if name in wanted}
                    result = evaluation.build(line.index, cells, line.sample)
                else:
                    assert line.error is not None
                    result = {"error": line.error.to_dict()}
                self.observer.row(result, line.sample)
                writer.write(line, result)
        write_atomic(self.folder / "run.json", jsonio.dumps(run) + b"\n")


def windows(source: Source) -> Iterator[list[InputLine]]:
    """Consecutive lines in bounded pieces: 4,096 lines or about 64 MB."""
    lines: list[InputLine] = []
    held = 0
    for line in source:
        lines.append(line)
        held += line.nbytes or _LINE_BYTES
        if len(lines) >= _WINDOW_LINES or held >= _WINDOW_BYTES:
            yield lines
            lines, held = [], 0
    if lines:
        yield lines


def _snapshot_part(line: InputLine, done: Done, window: Window) -> bytes:
    """The line's part of the snapshot: its content with each input and reference replaced by what is in the file."""
    by_uri = {window.assets[source].value: found for source, found in done.assets.items() if _is_uri(window, source)}

    def digest_of(value: Any) -> str:
        found = by_uri.get(value) if isinstance(value, str) else None
        if isinstance(found, bytes):
            return f"sha256:{found.hex()}"
        return f"unread:{found.code}" if isinstance(found, GenmeterError) else f"uri:{value}"

    assert line.sample is not None
    try:
        record = snapshot_record(line.sample, digest_of)
    except ValueError:
        record = repr(sorted(line.sample)).encode()
    return hashlib.sha256(record).digest()


def _is_uri(window: Window, source: int) -> bool:
    return isinstance(window.assets[source].value, str)


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


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
