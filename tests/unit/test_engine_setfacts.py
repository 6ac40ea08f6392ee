"""What sets of videos have in common and what not, from the details of their features."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from genmeter.engine.setfacts import FactsReader, FileFacts, compare


def facts(*details: dict[str, Any]) -> FileFacts:
    reader = FactsReader()
    for detail in details:
        reader.add(detail)
    return reader.read()


def clip(size: str = "64x48", fps: float = 8.0, used: int = 16, total: int = 16) -> dict[str, Any]:
    return {"size": size, "fps": fps, "frames_used": used, "frames_total": total}


def test_equal_sets_have_one_word_for_each_fact() -> None:
    detail, flags = compare(facts(clip(), clip()), facts(clip()))
    one = {"frames_used": 16, "frames_total": 16, "size": "64x48", "fps": 8.0}
    assert detail == {"media": {"prediction": one, "reference": one}}
    assert flags == ()
    json.dumps(detail)


def test_spans_where_files_differ() -> None:
    detail, _ = compare(facts(clip(total=24), clip(total=121), clip(total=40)), None)
    assert detail["media"]["prediction"]["frames_total"] == [24, 121]
    assert detail["media"]["prediction"]["frames_used"] == 16
    assert "reference" not in detail["media"]


def test_sizes_that_only_one_side_has_are_flagged() -> None:
    small, large = clip("64x64"), clip("256x256")
    assert compare(facts(small), facts(large))[1] == ("size_mismatch_sets",)
    assert compare(facts(small, large), facts(large))[1] == ("size_mismatch_sets",)
    detail, flags = compare(facts(small, large, large), facts(large, small))
    assert flags == ()
    assert detail["media"]["prediction"]["size"] == {"256x256": 2, "64x64": 1}
    many = [clip(f"{side}x64") for side in range(10, 30)]
    assert len(compare(facts(*many), None)[0]["media"]["prediction"]["size"]) == 5


@pytest.mark.parametrize(
    ("ours", "theirs", "flagged"),
    [
        ([30.0], [29.97], False),
        ([30.0], [25.0], True),
        ([24.0, 30.0], [30.0], True),
        ([30.0], [24.0, 30.0], True),
        ([24.0, 30.0], [30.0, 24.0], False),
        ([23.976, 24.0], [24.0], False),
        ([8.0], [16.0, 32.0], True),
    ],
)
def test_rates_that_only_one_side_has_are_flagged(ours: list[float], theirs: list[float], flagged: bool) -> None:
    _, flags = compare(facts(*(clip(fps=v) for v in ours)), facts(*(clip(fps=v) for v in theirs)))
    assert flags == (("frame_rate_mismatch",) if flagged else ())


def test_what_nobody_says_is_left_out_and_flags_nothing() -> None:
    assert compare(facts({}, {"seconds": 3.0}), facts({})) == ({}, ())
    detail, flags = compare(facts({"size": "8x8"}, {}), facts({"fps": 25.0}))
    assert detail == {"media": {"prediction": {"size": "8x8"}, "reference": {"fps": 25.0}}}
    assert flags == ()
    assert compare(facts(), facts()) == ({}, ())


def test_some_files_of_a_side() -> None:
    found = facts(clip("8x8"), clip("16x8", fps=4.0), clip("8x8"))
    picked = found.of(np.array([1]))
    assert compare(picked, None)[0]["media"]["prediction"] == {**clip("16x8", fps=4.0)}
