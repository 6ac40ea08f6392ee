"""A decoding process (``python -m genmeter.assets.worker``): reads tasks from stdin, one at a time, and answers.

FFmpeg and image libraries run here on files from strangers, so that what a file breaks is this process. It is started
by :class:`genmeter.assets.workers.DecodePool`, which ends it when it takes too long. It holds no file open but its
pipes, writes none, takes no more memory than it is granted, and does not outlive the process that started it.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from genmeter.assets import wire
from genmeter.assets.limits import Limits
from genmeter.contract import Media
from genmeter.errors import GenmeterError

EXIT_MEMORY = 77
"""The task itself did not fit into memory."""
EXIT_ORPHANED = 78
"""The process that started this one is gone."""

_OPEN_FILES = 64
# How much longer than its deadline a task may run before the kernel ends this process, should nobody else do so.
_GRACE_S = 5.0
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until stdin closes. Arguments: the parent's process id, and the memory that may be taken, in bytes."""
    parent, memory = int(sys.argv[1]), int(sys.argv[2])
    _follow(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whether to stop is the parent's decision
    tasks, answers = _own_pipes()
    _bound(memory)
    wire.send(answers, {"ready": True})
    while (task := wire.receive(tasks)) is not None:
        _serve(task, tasks, answers)


def _own_pipes() -> tuple[wire.Pipe, wire.Pipe]:
    """stdin and stdout for this module alone: what a library reads or prints goes nowhere."""
    tasks, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)
    return open(tasks, "rb", buffering=0), open(answers, "wb", buffering=0)


def _follow(parent: int) -> None:
    """Die with the parent. Where the system does not see to that, the end of stdin and the alarm do."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.name == "posix" and os.getppid() != parent:
        sys.exit(EXIT_ORPHANED)


def _bound(memory: int) -> None:
    """Limits that the kernel enforces: memory, files written (none), open files, and no core dumps."""
    sys.dont_write_bytecode = True
    try:
        import resource
    except ImportError:
        return
    # On Linux RLIMIT_DATA counts the memory that a process writes to; the address space holds libraries as well.
    kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    wanted = {kind: memory, resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NOFILE: _OPEN_FILES}
    for limit, value in wanted.items():
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(limit, (value, value))
        except (ValueError, OSError):
            continue  # a system that does not know this limit


def _serve(task: dict[str, Any], tasks: wire.Pipe, answers: wire.Pipe) -> None:
    try:
        parts = [memoryview(bytearray(size)) for size in task["sizes"]]
    except MemoryError:
        os._exit(EXIT_MEMORY)
    for part in parts:
        wire.fill(tasks, part)
    _alarm(task["timeout"] + _GRACE_S)
    spent = False
    try:
        found = _decode(task, parts)
    except GenmeterError as error:
        found = [error] * len(task["requests"])
    except MemoryError:
        found = [_out_of_memory()] * len(task["requests"])
    except Exception as error:
        found = [_internal(error)] * len(task["requests"])
    _alarm(0)
    spent = any(isinstance(item, GenmeterError) and item.code == "out_of_memory" for item in found)
    outcomes = [wire.outcome(item) for item in found]
    buffers = [buffer for outcome in outcomes for buffer in outcome.buffers]
    wire.send(answers, {"results": [outcome.said for outcome in outcomes], "spent": spent}, buffers)


def _decode(task: dict[str, Any], parts: list[memoryview]) -> list[Media | GenmeterError]:
    limits = Limits(*task["limits"])
    modality, requests = task["modality"], task["requests"]
    if modality == "audio":
        from genmeter.assets.audio import decode_audio

        return list(decode_audio(parts[0], requests, limits))
    if modality == "image":
        from genmeter.assets.image import decode_image

        return [decode_image(bytes(parts[0]), limits)] * len(requests)
    from genmeter.assets.video import decode_video

    return list(decode_video(parts, requests, limits, bytes.fromhex(task["digest"]), folder=task.get("folder", False)))


def _alarm(seconds: float) -> None:
    """Have the kernel end this process after so many seconds; 0 takes that back."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _out_of_memory() -> GenmeterError:
    return GenmeterError(
        "out_of_memory", "decoding did not fit into policy.decode_memory", "raise it, or use a smaller file"
    )


def _internal(error: Exception) -> GenmeterError:
    """Names the place and not the words, which may quote the file."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = f"{os.path.basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno}" if frame else "?"
    return GenmeterError("internal", f"decoding failed: {type(error).__name__} at {place}", "please report it")


if __name__ == "__main__":
    main()
