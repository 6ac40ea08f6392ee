"""The Sample standard: its own examples pass unchanged, and what breaks it is named."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from genmeter.schema.forms import read_form
from genmeter.schema.jsonio import dumps, loads
from genmeter.schema.models import EvalResult, Sample, validate_sample

EXAMPLES = sorted((Path(__file__).parents[1] / "fixtures" / "samples").glob("*.json"))


def example(name: str) -> dict[str, Any]:
    (path,) = (p for p in EXAMPLES if p.stem.endswith(name))
    return json.loads(path.read_text(encoding="utf-8"))


def test_all_thirteen_examples_are_here() -> None:
    assert len(EXAMPLES) == 13
    assert len({json.loads(p.read_text(encoding="utf-8"))["task_type"] for p in EXAMPLES}) == 13


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_of_the_standard_pass_and_are_unchanged(path: Path) -> None:
    sample = loads(path.read_bytes())
    before = copy.deepcopy(sample)
    assert validate_sample(sample) == []
    form = read_form(sample)
    assert form.sample is sample
    assert (form.path, form.kind) == ((), "sample")
    assert sample == before
    assert Sample.model_validate(sample).to_record() == before
    assert json.loads(dumps(form.sample)) == before
    assert list(loads(dumps(form.sample))) == list(before)


def test_json_schema_is_valid_and_agrees_with_the_examples() -> None:
    schema = Sample.model_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for path in EXAMPLES:
        assert list(validator.iter_errors(json.loads(path.read_text(encoding="utf-8")))) == []
    for broken in (
        {"messages": "hello"},
        {"id": None},
        {"data_tag": []},
        {"messages": [{"content": [{"type": "text"}]}]},
    ):
        assert list(validator.iter_errors({**example("text_to_image"), **broken})), broken
    jsonschema.Draft202012Validator.check_schema(EvalResult.model_json_schema())


def test_every_top_level_field_of_the_standard_is_typed() -> None:
    named = (
        "schema_version id task_type messages options references label few_shot_examples golden_trajectories sandbox "
        "metadata data_tag raw_assets tools tool_choice sampling_params generation_params eval_config "
        "unconditioned_input predict_result eval_result"
    )
    assert set(named.split()) == set(Sample.model_fields)


def test_unknown_fields_pass_through_at_every_level() -> None:
    sample = example("image_to_image")
    sample["_gage_source_index"] = 3
    sample["messages"][0]["name"] = "x"
    sample["messages"][0]["content"][0]["detail"] = {"deep": [1, 2.5, None]}
    sample["references"][0]["meta"] = {"by": "hand"}
    sample["references"][0]["licence"] = "cc0"
    sample["predict_result"] = [
        {"index": 0, "answer": "a.png", "message": {"role": "assistant", "content": []}, "trace": [[]]}
    ]
    sample["eval_config"]["max_turns"] = 5
    assert validate_sample(sample) == []
    assert Sample.model_validate(sample).to_record() == sample


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"id": None}, "id"),
        ({"id": 1.5}, "id"),
        ({"id": True}, "id"),
        ({"id": ["a"]}, "id"),
        ({"schema_version": 1}, "schema_version"),
        ({"messages": "hello"}, "messages"),
        ({"messages": {"role": "user"}}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": 1, "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [[1]]}]}, "messages[0].content[0]"),
        ({"task_type": 3}, "task_type"),
        ({"options": {"A": "x"}}, "options"),
        ({"options": [{"content": "x"}]}, "options[0].id"),
        ({"references": [["a", {}], {"answer": 1, "meta": 2}]}, "references[1].meta"),
        ({"label": ["a"]}, "label"),
        ({"few_shot_examples": [{"references": []}]}, "few_shot_examples[0].messages"),
        ({"golden_trajectories": "x"}, "golden_trajectories"),
        ({"sandbox": {"files": ["a"]}}, "sandbox.files"),
        ({"metadata": []}, "metadata"),
        ({"data_tag": "photo"}, "data_tag"),
        ({"raw_assets": ["a.png"]}, "raw_assets"),
        ({"tools": {}}, "tools"),
        ({"tool_choice": 1}, "tool_choice"),
        ({"eval_config": {"metrics": "lpips"}}, "eval_config.metrics"),
        ({"predict_result": {"message": {}}}, "predict_result"),
        ({"predict_result": ["a.png"]}, "predict_result[0]"),
        ({"predict_result": [{}, {"message": "x"}]}, "predict_result[1].message"),
        ({"eval_result": "good"}, "eval_result"),
    ],
)
def test_what_breaks_the_standard_is_named_by_its_field(change: dict[str, Any], path: str) -> None:
    issues = validate_sample({**example("image_to_image"), **change})
    assert [issue.split(": ")[0] for issue in issues] == [path]
    assert "expected" in issues[0] or "missing" in issues[0]


def test_issues_never_quote_values() -> None:
    issues = validate_sample(
        {"schema_version": "v1", "id": 2.25, "messages": [{"content": {"type": "text", "text": 7}}]}
    )
    assert issues
    assert not any("2.25" in issue or "7" in issue for issue in issues)


def test_missing_fields_are_said_to_be_missing() -> None:
    assert validate_sample({}) == ["schema_version: is missing", "id: is missing", "messages: is missing"]


@pytest.mark.parametrize(
    "extra",
    [
        {"options": None, "references": None, "label": None, "eval_result": None, "predict_result": None},
        {"label": 3, "options": ["a", "b"]},
        {"references": [4, 2.5, "a", None, [{"type": "text", "text": "x"}], {"type": "image", "image": "a.png"}]},
        {"references": "a.png"},
        {"references": {"answer": "a"}},
        {"messages": [{"role": "user", "content": "plain"}, {"role": "assistant", "content": None, "tool_calls": []}]},
        {"messages": [{"role": "user", "content": ["plain", {"type": "novel", "x": 1}, {"url": "a.png"}]}]},
        {"predict_result": [{"index": None, "message": None, "usage": None}]},
        {"unconditioned_input": "only the letter"},
        {"golden_trajectories": [[], [{"role": "tool", "content": "4", "tool_call_id": "c"}]]},
    ],
)
def test_what_records_in_use_hold_is_accepted(extra: dict[str, Any]) -> None:
    sample = {**example("image_qa"), **extra}
    assert validate_sample(sample) == []
    assert Sample.model_validate(sample).to_record() == sample
