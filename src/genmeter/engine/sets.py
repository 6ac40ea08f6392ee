"""Set metrics: once every line has been read, the features of each set become one value and a part for every row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from genmeter.contract import Json, Moments, Rows, SetMetric, SetScore, Unscored
from genmeter.engine.gather import (
    Gathered,
    LostFeaturesError,
    References,
    first_of_line,
    gather_predictions,
    gather_references,
)
from genmeter.engine.journal import Journal
from genmeter.engine.linefacts import ALL, MOST, SET, LineFacts
from genmeter.engine.setfacts import compare
from genmeter.engine.store import FeatureStore
from genmeter.errors import GenmeterError
from genmeter.registry import Variant, make_scorer
from genmeter.schema import jsonio


class SetOutcome(NamedTuple):
    """What one set came to.

    Attributes:
        score: Its value, or None with ``error``.
        detail: Facts about the set.
        flags: Flags of the set.
        error: Why there is no value.
        lines: Ascending line of each entry of ``order``.
        order: The prediction row that speaks for each candidate, by line and candidate.
        rows: What each prediction row contributes.
    """

    score: float | None
    detail: Mapping[str, Json]
    flags: tuple[str, ...]
    error: Mapping[str, Json] | None
    lines: np.ndarray
    order: np.ndarray
    rows: Sequence[Mapping[str, Json]]

    def of_line(self, line: int) -> list[Mapping[str, Json]]:
        """The rows of one line: one for each candidate."""
        start, stop = np.searchsorted(self.lines, [line, line + 1])
        return [self.rows[index] for index in self.order[start:stop].tolist()]


class SetOutcomes:
    """All sets of one metric: ``all``, or one for each value of ``metadata.set``; and those that were asked for beside.

    Args:
        sets: The main sets by name; every line is in one of them.
        groups: Sets of other fields: path, then name.
        facts: Which line is in which.
    """

    def __init__(
        self, sets: Mapping[str, SetOutcome], groups: Mapping[str, Mapping[str, SetOutcome]], facts: LineFacts | None
    ) -> None:
        self.sets, self.groups, self._facts = dict(sets), {path: dict(found) for path, found in groups.items()}, facts

    @property
    def lacking(self) -> bool:
        """Whether there is nothing to compare with, in the whole set."""
        return {(found.error or {}).get("code") for found in self.sets.values()} == {"no_reference"}

    def entry(self, line: int, row: Mapping[str, Json]) -> dict[str, Json]:
        """The row of a line with what its sets came to."""
        name = self._set_of(line)
        outcome = self.sets.get(name)
        merged: dict[str, Json] = {**row, "scope": "set", "set": name}
        if outcome is None:
            return merged
        own = outcome.of_line(line)
        if (row.get("error") or {}).get("code") != "set_pending":
            # Its other candidates are in the set all the same.
            return merged if not own else {**merged, "detail": {"per_candidate": _numbered(own)}}
        if outcome.error:
            return {**merged, "error": dict(outcome.error)}
        merged.pop("error")
        groups = {path: self._of_groups(path, line) for path in self.groups}
        detail: dict[str, Json] = {**row.get("detail", {}), **outcome.detail, **_parts(own)}
        if any(groups.values()):
            detail["groups"] = {path: found for path, found in groups.items() if found}
        flags = list(dict.fromkeys([*outcome.flags, *row.get("flags", ())]))
        return {**merged, "score": outcome.score, "detail": detail, "flags": flags}

    def _set_of(self, line: int) -> str:
        if self._facts is None or self.sets.keys() <= {ALL}:
            return ALL
        # A sample of several sets is in each of them; its row speaks of the first.
        return self._facts.names(SET, line)[0]

    def _of_groups(self, path: str, line: int) -> dict[str, Json]:
        names = (ALL,) if path == ALL else self._facts.names(path, line) if self._facts else ()
        found: dict[str, Json] = {}
        for name in names:
            outcome = self.groups[path].get(name)
            if outcome is None:
                continue
            if outcome.error:
                found[name] = {"score": None, "error": dict(outcome.error)}
            else:
                found[name] = {"score": outcome.score, **outcome.detail, **_parts(outcome.of_line(line))}
        return found


def refused_set(error: GenmeterError) -> SetOutcomes:
    """A metric none of whose sets can have a value."""
    return SetOutcomes({ALL: _failed(error)}, {}, None)


def finish_set(
    journal: Journal,
    store: FeatureStore,
    variant: Variant,
    scratch: Path,
    facts: LineFacts | None = None,
    stored: Rows | Moments | None = None,
) -> SetOutcomes:
    """Compute one set metric from the features of a run.

    The prediction set has a row for each candidate, with multiplicity; the reference set holds each asset once,
    whether or not the prediction beside it could be scored. Both are in canonical order (by digest, then line), so
    that the order of the input cannot change the value.

    Args:
        journal: Says which features belong to which side.
        store: Holds them.
        variant: A variant of set scope.
        scratch: Folder for sets that are too large to keep in memory.
        facts: The sets each line is in, and what it depends on; None: one set of everything.
        stored: A reference set in place of the samples' own.

    Raises:
        LostFeaturesError: Features of a side are not in the store.
    """
    try:
        parts = _Parts(journal, store, variant, scratch, facts, stored)
        parts.refuse_without_references()
        scorer: SetMetric = make_scorer(variant)
    except GenmeterError as error:
        return refused_set(error)
    except LostFeaturesError:
        raise
    except (Exception, SystemExit) as error:
        return refused_set(_internal(variant, error))

    def score(prediction: np.ndarray | None, reference: np.ndarray | None) -> SetOutcome:
        return _outcome(scorer, variant, *parts.sides(prediction, reference), parts)

    whole = score(None, None) if facts is None or not parts.several else None
    if facts is None:
        return SetOutcomes({ALL: whole} if whole else {}, {}, None)
    main = {ALL: whole} if whole else parts.each(SET, score)
    groups = {path: parts.each(path, score) for path in facts.paths}
    if not whole and facts.whole:
        groups[ALL] = {ALL: score(None, None)}
    return SetOutcomes(main, groups, facts)


class _Parts:
    """Both sides of a set metric, and how to cut them."""

    def __init__(
        self,
        journal: Journal,
        store: FeatureStore,
        variant: Variant,
        scratch: Path,
        facts: LineFacts | None,
        stored: Rows | Moments | None,
    ) -> None:
        self._scratch, self._facts, self._stored = scratch, facts, stored
        if isinstance(stored, Rows):
            self._stored = stored._replace(clusters=_numbers(stored.digests))
        self.predictions: Gathered = gather_predictions(journal, store, variant.name, scratch)
        self.references: References = gather_references(journal, store, variant.name, scratch)
        self._own = first_of_line(self.references, self.predictions.lines)
        self._labels = self._clusters()
        lines = np.concatenate([self.predictions.lines, self.references.line])
        self.several = facts is not None and sum(1 for _ in facts.groups(SET, lines)) > 1

    def refuse_without_references(self) -> None:
        """Raise ``no_reference`` where nothing is there to compare with, rather than count to zero."""
        if self._stored is not None or len(self.references.files.digests):
            return
        failed = self.references.failed
        if failed:
            reasons = ", ".join(f"{code} {count}" for code, count in sorted(failed.items()))
            raise GenmeterError("no_reference", f"none of the set's references could be encoded ({reasons})")
        raise GenmeterError(
            "no_reference",
            "no sample of the set has a reference",
            "put them under references, or give a set of them with --reference-set",
        )

    def each(
        self, path: str, score: Callable[[np.ndarray | None, np.ndarray | None], SetOutcome]
    ) -> dict[str, SetOutcome]:
        """The outcome of each set of a field: with its own references, or with the whole stored reference set."""
        assert self._facts is not None
        mentions = self.references.line
        lines = np.concatenate([self.predictions.lines, mentions])
        found = {}
        for number, (name, inside) in enumerate(self._facts.groups(path, lines)):
            if number >= MOST and path != SET:
                return {}
            used = np.zeros(len(self.references.files.digests), dtype=bool)
            used[self.references.unit[inside[len(self.predictions.lines) :]]] = True
            found[name] = score(inside[: len(self.predictions.lines)], used)
        return found

    def sides(self, prediction: np.ndarray | None, reference: np.ndarray | None) -> tuple[Rows, Rows | Moments]:
        """The rows of chosen files of each side; None takes all."""
        ours = self.predictions.rows(prediction, self._scratch / "prediction-set.f32")
        if self._labels is not None:
            ours = ours._replace(clusters=self._labels[0][ours.units])
        if self._stored is not None:
            return self._against_stored(ours), self._stored
        files = self.references.files
        theirs = files.rows(reference, self._scratch / "reference-set.f32")
        if self._labels is not None:
            theirs = theirs._replace(clusters=self._labels[1][theirs.units])
        assert ours.units is not None
        assert theirs.units is not None
        return ours._replace(own=_rows_of(self._own[ours.units], ours.units, theirs.units)), theirs

    def facts(self, prediction: Rows, reference: Rows | Moments) -> tuple[dict[str, Json], tuple[str, ...]]:
        """What is said of the files that rows came from; see :func:`genmeter.engine.setfacts.compare`."""
        assert prediction.units is not None
        ours = self.predictions.facts.of(np.unique(prediction.units))
        if self._stored is not None or isinstance(reference, Moments) or reference.units is None:
            return compare(ours, None)
        return compare(ours, self.references.files.facts.of(np.unique(reference.units)))

    def _against_stored(self, ours: Rows) -> Rows:
        """Own references are found again in the stored set by their content."""
        if not isinstance(self._stored, Rows):
            return ours
        assert ours.units is not None
        order = np.argsort(self._stored.digests, kind="stable")
        ordered = self._stored.digests[order]
        own = self._own[ours.units]
        wanted = self.references.files.digests[own] if len(self.references.files.digests) else ours.digests
        at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
        found = np.where((own >= 0) & (ordered[at] == wanted), order[at], -1)
        return ours._replace(own=found)

    def _clusters(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Labels of the files of both sides; None where nothing but the files themselves says what goes together."""
        if self._facts is None:
            return None
        lines = self._facts.clusters(self.predictions.lines)
        mentions = self._facts.clusters(self.references.line)
        if not lines.any():
            return None
        digests = self.references.files.digests
        own = self._own >= 0
        alone = (lines == 0) & ~own
        lines[(lines == 0) & own] = _numbers(digests[self._own[(lines == 0) & own]]) if own.any() else 0
        lines[alone] = _numbers(self.predictions.digests[alone])
        # A reference goes with the line that mentions it; of several the least label, whatever their order.
        theirs = _numbers(digests)
        told = mentions != 0
        least = np.full(len(digests), np.iinfo(np.uint64).max, dtype=np.uint64)
        np.minimum.at(least, self.references.unit[told], mentions[told])
        known = least != np.iinfo(np.uint64).max
        theirs[known] = least[known]
        return lines, theirs


def _rows_of(own: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """For each prediction row a row of its reference file: of windows the one at the same place, else the last."""
    known, first, counts = np.unique(theirs, return_index=True, return_counts=True)
    found = np.full(len(own), -1, dtype=np.int64)
    if len(known):
        at = np.minimum(np.searchsorted(known, own), len(known) - 1)
        has = known[at] == own
        _, start, inverse = np.unique(ours, return_index=True, return_inverse=True)
        window = np.arange(len(ours)) - start[inverse.reshape(-1)]
        found[has] = (first[at] + np.minimum(window, counts[at] - 1))[has]
    return found


def _numbers(digests: np.ndarray) -> np.ndarray:
    """(n,) uint64, never 0: the first eight bytes of each digest."""
    flat = np.frombuffer(digests.astype("S8").tobytes(), dtype=np.uint64)
    numbers: np.ndarray = np.maximum(flat, np.uint64(1))
    return numbers


def _outcome(
    scorer: SetMetric, variant: Variant, prediction: Rows, reference: Rows | Moments, parts: _Parts
) -> SetOutcome:
    try:
        result = scorer.score_set(prediction, reference, variant.params)
        if isinstance(result, Unscored):
            return _failed(GenmeterError(result.code, result.message, result.hint))
        if not math.isfinite(result.value):
            return _failed(GenmeterError("non_finite", f"the set's value is {result.value}", "please report it"))
        if result.rows and len(result.rows) != len(prediction.lines):
            message = f"{len(result.rows)} row results for {len(prediction.lines)} rows"
            return _failed(GenmeterError("internal", message))
        for part in (result.detail, *result.rows):
            jsonio.dumps(part)  # what cannot be written must fail here
        return _finished(result, prediction, reference, parts)
    except GenmeterError as error:
        return _failed(error)
    except (Exception, SystemExit) as error:
        return _failed(_internal(variant, error))


def _finished(result: SetScore, prediction: Rows, reference: Rows | Moments, parts: _Parts) -> SetOutcome:
    detail, flags = parts.facts(prediction, reference)
    detail, flags = {**result.detail, **detail}, (*result.flags, *flags)
    if parts.references.failed:
        detail["references_failed"] = dict(sorted(parts.references.failed.items()))
    none = np.zeros(0, np.int64)
    if not result.rows or prediction.units is None:
        return SetOutcome(float(result.value), detail, flags, None, none, none, ())
    units, first = np.unique(prediction.units, return_index=True)
    lines, places = parts.predictions.lines[units], parts.predictions.places[units]
    order = np.lexsort((places, lines))
    return SetOutcome(float(result.value), detail, flags, None, lines[order], first[order], result.rows)


def _failed(error: GenmeterError) -> SetOutcome:
    none = np.zeros(0, np.int64)
    return SetOutcome(None, {}, (), error.to_dict(), none, none, ())


def _internal(variant: Variant, error: BaseException) -> GenmeterError:
    return GenmeterError("internal", f"{variant.spec.id} failed: {type(error).__name__}: {error}")


def _parts(own: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """What a sample contributes: its own numbers, or those of each of its candidates."""
    if len(own) == 1:
        return dict(own[0])
    return {"per_candidate": _numbered(own)} if own else {}


def _numbered(own: Sequence[Mapping[str, Json]]) -> list[Json]:
    return [{"index": index, **part} for index, part in enumerate(own)]
