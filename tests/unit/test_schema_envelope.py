"""What a pipeline writes into a sample and reads back, by the rules of the standard's host."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from schema_strategies import ANY, OBJECT, PREDICTION, SAMPLE, WORDS

from genmeter.schema.envelope import (
    append_predict_result,
    merge_multimodal_inputs,
    resolve_judge_output,
    resolve_model_output,
    update_eval_result,
)
from genmeter.schema.models import validate_sample
from genmeter.schema.roles import inputs, predictions

SAMPLES = sorted((Path(__file__).parents[1] / "fixtures/samples").glob("*.json"))


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def message(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


@pytest.mark.parametrize("output", [None, {}, [], "text", 3])
def test_an_empty_output_changes_nothing(output: Any) -> None:
    sample: dict[str, Any] = {"id": "a"}
    append_predict_result(sample, output)
    update_eval_result(sample, output)
    assert sample == {"id": "a"}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ({"answer": "B"}, message(text("B"))),
        ({"answer": "", "text": "B"}, message(text("B"))),
        ({"answer": 4}, message(text("4"))),
        ({"usage": {}}, message(text(""))),
        ({"answer": {"content": "B"}}, message(text("B"))),
        ({"answer": [text("a"), "b"]}, message(text("a"), text("b"))),
        ({"messages": [{"role": "user"}, {"content": "B", "name": "n"}]}, {"name": "n", **message(text("B"))}),
        (
            {"answer": [{"type": "image_url", "image_url": "a.png"}]},
            message({"type": "image_url", "image_url": {"url": "a.png"}}),
        ),
        ({"message": None}, None),
        ({"message": message("as it is")}, message("as it is")),
    ],
)
def test_the_message_of_an_output(output: dict[str, Any], expected: Any) -> None:
    sample: dict[str, Any] = {"predict_result": "not a list"}
    before = copy.deepcopy(output)
    append_predict_result(sample, output)
    assert output == before
    assert sample["predict_result"] == [{**output, "index": 0, "message": expected}]


@pytest.mark.parametrize("count", [2, "2", 5])
def test_several_answers_become_several_candidates(count: Any) -> None:
    sample: dict[str, Any] = {"predict_result": [{"index": 0}]}
    append_predict_result(sample, {"answer": ["a", "b"], "_sample_n": count, "message": message("both"), "index": 9})
    assert [(e["index"], e["candidate_index"], e["answer"]) for e in sample["predict_result"][1:]] == [
        (1, 0, "a"),
        (2, 1, "b"),
    ]
    assert [found.value for found in predictions(sample, "text")] == ["a", "b"]


@pytest.mark.parametrize("count", [1, 0, 2.0, True, "x", None])
def test_one_answer_of_a_list_otherwise(count: Any) -> None:
    sample: dict[str, Any] = {}
    append_predict_result(sample, {"answer": ["a", "b"], "_sample_n": count})
    assert len(sample["predict_result"]) == 1
    assert sample["predict_result"][0]["message"] == message(text("a"), text("b"))


def test_no_answers_of_several_append_nothing() -> None:
    sample: dict[str, Any] = {}
    append_predict_result(sample, {"answer": [], "_sample_n": 3})
    assert sample == {"predict_result": []}


@settings(max_examples=100, deadline=None)
@given(SAMPLE, PREDICTION)
def test_what_is_appended_is_read_back(sample: dict[str, Any], output: dict[str, Any]) -> None:
    earlier = copy.deepcopy(sample.get("predict_result") or [])
    before = copy.deepcopy(output)
    append_predict_result(sample, output)
    assert output == before
    if output:
        assert sample["predict_result"][:-1] == earlier
        assert resolve_model_output(sample).items() >= {k: v for k, v in output.items() if k != "message"}.items()
        assert validate_sample(sample) == []


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_a_run_of_the_standards_examples(path: Path) -> None:
    sample = json.loads(path.read_text())
    before = copy.deepcopy(sample)
    append_predict_result(sample, {"answer": "B", "usage": {"total_tokens": 123}, "latency_ms": 1200})
    update_eval_result(sample, {"overall": {"score": 1.0}, "metrics": {"exact_match": {"score": 1.0}}})
    update_eval_result(sample, {"metrics": {"bleu": {"score": 0.72}}})
    assert validate_sample(sample) == []
    assert resolve_model_output(sample)["message"] == message(text("B"))
    assert resolve_judge_output(sample)["metrics"] == {"exact_match": {"score": 1.0}, "bleu": {"score": 0.72}}
    assert {key: sample[key] for key in before} == before


@settings(max_examples=100, deadline=None)
@given(OBJECT, OBJECT)
def test_no_metric_of_another_judge_is_lost(first: dict[str, Any], second: dict[str, Any]) -> None:
    sample: dict[str, Any] = {}
    update_eval_result(sample, {"metrics": first})
    update_eval_result(sample, {"metrics": second})
    assert sample["eval_result"]["metrics"].keys() == first.keys() | second.keys()


def test_where_outputs_are_found() -> None:
    sample = {"predict_result": [{"answer": "a"}, {"answer": "b"}], "model_output": {"answer": "old"}}
    assert resolve_model_output(sample, {"answer": "now"}) == {"answer": "now"}
    assert resolve_model_output(sample, {}) == {"answer": "b"}
    assert resolve_model_output({**sample, "predict_result": [{"answer": "a"}, {}]}) == {"answer": "old"}
    assert resolve_model_output({}) == {}
    beside = {"predict_result": [{"runtime_judge_outcome": {"judge_output": {"score": 2}}}]}
    judged = {**beside, "eval_result": {"score": 1}, "judge_output": {"score": 3}}
    assert resolve_judge_output(judged, {"score": 0}) == {"score": 0}
    assert resolve_judge_output(judged) == {"score": 1}
    assert resolve_judge_output({**judged, "eval_result": None}) == {"score": 2}
    assert resolve_judge_output({"judge_output": {"score": 3}}) == {"score": 3}
    assert resolve_judge_output({}) == {}


def test_media_of_the_messages_become_inputs() -> None:
    sample = json.loads(next(p for p in SAMPLES if "image_to_image" in p.stem).read_text())
    sample["visual"] = ["inputs/sketch_0001.png", "left/out.png"]
    sample["audio"] = "a.wav"
    sample["inputs"] = {"multi_modal_data": {"images": ["old.png"], "audio": ["old.wav", "a.wav"]}, "seed": 1}
    given_before = sample["inputs"]
    references = copy.deepcopy(sample["references"])
    merge_multimodal_inputs(sample)
    media = {"image": ["inputs/sketch_0001.png"], "audio": ["old.wav", "a.wav"]}
    assert sample["inputs"] == {"multi_modal_data": media, "seed": 1}
    assert given_before["multi_modal_data"]["images"] == ["old.png"]
    assert sample["references"] == references


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ({}, {"inputs": {}}),
        ({"inputs": "words"}, {"inputs": {"prompt": "words"}, "prompt": "words"}),
        ({"inputs": [{"role": "user"}]}, {"inputs": {}, "messages": [{"role": "user"}]}),
        ({"inputs": 3, "prompt": "words"}, {"inputs": {"prompt": "words"}, "prompt": "words"}),
    ],
)
def test_inputs_of_other_forms(sample: dict[str, Any], expected: dict[str, Any]) -> None:
    merge_multimodal_inputs(sample)
    assert sample == expected


@settings(max_examples=100, deadline=None)
@given(SAMPLE, ANY, WORDS)
def test_gathering_media_is_idempotent(sample: dict[str, Any], given_inputs: Any, visual: str) -> None:
    sample = {**sample, "inputs": given_inputs, "visual": visual}
    expected = {kind: [found.value for found in inputs(sample, kind)] for kind in ("image", "audio", "video")}
    had_messages = bool(sample["messages"])
    merge_multimodal_inputs(sample)
    once = copy.deepcopy(sample)
    merge_multimodal_inputs(sample)
    assert sample == once
    for kind, values in expected.items():
        if had_messages and values:
            assert set(sample["inputs"]["multi_modal_data"][kind]) == set(values)
