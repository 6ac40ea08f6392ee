"""Calls that come one at a time, from many threads, answered in batches."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Busy(RuntimeError):
    """As many calls are waiting as may; try again a little later."""


class MicroBatcher(Generic[Item, Answer]):
    """One thread that answers whatever waits, as one batch, and then whatever came meanwhile.

    It never idles while something waits: after ``linger`` seconds an idle batcher starts with what is there. Under load
    it does not wait at all, since the next batch gathers while one is being answered.

    Args:
        answer: Answers a batch in order. What it raises becomes the outcome of each call of the batch.
        limit: Largest batch.
        linger: How long an idle batcher waits for company, in seconds.
        max_pending: Most calls that may wait.
    """

    def __init__(
        self,
        answer: Callable[[list[Item]], Sequence[Answer]],
        *,
        limit: int = 64,
        linger: float = 0.005,
        max_pending: int = 1024,
    ) -> None:
        self._answer, self._limit, self._linger, self._max_pending = answer, limit, linger, max_pending
        self._waiting: deque[tuple[Item, Future[Answer]]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.batches = self.answered = 0

    def submit(self, item: Item, *, block: bool = True) -> Future[Answer]:
        """Hand an item over; its future is done when its batch is.

        A future that is cancelled before its batch begins costs nothing.

        Args:
            item: What ``answer`` takes a list of.
            block: Wait for room where too many calls wait already.

        Raises:
            Busy: There is no room, and ``block`` is false.
            RuntimeError: The batcher was closed.
        """
        future: Future[Answer] = Future()
        with self._changed:
            while not self._closed and len(self._waiting) >= self._max_pending:
                if not block:
                    raise Busy(f"{len(self._waiting)} samples are waiting already, as many as may")
                self._changed.wait()
            if self._closed:
                raise RuntimeError("the engine is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="genmeter-batches", daemon=True)
                self._thread.start()
            self._waiting.append((item, future))
            self._changed.notify_all()
        return future

    @property
    def pending(self) -> int:
        """How many calls wait."""
        return len(self._waiting)

    def close(self) -> None:
        """Finish the batch that is being answered; cancel what waits. May be called again."""
        with self._changed:
            self._closed = True
            left = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        for _, future in left:
            future.cancel()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        idle = True
        while True:
            batch = self._next(idle)
            if batch is None:
                return
            if batch:
                self._answer_all(batch)
            idle = not self._waiting

    def _next(self, idle: bool) -> list[tuple[Item, Future[Answer]]] | None:
        with self._changed:
            while not self._waiting and not self._closed:
                idle = True
                self._changed.wait()
            until = time.monotonic() + self._linger
            while idle and not self._closed and len(self._waiting) < self._limit:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            if self._closed:
                return None
            taken = [self._waiting.popleft() for _ in range(min(self._limit, len(self._waiting)))]
            self._changed.notify_all()
        return [(item, future) for item, future in taken if future.set_running_or_notify_cancel()]

    def _answer_all(self, batch: list[tuple[Item, Future[Answer]]]) -> None:
        try:
            answers = self._answer([item for item, _ in batch])
            for (_, future), answer in zip(batch, answers, strict=True):
                future.set_result(answer)
        except BaseException as error:
            for _, future in batch:
                with contextlib.suppress(Exception):  # those before the failure have their answer
                    future.set_exception(error)
        self.batches += 1
        self.answered += len(batch)
