"""Decoding in processes of their own, so that a file that crashes, hangs or bloats a decoder costs one sample.

Workers (:mod:`genmeter.assets.worker`) start when they are first needed, take one task at a time, and go on with the
next. One that takes longer than ``policy.decode_timeout_s`` is killed; one that dies is replaced. A worker is started
as a new program, never forked from this process, with an environment that holds what it needs and nothing else.
"""

from __future__ import annotations

import json
import signal
import weakref
from collections.abc import Sequence
from typing import Any

from genmeter.assets import wire
from genmeter.assets.decode import decode, decode_memory
from genmeter.assets.keeper import Keeper, Worker, worker_command
from genmeter.assets.limits import Limits
from genmeter.assets.load import Blob
from genmeter.assets.worker import EXIT_MEMORY
from genmeter.config import Policy
from genmeter.contract import Decoding, Media, Modality
from genmeter.errors import GenmeterError

_CRASHES = frozenset({"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGSYS", "SIGTRAP"})


class DecodePool:
    """Decodes assets, audio and video in worker processes. Thread-safe; use as a context manager or call :meth:`close`.

    Args:
        policy: Limits and deadline of each task; with ``isolate: all`` images go to the workers too.
        workers: Most processes at once: as many as threads that decode.
        command: What starts a worker, for tests.
    """

    def __init__(self, policy: Policy, workers: int, command: Sequence[str] | None = None) -> None:
        self.policy, self.limits = policy, Limits.of(policy)
        self._keeper = Keeper(command or worker_command(policy.decode_memory), workers)
        # Also when the owner forgets to close it, and when the interpreter ends.
        self._end = weakref.finalize(self, Keeper.close, self._keeper)

    def __enter__(self) -> DecodePool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers at once; a task that is under way fails with ``cancelled``. May be called twice."""
        self._end()

    @property
    def pids(self) -> list[int]:
        """Process ids of the living workers."""
        return self._keeper.pids

    def decode(self, blob: Blob, modality: Modality, requests: Sequence[Decoding]) -> list[Media | GenmeterError]:
        """Decode an asset once, for everything that is asked of it.

        Args:
            blob: What :func:`genmeter.assets.load.load` returned.
            modality: The kind of media that is wanted.
            requests: What each result has to deliver: the ``decoding(view)`` of its encoder. An image needs none of it.

        Returns:
            For each request its media, or a typed error: those of :func:`genmeter.assets.image.decode_image` and
            :func:`genmeter.assets.audio.decode_audio`, :func:`genmeter.assets.video.decode_video`, and ``timed_out``,
            ``out_of_memory``, ``cancelled``, ``decode_failed`` (also where the file crashed its decoder) and
            ``internal``. Never raises for a file.
        """
        try:
            if blob.media is not None:
                return decode_memory(blob, modality, requests, self.policy)
            if modality == "image" and self.policy.isolate != "all":
                return [decode(blob, modality, self.policy)] * len(requests)
            if blob.parts and modality != "video":
                return [decode(blob, modality, self.policy)] * len(requests)
            different = {json.dumps(dict(request), sort_keys=True): dict(request) for request in requests}
            found = dict(zip(different, self._apart(blob, modality, list(different.values())), strict=True))
            return [found[json.dumps(dict(request), sort_keys=True)] for request in requests]
        except GenmeterError as error:
            return [error] * len(requests)

    def _apart(self, blob: Blob, modality: Modality, requests: list[Decoding]) -> list[Media | GenmeterError]:
        parts = blob.parts or (blob.data,)
        size = sum(map(len, parts))
        if size > self.policy.decode_memory:
            raise _out_of_memory(f"the file holds {size} bytes, and a decoder may take")
        task = {
            "modality": modality,
            "requests": requests,
            "limits": list(self.limits),
            "digest": blob.digest.hex(),
            "timeout": self.policy.decode_timeout_s,
            "sizes": [len(part) for part in parts],
            "folder": bool(blob.parts),
        }
        worker = self._keeper.take()
        used = worker.tasks > 0
        found, died = self._ask(worker, task, parts, requests)
        if died and used and not worker.late and not self._keeper.closed:
            # Whether it was this file or what earlier ones left behind, a new process shows: a score must not depend
            # on the file before it.
            worker = self._keeper.replace(worker)
            found, died = self._ask(worker, task, parts, requests)
        self._keeper.give(worker, alive=not died)
        return found

    def _ask(
        self, worker: Worker, task: dict[str, Any], parts: Sequence[bytes], requests: list[Decoding]
    ) -> tuple[list[Media | GenmeterError], bool]:
        """What a worker answers, and whether it is of no more use."""
        try:
            with self._keeper.watched(worker, self.policy.decode_timeout_s):
                worker.tasks += 1
                sent = worker.send(task, parts)
                header = wire.receive(worker.answers) if sent else None
                if header is None:
                    raise wire.Closed
                found = wire.read_outcomes(worker.answers, header, task["modality"], requests, self.limits)
            return found, bool(header.get("spent")) or worker.late
        except wire.Closed:
            return [self._why(worker)] * len(requests), True
        except wire.Broken as error:
            message = f"a decoding process gave an answer that is none: {error}"
            return [GenmeterError("internal", message, "please report it with the file")] * len(requests), True
        except BaseException:
            self._keeper.give(worker, alive=False)
            raise

    def _why(self, worker: Worker) -> GenmeterError:
        """Why a worker is gone."""
        code = worker.end(patience=0.0 if worker.late or self._keeper.closed else 2.0)
        if self._keeper.closed:
            return GenmeterError("cancelled", "the run was stopped while the file was being decoded")
        if worker.late or code == -getattr(signal, "SIGALRM", 0):
            return GenmeterError(
                "timed_out",
                f"decoding did not finish within {self.policy.decode_timeout_s:g} s",
                "raise policy.decode_timeout_s, or use a shorter file",
            )
        if code is None:
            return GenmeterError("internal", "the decoding process hung up and went on", "please report it")
        if code == EXIT_MEMORY:
            return _out_of_memory("the file did not fit beside what it takes to decode it: a decoder may take")
        name = signal.Signals(-code).name if code < 0 and -code in set(signal.Signals) else f"exit code {code}"
        if name in _CRASHES:
            return GenmeterError(
                "decode_failed", f"the file crashed its decoder ({name})", "write the file again, or in another format"
            )
        if name == "SIGKILL":
            return GenmeterError(
                "out_of_memory",
                "the decoding process was killed from outside, as the system does when memory runs out (SIGKILL)",
                "use fewer workers, or lower policy.decode_memory",
            )
        return GenmeterError("internal", f"the decoding process ended ({name})", "run again; please report it")


def _out_of_memory(what: str) -> GenmeterError:
    return GenmeterError(
        "out_of_memory", f"{what} policy.decode_memory", "raise policy.decode_memory, or use a smaller file"
    )
