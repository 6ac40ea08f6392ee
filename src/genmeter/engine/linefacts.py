"""What set metrics have to know of each line beside its features: which sets it is in, and what it depends on."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from genmeter.errors import GenmeterError
from genmeter.schema import roles
from genmeter.schema.labels import ABSENT, labels, lookup, stable_hash

SET = "metadata.set"
ALL = "all"
"""As a field to group by: one set of everything, beside the sets of ``metadata.set``."""

MOST = 200
"""Largest number of sets that one field makes; each costs a statistic of its own."""


class _Field:
    """The value of one field on every line, as a small code."""

    def __init__(self) -> None:
        self.codes = array("i")
        self.known: dict[tuple[str, ...], int] = {(): 0}
        self._listed: list[tuple[str, ...]] = [(ABSENT,)]

    def put(self, line: int, value: Any) -> None:
        names = tuple(sorted(set(labels(value))))
        self.codes.extend([0] * (line - len(self.codes)))
        code = self.known.setdefault(names, len(self.known))
        if code == len(self._listed):
            self._listed.append(names)
        self.codes.append(code)

    def names(self, line: int) -> tuple[str, ...]:
        """Names of the groups of a line; ``(none)`` where the field is absent."""
        return self._listed[self.codes[line] if line < len(self.codes) else 0]


class LineFacts:
    """Collected from one pass over the lines; about 12 bytes a line, and 4 for each further field.

    Args:
        group_by: Dotted field paths to make sets of, beside ``metadata.set``; ``all`` is no field but the whole.
        cluster_by: Dotted path of the field whose equal values make samples dependent; the prompt by default.
        prompt_field: Where prompts stand, if not in the messages.
    """

    def __init__(
        self, group_by: Sequence[str] = (), cluster_by: str | None = None, prompt_field: str | None = None
    ) -> None:
        self.whole = ALL in group_by
        self.paths = tuple(path for path in dict.fromkeys(group_by) if path not in (ALL, SET))
        self._cluster_by, self._prompt_field = cluster_by, prompt_field
        self._fields = {path: _Field() for path in (SET, *self.paths)}
        self._clusters = array("Q")

    def add(self, line: int, sample: dict[str, Any] | None) -> None:
        """Take the next line; ``None`` for one that could not be read. Line numbers ascend."""
        for path, field in self._fields.items():
            field.put(line, lookup(sample, path) if sample is not None else None)
        self._clusters.extend([0] * (line - len(self._clusters)))
        self._clusters.append(self._cluster(sample) if sample is not None else 0)

    def names(self, path: str, line: int) -> tuple[str, ...]:
        """The sets of one field that a line is in."""
        return self._fields[path].names(line)

    def groups(self, path: str, lines: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Each set of a field and which of the given lines are in it.

        Args:
            path: ``metadata.set`` or one of ``paths``.
            lines: (n,) line numbers.

        Yields:
            Name and (n,) bool, in order of the name, those without a value last.
        """
        field = self._fields[path]
        codes = np.zeros(int(lines.max(initial=-1)) + 1, dtype=np.int64)
        held = np.array(field.codes, dtype=np.int64)[: len(codes)]
        codes[: len(held)] = held
        own = codes[lines]
        members: dict[str, list[int]] = {}
        for names, code in field.known.items():
            for name in names or (ABSENT,):
                members.setdefault(name, []).append(code)
        for name in sorted(members, key=lambda name: (name == ABSENT, name)):
            inside = np.isin(own, members[name])
            if inside.any():
                yield name, inside

    def clusters(self, lines: np.ndarray) -> np.ndarray:
        """(n,) uint64 label of each line; 0 where nothing in the sample says what it depends on."""
        held = np.array(self._clusters, dtype=np.uint64)
        found = np.zeros(len(lines), dtype=np.uint64)
        known = (lines >= 0) & (lines < len(held))
        found[known] = held[lines[known]]
        return found

    def _cluster(self, sample: dict[str, Any]) -> int:
        if self._cluster_by is not None:
            value = lookup(sample, self._cluster_by)
            return 0 if value is None else stable_hash("field", repr(value)) or 1
        try:
            texts = roles.prompt_texts(sample, field=self._prompt_field)
        except GenmeterError:
            return 0
        return stable_hash("prompt", *(str(text.value) for text in texts)) or 1
