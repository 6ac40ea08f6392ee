"""The whole Sample standard: models, quick check, published JSON Schema and reader say the same of every sample."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schema_strategies import FORBIDDEN, SAMPLE, nearly
from typer.testing import CliRunner

from genmeter.analysis.schemas import schema_names
from genmeter.cli.main import app
from genmeter.errors import GenmeterError
from genmeter.inputs.source import parse_line
from genmeter.schema import roles
from genmeter.schema.forms import read_form
from genmeter.schema.jsonio import dumps, loads
from genmeter.schema.models import Sample, validate_sample
from genmeter.schema.quick import surely_valid

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "docs" / "schemas"
EXAMPLES = sorted((ROOT / "tests" / "fixtures" / "samples").glob("*.json"))
VALIDATOR = jsonschema.Draft202012Validator(json.loads((PUBLISHED / "sample.json").read_text("utf-8")))
QUIET = settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def picture_sample(**more: Any) -> dict[str, Any]:
    picture = {"type": "image_url", "image_url": {"url": "o.png"}}
    return {
        "schema_version": "v1",
        "id": "a",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a cat"}]}],
        "predict_result": [{"index": 0, "message": {"role": "assistant", "content": [picture]}}],
        **more,
    }


@pytest.mark.parametrize("name", schema_names())
def test_the_published_schema_is_what_the_command_prints(name: str) -> None:
    result = CliRunner().invoke(app, ["schema", name])
    assert result.exit_code == 0
    assert (PUBLISHED / f"{name}.json").read_text("utf-8") == result.stdout
    jsonschema.Draft202012Validator.check_schema(json.loads(result.stdout))


def test_every_schema_is_published() -> None:
    assert {path.stem for path in PUBLISHED.glob("*.json")} == set(schema_names())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_passes_everywhere_and_is_unchanged(path: Path) -> None:
    sample = loads(path.read_bytes())
    assert list(VALIDATOR.iter_errors(sample)) == []
    assert Sample.model_validate(sample).to_record() == sample
    line = dumps(sample)
    form = read_form(parse_line(line, 1))
    assert form.sample == sample
    assert dumps(form.sample) == line
    assert roles.task_type(form.sample) == sample["task_type"]


@QUIET
@given(SAMPLE)
def test_a_sample_of_the_standard_passes_everywhere_and_is_unchanged(sample: dict[str, Any]) -> None:
    before = copy.deepcopy(sample)
    assert validate_sample(sample) == []
    assert [error.message for error in VALIDATOR.iter_errors(sample)] == []
    assert Sample.model_validate(sample).to_record() == before
    assert read_form(sample).sample == before
    assert loads(dumps(sample)) == before == sample


@settings(QUIET, max_examples=300)
@given(nearly())
def test_what_is_nearly_a_sample_gets_one_verdict(sample: dict[str, Any]) -> None:
    issues = validate_sample(sample)
    assert VALIDATOR.is_valid(sample) == (not issues), issues
    if surely_valid(sample):
        assert issues == []


def test_the_quick_check_knows_agents_samples() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "4", "tool_call_id": "c"}]
    assert surely_valid(picture_sample(messages=turns, golden_trajectories=[turns, []], tool_choice="auto"))


@pytest.mark.parametrize(
    ("change", "follows"),
    [
        ({"references": [{"answer": None, "meta": {}}]}, True),
        ({"references": [{"answer": "a", "meta": 3}]}, False),
        ({"references": [{"answer": "a", "type": "text"}]}, True),
        ({"references": [{"type": "text", "meta": 3}]}, False),
        ({"references": [{"type": "text", "text": "a", "meta": 3}]}, True),
        ({"references": [True]}, False),
        ({"references": {"answer": 3, "meta": 3}}, True),
        ({"label": True}, False),
        ({"label": 2**70}, True),
        ({"messages": [{"content": [{"type": "image_url", "image_url": 3}]}]}, False),
        ({"messages": [{"content": [{"type": "image_url", "image_url": {"url": 3}}]}]}, True),
        ({"messages": [{"content": [{"type": "novel", "image_url": 3}]}]}, True),
        ({"messages": [{"content": [{"type": "text"}]}]}, False),
        ({"messages": [{"role": None}]}, False),
        ({"predict_result": [{"index": 1.5}]}, False),
        ({"predict_result": [{"latency_ms": True}]}, False),
        ({"unconditioned_input": ["a", {"role": "user"}]}, True),
        ({"unconditioned_input": [3]}, False),
    ],
    ids=str,
)
def test_models_and_schema_agree_where_shapes_are_alike(change: dict[str, Any], follows: bool) -> None:
    sample = picture_sample(**change)
    assert (validate_sample(sample) == []) is follows
    assert VALIDATOR.is_valid(sample) is follows


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_few_shot_example_may_not_hold(name: str) -> None:
    item: dict[str, Any] = {"messages": [], "references": ["4"], "note": "kept", "source": {"page": 3}}
    sample = picture_sample(few_shot_examples=[item, {**item, name: {"any": 1}}])
    (issue,) = validate_sample(sample)
    assert issue.startswith(f"few_shot_examples[1].{name}: expected nothing")
    assert "found an object" in issue
    assert not VALIDATOR.is_valid(sample)
    for content in ([], "", 0, False):
        assert validate_sample(picture_sample(few_shot_examples=[{**item, name: content}]))
    kept = picture_sample(few_shot_examples=[item, {**item, name: None}])
    assert validate_sample(kept) == []
    assert Sample.model_validate(kept).to_record() == kept


ODD = [
    ({"golden_trajectories": [{"messages": []}]}, "golden_trajectories[0]"),
    ({"golden_trajectories": [["call it"]]}, "golden_trajectories[0][0]"),
    ({"golden_trajectories": [[{"tool_calls": {}}]]}, "golden_trajectories[0][0].tool_calls"),
    ({"golden_trajectories": [[{"tool_calls": ["f"]}]]}, "golden_trajectories[0][0].tool_calls[0]"),
    (
        {"golden_trajectories": [[{"tool_calls": [{"function": {"arguments": "{}"}}]}]]},
        "golden_trajectories[0][0].tool_calls[0].function.name",
    ),
    ({"golden_trajectories": [[{"role": "tool", "tool_call_id": 4}]]}, "golden_trajectories[0][0].tool_call_id"),
    ({"few_shot_examples": {"messages": []}}, "few_shot_examples"),
    ({"few_shot_examples": [{"messages": []}]}, "few_shot_examples[0].references"),
    ({"few_shot_examples": [{"messages": [], "references": [], "tools": [3]}]}, "few_shot_examples[0].tools[0]"),
    ({"tools": ["search"]}, "tools[0]"),
    ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
    ({"tool_choice": ["auto"]}, "tool_choice"),
    ({"sandbox": "python:3.10"}, "sandbox"),
    ({"sampling_params": 3}, "sampling_params"),
    ({"generation_params": "x"}, "generation_params"),
    ({"unconditioned_input": 3}, "unconditioned_input"),
    ({"messages": [{"role": "user", "content": "a cat", "tool_calls": "x"}]}, "messages[0].tool_calls"),
]


@pytest.mark.parametrize(("change", "path"), ODD, ids=lambda value: value if isinstance(value, str) else "")
def test_what_scoring_does_not_read_is_an_issue_and_keeps_no_picture_from_being_scored(
    change: dict[str, Any], path: str
) -> None:
    sample = picture_sample(**change)
    assert [issue.split(": ")[0] for issue in validate_sample(sample)] == [path]
    assert not VALIDATOR.is_valid(sample)
    read = read_form(sample).sample
    assert read is sample
    assert [item.value for item in roles.predictions(read, "image")] == ["o.png"]
    assert [item.value for item in roles.prompt_texts(read)] == ["a cat"]


@pytest.mark.parametrize(
    "change",
    [
        {"messages": "a cat"},
        {"predict_result": "o.png"},
        {"references": 3},
        {"label": []},
        {"options": "A"},
        {"metadata": []},
        {"data_tag": []},
        {"raw_assets": []},
        {"task_type": 3},
        {"eval_config": []},
        {"eval_result": []},
        {"id": 2.5},
        {"schema_version": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_scoring_reads_is_an_error_of_the_sample_and_named_first(change: dict[str, Any]) -> None:
    odd = {"tools": 3, "sandbox": 3, "few_shot_examples": 3}
    with pytest.raises(GenmeterError) as caught:
        read_form(picture_sample(**odd, **change))
    assert caught.value.code == "bad_sample"
    assert caught.value.message.startswith(f"{next(iter(change))}: expected")
    assert "tools" not in caught.value.message


DEEP = st.integers(150, 5000).flatmap(lambda depth: st.sampled_from([b"[" * depth, b'{"messages":' * depth]))
HUGE = st.sampled_from([b"1" + b"0" * 400, b"-" + b"9" * 5000, b"1e999", b"NaN", b"-Infinity", b"1" * 25])
LONE = st.sampled_from([rb'"\ud800"', rb'"a\udfff"', b'"\xed\xa0\x80"', b'"\xff"'])


def attempt(call: Any, *args: Any) -> tuple[Any, GenmeterError | None]:
    """The result, or the typed error; any other exception is a failure of the test."""
    try:
        return call(*args), None
    except GenmeterError as error:
        return None, error


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A line of JSONL that something has happened to."""
    line = draw(SAMPLE.map(dumps) | st.sampled_from(EXAMPLES).map(lambda path: dumps(loads(path.read_bytes()))))
    kind = draw(st.sampled_from(["cut", "bytes", "value", "key", "deep"]))
    start = draw(st.integers(0, len(line)))
    if kind == "cut":
        return line[:start]
    if kind == "bytes":
        return line[:start] + draw(st.binary(min_size=1, max_size=8)) + line[start + draw(st.integers(0, 8)) :]
    if kind == "deep":
        opened = draw(DEEP)
        closed = b"null" + opened[::-1].translate(bytes.maketrans(b"[{", b"]}"), b'":messages')
        return line[:-1] + b',"x":' + (opened + closed if draw(st.booleans()) else opened) + b"}"
    odd = draw(HUGE | LONE)
    spots = [place for place in range(len(line)) if line[place : place + 1] == b":"]
    spot = draw(st.sampled_from(spots))
    if kind == "key":
        return line[:-1] + b"," + draw(LONE) + b":" + odd + b"}"
    return line[: spot + 1] + odd + b',"rest":' + line[spot + 1 :]


@settings(QUIET, max_examples=300)
@given(damaged() | st.binary(max_size=60))
def test_a_damaged_line_is_read_or_refused_by_a_typed_error(line: bytes) -> None:
    record, refused = attempt(parse_line, line, 7)
    if refused:
        assert refused.code == "bad_line"
        assert "line 7" in refused.message
        return
    assert isinstance(record, dict)
    validate_sample(record)
    form, refused = attempt(read_form, record)
    if refused:
        assert refused.code == "bad_sample"
        return
    assert loads(dumps(form.sample)) == form.sample
    for read in (roles.predictions, roles.references):
        for modality in ("image", "audio", "text"):
            attempt(read, form.sample, modality)
