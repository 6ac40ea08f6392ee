"""Columns of a summary: typed arrays that grow by a few bytes a sample, so a million samples stay small."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

from genmeter.errors import SKIPPED

SCORED, SKIP = 0, 1
EXAMPLES = 3
ABSENT = "(none)"
_LABEL_MAX = 120
# Numbers of a set metric's row that belong to the sample, not to the set.
_ROW_DETAIL = frozenset({"influence", "feature_distance", "per_candidate", "per_reference"})


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

    def example(self, code: str, example: dict[str, Any]) -> None:
        """Keep the first few failures of each code."""
        kept = self.examples.setdefault(code, [])
        if len(kept) < EXAMPLES:
            kept.append(example)

    def add_set(self, name: str, entry: Mapping[str, Any]) -> None:
        """Take the set's own value and facts from one of its rows; what differs between rows is the row's."""
        facts = {k: v for k, v in mapping(entry.get("detail")).items() if k not in _ROW_DETAIL}
        known = self.sets.get(name)
        if known is None:
            flags = [f for f in entry.get("flags") or () if isinstance(f, str)]
            self.sets[name] = {"score": float(entry["score"]), "detail": facts, "flags": flags}
        elif known["detail"] != facts:
            old = known["detail"]
            known["detail"] = {k: v for k, v in old.items() if k in facts and facts[k] == v}

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
        names = tuple(sorted(set(_labels(value))))
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


def stable_hash(*parts: str) -> int:
    """64 bits that are the same in every process; lists of different parts differ."""
    digest = blake2b(digest_size=8)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return int.from_bytes(digest.digest(), "little")


def lookup(sample: Any, path: str) -> Any:
    """The value at a dotted path; ``None`` when a step is missing. A key that itself holds dots is found too."""
    if not isinstance(sample, Mapping):
        return None
    if path in sample:
        return sample[path]
    head, dot, rest = path.partition(".")
    while dot:
        if head in sample and (found := lookup(sample[head], rest)) is not None:
            return found
        more, dot, rest = rest.partition(".")
        head = f"{head}.{more}"
    return None


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one: fields of a sample may hold anything."""
    # The check for dict first is for speed: this runs several times a line.
    return value if isinstance(value, (dict, Mapping)) else {}


def _labels(value: Any) -> Iterator[str]:
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if item is None:
            continue
        text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False, sort_keys=True, default=str)
        if len(text) > _LABEL_MAX:
            # Two long values must not fall into one bucket because they begin alike.
            text = f"{text[: _LABEL_MAX - 10]}…{stable_hash(text) & 0xFFFFFFFF:08x}"
        yield text
