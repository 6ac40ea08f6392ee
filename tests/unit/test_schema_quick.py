"""The short way of checking a sample never says yes where the models would find something."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genmeter.errors import GenmeterError
from genmeter.schema.forms import read_form
from genmeter.schema.models import Sample, validate_sample
from genmeter.schema.quick import surely_valid

FIXTURES = sorted((Path(__file__).parent.parent / "fixtures" / "samples").glob("*.json"))
ODD: list[Any] = [
    *(None, True, False, 0, -1, 2**70, 1.5, float("nan"), "", "text", "\ud800", "Grüße", [], {}, b"bytes"),
    *([None], [[]], [3], {"type": "text"}, {"type": "text", "text": 3}, {"type": 3}, {"type": "image_url"}),
    *({"type": "image_url", "image_url": 3}, {"image_url": {"url": 3}}, {1: 2}, {"\ud800": 1}, {"answer": None}),
    *(("tuple",), {"role": 3}, {"content": 3}, {"index": True}, {"index": 1.0}, {"meta": 3, "answer": 1}),
    *({"metrics": 3}, {"usage": [], "message": None}, {"latency_ms": True}, np.zeros((2, 2, 3), np.uint8)),
]
FULL: dict[str, Any] = {
    "schema_version": "v1",
    "id": "a",
    "task_type": "text-to-image",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a cat"}, {"type": "image_url", "image_url": "a.png"}]},
        {"role": "assistant", "content": "plain", "tool_calls": None, "tool_call_id": None},
    ],
    "references": [{"answer": [{"type": "image_url", "image_url": {"url": "r.png"}}], "meta": {"by": "hand"}}, "text"],
    "label": "r.png",
    "metadata": {"set": "main", "deep": {"x": [1, 2]}},
    "data_tag": {"style": "photo"},
    "raw_assets": {"image": ["r.png"]},
    "eval_config": {"metrics": ["lpips"], "judge_prompt": None, "thresholds": {}},
    "predict_result": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "o.png"}}]},
            "raw_response": {"any": 1},
            "usage": {"tokens": 3},
            "latency_ms": 3.5,
        }
    ],
    "eval_result": {"metrics": {}},
    "unconditioned_input": None,
    "golden_trajectories": [],
    "extra": object(),
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    value = copy.copy(value)
    value[path[0]] = changed(value[path[0]], path[1:], new) if len(path) > 1 else new
    return value


def test_every_field_of_the_standard_is_known() -> None:
    from genmeter.schema import quick

    assert set(quick._SAMPLE) == set(Sample.model_fields)


def test_what_people_write_goes_the_short_way() -> None:
    assert surely_valid(FULL)
    assert surely_valid({**FULL, "label": 3, "references": None, "predict_result": [], "messages": []})
    for record in (
        {"id": "a", "prompt": "a cat", "output": "o.png", "reference": ["r.png", "s.png"], "input": "i.png"},
        {"id": "ü", "prompt": ["Ärger", "猫"], "output": {"type": "image", "image": "o.png"}, "metadata": {"set": "x"}},
        {"id": "a", "messages": [{"role": "user", "content": "x"}], "predict_result": [{"answer": "o.png"}]},
    ):
        assert surely_valid(read_form(record).sample)


@pytest.mark.parametrize("field", ["schema_version", "id", "messages"])
def test_what_is_missing_is_left_to_the_models(field: str) -> None:
    assert not surely_valid({key: value for key, value in FULL.items() if key != field})


@pytest.mark.parametrize("sample", [FULL, *(json.loads(path.read_text("utf-8")) for path in FIXTURES)])
def test_yes_means_that_the_models_find_nothing(sample: dict[str, Any]) -> None:
    said = {True: 0, False: 0}
    for path in places(sample):
        for odd in ODD:
            other = changed(sample, path, odd)
            verdict = surely_valid(other)
            said[verdict] += 1
            if verdict:
                assert validate_sample(other) == [], (path, odd)
    for key in (3, "\ud800", None):
        assert not surely_valid({**sample, key: 1})  # type: ignore[dict-item]
    assert said[False] > 0


def test_many_changes_at_once() -> None:
    chance = random.Random(0)
    said = 0
    for _ in range(4000):
        sample: Any = copy.deepcopy({key: value for key, value in FULL.items() if key != "extra"})
        for _ in range(chance.randrange(1, 4)):
            sample = changed(sample, chance.choice(places(sample)), chance.choice(ODD))
        if surely_valid(sample):
            said += 1
            assert validate_sample(sample) == []
    assert said > 200


@pytest.mark.parametrize("key", ["id", "prompt", "output", "reference", "input"])
def test_a_short_record_that_is_accepted_makes_a_sample_that_the_models_accept(key: str) -> None:
    record: dict[str, Any] = {"id": "a", "prompt": "p", "output": "o.png", "reference": ["r.png"], "input": "i.png"}
    accepted = 0
    for odd in [*ODD, *([one, "two"] for one in ODD)]:
        try:
            sample = read_form({**record, key: odd}).sample
        except GenmeterError:
            continue
        accepted += 1
        assert validate_sample({**sample, "id": sample["id"] if sample["id"] is not None else "-"}) == [], odd
    assert accepted > 3
