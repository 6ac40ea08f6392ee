"""The option an answer names, and options as choices and back."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schema_strategies import OPTION, SAMPLE, WORDS

from genmeter.errors import GenmeterError
from genmeter.schema.choices import choices_to_options, correct_choice, options_to_choices, read_options, resolve_choice

OPTIONS = [
    {"id": "A", "content": "shark"},
    {"id": "B", "content": "dolphin"},
    {"id": "C", "content": "octopus"},
    {"id": "D", "content": "star fish"},
]
EXAMPLE = json.loads((Path(__file__).parents[1] / "fixtures/samples/02_multiple_choice.json").read_text())


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("B", "B"),
        ("b", "B"),
        ("(B)", "B"),
        ("**B**.", "B"),
        ("\\boxed{B}", "B"),
        ("$\\boxed{\\text{D}}$", "D"),
        ("Ｂ", "B"),
        ("dolphin", "B"),
        ("Dolphin.", "B"),
        ("B. dolphin", "B"),
        ("The answer is B", "B"),
        ("The answer is **B**.", "B"),
        ("the answer is b", "B"),
        ("Answer: B", "B"),
        ("The answer is A because it bites", "A"),
        ("the answer is a dolphin", "B"),
        ("A dolphin", "B"),
        ("The answer is A, no wait. The answer is C.", "C"),
        ("option A is wrong; the answer is B", "B"),
        ("thinking of A or C\n\nB", "B"),
        ("<think>A. The answer is A</think>B", "B"),
        ("B. Dolphins breathe air", "B"),
        ("I think it is the dolphin", "B"),
        ("D: Star  Fish", "D"),
        ("A cat B", None),
        ("BC", None),
        ("Both B and C", None),
        ("The answer is A or B", None),
        ("The answer is not A", None),
        ("Option A is wrong.", None),
        ("The answer is a fish", None),
        ("It is not the dolphin", None),
        ("shark or dolphin", None),
        ("A. no\nB. yes", None),
        ("E", None),
        ("", None),
    ],
)
def test_what_an_answer_names(answer: str, expected: str | None) -> None:
    assert resolve_choice(answer, OPTIONS) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("海豚", "B"),
        ("B、海豚", "B"),
        ("答案是B。因为海豚是哺乳动物", "B"),
        ("正确答案为（B）", "B"),
        ("我认为正确答案是：B. 海豚", "B"),
        ("选择 B 项", "B"),
        ("海豚是哺乳动物", "B"),
        ("不是海豚", None),
        ("不选B", None),
        ("选项A不对", None),
        ("鲨鱼和海豚", None),
    ],
)
def test_what_a_chinese_answer_names(answer: str, expected: str | None) -> None:
    assert resolve_choice(answer, EXAMPLE["options"]) == expected


def test_an_id_goes_before_a_text_and_case_tells_apart() -> None:
    assert resolve_choice("2", [{"id": "1", "content": "2"}, {"id": "2", "content": "3"}]) == "2"
    assert resolve_choice("3", [{"id": "1", "content": "2"}, {"id": "2", "content": "3"}]) == "2"
    assert resolve_choice("a", {"A": "x", "a": "y"}) == "a"
    assert resolve_choice("same", {"A": "same", "B": "same"}) is None
    assert resolve_choice("It is red wine", ["red", "red wine"]) == "B"


@given(st.lists(OPTION, min_size=1, max_size=4), st.data())
def test_each_id_names_its_option(options: list[Any], data: st.DataObject) -> None:
    try:
        read = read_options(options)
    except GenmeterError as error:
        if "no other option" not in error.message:
            raise
        return
    choice = data.draw(st.sampled_from(read))
    if choice.id.isalnum() and choice.id.isascii():
        for answer in (choice.id, f"({choice.id})", f"**{choice.id}**"):
            assert resolve_choice(answer, options) == choice.id


@given(st.text(max_size=80), st.lists(OPTION, max_size=4))
def test_nothing_is_named_that_is_no_option(answer: str, options: list[Any]) -> None:
    try:
        read = read_options(options)
    except GenmeterError:
        return
    assert resolve_choice(answer, options) in {None, *(choice.id for choice in read)}


@pytest.mark.parametrize("piece", ["answer ", "dolphin ", "A. ", "*", "答案", "(", "\n", "x*"])
def test_long_answers_take_little_time(piece: str) -> None:
    start = time.perf_counter()
    resolve_choice(piece * (60_000 // len(piece)) + "q", OPTIONS)
    assert time.perf_counter() - start < 5


def test_letters_go_on_after_z() -> None:
    ids = [choice.id for choice in read_options([str(i) for i in range(30)])]
    assert ids[:2] + ids[25:28] == ["A", "B", "Z", "AA", "AB"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (7, "options: expected a list, found a number"),
        ([{"id": "A"}, {"id": "A"}], r"options\[1\]\.id: expected an id that no other option has"),
        ([None], r"options\[0\]: expected an id and a text, found null"),
        ([{"id": 1.5, "content": "x"}], r"options\[0\]\.id: expected a string, found a number"),
    ],
)
def test_options_that_cannot_be_read(options: Any, message: str) -> None:
    with pytest.raises(GenmeterError, match=message):
        read_options(options)


def test_the_standards_example_as_choices() -> None:
    written = options_to_choices(EXAMPLE)
    assert [choice["label"] for choice in written["choices"]] == ["A", "B", "C", "D"]
    assert written["choices"][1]["message"]["content"] == [{"type": "text", "text": "海豚"}]
    assert written["metadata"]["option_map"] == {"A": "鲨鱼", "B": "海豚", "C": "章鱼", "D": "海星"}
    assert written["metadata"]["correct_choice"] == written["label"] == "B"
    assert choices_to_options(written) == EXAMPLE


def test_the_right_choice_by_text() -> None:
    assert correct_choice({"options": OPTIONS, "references": [{"answer": "Dolphin"}]}) == "B"
    assert correct_choice({"options": OPTIONS, "references": [], "label": "c"}) == "C"
    assert correct_choice({"options": OPTIONS, "references": ["The dolphin, I think"]}) is None


@settings(max_examples=150, deadline=None)
@given(SAMPLE, st.lists(OPTION, min_size=1, max_size=4))
def test_there_and_back(sample: dict[str, Any], options: list[Any]) -> None:
    sample = {**sample, "options": options}
    if not sample.get("metadata"):
        sample.pop("metadata", None)
    before = copy.deepcopy(sample)
    try:
        written = options_to_choices(sample)
    except GenmeterError:
        return
    assert sample == before
    assert options_to_choices(written) == written
    kept = copy.deepcopy(written)
    assert choices_to_options(written) == sample
    assert written == kept


@given(st.dictionaries(WORDS.filter(str.strip), WORDS.filter(str.strip), min_size=1, max_size=4))
def test_foreign_choices_become_options(texts: dict[str, str]) -> None:
    choices = [{"index": i, "label": k, "message": {"content": v}} for i, (k, v) in enumerate(texts.items())]
    back = choices_to_options(
        {"choices": choices, "metadata": {"option_map": texts, "correct_choice": next(iter(texts))}}
    )
    assert back["options"] == [{"id": key, "content": value} for key, value in texts.items()]
    assert "option_map" not in back.get("metadata", {})


def test_a_right_choice_that_the_references_do_not_say_is_kept() -> None:
    choices = [{"label": "A", "message": "x"}, {"label": "B", "message": "y"}]
    back = choices_to_options({"choices": choices, "references": ["A"], "metadata": {"correct_choice": "B"}})
    assert back["metadata"] == {"correct_choice": "B"}
