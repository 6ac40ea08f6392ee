"""Showing how a download goes: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TextIO

from genmeter.weights.sources import Progress

QUIET_S = 60.0
"""Where there is no terminal, seconds between two lines about the same thing."""


@contextlib.contextmanager
def show_progress(stream: TextIO | None = None) -> Iterator[Progress]:
    """A progress callback for :func:`genmeter.weights.manager.ensure`, writing to standard error by default.

    On a terminal each file has a bar with size, rate and time left. Elsewhere each new step is one line, and
    a long one repeats at most once a minute, so that logs stay readable.
    """
    out = sys.stderr if stream is None else stream
    if not out.isatty():
        yield _lines(out)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=out), transient=True) as bars:
        tasks: dict[str, int] = {}

        def draw(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = int(bars.add_task(what, total=total or None))
            bars.update(tasks[what], completed=done, total=total or None)  # type: ignore[arg-type]

        yield draw


def _lines(out: TextIO) -> Progress:
    last: dict[str, float] = {}

    def write(what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what in last and now - last[what] < QUIET_S:
            return
        last[what] = now
        size = f" {done / 1e6:.0f} of {total / 1e6:.0f} MB" if total else ""
        print(f"weights: {what}{size}", file=out, flush=True)

    return write
