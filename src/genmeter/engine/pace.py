"""Whether lines are read on several threads at once, or one after another, or by the thread that asks for them."""

from __future__ import annotations

_TINY_BYTES, _TINY_SECONDS = 16 << 10, 0.001
# Below this many seconds a line, encoding is Python too, and nothing is gained by reading while it goes on.
_NOTHING_SECONDS = 30e-6


class Pace:
    """Decides from what it has seen. What it decides changes no result, only how soon it is there.

    Reading a tiny file is Python from end to end, so that threads only wait for each other, which takes longer than the
    work itself. Where files come slowly, from a network file system for one, threads are worth it however small the
    files are.

    Args:
        workers: Number of threads.
    """

    def __init__(self, workers: int) -> None:
        self.in_turn = False
        self._workers = workers
        self._slow = 0
        self._lines = 0
        self._encoding = 0.0

    @property
    def by_caller(self) -> bool:
        """Whether the thread that waits for the lines had better read them itself."""
        return self.in_turn and self._encoding < self._lines * _NOTHING_SECONDS

    @property
    def chunks(self) -> int:
        """How many chunks of lines may be in flight: enough that no thread waits for the next one."""
        return 3 if self.in_turn else self._most

    @property
    def _most(self) -> int:
        return 2 * self._workers + 1

    def encoded(self, seconds: float) -> None:
        """A batch took so long to encode."""
        self._encoding += seconds

    def note(self, lines: int, nbytes: int, seconds: float) -> None:
        """Learn from a chunk.

        Args:
            lines: How many lines it had.
            nbytes: Bytes that were read for them, and bytes of what was made of these.
            seconds: Time from beginning to end of each line, added up.
        """
        self._lines += lines
        if not lines or self._slow > self._most:
            return
        if nbytes > lines * _TINY_BYTES:
            self.in_turn = False
        elif not self.in_turn:
            # What waits for other threads takes up to so many times as long.
            self.in_turn = seconds < lines * self._workers * _TINY_SECONDS
        else:
            # Those that were in flight when the pace changed may still have waited for others.
            self._slow = self._slow + 1 if seconds > lines * _TINY_SECONDS else 0
            self.in_turn = self._slow <= self._most
