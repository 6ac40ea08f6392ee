"""Many runs of the command for the price of one start-up: a process that has imported everything forks each of them.

The server never runs anything itself, so each child is as fresh as a new process. Faults are set up in the child
before the command starts (:mod:`crash_faults`); the product knows nothing of them. No CUDA here: it does not survive
a fork.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEADLINE_S = 120


class Child:
    """One run: signal it by ``kill``, then read ``code`` (negative for a signal) and ``stderr``."""

    def __init__(self, server, pid, folder):
        self._server, self.pid, self.folder = server, pid, folder
        self._code = None

    @property
    def code(self):
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(self._server.ask(wait=self.pid))
        return self._code

    @property
    def stderr(self):
        path = self.folder / "stderr"  # missing where the process ended before it had begun
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def stdout(self):
        return (self.folder / "stdout").read_text(errors="replace")

    @property
    def running(self):
        """Whether it has not ended yet; it stays a zombie, and its number its own, until ``code`` is read."""
        if self._code is not None:
            return False
        with open(f"/proc/{self.pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"

    def kill(self, number):
        os.kill(self.pid, number)


class CrashServer:
    """Starts runs of the command; use as a context manager."""

    def __init__(self, env, folder):
        self._folder, self._count = folder, 0
        env = {**env, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent / "fakes")])}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "crash_server.py")], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout.readline() == b"ready\n"

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()

    def ask(self, **question):
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, *words, cwd=None, env=None, faults=()):
        """Start ``genmeter WORDS``. ``faults`` names functions of :mod:`crash_faults`, each with its arguments."""
        self._count += 1
        folder = self._folder / f"{self._count}"
        folder.mkdir()
        question = {
            "words": [str(word) for word in words],
            "cwd": str(cwd or folder),
            "env": {key: str(value) for key, value in (env or {}).items()},
            "faults": list(faults),
            "folder": str(folder),
        }
        return Child(self, self.ask(**question), folder)

    def run(self, *words, **options):
        """Run to the end."""
        child = self.start(*words, **options)
        assert child.code is not None
        return child


def _child(question):
    """What a new process would do from here on; never returns."""
    code = 70
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.alarm(DEADLINE_S)
        folder = Path(question["folder"])
        for number, path, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, folder / "stdout", None),
            (2, folder / "stderr", None),
        ):
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND if flags is None else flags, 0o644)
            os.dup2(opened, number)
            os.close(opened)
        os.chdir(question["cwd"])
        os.environ.update(question["env"])
        import crash_faults

        from genmeter.cli.main import main

        for name, arguments in question["faults"]:
            getattr(crash_faults, name)(**arguments)
        sys.argv = ["genmeter", *question["words"]]
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:  # before the command had begun, or after it was done
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _serve():
    # What an environment has installed does not change between the children, and takes long to list.
    metadata.entry_points = functools.cache(metadata.entry_points)
    import genmeter_fakes.encoders  # noqa: F401
    import PIL.features
    import rich.progress
    import rich.table  # noqa: F401
    import safetensors.numpy  # noqa: F401
    import torch

    import genmeter.api
    import genmeter.cli.main
    import genmeter.engine.run
    import genmeter.report.html
    import genmeter.report.tables  # noqa: F401
    from genmeter.encoders.registry import list_encoders
    from genmeter.registry import list_metrics

    list_encoders(), list_metrics()
    PIL.Image.init()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.dup(1)
    os.write(out, b"ready\n")
    for line in sys.stdin.buffer:
        question = json.loads(line)
        if "wait" in question:
            answer = os.waitpid(question["wait"], 0)[1]
        else:
            answer = os.fork()
            if answer == 0:
                os.close(out)
                _child(question)
        os.write(out, json.dumps(answer).encode() + b"\n")


def wait_until(condition, child, seconds=60):
    """Wait until a condition holds or the child has ended; returns whether it holds."""
    end = time.monotonic() + seconds
    while not (held := condition()) and child.running and time.monotonic() < end:
        time.sleep(0.001)
    return held


if __name__ == "__main__":
    _serve()
