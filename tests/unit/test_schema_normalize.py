"""The canonical form and the mappings: pure, idempotent, reversible where they say so, and true to what is scored."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schema_strategies import FRAGMENT, MESSAGE, REFERENCE, SAMPLE, WORDS, nearly

from genmeter.errors import GenmeterError
from genmeter.schema import normalize as n
from genmeter.schema.fewshot import FORBIDDEN, render_few_shot
from genmeter.schema.fragments import read_part
from genmeter.schema.models import validate_sample
from genmeter.schema.roles import inputs, predictions, prompt_texts, references

SAMPLES = sorted((Path(__file__).parents[1] / "fixtures/samples").glob("*.json"))
MAPPINGS = [
    n.normalize_sample,
    n.map_task_type,
    n.map_prompt,
    n.references_to_fragments,
    n.references_to_strings,
    n.label_from_references,
    n.references_from_label,
    n.raw_assets_to_inputs,
    n.sandbox_to_execution,
    n.unconditioned_to_messages,
    render_few_shot,
]
OLD = st.fixed_dictionaries(
    {"id": WORDS.filter(bool)},
    optional={
        **dict.fromkeys(("prompt", "text", "question", "query"), WORDS | st.lists(FRAGMENT, max_size=2)),
        "question_type": WORDS,
        "references": REFERENCE | st.lists(REFERENCE, max_size=2),
        "unconditioned_input": WORDS | st.lists(MESSAGE, max_size=2),
    },
)


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


@pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda f: f.__name__)
@settings(max_examples=30, deadline=None)
@given(st.one_of(SAMPLE, OLD, nearly()))
def test_mappings_are_pure_and_idempotent(mapping: Callable[[Any], dict[str, Any]], sample: dict[str, Any]) -> None:
    before = copy.deepcopy(sample)
    try:
        once = mapping(sample)
    except GenmeterError as error:
        if error.code != "bad_sample" or sample != before:
            raise
        return
    assert sample == before
    assert mapping(once) == once


@settings(max_examples=80, deadline=None)
@given(SAMPLE)
def test_a_valid_sample_stays_valid(sample: dict[str, Any]) -> None:
    try:
        normal = n.normalize_sample(sample)
    except GenmeterError as error:
        if "options" not in error.message:  # two options of one id: nothing else of a valid sample is refused
            raise
        return
    assert validate_sample(normal) == []


@settings(max_examples=100, deadline=None)
@given(SAMPLE)
def test_normalization_keeps_what_is_scored(sample: dict[str, Any]) -> None:
    try:
        normal = n.normalize_sample(sample)
    except GenmeterError:
        return
    for modality in ("image", "audio", "video"):
        for role in (inputs, predictions, references):
            assert found(role, normal, modality) == found(role, sample, modality)


def found(role: Callable[..., Any], sample: dict[str, Any], modality: str) -> Any:
    try:
        return [(item.value, item.index) for item in role(sample, modality)]
    except GenmeterError as error:
        return error.code


@settings(max_examples=100, deadline=None)
@given(FRAGMENT)
def test_a_fragment_says_the_same_in_canonical_form(fragment: Any) -> None:
    part, again = read_part(fragment), read_part(n.canonical_fragment(fragment))
    assert again.kind == part.kind
    assert again.value == part.value


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_the_standards_examples_normalize(path: Path) -> None:
    sample = json.loads(path.read_text())
    normal = n.normalize_sample(sample)
    assert validate_sample(normal) == []
    assert n.normalize_sample(normal) == normal
    # These examples are canonical but for the short form of their references.
    back = n.references_to_strings(normal)
    for example in back.get("few_shot_examples", []):
        example["references"] = n.references_to_strings(example)["references"]
    assert back == sample
    assert all(isinstance(part, dict) for item in normal["references"] for part in item["answer"])
    without = {key: value for key, value in sample.items() if key != "label"}
    assert n.label_from_references(without)["label"] == sample["label"]


def test_there_are_thirteen_examples() -> None:
    assert len(SAMPLES) == 13


@pytest.mark.parametrize("key", ["prompt", "text", "question", "query"])
def test_a_prompt_becomes_messages(key: str) -> None:
    normal = n.normalize_sample({"id": 7, key: "a red apple", "question_type": "text-to-image"})
    assert normal == {
        "schema_version": "v1",
        "id": "7",
        "task_type": "text-to-image",
        "messages": [{"role": "user", "content": [text("a red apple")]}],
    }
    assert prompt_texts(normal)[0].value == "a red apple"


def test_messages_win_over_a_prompt_and_nothing_is_lost() -> None:
    sample = {"id": "a", "messages": [{"role": "user", "content": "one"}], "prompt": "two", "question_type": "q"}
    normal = n.normalize_sample({**sample, "task_type": "short-answer"})
    assert normal["messages"][0]["content"] == [text("one")]
    assert (normal["prompt"], normal["question_type"], normal["task_type"]) == ("two", "q", "short-answer")


def test_several_prompts_stay_several() -> None:
    normal = n.normalize_sample({"id": "a", "prompt": ["one", "two"]})
    assert [item.value for item in prompt_texts(normal)] == ["one", "two"]


@pytest.mark.parametrize("value", ["refs/a.png", {"type": "image", "image": "refs/a.png"}, ["refs/a.png"]])
def test_references_of_every_form(value: Any) -> None:
    sample = {"id": "a", "task_type": "text-to-image", "references": [value], "messages": []}
    fragment = {"type": "image_url", "image_url": {"url": "refs/a.png"}}
    normal = n.normalize_sample(sample)
    assert normal["references"] == [{"answer": [fragment]}]
    assert normal["label"] == "refs/a.png"
    bare = n.normalize_sample({**sample, "references": value})
    assert bare["references"] == [{"answer": [fragment]}]


@pytest.mark.parametrize(
    ("fragment", "expected"),
    [
        ("words", text("words")),
        ({"type": "input_text", "text": "words"}, text("words")),
        ({"type": "image_url", "image_url": "a"}, {"type": "image_url", "image_url": {"url": "a"}}),
        ({"type": "image_url", "url": "a"}, {"type": "image_url", "image_url": {"url": "a"}}),
        ({"type": "image", "image": {"path": "a"}}, {"type": "image_url", "image_url": {"url": "a"}}),
        ({"type": "video", "video": "a.mp4"}, {"type": "video_url", "video_url": {"url": "a.mp4"}}),
        ({"type": "file", "file": {"url": "a.pdf"}}, {"type": "file_url", "file_url": {"url": "a.pdf"}}),
        ({"type": "file_url", "file_url": "a.png"}, {"type": "file_url", "file_url": {"url": "a.png"}}),
        (
            {"type": "image_url", "image_url": {"url": "a", "detail": "low"}, "cache": 1},
            {"type": "image_url", "image_url": {"url": "a", "detail": "low"}, "cache": 1},
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}},
            {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,UklG", "format": "wav"}},
        ),
        ({"type": "novel", "novel": 1}, {"type": "novel", "novel": 1}),
    ],
)
def test_fragments_of_every_form(fragment: Any, expected: Any) -> None:
    assert n.canonical_fragment(fragment) == expected


@given(st.lists(WORDS, max_size=4))
def test_references_there_and_back(answers: list[str]) -> None:
    sample = {"references": answers}
    assert n.references_to_strings(n.references_to_fragments(sample)) == sample
    written = n.references_to_fragments(sample)
    assert n.references_to_fragments(n.references_to_strings(written)) == written


def test_a_meta_is_kept_both_ways() -> None:
    sample = {"references": [{"answer": "a", "meta": {"by": "someone"}}]}
    written = n.references_to_fragments(sample)
    assert written["references"] == [{"answer": [text("a")], "meta": {"by": "someone"}}]
    assert n.references_to_strings(written) == written


@given(WORDS.filter(bool))
def test_a_label_there_and_back(answer: str) -> None:
    labelled = n.label_from_references({"references": [answer]})
    assert labelled["label"] == answer
    assert n.references_from_label({"label": labelled["label"]})["references"] == [answer]


def test_encoded_data_make_no_label() -> None:
    reference = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    assert "label" not in n.label_from_references({"references": [reference]})


def test_raw_assets_and_sandbox_go_where_runtimes_read_them() -> None:
    sample = {"raw_assets": {"image": ["a.png"], "size": 1}, "inputs": {"size": 2}, "messages": []}
    assert n.raw_assets_to_inputs(sample) == {**sample, "inputs": {"size": 2, "image": ["a.png"]}}
    code = json.loads(next(p for p in SAMPLES if "code" in p.stem).read_text())
    execution = n.sandbox_to_execution(code)["metadata"]["execution"]
    assert execution == {**code["sandbox"], **code["metadata"]["execution"]}
    with pytest.raises(GenmeterError, match=r"metadata\.execution: expected an object, found a list"):
        n.sandbox_to_execution({"sandbox": {"image": "x"}, "metadata": {"execution": []}})


def test_what_has_no_id_is_refused_or_given_one() -> None:
    with pytest.raises(GenmeterError, match="id: expected a string, found nothing"):
        n.normalize_sample({"prompt": "x"})
    assert n.normalize_sample({"prompt": "x"}, sample_id="line-3")["id"] == "line-3"
    assert n.normalize_sample({"prompt": "x", "uid": 4}, sample_id="line-3")["id"] == "4"


def test_examples_are_rendered_in_front() -> None:
    sample = json.loads(SAMPLES[0].read_text())
    rendered = render_few_shot(sample)
    assert [(m["role"], m["content"][0]["text"]) for m in rendered["messages"]] == [
        ("user", "1 + 1 等于多少"),
        ("assistant", "2"),
        ("user", "2 + 2 等于多少"),
    ]
    assert validate_sample(rendered) == []
    system = {"role": "system", "content": [text("be brief")]}
    rendered = render_few_shot({**sample, "messages": [system, *sample["messages"]]})
    assert [m["role"] for m in rendered["messages"]] == ["system", "user", "assistant", "user"]


def test_a_label_answers_where_there_are_no_references() -> None:
    example = {"messages": ["1 + 1"], "references": [], "label": "2"}
    rendered = render_few_shot({"messages": [], "few_shot_examples": [example]})
    assert rendered["messages"][-1] == {"role": "assistant", "content": [text("2")]}
    del example["label"]
    with pytest.raises(GenmeterError, match=r"few_shot_examples\[0\]\.references"):
        render_few_shot({"messages": [], "few_shot_examples": [example]})


@pytest.mark.parametrize("name", FORBIDDEN)
def test_an_example_may_not_hold(name: str) -> None:
    example = {"messages": [{"role": "user", "content": "q"}], "references": ["a"], name: {"image": "x"}}
    with pytest.raises(GenmeterError, match=rf"few_shot_examples\[1\]\.{name}"):
        render_few_shot({"messages": [], "few_shot_examples": [{**example, name: None}, example]})


DOCUMENT = (Path(__file__).parents[2] / "docs/standard.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


def test_every_snippet_shows_what_it_prints() -> None:
    assert len(SNIPPETS) == DOCUMENT.count("```python") == 3


@pytest.mark.parametrize(("code", "shown"), SNIPPETS, ids=["normalize", "choices", "envelope"])
def test_the_document_shows_what_happens(code: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "docs/standard.md", "exec"), {})
    assert capsys.readouterr().out == shown
