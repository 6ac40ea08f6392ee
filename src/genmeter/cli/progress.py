"""Progress on stderr: a bar on a terminal, one line a minute elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

from genmeter.engine.run import Observer, Progress

_EVERY_S = 60.0


class Console(Observer):
    """Shows a run's progress; use as a context manager."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._bars: Any = None
        self._task: Any = None
        self._downloads: dict[str, Any] = {}
        self._began = self._said = time.monotonic()
        self._first: int | None = None

    def __enter__(self) -> Console:
        if self._terminal:
            from rich.console import Console as RichConsole
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                console=RichConsole(stderr=True),
                transient=True,
            )
            self._bars.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def started(self, total: int, resumed: int) -> None:
        self._began = self._said = time.monotonic()
        if resumed:
            self.note(f"going on with an earlier run: {resumed} scores are already there")
        if self._bars is not None:
            self._task = self._bars.add_task("scoring", total=total, rate="")

    def progress(self, progress: Progress) -> None:
        if self._first is None:
            self._first, self._began = progress.done, time.monotonic()
        now = time.monotonic()
        rate = (progress.done - self._first) / max(now - self._began, 1e-9)
        if self._bars is not None:
            failed = f", {progress.failed} failed" if progress.failed else ""
            self._bars.update(self._task, completed=progress.done, rate=f"{rate:.1f} samples/s{failed}")
        elif now - self._said >= _EVERY_S:
            self._said = now
            left = (progress.total - progress.done) / rate if rate else 0.0
            line = f"{progress.done} of {progress.total} samples, {rate:.1f}/s, {progress.failed} failed"
            print(f"genmeter: {line}, about {left / 60:.0f} min left", file=sys.stderr)

    def note(self, message: str) -> None:
        if self._bars is not None:
            self._bars.console.print(message, markup=False, highlight=False)
        else:
            print(f"genmeter: {message}", file=sys.stderr)
