"""The Python API: :func:`score` runs an input into a run directory, :class:`Engine` scores samples in memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genmeter.analysis.summary import SummaryBuilder
from genmeter.config import RunConfig
from genmeter.contract import Json
from genmeter.engine.into import refuse_into
from genmeter.engine.journal import refuse_in_use
from genmeter.engine.run import Observer, Progress, execute
from genmeter.engine.session import Engine, Result, merged_config
from genmeter.engine.store import sweep, write_atomic
from genmeter.inputs.lines import iter_lines
from genmeter.inputs.source import open_source
from genmeter.schema import jsonio

# What a run directory is known by; --fresh removes these and nothing that somebody else put beside them.
RUN_FILES = ("run.json", "samples.jsonl", "summary.json", "report.html")
_JOURNAL = ("journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm", "journal.sqlite-journal")


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        run_dir: Where its files lie.
        run: The content of run.json.
        summary: The content of summary.json.
    """

    run_dir: Path
    run: dict[str, Json]
    summary: dict[str, Json]

    @property
    def samples(self) -> Iterator[dict[str, Any]]:
        """The lines of samples.jsonl, read one at a time."""
        for line in iter_lines(self.run_dir / "samples.jsonl"):
            yield jsonio.loads(line)

    @property
    def exit_code(self) -> int:
        """0 when something could be scored, or there was nothing to score; else 3."""
        return exit_code(self.summary)


def score(
    inputs: str | Path | Sequence[str | Path],
    metrics: Iterable[str] | str | None = None,
    *,
    out: str | Path | None = None,
    references: str | Path | None = None,
    prompts: str | Path | None = None,
    match: str | None = None,
    layout: str | None = None,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    fresh: bool = False,
    into: bool = False,
    config: RunConfig | Mapping[str, Any] | str | Path | None = None,
    observer: Observer | None = None,
    report: bool = True,
    command: str = "",
    **settings: Any,
) -> RunResult:
    """Score an input into a run directory: what ``genmeter score`` does.

    Args:
        inputs: One or more JSONL files (also .gz, ``-`` for standard input), tables (CSV, TSV or
            Parquet), or one folder of media.
        metrics: Names of metrics or variants; None leaves the choice to each sample.
        out: The run directory; ``runs/<name>`` by default. Calling again goes on where an earlier call stopped.
        references: Folder of references, paired with the outputs by file stem.
        prompts: File of prompts for a folder of outputs.
        match: For a folder: ``stem``, ``id``, ``prompt`` or a regular expression with one group.
        layout: For a folder: a known layout; recognised by default, ``none`` to recognise none.
        columns: For tables: field of the sample (``prompt``, ``output``, ``metadata.model`` ...) to column.
        limit: Read only the first lines.
        fresh: Remove an earlier run in ``out`` first.
        into: Write the results back into the JSONL files too: into ``eval_result`` of their records, in place.
        config: As for :class:`Engine`.
        observer: Told about progress.
        report: Write report.html.
        command: What the user typed, for run.json.
        **settings: Single keys of the configuration.

    Raises:
        ValueError: A usage error: no such input, unknown setting, a directory of another run.
        GenmeterError: ``unknown_metric``, or weights that cannot be had for any of the metrics.
        StoppedEarly: The first 200 samples all failed for one reason.
    """
    merged = merged_config(config, metrics, settings)
    observer = observer or Observer()
    inputs = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    if into:
        refuse_into(inputs)
    source = open_source(
        inputs,
        references=Path(references) if references else None,
        prompts=Path(prompts) if prompts else None,
        limit=limit,
        match=match,
        layout=layout,
        columns=columns,
    )
    for note in source.notes:
        observer.note(note)
    folder = Path(out) if out else Path("runs") / (merged.name or source.name)
    if fresh:
        remove_run(folder)
    relay = _Relay(observer, merged)
    finished = execute(source, folder, merged, observer=relay, command=command, into=into)
    summary = relay.summary()
    write_atomic(folder / "summary.json", jsonio.dumps(summary) + b"\n")
    if report:
        from genmeter.report.html import write_report

        write_report(folder)
    return RunResult(folder, finished.run, summary)


def remove_run(folder: Path) -> None:
    """Remove what a run wrote into a directory, and nothing that somebody else put beside it.

    Raises:
        ValueError: The folder holds files but no run, so it is probably not meant; or another process runs on it.
    """
    if not folder.exists():
        return
    if any(folder.iterdir()) and not (folder / "journal.sqlite").exists():
        raise ValueError(
            f"{folder} holds files but no genmeter run; nothing was removed. Give another directory with -o"
        )
    refuse_in_use(folder / "journal.sqlite")
    for name in RUN_FILES + _JOURNAL:
        (folder / name).unlink(missing_ok=True)
    sweep(folder)
    shutil.rmtree(folder / "features", ignore_errors=True)


def exit_code(summary: Mapping[str, Any]) -> int:
    """0 when something was scored; 3 when nothing could be."""
    scored = sum(entry["n"]["scored"] for entry in summary["metrics"].values())
    return 0 if scored else 3


class _Relay(Observer):
    """Hands events on to the caller's observer and collects the summary on the way."""

    def __init__(self, observer: Observer, config: RunConfig) -> None:
        self._to, self._config = observer, config
        self._builder = SummaryBuilder()

    def started(self, total: int, resumed: int) -> None:
        self._to.started(total, resumed)

    def progress(self, progress: Progress) -> None:
        self._to.progress(progress)

    def download(self) -> Any:
        return self._to.download()

    def note(self, message: str) -> None:
        self._to.note(message)

    def writing(self, run: Mapping[str, Json]) -> None:
        self._builder = SummaryBuilder(run, self._config.group_by, self._config.cluster_by)
        self._to.writing(run)

    def row(self, eval_result: Mapping[str, Json], sample: Mapping[str, Any] | None) -> None:
        self._builder.add(eval_result, sample)
        self._to.row(eval_result, sample)

    def summary(self) -> dict[str, Json]:
        """The content of summary.json."""
        return self._builder.build()


__all__ = ["RUN_FILES", "Engine", "Observer", "Progress", "Result", "RunResult", "exit_code", "remove_run", "score"]
