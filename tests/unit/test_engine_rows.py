"""Reductions: references within a prompt, then prompts, then candidates; failures are never averaged away."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from genmeter.contract import Score, Unscored
from genmeter.engine.plan import Cell
from genmeter.engine.rows import Inputs, score_cells
from genmeter.errors import GenmeterError


class Given:
    """Scores an item by the value it was given."""

    def score(self, items, params):
        return [
            item["x"] if isinstance(item["x"], Unscored) else Score(item["x"], {"own": item["x"]}) for item in items
        ]


def reduce(grid, *, how="max", prompts=1, better=True, candidate="all", partial="fail"):
    """The row of one cell; ``grid`` holds the value (or error) at [candidate][reference x prompt]."""
    values = [value for row in grid for value in row]
    units = iter(range(len(values)))
    places = tuple(tuple((next(units),) for _ in row) for row in grid)
    spec = SimpleNamespace(id="given", reduce_references=how, higher_is_better=better)
    variant = SimpleNamespace(needs=[SimpleNamespace(name="x")], params={}, spec=spec)
    cell = Cell(0, "given", places, prompts)
    [entry] = score_cells([cell], variant, Given(), Inputs(values, {}, {}), candidate=candidate, partial=partial)
    return entry.row


@pytest.mark.parametrize(("how", "expected"), [("max", 3.0), ("min", 1.0), ("mean", 2.0)])
def test_references(how, expected):
    row = reduce([[1.0, 3.0, 2.0]], how=how)
    assert row["score"] == expected
    assert row["detail"]["per_reference"] == [1.0, 3.0, 2.0]
    assert row["flags"] == ["multi_reference"]
    assert how == "mean" or row["detail"]["own"] == expected


def test_references_reduce_within_a_prompt_before_prompts_are_averaged():
    # two references x two prompts: [r0p0, r0p1, r1p0, r1p1]
    row = reduce([[1.0, 8.0, 5.0, 2.0]], prompts=2)
    assert row["score"] == (5.0 + 8.0) / 2
    assert row["detail"]["per_prompt"] == [5.0, 8.0]


def test_candidates():
    grid = [[1.0], [4.0], [1.0]]
    assert reduce(grid)["score"] == 2.0
    assert reduce(grid, candidate="best")["score"] == 4.0
    assert reduce(grid, candidate="best", better=False)["score"] == 1.0
    assert reduce(grid, candidate="best")["flags"] == ["best_of_n"]
    assert [c["score"] for c in reduce(grid)["detail"]["per_candidate"]] == [1.0, 4.0, 1.0]


def test_a_failure_is_never_averaged_away():
    error = GenmeterError("not_found", "gone")
    assert reduce([[1.0, error]], how="min")["error"]["code"] == "not_found"
    assert reduce([[1.0, error]], prompts=2)["error"]["code"] == "not_found"
    failed = reduce([[1.0], [error]])
    assert failed["score"] is None
    assert failed["error"]["code"] == "not_found"
    some = reduce([[1.0], [error], [3.0]], partial="mean")
    assert some["score"] == 2.0
    assert some["detail"]["candidates_scored"] == 2
    assert reduce([[error], [error]], partial="mean")["score"] is None


def test_what_a_scorer_says_is_kept_and_what_is_not_finite_is_an_error():
    row = reduce([[Unscored("too_short", "two frames", "add some")]])
    assert row["error"] == {"code": "too_short", "message": "two frames", "hint": "add some"}
    for value in (float("nan"), float("inf")):
        assert reduce([[value]])["error"]["code"] == "non_finite"
