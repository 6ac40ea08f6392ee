"""What is scored in a sample, in all the shapes that people write."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from genmeter.errors import FLAGS, GenmeterError
from genmeter.schema.forms import read_form, sample_path
from genmeter.schema.media import kind_of_uri, kind_of_value, names_media
from genmeter.schema.paths import lookup
from genmeter.schema.roles import inputs, output_modality, predictions, prompt_texts, references, task_type
from genmeter.schema.selection import select_candidates


def sample_with(content: Any = None, **fields: Any) -> dict[str, Any]:
    base = {"schema_version": "v1", "id": "a", "task_type": "image-to-image"}
    messages = [{"role": "user", "content": "draw" if content is None else content}]
    return {**base, "messages": messages, **fields}


def predicted(*contents: Any) -> dict[str, Any]:
    return sample_with(
        predict_result=[
            {"index": i, "message": {"role": "assistant", "content": content}} for i, content in enumerate(contents)
        ]
    )


def url(value: Any, kind: str = "image") -> dict[str, Any]:
    return {"type": f"{kind}_url", f"{kind}_url": {"url": value}}


def code_of(call: Any, *args: Any, **options: Any) -> GenmeterError:
    with pytest.raises(GenmeterError) as caught:
        call(*args, **options)
    return caught.value


@pytest.mark.parametrize(
    ("fragment", "value", "below"),
    [
        ({"type": "image_url", "image_url": {"url": "o.png", "detail": "low"}}, "o.png", ".image_url.url"),
        ({"type": "image_url", "image_url": "o.png"}, "o.png", ".image_url"),
        ({"type": "image_url", "url": "o.png"}, "o.png", ".url"),
        ({"type": "image", "image": "o.png"}, "o.png", ".image"),
        ({"type": "image", "image": {"url": "o.png"}}, "o.png", ".image.url"),
        ({"type": "image", "image_url": {"url": "o.png"}}, "o.png", ".image_url.url"),
        ({"type": "image", "url": "o"}, "o", ".url"),
        ({"type": "image", "path": "my cat é.png"}, "my cat é.png", ".path"),
        ({"type": "image", "image": None, "url": "o.png"}, "o.png", ".url"),
        ({"type": "input_image", "image_url": "o.png"}, "o.png", ".image_url"),
        ({"type": "output_image", "image_url": {"url": "o.png"}}, "o.png", ".image_url.url"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAA"}}, "data:image/png;base64,AAA", None),
        ({"type": "image", "data": "QUJD", "mimeType": "image/webp"}, "data:image/webp;base64,QUJD", ".data"),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
            "data:image/png;base64,QUJD",
            ".source.data",
        ),
        ({"type": "image", "source": {"type": "url", "url": "http://h/o"}}, "http://h/o", ".source.url"),
        ({"image_url": {"url": "o.png"}}, "o.png", ".image_url.url"),
        ({"image": "o.png"}, "o.png", ".image"),
        ({"url": "o.png"}, "o.png", ".url"),
        ({"type": "file_url", "file_url": {"url": "o.PNG"}}, "o.PNG", ".file_url.url"),
        ({"type": "image_url", "image_url": {"url": "file:///a/my%20cat.png"}}, "file:///a/my%20cat.png", None),
    ],
)
def test_every_known_form_of_an_image_is_found(fragment: dict[str, Any], value: str, below: str | None) -> None:
    sample = predicted([{"type": "text", "text": "here"}, fragment])
    before = copy.deepcopy(sample)
    (found,) = predictions(read_form(sample).sample, "image")
    assert found.value == value
    assert found.flags == ()
    if below is not None:
        assert found.path == f"predict_result[0].message.content[1]{below}"
    if found.value == str(lookup(sample, found.path)):
        assert lookup(sample, found.path) == value
    assert sample == before


def test_audio_and_video_forms() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}
    assert predictions(predicted([audio]), "audio")[0].value == "data:audio/wav;base64,QUJD"
    for data in ("a.wav", "https://h/a", "file:///a.wav", "data:audio/wav;base64,QUJD"):
        named = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        assert predictions(predicted([named]), "audio")[0].value == data
    video = predicted([url("v.mp4", "video"), {"type": "video", "video": "w.mp4"}])
    assert [f.value for f in predictions(video, "video")] == ["v.mp4", "w.mp4"]
    error = code_of(predictions, video, "image")
    assert error.code == "no_prediction"
    assert "predict_result[0].message.content[0].video_url.url is a video" in error.message


def test_content_that_is_one_fragment() -> None:
    assert predictions(predicted(url("o.png")), "image")[0].path == "predict_result[0].message.content.image_url.url"


def test_one_found_for_each_candidate_and_for_each_image_of_one() -> None:
    sample = predicted([url("a.png"), url("b.png")], [url("c.png")])
    assert [(f.value, f.index) for f in predictions(sample, "image")] == [("a.png", 0), ("b.png", 0), ("c.png", 1)]


def test_entries_without_media_are_passed_over_when_others_have_some() -> None:
    sample = predicted("arena: player 1 wins", [url("a.png")], None)
    sample["predict_result"].append({"index": 3})
    (found,) = predictions(sample, "image")
    assert (found.value, found.index) == ("a.png", 1)


def test_answer_comes_before_text_and_after_media() -> None:
    text = [{"type": "text", "text": "out/t.png"}]
    entry = {"message": {"role": "assistant", "content": text}, "answer": "out/a.png"}
    (found,) = predictions(sample_with(predict_result=[entry]), "image")
    assert (found.value, found.path, found.flags) == ("out/a.png", "predict_result[0].answer", ())
    entry["message"]["content"] = [*text, url("m.png")]
    assert predictions(sample_with(predict_result=[entry]), "image")[0].value == "m.png"
    del entry["answer"]
    entry["message"]["content"] = text
    (found,) = predictions(sample_with(predict_result=[entry]), "image")
    assert (found.value, found.flags) == ("out/t.png", ("prediction_from_text",))
    assert found.path == "predict_result[0].message.content[0].text"
    assert set(found.flags) <= set(FLAGS)


@pytest.mark.parametrize("answer", [["a.png", "b.png"], [url("a.png"), url("b.png")], ["a.png", {"url": "b.png"}]])
def test_an_answer_may_be_a_list(answer: list[Any]) -> None:
    found = predictions(sample_with(predict_result=[{"answer": answer}]), "image")
    assert [f.value for f in found] == ["a.png", "b.png"]
    assert found[1].path.startswith("predict_result[0].answer[1]")


@pytest.mark.parametrize(
    "text",
    [
        "I cannot draw that.",
        "See a.png for details",
        "a.wav",
        "",
        "  ",
        "a.png\nb.png",
        "data:text/html,<b>",
        "x" * 5000 + ".png",
    ],
)
def test_a_sentence_is_no_prediction(text: str) -> None:
    for entry in ({"message": {"role": "assistant", "content": text}}, {"answer": text}):
        assert code_of(predictions, sample_with(predict_result=[entry]), "image").code == "no_prediction"


def test_two_texts_are_no_path() -> None:
    sample = predicted([{"type": "text", "text": "a.png"}, {"type": "text", "text": "b.png"}])
    assert code_of(predictions, sample, "image").code == "no_prediction"


@pytest.mark.parametrize(
    "text",
    [
        "out/a.png",
        "my cat é.PNG",
        "https://h/x?sig=1",
        "s3://b/k.webp",
        "file:///a%20b.jpg",
        "data:image/png,x",
        " a.png ",
    ],
)
def test_a_lone_path_or_uri_is_one(text: str) -> None:
    (found,) = predictions(predicted(text), "image")
    assert found.value == text.strip()
    assert found.flags == ("prediction_from_text",)


@pytest.mark.parametrize(
    ("fragment", "field"),
    [
        ({"type": "hologram", "x": 1}, "predict_result[0].message.content[0].type"),
        ({"type": "image_url", "image_url": {}}, "predict_result[0].message.content[0].image_url"),
        ({"type": "image_url", "image_url": None}, "predict_result[0].message.content[0].image_url"),
        ({"type": "image", "image": 5}, "predict_result[0].message.content[0].image"),
        ({"type": "image_url", "image_url": {"url": ["a"]}}, "predict_result[0].message.content[0].image_url.url"),
        ({"type": "image"}, "predict_result[0].message.content[0]"),
        ({}, "predict_result[0].message.content[0]"),
    ],
)
def test_a_fragment_that_cannot_be_read_is_named(fragment: dict[str, Any], field: str) -> None:
    error = code_of(predictions, predicted([fragment]), "image")
    assert error.code == "no_prediction"
    assert f"{field}: " in error.message


@pytest.mark.parametrize("entries", [None, [], "absent"])
def test_no_entries(entries: Any) -> None:
    sample = sample_with() if entries == "absent" else sample_with(predict_result=entries)
    assert code_of(predictions, sample, "image").code == "no_prediction"


def test_prompt_is_the_text_of_the_last_user_message() -> None:
    parts = [url("in.png"), {"type": "text", "text": "make it"}, {"type": "text", "text": "blue"}]
    (found,) = prompt_texts(sample_with(parts))
    assert (found.value, found.path, found.flags) == ("make it\nblue", "messages[0].content", ())
    (found,) = prompt_texts(sample_with(parts[:2]))
    assert (found.value, found.path) == ("make it", "messages[0].content[1].text")
    (found,) = prompt_texts(sample_with("plain"))
    assert (found.value, found.path) == ("plain", "messages[0].content")
    turns = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": [url("o.png")]},
        {"role": "User", "content": ["second"]},
        {"role": "assistant", "content": "done"},
    ]
    (found,) = prompt_texts(sample_with(messages=turns))
    assert (found.value, found.path, found.flags) == ("second", "messages[3].content[0]", ("multi_turn_prompt",))


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ("", "messages[0].content"),
        (" \n ", "messages[0].content"),
        ([], "messages[0].content"),
        ([{"type": "text", "text": "  "}], "messages[0].content"),
        ([url("in.png")], "messages[0].content"),
        ([{"type": "hologram"}], "messages[0].content[0].type"),
    ],
)
def test_no_text_is_a_typed_error_that_names_the_field(content: Any, field: str) -> None:
    error = code_of(prompt_texts, sample_with(content))
    assert error.code == "no_prompt"
    assert field in error.message


def test_no_user_message() -> None:
    assert code_of(prompt_texts, sample_with(messages=[])).code == "no_prompt"
    assert code_of(prompt_texts, sample_with(messages=[{"role": "system", "content": "x"}])).code == "no_prompt"


def test_prompt_from_a_field() -> None:
    sample = sample_with(
        "draw", metadata={"caption": "a cat", "many": ["a", " ", "b"], "parts": [{"text": "x"}], "n": 3}
    )
    assert prompt_texts(sample, field="metadata.caption")[0] == ("a cat", "metadata.caption", (), 0)
    several = prompt_texts(sample, field="metadata.many")
    assert [(f.value, f.path, f.index) for f in several] == [("a", "metadata.many[0]", 0), ("b", "metadata.many[2]", 2)]
    assert prompt_texts(sample, field="metadata.parts")[0].value == "x"
    assert prompt_texts(sample, field="messages[-1].content")[0].value == "draw"
    for field in ("metadata.none", "metadata.n", "metadata.many[9]", "nowhere"):
        error = code_of(prompt_texts, sample, field=field)
        assert error.code == "no_prompt"
        assert field in error.message


def test_references_in_every_form() -> None:
    given = [
        {"answer": [url("a.png"), url("b.png")], "meta": {}},
        {"answer": "c.png"},
        url("d.png"),
        [url("e.png")],
        "f.png",
        {"answer": url("g.png")},
        "a caption",
        {"answer": [url("h.wav", "audio")]},
        None,
    ]
    found = references(sample_with(references=given), "image")
    assert [(f.value, f.index) for f in found] == [
        ("a.png", 0), ("b.png", 0), ("c.png", 1), ("d.png", 2), ("e.png", 3), ("f.png", 4), ("g.png", 5),
    ]  # fmt: skip
    assert found[0].path == "references[0].answer[0].image_url.url"
    assert found[2].path == "references[1].answer"
    assert found[4].path == "references[3][0].image_url.url"
    assert [f.value for f in references(sample_with(references=given), "text")] == ["a caption"]
    assert references(sample_with(references="r.png"), "image")[0][:2] == ("r.png", "references")
    assert references(sample_with(references={"answer": "r.png"}), "image")[0].path == "references.answer"


def test_raw_assets_stand_in_and_say_so() -> None:
    sample = sample_with([url("in.png")], raw_assets={"image": ["./in.png", "target.png"], "audio": ["a.wav"]})
    (found,) = references(sample, "image")
    assert found == ("target.png", "raw_assets.image[1]", ("reference_from_raw_assets",), 0)
    assert [f.value for f in references(sample, "image", source="raw_assets")] == ["./in.png", "target.png"]
    sample["references"] = [{"answer": [url("r.png")]}]
    assert [f.value for f in references(sample, "image")] == ["r.png"]
    assert references({**sample, "raw_assets": {"image": "one.png"}, "references": []}, "image")[0].value == "one.png"


@pytest.mark.parametrize("spelled", ["in.png", "./in.png", "x/../in.png", "file:in.png", "file://in.png"])
def test_an_edit_is_never_scored_against_its_own_source(spelled: str) -> None:
    sample = sample_with([url("in.png")], raw_assets={"image": [spelled]})
    error = code_of(references, sample, "image")
    assert error.code == "no_reference"
    assert "raw_assets" in error.message
    assert "references_from" in str(error.hint)
    assert references(sample, "image", source="raw_assets")[0].value == spelled


def test_no_reference_says_where_it_looked() -> None:
    error = code_of(references, sample_with(references=[{"answer": [{"type": "hologram"}]}]), "image")
    assert error.code == "no_reference"
    assert "references[0].answer[0].type" in error.message
    assert code_of(references, sample_with(), "image").code == "no_reference"
    assert (
        code_of(references, sample_with(raw_assets={"image": []}), "image", source="raw_assets").code == "no_reference"
    )


def test_inputs_come_from_all_messages() -> None:
    turns = [
        {"role": "user", "content": [url("a.png"), url("x.wav", "audio")]},
        {"role": "user", "content": [url("b.png")]},
    ]
    found = inputs(sample_with(messages=turns), "image")
    assert [(f.value, f.path) for f in found] == [
        ("a.png", "messages[0].content[0].image_url.url"),
        ("b.png", "messages[1].content[0].image_url.url"),
    ]
    assert inputs(sample_with(), "image") == []


def test_task_type() -> None:
    assert task_type({"task_type": "Text_to_Image"}) == "text-to-image"
    assert task_type({"metadata": {"task_type": "i2i"}}) == "image-to-image"
    assert task_type({"question_type": "text to video", "task_type": None}) == "text-to-video"
    assert task_type({"task_type": "", "metadata": []}) is None
    assert output_modality({"task_type": "text-to-audio"}) == "audio"
    assert output_modality({"task_type": "image-qa"}) is None


def test_candidates_are_selected_by_position() -> None:
    found = predictions(predicted("none", [url("a.png"), url("b.png")], [url("c.png")]), "image")
    values = lambda c: [f.value for f in select_candidates(found, c)]  # noqa: E731
    assert values("all") == values("best") == ["a.png", "b.png", "c.png"]
    assert values("first") == values(1) == values("1") == ["a.png", "b.png"]
    assert values("last") == values(2) == values(-1) == ["c.png"]
    for missing in (0, 7, -5):
        assert code_of(select_candidates, found, missing).code == "no_prediction"
    with pytest.raises(ValueError, match="expected all"):
        select_candidates(found, "median")


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("a.PNG", "image"), ("a/b.c/d", None), (".png", None), ("a/.png", None), ("a.b.Mp4", "video"),
        ("https://h/a.wav?x=.png#y", "audio"), ("a?b.png", "image"), ("data:video/mp4;base64,", "video"),
        ("data:application/x,", None), ("C:\\x\\a.jpg", "image"), ("photo:1.png", "image"), ("", None),
        ("s3://b/a.flac", "audio"), ("file:///a/b.gif", "image"), ("data:;base64,AA", None),
    ],
)  # fmt: skip
def test_kind_by_name(uri: str, kind: str | None) -> None:
    assert kind_of_uri(uri) == kind


def test_kind_by_object() -> None:
    assert kind_of_value(Image.new("RGB", (2, 2))) == "image"
    assert kind_of_value(np.zeros((4, 4, 3), np.uint8)) == "image"
    assert kind_of_value(np.zeros((2, 4, 4, 3), np.uint8)) == "video"
    assert kind_of_value(np.zeros(9, np.float32)) == "audio"
    assert kind_of_value(Path("x/a.mp4")) == "video"
    assert kind_of_value(b"RIFF\0\0\0\0WAVEfmt ") == "audio"
    assert kind_of_value(b"\0\0\0\x18ftypisom") == "video"
    assert kind_of_value(b"\0\0\0\x18ftypavif") == "image"
    assert kind_of_value(b"\x89PNG") == "image"
    assert kind_of_value(5) is None
    assert not names_media("a.png", "audio")


def test_short_form_becomes_a_sample_and_points_back() -> None:
    record = {
        "id": "7",
        "prompt": "a cat",
        "output": ["o0.png", "o1.png"],
        "reference": "r.png",
        "model": "x",
        "data_tag": {"style": "photo"},
    }
    before = copy.deepcopy(record)
    form = read_form(record)
    assert (form.path, form.kind) == ((), "short")
    assert record == before
    sample = form.sample
    assert sample["task_type"] == "image-to-image"
    assert sample["model"] == "x"
    assert sample["data_tag"] == {"style": "photo"}
    assert [(f.value, f.path, f.index) for f in predictions(sample, "image")] == [
        ("o0.png", "output[0]", 0),
        ("o1.png", "output[1]", 1),
    ]
    assert references(sample, "image")[0][:2] == ("r.png", "reference")
    assert prompt_texts(sample)[0][:2] == ("a cat", "prompt")
    assert predictions(pickle.loads(pickle.dumps(sample)), "image")[0].path == "output[0]"
    json.dumps(sample)


@pytest.mark.parametrize(
    ("record", "task"),
    [
        ({"output": "o.png"}, "text-to-image"),
        ({"output": "o.png", "reference": "r.png"}, "image-to-image"),
        ({"output": "o.png", "input": "i.png"}, "image-to-image"),
        ({"output": "noext", "prompt": "x"}, "text-to-image"),
        ({"output": "o.wav", "reference": "r.wav"}, "text-to-audio"),
        ({"output": ["o.MP4"]}, "text-to-video"),
        ({"output": "https://h/o.mp4?x=1"}, "text-to-video"),
        ({"output": "data:audio/wav;base64,AA"}, "text-to-audio"),
        ({"prompt": "x", "reference": "r.mp4"}, "text-to-video"),
        ({"output": np.zeros((4, 4, 3), np.uint8)}, "text-to-image"),
        ({"output": {"type": "video", "video": "o.bin"}}, "text-to-image"),
        ({"output": "o.png", "reference": "r.png", "task_type": "text-to-image"}, "text-to-image"),
        ({"output": "o.png", "references": ["r.png"]}, "image-to-image"),
    ],
)
def test_short_form_task(record: dict[str, Any], task: str) -> None:
    sample = read_form({"id": 1, **record}).sample
    assert sample["id"] == "1"
    assert task_type(sample) == task


def test_short_form_with_objects_in_memory() -> None:
    image, array, data = Image.new("RGB", (4, 4)), np.zeros((4, 4, 3), np.uint8), b"\x89PNG\r\n"
    sample = read_form({"id": "m", "output": [image, array, data, Path("a.png")], "reference": image}).sample
    found = predictions(sample, "image")
    assert found[0].value is image
    assert found[1].value is array
    assert found[2].value is data
    assert found[3].value == "a.png"
    assert references(sample, "image")[0].value is image


def test_short_form_with_several_prompts_an_input_and_no_output() -> None:
    sample = read_form({"id": "p", "prompt": ["a", "b"], "input": "i.png"}).sample
    assert [(f.value, f.path) for f in prompt_texts(sample)] == [("a", "prompt[0]"), ("b", "prompt[1]")]
    assert inputs(sample, "image")[0][:2] == ("i.png", "input")
    assert code_of(predictions, sample, "image").code == "no_prediction"


def test_short_form_without_an_id_leaves_it_to_the_caller() -> None:
    assert read_form({"output": "o.png"}).sample["id"] is None
    assert read_form({"output": "o.png", "id": 0}).sample["id"] == "0"


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"id": "a", "output": 5}, "output: expected a path"),
        ({"id": "a", "output": ["o.png", 5]}, "output[1]: expected a path"),
        ({"id": "a", "output": {"x": 1}}, "output: expected a path"),
        ({"id": "a", "output": "o.png", "prompt": {"t": 1}}, "prompt: expected a string"),
        ({"id": 1.5, "output": "o.png"}, "id: expected"),
        ({"id": "", "output": "o.png"}, "id: expected"),
        ({"id": "a", "output": "o.png", "data_tag": 3}, "data_tag: expected an object"),
        ({"output": "o.png", "metadata": 3}, "metadata: expected an object"),
        ({}, "empty"),
        ({"id": "a", "schema_version": "v1"}, "messages: is missing"),
        ({"id": "a", "schema_version": "v1", "predict_result": []}, "messages: is missing"),
        ({"schema_version": "v1", "messages": []}, "id: is missing"),
        ({"id": "a", "image": "x.png"}, "messages: is missing"),
        ({"sample": {"id": "a", "messages": 5}}, "messages: expected a list"),
    ],
)
def test_what_is_no_sample_is_refused_by_its_field(record: dict[str, Any], words: str) -> None:
    error = code_of(read_form, record)
    assert error.code == "bad_sample"
    assert words in error.message


def test_a_near_miss_is_named() -> None:
    assert "'image' 'output'" in str(code_of(read_form, {"id": "a", "image": "x.png"}).hint)


def test_record_of_gage() -> None:
    inner = {
        "schema_version": "v1", "id": "p1",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "apple"}]}],
        "inputs": {}, "task_type": "text-to-image", "references": [{"answer": [url("r.png")]}], "label": "r.png",
        "metadata": {}, "data_tag": {}, "sampling_params": {}, "generation_params": {}, "eval_config": {},
        "predict_result": [{"index": 1, "message": {"role": "assistant", "content": [url("o1.png")]}}],
        "eval_result": {"metrics": {"clipscore": {"score": 0.5}}, "status": "completed"}, "_gage_source_index": 0,
    }  # fmt: skip
    record = {
        "sample_id": "t:p1", "sequence_id": 1, "namespace": "judge_t", "task_id": "t", "sample": inner,
        "model_output": {}, "judge_output": {}, "metrics": {}, "predict_result": {"summary": True},
    }  # fmt: skip
    form = read_form(record)
    assert form.kind == "record"
    assert form.path == ("sample",)
    assert form.sample is inner
    assert predictions(form.sample, "image")[0].path == "predict_result[0].message.content[0].image_url.url"
    assert sample_path({"sample": "x", "output": "o.png"}) == ()
    assert sample_path({"sample": {"temperature": 1}, "prompt": "x"}) == ()


def test_older_records_are_completed_without_being_changed() -> None:
    record = {"id": 12, "prompt": "a cat", "predict_result": [{"answer": "o.png"}]}
    before = copy.deepcopy(record)
    sample = read_form(record).sample
    assert record == before
    assert sample["id"] == "12"
    assert sample["schema_version"] == "v1"
    assert prompt_texts(sample)[0].value == "a cat"
