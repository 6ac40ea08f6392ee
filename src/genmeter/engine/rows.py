"""Scoring: from the features of finished cells to rows of ``eval_result``. Reductions are stated by each metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from genmeter.contract import Json, SampleMetric, Score, Unscored
from genmeter.engine.ledger import Entry
from genmeter.engine.plan import Cell
from genmeter.errors import GenmeterError
from genmeter.registry import Variant
from genmeter.schema import jsonio


class Inputs(NamedTuple):
    """What the units of a window came to.

    Attributes:
        units: Feature, raw value or error of each unit.
        assets: SHA-256 (32 bytes) of each asset, where it could be read.
        texts: SHA-256 (32 bytes) of each text.
    """

    units: Sequence[Any]
    assets: Mapping[int, bytes | GenmeterError]
    texts: Mapping[int, bytes]


class ItemResult(NamedTuple):
    """One value with its notes, or an error."""

    value: float | None
    detail: Mapping[str, Json] = {}
    flags: tuple[str, ...] = ()
    error: Mapping[str, Json] | None = None


def score_cells(
    cells: Sequence[Cell], variant: Variant, scorer: SampleMetric, inputs: Inputs, *, candidate: str | int, partial: str
) -> list[Entry]:
    """Score finished cells of one variant in a single call of its scorer.

    Args:
        cells: Cells whose units are all known.
        variant: Their variant.
        scorer: Its scorer.
        inputs: Features and digests of the window.
        candidate: ``best`` chooses after scoring; other choices were made when planning.
        partial: ``mean`` scores the candidates that can be scored when others fail, flagged in the detail.
    """
    items: list[Mapping[str, Any]] = []
    places: list[list[list[int | ItemResult]]] = []
    for cell in cells:
        places.append([[_place(variant, place, inputs, items) for place in row] for row in cell.grid])
    scores = _call(scorer, items, variant)
    entries = []
    for cell, grid in zip(cells, places, strict=True):
        results = [[scores[p] if isinstance(p, int) else p for p in row] for row in grid]
        row = _reduce(cell, variant, results, candidate, partial)
        row["inputs"] = _inputs(cell, inputs)
        if _identical(cell, inputs):
            row["flags"] = [*row.get("flags", ()), "identical"]
        entries.append(Entry(cell.line, cell.metric, row))
    return entries


def fault_entry(cell: Cell, error: GenmeterError, inputs: Inputs | None = None) -> Entry:
    """The row of a cell that cannot be scored."""
    row: dict[str, Json] = {"score": None, "error": error.to_dict()}
    if inputs is not None and cell.used:
        row["inputs"] = _inputs(cell, inputs)
    return Entry(cell.line, cell.metric, row)


def _place(variant: Variant, place: Sequence[int], inputs: Inputs, items: list[Mapping[str, Any]]) -> int | ItemResult:
    """The position of an item to be scored, or the error that stands in its way."""
    item = {}
    for need, unit in zip(variant.needs, place, strict=True):
        value = inputs.units[unit]
        if isinstance(value, GenmeterError):
            return ItemResult(None, error=value.to_dict())
        item[need.name] = value
    items.append(item)
    return len(items) - 1


def _call(scorer: SampleMetric, items: list[Mapping[str, Any]], variant: Variant) -> list[ItemResult]:
    """Call the scorer; when it fails as a whole, call it item by item, so that one bad item costs itself alone."""
    if not items:
        return []
    try:
        scores = scorer.score(items, variant.params)
        if len(scores) != len(items):
            raise RuntimeError(f"{len(scores)} scores for {len(items)} items")
        return [_result(score) for score in scores]
    except (Exception, SystemExit) as error:
        if len(items) > 1:
            return [result for item in items for result in _call(scorer, [item], variant)]
        message = f"{variant.spec.id} failed: {type(error).__name__}: {error}"
        return [ItemResult(None, error=GenmeterError("internal", message, "please report it").to_dict())]


def _result(score: Score | Unscored) -> ItemResult:
    if isinstance(score, Unscored):
        return ItemResult(None, error=GenmeterError(score.code, score.message, score.hint).to_dict())
    value = float(score.value)
    if not math.isfinite(value):
        error = GenmeterError("non_finite", f"the metric's value is {value}", "please report it")
        return ItemResult(None, error=error.to_dict())
    if score.detail:
        jsonio.dumps(score.detail)  # what cannot be written must fail here, where it costs one item
    return ItemResult(value, score.detail, score.flags)


def _reduce(
    cell: Cell, variant: Variant, results: list[list[ItemResult]], candidate: str | int, partial: str
) -> dict[str, Json]:
    """References, then prompts, then candidates to one row."""
    if len(results) == 1:
        return _only_candidate(cell, _one_candidate(cell, variant, results[0]))
    reduced = [_one_candidate(cell, variant, row) for row in results]
    scored = [result for result in reduced if result.value is not None]
    flags = dict.fromkeys(cell.flags)
    flags.update(dict.fromkeys(flag for result in reduced for flag in result.flags))
    failed = next((result.error for result in reduced if result.error), None)
    row: dict[str, Json] = {"score": None}
    detail: dict[str, Json] = {}
    values = [result.value for result in scored if result.value is not None]
    if failed and not (partial == "mean" and values):
        row["error"] = failed
    elif candidate == "best":
        row["score"] = max(values) if variant.spec.higher_is_better else min(values)
        flags["best_of_n"] = None
    else:
        row["score"] = math.fsum(values) / len(values)
    if failed and row["score"] is not None:
        detail["candidates_scored"] = len(values)
    detail["per_candidate"] = [_candidate_row(index, result) for index, result in enumerate(reduced)]
    row["detail"] = detail
    if flags:
        row["flags"] = list(flags)
    return row


def _only_candidate(cell: Cell, result: ItemResult) -> dict[str, Json]:
    row: dict[str, Json] = {"score": result.value}
    if result.error:
        row["error"] = result.error
    if result.detail:
        row["detail"] = dict(result.detail)
    if cell.flags or result.flags:
        row["flags"] = list(dict.fromkeys((*cell.flags, *result.flags)))
    return row


def _candidate_row(index: int, result: ItemResult) -> dict[str, Json]:
    row: dict[str, Json] = {"index": index, "score": result.value}
    if result.error:
        row["error"] = result.error
    if result.detail:
        row["detail"] = dict(result.detail)
    return row


def _one_candidate(cell: Cell, variant: Variant, row: list[ItemResult]) -> ItemResult:
    """References first, within each prompt, as the published formulas do; then the mean over prompts."""
    if len(row) == 1:
        return row[0]
    per_prompt = [_over_references(variant, row[prompt :: cell.prompts]) for prompt in range(cell.prompts)]
    return _over_prompts(per_prompt)


def _over_references(variant: Variant, group: list[ItemResult]) -> ItemResult:
    if len(group) == 1:
        return group[0]
    failed = next((result for result in group if result.error), None)
    if failed:  # a reference that cannot be read could have been the nearest one
        return failed
    values = [result.value for result in group if result.value is not None]
    how = variant.spec.reduce_references
    if how == "mean":
        value = math.fsum(values) / len(values)
        detail: dict[str, Json] = {}
    else:
        value = max(values) if how == "max" else min(values)
        detail = dict(group[values.index(value)].detail)
    detail["per_reference"] = values
    flags = tuple(dict.fromkeys(flag for result in group for flag in result.flags))
    return ItemResult(value, detail, (*flags, "multi_reference"))


def _over_prompts(group: list[ItemResult]) -> ItemResult:
    if len(group) == 1:
        return group[0]
    failed = next((result for result in group if result.error), None)
    if failed:
        return failed
    values = [result.value for result in group if result.value is not None]
    flags = tuple(dict.fromkeys(flag for result in group for flag in result.flags))
    detail: dict[str, Json] = {"per_prompt": values}
    for key, value in group[0].detail.items():
        facts = [fact for fact in (result.detail.get(key) for result in group) if isinstance(fact, float)]
        if isinstance(value, float) and len(facts) == len(group):
            detail[key] = math.fsum(facts) / len(facts)  # a measured value such as a cosine; counts are each text's own
    return ItemResult(math.fsum(values) / len(values), detail, flags)


def _inputs(cell: Cell, inputs: Inputs) -> list[Json]:
    listed = []
    for used in cell.used:
        digest = (inputs.texts if used.is_text else inputs.assets).get(used.source)
        entry: dict[str, Json] = {"role": used.role, "path": used.path}
        if isinstance(digest, bytes):
            entry["digest"] = f"sha256:{digest.hex()}"
        listed.append(entry)
    return listed


def _identical(cell: Cell, inputs: Inputs) -> bool:
    """Whether a prediction is byte for byte the reference or input it was compared with: often a mix-up of folders."""
    if len(cell.used) < 2:
        return False
    sides: dict[bool, set[bytes]] = {True: set(), False: set()}
    for used in cell.used:
        digest = None if used.is_text else inputs.assets.get(used.source)
        if isinstance(digest, bytes):
            sides[used.role == "prediction"].add(digest)
    return bool(sides[True] & sides[False])
