"""Merging results, and the snapshot of an evaluation set."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

import pytest

from genmeter.schema.forms import read_form
from genmeter.schema.results import merge_eval_result
from genmeter.schema.snapshot import snapshot_record, snapshot_uris

NEW: dict[str, Any] = {
    "overall": {"score": None, "passed": None},
    "metrics": {"lpips": {"score": 0.2, "variant": "alex-v0.1"}},
    "judge": {"model": "genmeter 0.1.0", "verdict": "undecided"},
    "provenance": {"run_id": "r2", "genmeter": "0.1.0"},
}


@pytest.mark.parametrize("old", [None, {}, [], ""])
def test_nothing_before(old: Any) -> None:
    assert merge_eval_result(old, NEW) == NEW


def test_merging_is_deep_for_metrics_and_changes_neither_side() -> None:
    old = {"status": "completed", "metrics": {"bleu": {"score": 0.7}, "clipscore": {"score": 0.5, "variant": "b"}}}
    before, new = copy.deepcopy(old), copy.deepcopy(NEW)
    merged = merge_eval_result(old, new)
    assert merged["metrics"] == {**old["metrics"], "lpips": NEW["metrics"]["lpips"]}
    assert merged["status"] == "completed"
    assert (old, new) == (before, NEW)
    assert "previous" not in merged
    merged["metrics"]["x"] = 1
    assert (old, new) == (before, NEW)


@pytest.mark.parametrize(
    "other", [{"score": 0.9}, {"score": 0.9, "variant": "vgg-v0.1"}, {"value": 3, "variant": None}, 0.9, "good", [1]]
)
def test_what_somebody_else_wrote_under_the_key_is_kept(other: Any) -> None:
    merged = merge_eval_result({"metrics": {"lpips": other}}, NEW)
    assert merged["metrics"]["lpips"] == {**NEW["metrics"]["lpips"], "previous": [other]}


def test_the_same_variant_is_replaced_and_merging_again_changes_nothing() -> None:
    old = {**NEW, "metrics": {"lpips": {"score": 0.3, "variant": "alex-v0.1", "flags": ["identical"]}}}
    merged = merge_eval_result(old, NEW)
    assert merged == NEW
    assert merge_eval_result(merged, NEW) == merged


def test_history_grows_newest_first_and_never_twice() -> None:
    def of(variant: str) -> dict[str, Any]:
        return {**NEW, "metrics": {"lpips": {"score": 0.1, "variant": variant}}}

    result: Any = {"metrics": {"lpips": {"score": 9}}}
    for variant in ("a", "b", "b", "a"):
        result = merge_eval_result(result, of(variant))
    entry = result["metrics"]["lpips"]
    assert entry["variant"] == "a"
    assert entry["previous"] == [{"score": 0.1, "variant": "b"}, {"score": 0.1, "variant": "a"}, {"score": 9}]


def test_verdict_of_another_judge_is_kept() -> None:
    old = {
        "overall": {"score": 1.0, "passed": True},
        "judge": {"model": "other", "verdict": "correct"},
        "metrics": {"bleu": {"score": 0.7}},
        "note": "kept",
    }
    merged = merge_eval_result(old, NEW)
    assert merged["judge"] == NEW["judge"]
    assert merged["previous"] == [{"overall": old["overall"], "judge": old["judge"]}]
    assert merged["note"] == "kept"
    again = merge_eval_result(merged, NEW)
    assert again == merged


def test_own_verdict_and_own_error_are_replaced() -> None:
    old = {**NEW, "overall": {"score": 0.5, "passed": False}, "error": {"code": "not_found", "message": "x"}}
    assert merge_eval_result(old, NEW) == NEW
    foreign = {"error": {"code": "E42"}}
    assert merge_eval_result(foreign, NEW)["error"] == {"code": "E42"}


@pytest.mark.parametrize("old", ["good", [1, 2], 3])
def test_what_is_no_object_is_kept(old: Any) -> None:
    assert merge_eval_result(old, NEW) == {**NEW, "previous": [old]}


def test_metrics_that_are_no_object_are_kept() -> None:
    merged = merge_eval_result({"metrics": [1, 2]}, NEW)
    assert merged["metrics"] == NEW["metrics"]
    assert merged["previous"] == [{"metrics": [1, 2]}]
    assert merge_eval_result({"metrics": None}, NEW) == NEW


def test_an_error_alone_leaves_earlier_scores() -> None:
    merged = merge_eval_result({"metrics": {"bleu": {"score": 1}}}, {"error": {"code": "bad_sample", "message": "m"}})
    assert merged == {"metrics": {"bleu": {"score": 1}}, "error": {"code": "bad_sample", "message": "m"}}


def url(value: Any, kind: str = "image") -> dict[str, Any]:
    return {"type": f"{kind}_url", f"{kind}_url": {"url": value}}


def make(root: str, **fields: Any) -> dict[str, Any]:
    return {
        "schema_version": "v1",
        "id": "a",
        "task_type": "image-to-image",
        "messages": [{"role": "user", "content": [url(f"{root}/in.png"), {"type": "text", "text": "blå"}]}],
        "references": [{"answer": [url(f"{root}/r.png")]}, f"{root}/s.png", {"answer": f"{root}/t.png"}],
        "label": f"{root}/r.png",
        "raw_assets": {"image": [f"{root}/in.png"], "mask": "kept"},
        "eval_config": {"metrics": ["lpips"]},
        "data_tag": {"style": "photo"},
        "metadata": {"set": "supplementary", "split": "test", "annotator": "x"},
        "predict_result": [{"index": 0, "message": {"role": "assistant", "content": [url("o.png")]}}],
        **fields,
    }


def digest_of(value: Any) -> str:
    name = value.rsplit("/", 1)[-1] if isinstance(value, str) else repr(value)
    return hashlib.sha256(name.encode()).hexdigest()


def test_snapshot_is_canonical_and_holds_no_path() -> None:
    data = snapshot_record(make("data/x"), digest_of)
    parsed = json.loads(data)
    assert data == json.dumps(parsed, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert b"data/x" not in data
    assert set(parsed) == {"id", "messages", "references", "label", "raw_assets", "eval_config", "data_tag", "metadata"}
    assert parsed["metadata"] == {"set": "supplementary", "split": "test"}
    assert parsed["label"] == digest_of("r.png")
    assert parsed["references"][1] == digest_of("s.png")
    assert parsed["raw_assets"] == {"image": [digest_of("in.png")], "mask": "kept"}
    assert "blå".encode() in data


def test_snapshot_is_shared_by_models_and_places() -> None:
    first = snapshot_record(make("a"), digest_of)
    other = make("/elsewhere/b", predict_result=[{"answer": "other.png"}], eval_result={"metrics": {}})
    other["metadata"]["annotator"] = "y"
    other["options"], other["raw_assets"]["image"] = None, ["/elsewhere/b/in.png"]
    assert snapshot_record(dict(reversed(other.items())), digest_of) == first


@pytest.mark.parametrize(
    "change",
    [
        {"id": "b"},
        {"messages": [{"role": "user", "content": "other"}]},
        {"references": []},
        {"label": "x"},
        {"eval_config": {"metrics": ["clipscore"]}},
        {"data_tag": {}},
        {"metadata": {"set": "representative", "split": "test"}},
        {"metadata": {"set": "supplementary", "split": "test", "annotation_version": 2}},
        {"options": [{"id": "A", "content": "x"}]},
    ],
)
def test_snapshot_changes_with_the_set(change: dict[str, Any]) -> None:
    assert snapshot_record(make("a", **change), digest_of) != snapshot_record(make("a"), digest_of)


def test_snapshot_changes_with_the_bytes() -> None:
    assert snapshot_record(make("a"), lambda uri: f"2{digest_of(uri)}") != snapshot_record(make("a"), digest_of)


def test_snapshot_changes_nothing_and_uris_are_what_it_asks_for() -> None:
    sample = make("a")
    before = copy.deepcopy(sample)
    asked: list[Any] = []
    snapshot_record(sample, lambda uri: asked.append(uri) or "d")  # type: ignore[func-returns-value]
    assert sample == before
    assert snapshot_uris(sample) == asked == ["a/in.png", "a/r.png", "a/s.png", "a/t.png"]


def test_snapshot_of_text_answers_keeps_them_as_text() -> None:
    sample = make("a", task_type="image-qa", references=["report.png", "b"], label="b", raw_assets=None)
    assert json.loads(snapshot_record(sample, digest_of))["references"] == ["report.png", "b"]
    assert snapshot_uris(sample) == ["a/in.png"]


def test_snapshot_of_the_short_form_and_of_objects() -> None:
    image = b"\x89PNG"
    sample = read_form({"id": "a", "prompt": "x", "output": "o.png", "reference": image, "input": "i.png"}).sample
    assert snapshot_uris(sample) == ["i.png", image]
    data = json.loads(snapshot_record(sample, digest_of))
    assert data["references"] == [{"answer": [url(digest_of(image))]}]
    assert "predict_result" not in data


def test_snapshot_survives_lone_surrogates() -> None:
    sample = make("a", data_tag={"x": "\ud800"})
    assert json.loads(snapshot_record(sample, digest_of))["data_tag"] == {"x": "\ud800"}
