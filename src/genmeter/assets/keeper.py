"""Starting, watching and ending decoding processes."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

from genmeter.assets import wire
from genmeter.errors import GenmeterError

_START_S = 60.0
_LAST_WORDS = 4096
_PIPE_BYTES = 1 << 20
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ; Python names it from 3.10 on, and only on Linux
# What the loader of shared libraries may need to find them as it did for this process.
_INHERITED = (
    "PATH",
    "SYSTEMROOT",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "DYLD_FALLBACK_LIBRARY_PATH",
    "PYTHONHOME",
)
_FIXED = {
    "PYTHONSAFEPATH": "1",
    # A worker is one thread: cores are shared by workers, not within one.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
}


def worker_command(memory: int) -> list[str]:
    """The command that starts a worker of this process which may take ``memory`` bytes."""
    if not sys.executable:
        raise GenmeterError("internal", "the Python interpreter does not know its own path; decoders cannot be started")
    return [sys.executable, "-s", "-m", "genmeter.assets.worker", str(os.getpid()), str(memory)]


def worker_environment(own: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a worker: where its code is, and nothing that could be a secret."""
    import genmeter

    home = str(Path(genmeter.__file__).resolve().parent.parent)
    places = [place for place in sys.path if place and os.path.isabs(place)]
    found = {name: own[name] for name in _INHERITED if name in own}
    return {**found, **_FIXED, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*places, home]))}


class Worker:
    """One decoding process, used by one thread at a time.

    Attributes:
        process: The process.
        answers: Where its answers come from.
        tasks: How many it was given.
        deadline: When it is to be killed, by :func:`time.monotonic`; None while it is not watched.
        late: Whether it was.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.tasks = 0
        self.deadline: float | None = None
        self.late = False
        self._tasks_to = cast(wire.Pipe, process.stdin)
        self.answers = cast(wire.Pipe, process.stdout)

    def send(self, task: Mapping[str, Any], parts: Sequence[bytes]) -> bool:
        """Hand a task over; False when the process is gone."""
        try:
            wire.send(self._tasks_to, task, parts)
        except wire.Closed:
            return False
        return True

    def end(self, patience: float = 0.0) -> int | None:
        """Let go of the process; one that does not end by itself within ``patience`` seconds is killed.

        Returns:
            Its exit code, negative for a signal; None when it had to be killed.
        """
        code = self._wait(patience) if patience else self.process.poll()
        if code is None:
            self.process.kill()
            self._wait(10.0)  # one that is stuck in the kernel is reaped when it comes back
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return code

    def _wait(self, seconds: float) -> int | None:
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None


class Keeper:
    """Hands out workers, at most ``size`` at once, and kills those past their deadline.

    Both are done by a thread of its own: Linux ends a worker (PR_SET_PDEATHSIG) with the very thread that started it,
    and the threads that decode come and go.
    """

    def __init__(self, command: Sequence[str], size: int) -> None:
        self.closed = False
        self._command, self._size = list(command), max(1, size)
        self._changed = threading.Condition()
        self._idle: list[Worker] = []
        self._known: set[Worker] = set()
        self._count = 0  # those that live or are being started
        self._jobs: queue.SimpleQueue[Future[subprocess.Popen[bytes]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._wakes: float | None = None

    @property
    def pids(self) -> list[int]:
        """Process ids of the living workers."""
        with self._changed:
            return sorted(worker.process.pid for worker in self._known if worker.process.poll() is None)

    def take(self) -> Worker:
        """A worker for the calling thread, which gives it back; waits while all are taken.

        Raises:
            GenmeterError: ``cancelled`` when this keeper is closed; ``internal`` when no worker can be started.
        """
        with self._changed:
            while True:
                if self.closed:
                    raise _closed()
                while self._idle:
                    worker = self._idle.pop()
                    if worker.process.poll() is None:
                        return worker
                    worker.end()  # it died of itself, between two tasks
                    self._forget(worker)
                if self._count < self._size:
                    self._count += 1
                    break
                self._changed.wait()
        return self._start()

    def replace(self, worker: Worker) -> Worker:
        """A new worker in the place of one that is of no more use."""
        worker.end()
        with self._changed:
            self._known.discard(worker)
        return self._start()

    def give(self, worker: Worker, *, alive: bool) -> None:
        """Take a worker back. One that is not ``alive`` is ended."""
        with self._changed:
            if alive and not self.closed:
                self._idle.append(worker)
                self._changed.notify()
                return
        worker.end()
        with self._changed:
            self._forget(worker)

    def _forget(self, worker: Worker) -> None:
        if worker in self._known:
            self._known.discard(worker)
            self._count -= 1
            self._changed.notify()

    @contextlib.contextmanager
    def watched(self, worker: Worker, seconds: float) -> Iterator[None]:
        """Kill the worker, and set its ``late``, should the block take longer than ``seconds``."""
        deadline = time.monotonic() + seconds
        with self._changed:
            worker.deadline = deadline
            sooner = self._wakes is None or deadline < self._wakes
        if sooner:
            self._jobs.put(None)
        try:
            yield
        finally:
            with self._changed:
                worker.deadline = None

    def close(self) -> None:
        """End everything."""
        with self._changed:
            self.closed = True
            for worker in self._known:
                if worker.process.poll() is None:
                    worker.process.kill()
            idle, self._idle = self._idle, []
            self._changed.notify_all()
            thread = self._thread
        for worker in idle:  # those that are taken are ended by the threads that have them
            self.give(worker, alive=False)
        self._jobs.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=10)

    def _start(self) -> Worker:
        """A new worker, ready for its first task, for a place that is counted already."""
        wanted: Future[subprocess.Popen[bytes]] = Future()
        worker = None
        try:
            with self._changed:
                if self.closed:
                    raise _closed()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="genmeter-decoders", daemon=True)
                    self._thread.start()
                self._jobs.put(wanted)
            worker = Worker(wanted.result())
            with self._changed:
                self._known.add(worker)
                if self.closed:
                    raise _closed()
            with self.watched(worker, _START_S):
                ready = wire.receive(worker.answers)
            if ready != {"ready": True}:
                raise wire.Closed
            assert worker.process.stderr is not None
            worker.process.stderr.close()
            return worker
        except BaseException as error:
            words = "" if worker is None else _last_words(worker)
            if worker is not None:
                worker.end()
            with self._changed:
                if worker is not None:
                    self._known.discard(worker)
                self._count -= 1
                self._changed.notify()
                closed = self.closed
            if isinstance(error, wire.Closed | wire.Broken | OSError):
                raise _closed() if closed else _not_started(error, words) from None
            raise

    def _run(self) -> None:
        """The thread: start what is asked for, kill what is late."""
        while True:
            wanted = None
            with contextlib.suppress(queue.Empty):
                wanted = self._jobs.get(timeout=self._pause())
            if wanted is not None:
                try:
                    wanted.set_result(self._spawn())
                except BaseException as error:
                    wanted.set_exception(error)
            with self._changed:
                if self.closed and self._jobs.empty():
                    return
                self._kill_late()

    def _pause(self) -> float | None:
        with self._changed:
            deadlines = [worker.deadline for worker in self._known if worker.deadline is not None]
            self._wakes = min(deadlines, default=None)
            return None if self._wakes is None else max(0.0, self._wakes - time.monotonic())

    def _kill_late(self) -> None:
        now = time.monotonic()
        for worker in self._known:
            if worker.deadline is not None and now >= worker.deadline:
                worker.late, worker.deadline = True, None
                worker.process.kill()

    def _spawn(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=worker_environment(),
            cwd=os.path.abspath(os.sep),  # -m looks for modules in the current folder: not in one that holds data
            start_new_session=True,  # Ctrl-C in the terminal is meant for this process
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        _widen(process)
        return process


def _widen(process: subprocess.Popen[bytes]) -> None:
    """Pipes of a megabyte where the system grants them: fewer switches between the two processes."""
    if sys.platform == "linux":
        import fcntl

        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                fcntl.fcntl(pipe, _SET_PIPE_SIZE, _PIPE_BYTES)


def _closed() -> GenmeterError:
    return GenmeterError("cancelled", "the run was stopped before the file was decoded")


def _last_words(worker: Worker) -> str:
    """The last line that a worker which could not start wrote to stderr."""
    if worker.process.poll() is None:
        worker.process.kill()
    if worker.process.stderr is None or worker.process.stderr.closed:
        return ""
    words = worker.process.stderr.read(_LAST_WORDS * 16) or b""
    lines = words[-_LAST_WORDS:].decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else ""


def _not_started(error: Exception, words: str) -> GenmeterError:
    reason = words or (str(error) if isinstance(error, OSError) else "it ended at once")
    return GenmeterError(
        "internal", f"no decoding process could be started: {reason}", "check the installation: genmeter verify"
    )
