"""Finding the line whose media take the process down, so that it costs itself and not an endless loop of restarts.

Decoding runs in threads, so a crash of a decoder is a crash of the process and leaves nothing behind but a mark that
the journal holds while media are being read. After two such deaths lines are read one at a time, each under a mark of
its own; a line that kills the process twice more, and never passes in between, is given up. Marks are cleared on
every orderly end, an interrupt included; a finished run forgets what it gave up, so that a rerun tries it again.
"""

from __future__ import annotations

from genmeter.engine.journal import Journal

_ALONE_AFTER, _GIVE_UP_AFTER = 2, 2
_MARK = "preparing"
_DEATHS = "deaths"


class Watch:
    """Marks what is being read. One for each process on a run.

    Args:
        journal: The run's journal.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._deaths: dict[str, int] = journal.meta(_DEATHS, {})
        left = journal.meta(_MARK)
        self._crashes = 0
        self._reading: int | None = None
        if left is not None:
            # Whether a batch or the media were to blame cannot be told: both are run apart, and one of them will show.
            self._crashes = left["crashes"] + 1
            if left["line"] is not None:
                self._mark(None)  # first: a death must not be counted twice
                self._count(left["line"], self._deaths.get(str(left["line"]), 0) + 1)

    @property
    def careful(self) -> bool:
        """Whether lines are read one at a time."""
        return self._crashes >= _ALONE_AFTER

    @property
    def given_up(self) -> frozenset[int]:
        """Lines whose media are not read any more."""
        return frozenset(int(line) for line, deaths in self._deaths.items() if deaths >= _GIVE_UP_AFTER)

    def window(self) -> None:
        """Media of a window are about to be read."""
        self._mark(None)

    def line(self, line: int | None) -> None:
        """One line is about to be read alone, or has been (None)."""
        if line is None and self._reading not in self.given_up and str(self._reading) in self._deaths:
            self._count(self._reading, 0)
        self._reading = line
        self._mark(line)

    def passed(self) -> None:
        """The window is through; what killed earlier processes lies behind."""
        self._crashes = 0
        self._journal.set_meta(_MARK, None)

    def finished(self) -> None:
        """All windows are through; what was given up may be tried again by a later process."""
        if self._deaths:
            self._journal.set_meta(_DEATHS, {})

    def close(self) -> None:
        """An orderly end."""
        self._journal.set_meta(_MARK, None)

    def _mark(self, line: int | None) -> None:
        self._journal.set_meta(_MARK, {"crashes": self._crashes, "line": line})

    def _count(self, line: int | None, deaths: int) -> None:
        if deaths:
            self._deaths[str(line)] = deaths
        else:
            self._deaths.pop(str(line), None)
        self._journal.set_meta(_DEATHS, self._deaths)
