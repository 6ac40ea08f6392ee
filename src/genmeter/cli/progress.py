"""Progress on stderr: a bar on a terminal, one line a minute elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any

from genmeter.engine.run import Observer, Progress

_EVERY_S = 60.0


class Console(Observer):
    """Shows a run's progress; use as a context manager."""

    def __init__(self) -> None:
        # Where nothing can be drawn over, a bar would show nothing until the end.
        self._terminal = sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        self._stack = contextlib.ExitStack()
        self._bars: Any = None
        self._task: Any = None
        self._downloads: dict[str, Any] = {}
        self._on_download: Any = None
        self._began = self._said = time.monotonic()
        self._first: int | None = None

    def __enter__(self) -> Console:
        if self._terminal:
            from rich.console import Console as RichConsole
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"))
            bars = Progress(*columns, TimeRemainingColumn(), console=RichConsole(stderr=True), transient=True)
            self._bars = self._stack.enter_context(bars)
            self._on_download = self._draw_download
        else:
            from genmeter.weights.progress import show_progress

            self._on_download = self._stack.enter_context(show_progress())
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def started(self, total: int, resumed: int) -> None:
        self._began = self._said = time.monotonic()
        if resumed:
            self.note(f"going on with an earlier run: {resumed} scores are already there")
        if self._bars is not None:
            self._task = self._bars.add_task("scoring", total=total, count="")

    def progress(self, progress: Progress) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first, self._began = progress.done, now
        rate = (progress.done - self._first) / max(now - self._began, 1e-9)
        failed = f", {progress.failed:,} scores failed" if progress.failed else ""
        count = f"{progress.done:,} of {progress.total:,}{failed}, {rate:,.{0 if rate >= 100 else 1}f}/s"
        if self._bars is not None:
            self._bars.update(self._task, completed=progress.done, count=count)
        elif now - self._said >= _EVERY_S:
            self._said = now
            left = f", about {(progress.total - progress.done) / rate / 60:.0f} min left" if rate else ""
            print(f"genmeter: {count}{left}", file=sys.stderr)

    def download(self) -> Any:
        return self._on_download

    def note(self, message: str) -> None:
        if self._bars is not None:
            self._bars.console.print(message, markup=False, highlight=False)
        else:
            print(f"genmeter: {message}", file=sys.stderr)

    def _draw_download(self, what: str, done: int, total: int) -> None:
        if what not in self._downloads:
            self._downloads[what] = self._bars.add_task(what, total=total or None, count="")
        count = f"{done / 1e6:.1f} of {total / 1e6:.1f} MB" if total else ""
        self._bars.update(self._downloads[what], completed=done, total=total or None, count=count)
