"""Columns of a summary: typed arrays that grow by a few bytes a sample, so a million samples stay small."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from genmeter.errors import SKIPPED
from genmeter.schema.labels import ABSENT, labels

SCORED, SKIP = 0, 1
EXAMPLES = 3
# Numbers of a set metric's row that belong to the sample, not to the set.
_ROW_DETAIL = frozenset(
    {
        *("influence", "feature_distance", "per_candidate", "per_reference", "groups"),
        *("frames_used", "frames_total", "size", "fps"),
    }
)


class Column:
    """One metric variant over all lines: value, outcome, flags and cluster of each.

    Args:
        name: The metric as asked for.
        entry: Its entry of run.json; may be empty when a run is read without one.
        lines: Lines that were read before this column was met; they count as skipped.
    """

    def __init__(self, name: str, entry: Mapping[str, Any], lines: int = 0) -> None:
        self.name = name
        self.entry: dict[str, Any] = dict(entry)
        self.values = array("d", [math.nan]) * lines
        self.status = array("H", [SKIP]) * lines
        self.flags = array("H", [0]) * lines
        self.clusters = array("Q", range(lines))
        self.codes: list[str] = ["", "not_applicable"]
        self.flag_sets: list[tuple[str, ...]] = [()]
        self.examples: dict[str, list[dict[str, Any]]] = {}
        self.sets: dict[str, dict[str, Any]] = {}
        self.set_groups: dict[str, dict[str, dict[str, Any]]] = {}
        self.frames: dict[str, tuple[int, int]] = {}  # least and most of the rows that read part of a video
        self._code_ids: dict[str, int] = {}
        self._flag_ids: dict[tuple[str, ...], int] = {(): 0}

    @property
    def scope(self) -> str:
        """``sample`` or ``set``."""
        return "set" if self.entry.get("scope") == "set" else "sample"

    def append(self, value: float | None, code: str | None, flags: Any, cluster: int) -> None:
        """Add one line: a finite value, or the code that says why there is none."""
        if code is None and value is not None:
            self.status.append(SCORED)
            self.values.append(value)
        else:
            self.status.append(SKIP if code in SKIPPED else self._code_id(code or "internal"))
            self.values.append(math.nan)
        self.flags.append(self._flag_id(flags) if flags else 0)
        self.clusters.append(cluster)

    def add_frames(self, detail: Mapping[str, Any]) -> None:
        """Note how many frames of how many a row was scored on."""
        for key, name in (("used", "frames_used"), ("total", "frames_total")):
            count = detail.get(name)
            if isinstance(count, int) and not isinstance(count, bool):
                low, high = self.frames.get(key, (count, count))
                self.frames[key] = (min(low, count), max(high, count))

    def example(self, code: str, example: dict[str, Any]) -> None:
        """Keep the first few failures of each code."""
        kept = self.examples.setdefault(code, [])
        if len(kept) < EXAMPLES:
            kept.append(example)

    def add_set(self, name: str, entry: Mapping[str, Any]) -> None:
        """Take the set's own value and facts from one of its rows; what differs between rows is the row's."""
        detail = mapping(entry.get("detail"))
        if name not in self.sets:
            flags = [f for f in entry.get("flags") or () if isinstance(f, str)]
            self.sets[name] = {"score": float(entry["score"]), "detail": _set_facts(detail), "flags": flags}
        elif not _agrees(self.sets[name]["detail"], detail):
            self.sets[name]["detail"] = _common(self.sets[name]["detail"], detail)
        for path, found in mapping(detail.get("groups")).items():
            known = self.set_groups.setdefault(path, {})
            for bucket, facts in mapping(found).items():
                if bucket not in known:
                    known[bucket] = _set_facts(mapping(facts))
                elif not _agrees(known[bucket], mapping(facts)):
                    known[bucket] = _common(known[bucket], mapping(facts))

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Copies: values (n,) float64 (NaN: none), status (n,), flags (n,) uint16, clusters (n,) uint64."""
        return (
            np.array(self.values, dtype=np.float64),
            np.array(self.status, dtype=np.uint16),
            np.array(self.flags, dtype=np.uint16),
            np.array(self.clusters, dtype=np.uint64),
        )

    def _code_id(self, code: str) -> int:
        found = self._code_ids.get(code)
        if found is None:
            # Codes are a fixed list; anything beyond comes from a damaged file and must not grow without bound.
            if len(self.codes) >= 200 and code != "internal":
                return self._code_id("internal")
            found = self._code_ids[code] = len(self.codes)
            self.codes.append(code)
        return found

    def _flag_id(self, flags: Any) -> int:
        key = tuple(sorted({f for f in flags if isinstance(f, str)})) if isinstance(flags, (list, tuple)) else ()
        found = self._flag_ids.get(key)
        if found is None:
            if len(self.flag_sets) >= 60_000:
                return 0
            found = self._flag_ids[key] = len(self.flag_sets)
            self.flag_sets.append(key)
        return found


class Buckets:
    """The values of one grouping field: a small code for each line, up to ``limit`` different values."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.overflow = False
        self._codes = array("H")
        self._ids: dict[tuple[str, ...], int] = {}
        self._names: set[str] = set()

    def put(self, line: int, value: Any) -> None:
        """Record the value of line ``line`` (0-based); a list puts the sample into several buckets."""
        if self.overflow:
            return
        names = tuple(sorted(set(labels(value))))
        if not names:
            return
        code = self._ids.get(names)
        if code is None:
            self._names.update(names)
            if len(self._names) > self.limit or len(self._ids) >= 60_000:
                self.overflow = True
                self._codes, self._ids = array("H"), {}
                return
            code = self._ids[names] = len(self._ids) + 1
        self._pad(line)
        self._codes.append(code)

    def rows(self, lines: int, unreadable: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Each bucket's name and its line indices (m,), in order of the name; lines without a value come last.

        Args:
            lines: How many lines there are.
            unreadable: Lines that are left out of the bucket of those without a value.
        """
        self._pad(lines)
        codes = np.array(self._codes, dtype=np.uint16)
        order = np.argsort(codes, kind="stable").astype(np.uint32)
        ends = np.cumsum(np.bincount(codes, minlength=len(self._ids) + 1))
        members: dict[str, list[int]] = {name: [] for name in sorted(self._names)}
        for names, code in self._ids.items():
            for name in names:
                members[name].append(code)
        for name, ids in members.items():
            yield name, np.sort(np.concatenate([order[ends[i - 1] : ends[i]] for i in ids]))
        absent = np.setdiff1d(order[: ends[0]], unreadable, assume_unique=True)
        if len(absent):
            yield (ABSENT if ABSENT not in members else f"{ABSENT}*"), absent

    def _pad(self, lines: int) -> None:
        missing = lines - len(self._codes)
        if missing > 0:
            self._codes.extend(array("H", [0]) * missing)


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one: fields of a sample may hold anything."""
    # The check for dict first is for speed: this runs several times a line.
    return value if isinstance(value, (dict, Mapping)) else {}


def _set_facts(detail: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in detail.items() if key not in _ROW_DETAIL}


def _agrees(known: Mapping[str, Any], detail: Mapping[str, Any]) -> bool:
    """Whether a row says nothing else of its set than the rows before it."""
    return all(detail.get(key, known) == value for key, value in known.items())


def _common(known: Mapping[str, Any], detail: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in known.items() if key in detail and detail[key] == value}
