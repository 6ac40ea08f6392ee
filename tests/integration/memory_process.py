"""One job of the memory tests in a process of its own; prints what it used as JSON.

    memory_process.py score PATH METRICS OUT      a run
    memory_process.py open_engines PATH COUNT     engines opened, used for one sample and closed
    memory_process.py open_runs PATH COUNT        the same with run directories
    memory_process.py stream PATH COUNT           one engine over many samples, some of which cannot be scored

``peak`` is the highest memory of the process in bytes; ``points`` says what it held at evenly spread moments.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from genmeter_fakes.encoders import control

import genmeter
from genmeter.api import Observer

METRICS = ["fake_level", "fake_pair", "fake_match", "fake_loudness"]
POINTS = 20


def main() -> None:
    job, *words = sys.argv[1:]
    found = {"score": score, "open_engines": open_engines, "open_runs": open_runs, "stream": stream}[job](*words)
    # In kilobytes on Linux, in bytes on macOS.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({**found, "peak": peak}))


def score(path: str, metrics: str, out: str) -> dict[str, Any]:
    watch = _Watch()

    class Looking(Observer):
        def progress(self, progress: Any) -> None:
            control.calls.clear()
            watch.at(progress.done, progress.total)

    result = genmeter.score(path, metrics, out=out, report=False, cache=False, device="cpu", observer=Looking())
    scored = {name: entry["n"]["scored"] for name, entry in result.summary["metrics"].items()}
    failed = sum((Counter(entry["n"]["failed"]) for entry in result.summary["metrics"].values()), Counter())
    return {"points": watch.points, "scored": scored, "codes": dict(failed)}


def open_engines(path: str, count: str) -> dict[str, Any]:
    lines = _lines(path)

    def once(index: int) -> None:
        with genmeter.Engine(METRICS, media_root=str(Path(path).parent), device="cpu") as engine:
            list(engine.score([lines[index % len(lines)]]))

    return _repeat(int(count), once)


def open_runs(path: str, count: str) -> dict[str, Any]:
    first = Path(path).with_name("first.jsonl")
    first.write_text(json.dumps(_lines(path)[0]) + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:

        def once(index: int) -> None:
            out = Path(folder, str(index))
            genmeter.score(first, METRICS, out=out, report=False, cache=False, device="cpu")
            shutil.rmtree(out)

        return _repeat(int(count), once)


def stream(path: str, count: str) -> dict[str, Any]:
    lines = _lines(path)
    # Two grey levels that the networks cannot bear.
    control.nan_at, control.raise_at = 77, 151
    codes: Counter[str] = Counter()
    with genmeter.Engine(METRICS, media_root=str(Path(path).parent), device="cpu") as engine:

        def samples() -> Iterator[Any]:
            for index in range(int(count)):
                line = lines[index % len(lines)]
                yield {**line, "id": str(index)} if isinstance(line, dict) and "id" in line else line

        results = engine.score(samples())

        def once(index: int) -> None:
            codes.update(error["code"] for error in next(results).errors.values())

        return {**_repeat(int(count), once), "codes": dict(codes)}


def _lines(path: str) -> list[Any]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def _repeat(count: int, once: Callable[[int], None]) -> dict[str, Any]:
    watch = _Watch()
    for index in range(count):
        once(index)
        control.calls.clear()
        watch.at(index + 1, count)
    return {"points": watch.points}


class _Watch:
    """Looks at what the process holds, at evenly spread moments."""

    def __init__(self) -> None:
        self.points: list[dict[str, int]] = []
        self._process = psutil.Process(os.getpid())

    def at(self, done: int, total: int) -> None:
        if done * POINTS // total > len(self.points):
            self.points.append(
                {
                    "memory": self._process.memory_info().rss,
                    "threads": self._process.num_threads(),
                    "handles": self._process.num_fds(),
                    "children": len(self._process.children(recursive=True)),
                }
            )


if __name__ == "__main__":
    main()
