"""What of a sample the CLIP metrics score, when they do not apply, and what they cost: the engine over a fake CLIP."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from genmeter_fakes import clip as fake
from PIL import Image

import genmeter
from genmeter.contract import VideoMedia

PREFIX = "A photo depicts "
CAPTION = {"type": "text", "text": "a blue car"}


@pytest.fixture
def table(monkeypatch):
    """The fake's answers, empty before each test."""
    return fake.install(monkeypatch)


@pytest.fixture
def folder(tmp_path):
    """Grey images ``10.png`` ... of that level."""
    for level in (10, 20, 30, 40, 50, 60):
        Image.fromarray(np.full((8, 8, 3), level, np.uint8)).save(tmp_path / f"{level}.png")
    return tmp_path


def run(folder, lines, metrics, **settings):
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    settings = {"report": False, "device": "cpu", "fresh": True, "cache": False, **settings}
    result = genmeter.score(path, metrics, out=folder / "run", **settings)
    for name in ("samples.jsonl", "summary.json", "run.json"):
        assert not re.search(r"[:,\[] ?(NaN|-?Infinity)", (folder / "run" / name).read_text())
    return result


def entries(result, metric):
    return [line["eval_result"]["metrics"][metric] for line in result.samples]


def by_id(result, metric):
    return {line["id"]: line["eval_result"]["metrics"][metric] for line in result.samples}


def code(entry):
    assert (entry["score"] is None) == ("error" in entry)
    return entry.get("error", {}).get("code")


def url(name):
    return {"type": "image_url", "image_url": {"url": name}}


def sample(identity, *, output="10.png", told="make it blue", given=None, answers=(), metadata=None, task=None):
    """A whole sample of the standard."""
    content = [url(given)] if given else []
    content += [{"type": "text", "text": told}] if told else []
    return {
        "schema_version": "v1",
        "id": identity,
        **({"task_type": task} if task else {}),
        "messages": [{"role": "user", "content": content}],
        "references": [{"answer": answer} for answer in answers],
        **({"metadata": metadata} if metadata else {}),
        "predict_result": [{"index": 0, "message": {"role": "assistant", "content": [url(output)]}}],
    }


def edit(identity, **parts):
    return sample(identity, **{"given": "20.png", "task": "image-to-image", **parts})


def texts(entry, role="prompt"):
    return [item["path"] for item in entry["inputs"] if item["role"] == role]


# --- variants, one decoding, one encoding ---------------------------------------------------------------------------


def test_variants_of_one_network_share_one_decoding_and_one_encoding(folder, table):
    table.images[10] = [1.0, 0.0]
    table.texts.update({"a cat": [0.31, math.sqrt(1 - 0.31**2)], PREFIX + "a cat": [-0.05, math.sqrt(1 - 0.05**2)]})
    names = ["clipscore", "clipscore/torchmetrics", "clipscore/cosine", "clip_i"]
    line = {"id": "1", "task_type": "text-to-image", "prompt": "a cat", "output": "10.png", "reference": "20.png"}
    result = run(folder, [line], names)
    model = "clip-openai-vit-b-32"
    assert sorted(table.encoded, key=str) == sorted(
        [(model, 10), (model, 20), (model, "a cat"), (model, PREFIX + "a cat")], key=str
    )
    assert len(table.prepared) == 4
    found = {name: entries(result, name)[0] for name in names}
    assert [found[n]["score"] for n in names[:3]] == [0.0, pytest.approx(31, abs=1e-4), pytest.approx(0.31, abs=1e-6)]
    assert found["clipscore"]["detail"]["cosine"] == pytest.approx(-0.05, abs=1e-6), "case B04"
    assert {round(found[n]["detail"]["cosine_noprefix"], 5) for n in names[:3]} == {0.31}
    assert [found[n]["variant"] for n in names] == [
        "openai-vit-b-32/hessel2021",
        "openai-vit-b-32/torchmetrics",
        "openai-vit-b-32/cosine",
        "openai-vit-b-32",
    ]
    assert [result.summary["metrics"][n]["range"] for n in names[:2]] == [[0.0, 2.5], [-100.0, 100.0]]
    rules = [result.run["metrics"][n]["rules"] for n in names[:3]]
    assert [rule["scale"] for rule in rules] == [2.5, 100.0, 1.0]
    assert (rules[0]["floor"], rules[1]["mean_floor"]) == (0.0, 0.0)


def test_two_networks_share_the_decoding(folder, table, monkeypatch):
    from genmeter.engine import files

    decoded = []
    real = files.decode
    monkeypatch.setattr(files, "decode", lambda blob, *rest: decoded.append(1) or real(blob, *rest))
    names = ["clipscore", "clipscore@openai-vit-l-14/cosine"]
    result = run(folder, [{"id": "1", "prompt": "a cat", "output": "10.png"}], names)
    assert len(decoded) == 1
    assert {model for model, _ in table.encoded} == {"clip-openai-vit-b-32", "clip-openai-vit-l-14"}
    encoders = [result.run["metrics"][n]["encoders"]["image"]["model"] for n in names]
    assert encoders == ["clip-openai-vit-b-32", "clip-openai-vit-l-14"]


def test_without_a_prefix_the_two_texts_are_one_unit(folder, table):
    run(folder, [{"id": "1", "prompt": "a cat", "output": "10.png"}], ["clipscore/torchmetrics"])
    assert len(table.encoded) == 2


# --- what is scored -------------------------------------------------------------------------------------------------


def test_prompts_candidates_and_references(folder, table):
    for level, cosine in ((10, 0.2), (30, 0.4)):
        table.images[level] = [cosine, math.sqrt(1 - cosine**2)]
    table.texts.update({"one": [1.0, 0.0], "two": [0.0, 1.0]})
    line = {"id": "1", "task_type": "text-to-image", "prompt": ["one", "two"], "output": ["10.png", "30.png"]}
    [entry] = entries(run(folder, [line], ["clipscore/cosine"]), "clipscore/cosine")
    per = [[0.2, math.sqrt(1 - 0.04)], [0.4, math.sqrt(1 - 0.16)]]
    candidates = entry["detail"]["per_candidate"]
    for candidate, expected in zip(candidates, per, strict=True):
        assert candidate["detail"]["per_prompt"] == pytest.approx(expected, abs=1e-6)
        assert candidate["score"] == pytest.approx(sum(expected) / 2, abs=1e-6)
        assert candidate["detail"]["cosine_noprefix"] == pytest.approx(sum(expected) / 2, abs=1e-6)
    assert entry["score"] == pytest.approx(sum(map(sum, per)) / 4, abs=1e-6)


def test_clip_i_is_the_mean_over_references(folder, table):
    table.images.update({10: [1.0, 0.0], 20: [0.6, 0.8], 30: [0.0, 1.0]})
    line = {"id": "1", "output": "10.png", "reference": ["20.png", "30.png"]}
    [entry] = entries(run(folder, [line], ["clip_i"]), "clip_i")
    assert entry["score"] == pytest.approx(0.3, abs=1e-6)
    assert entry["detail"]["per_reference"] == pytest.approx([0.6, 0.0], abs=1e-6)
    assert entry["flags"] == ["multi_reference"]


def test_clip_i_input_compares_with_the_source_of_the_edit(folder, table):
    table.images.update({10: [1.0, 0.0], 20: [0.6, 0.8], 30: [0.0, 1.0]})
    result = run(folder, [edit("1", answers=[[url("30.png")]])], ["clip_i", "clip_i/input"])
    assert entries(result, "clip_i")[0]["score"] == pytest.approx(0.0, abs=1e-6)
    assert entries(result, "clip_i/input")[0]["score"] == pytest.approx(0.6, abs=1e-6)
    assert texts(entries(result, "clip_i/input")[0], "input") == ["messages[0].content[0].image_url.url"]


def test_refclipscore_takes_the_closest_of_the_reference_captions(folder, table):
    table.images[10] = [1.0, 0.0, 0.0]
    table.texts[PREFIX + "a cat"] = [0.3, math.sqrt(0.91), 0.0]
    table.texts[PREFIX + "a tabby"] = [0.3, math.sqrt(0.91) * 0.8, math.sqrt(0.91) * 0.6]
    table.texts[PREFIX + "a dog"] = [0.0, 0.0, 1.0]
    answers = [[{"type": "text", "text": word}] for word in ("a dog", "a tabby")]
    lines = [
        sample("standard", told="a cat", answers=answers, task="text-to-image"),
        {"id": "short", "prompt": "a cat", "output": "10.png", "references": [{"answer": a} for a in answers]},
    ]
    found = entries(run(folder, lines, ["refclipscore"]), "refclipscore")
    b = 0.09 + 0.91 * 0.8
    for entry in found:
        assert entry["score"] == pytest.approx(2 * 0.75 * b / (0.75 + b), abs=1e-5)
        assert entry["detail"]["per_reference"] == pytest.approx([0.0, entry["score"]], abs=1e-6)
        assert entry["detail"]["cosine_reference"] == pytest.approx(b, abs=1e-6)
        assert texts(entry, "reference") == ["references[0].answer", "references[1].answer"]


def test_directional_similarity_reads_both_descriptions(folder, table):
    table.images.update({10: [0.0, 1.0, 0.0], 20: [1.0, 0.0, 0.0]})
    table.texts.update({"a car": [1.0, 0.0, 0.0], "a blue car": [0.0, 0.6, 0.8], "a red car": [1.0, 0.0, 0.0]})
    told = {"source_prompt": "a car", "target_prompt": "a blue car"}
    lines = [
        edit("both", metadata=told),
        edit("reference", metadata={"source_prompt": "a car"}, answers=[[url("30.png"), CAPTION]]),
        edit("no source", metadata={"target_prompt": "a blue car"}),
        edit("no target", metadata={"source_prompt": "a car"}, answers=[[url("30.png")]]),
        edit("same texts", metadata={"source_prompt": "a car", "target_prompt": "a red car"}),
        edit("no change", output="20.png", metadata=told),
        edit("no input", given=None, metadata=told),
        edit("pairs", metadata={"source_prompt": ["a car", "a car"], "target_prompt": ["a blue car", "a blue car"]}),
        edit("odd", metadata={"source_prompt": ["a car", "a car"], "target_prompt": ["x", "y", "z"]}),
    ]
    found = by_id(run(folder, lines, ["clip_directional"]), "clip_directional")
    expected = 1.6 / math.sqrt(2) / math.sqrt(2)
    for name in ("both", "reference", "pairs"):
        assert found[name]["score"] == pytest.approx(expected, abs=1e-6), name
    assert texts(found["both"]) == ["metadata.source_prompt", "metadata.target_prompt"]
    assert texts(found["reference"]) == ["metadata.source_prompt", "references[0].answer"]
    codes = {name: code(entry) for name, entry in found.items() if entry["score"] is None}
    assert codes == {
        "no source": "no_prompt",
        "no target": "no_prompt",
        "same texts": "not_applicable",
        "no change": "non_finite",
        "no input": "no_reference",
        "odd": "bad_sample",
    }
    assert "metadata.source_prompt" in found["no source"]["error"]["message"]
    assert "metadata.target_prompt" in found["no target"]["error"]["message"]
    assert "identical" in found["no change"]["flags"]


# --- when it does not apply -----------------------------------------------------------------------------------------


def test_an_instruction_is_never_scored_as_a_caption(folder, table):
    lines = [
        edit("bare"),
        edit("bare image", answers=[[url("30.png")]]),
        edit("path as reference", answers=["30.png"]),
        edit("target", metadata={"target_prompt": "a blue car"}),
        edit("reference text", answers=[[url("30.png"), CAPTION]]),
        edit("reference string", answers=["a blue car"]),
        edit("both", answers=[["a blue lorry"]], metadata={"target_prompt": "a blue car"}),
        edit("two", answers=[[CAPTION], [{"type": "text", "text": "a car in blue"}]]),
        edit("empty", metadata={"target_prompt": "  "}),
        sample("no task, but an input", given="20.png"),
        sample("no task, no input", told="a blue car"),
        sample("from text", told="a blue car", given="20.png", task="text-to-image"),
        sample("image to video", given="20.png", task="image-to-video"),
        edit("no prediction either") | {"predict_result": []},
        {"id": "short", "prompt": "make it blue", "input": "20.png", "output": "10.png"},
        {"id": "short, stated", "prompt": "a blue car", "reference": "20.png", "output": "10.png", "task_type": "t2i"},
    ]
    for prompt_field in (None, "messages[0].content"):
        result = run(folder, lines, ["clipscore/cosine"], prompt_field=prompt_field)
        found = by_id(result, "clipscore/cosine")
        skipped = {name for name, entry in found.items() if code(entry) == "not_applicable"}
        assert skipped == {
            "bare", "bare image", "path as reference", "empty", "no task, but an input", "image to video",
            "no prediction either", "short",
        }  # fmt: skip
        assert not [name for name, entry in found.items() if entry["score"] is None and name not in skipped]
        scored = {text for _, text in table.encoded if isinstance(text, str)}
        assert scored == {"a blue car", "a car in blue"}
        summary = result.summary["metrics"]["clipscore/cosine"]["n"]
        assert (summary["skipped"], summary["n_failed"]) == (8, 0)
        table.encoded.clear()
    assert texts(found["target"]) == texts(found["both"]) == ["metadata.target_prompt"]
    assert texts(found["reference text"]) == ["references[0].answer"]
    assert len(found["two"]["detail"]["per_prompt"]) == 2
    assert "metadata.target_prompt" in found["bare"]["error"]["hint"]


def test_a_reference_caption_is_not_compared_with_itself(folder, table):
    answers = [[CAPTION]]
    lines = [
        edit("own", answers=answers, metadata={"target_prompt": "a car"}),
        edit("none", answers=answers),
        sample("no reference", told="a car", task="text-to-image"),
    ]
    own, none, lacking = entries(run(folder, lines, ["refclipscore"]), "refclipscore")
    assert own["score"] is not None
    assert code(none) == "not_applicable"
    assert "references" not in none["error"]["hint"]
    assert code(lacking) == "no_reference"


def test_missing_prompt_and_other_tasks(folder, table):
    lines = [
        sample("no prompt", told="", task="text-to-image"),
        sample("sound", task="text-to-audio"),
        sample("question", task="image-qa"),
    ]
    found = entries(run(folder, lines, ["clipscore"]), "clipscore")
    assert [code(entry) for entry in found] == ["no_prompt", "not_applicable", "not_applicable"]


def test_default_metrics_of_a_task(folder, table):
    lines = [sample("t2i", told="a cat", task="text-to-image"), edit("i2i", answers=[[url("30.png")]])]
    result = run(folder, lines, None, limit=1)
    assert list(result.summary["metrics"]) == ["clipscore"]
    engine = genmeter.Engine(device="cpu", media_root=str(folder))
    with engine:
        [_, second] = engine.score(lines)
    assert set(second.eval_result["metrics"]) == {"lpips", "clip_i"}
    assert second.scores["clip_i"] is not None


def test_frames_of_a_video_are_averaged(folder, table, monkeypatch):
    from genmeter.assets.workers import DecodePool

    frames = np.stack([np.full((4, 4, 3), level, np.uint8) for level in (10, 20)])
    monkeypatch.setattr(DecodePool, "decode", lambda pool, blob, modality, asked: [VideoMedia(frames, np.arange(2.0))])
    table.images.update({10: [0.6, 0.8], 20: [-0.2, math.sqrt(0.96)]})
    table.texts.update({"a cat": [1.0, 0.0], PREFIX + "a cat": [1.0, 0.0]})
    (folder / "a.mp4").write_bytes(b"\0\0\0\x18ftypmp42")
    [entry] = entries(run(folder, [{"id": "1", "prompt": "a cat", "output": "a.mp4"}], ["clipscore"]), "clipscore")
    assert entry["score"] == pytest.approx(0.75, abs=1e-6)
    assert entry["detail"]["cosine"] == pytest.approx(0.2, abs=1e-6)


def test_a_feature_without_direction_costs_its_own_sample(folder, table):
    table.images[20] = [0.0, 0.0]
    lines = [{"id": str(level), "prompt": "a cat", "output": f"{level}.png"} for level in (10, 20, 30)]
    for metric in ("clipscore", "clipscore/torchmetrics"):
        assert [code(e) for e in entries(run(folder, lines, [metric]), metric)] == [None, "non_finite", None]


# --- summary --------------------------------------------------------------------------------------------------------


def against(table, cosines):
    table.texts.update({text: [1.0, 0.0] for text in ("a cat", PREFIX + "a cat")})
    levels = (10, 20, 30, 40, 50, 60)[: len(cosines)]
    table.images.update({lv: [c, math.sqrt(1 - c * c)] for lv, c in zip(levels, cosines, strict=True)})
    return [
        {"id": str(lv), "prompt": "a cat", "output": f"{lv}.png", "data_tag": {"half": "low" if c < 0 else "high"}}
        for lv, c in zip(levels, cosines, strict=True)
    ]


def test_torchmetrics_clips_the_mean_and_says_so(folder, table):
    lines = against(table, [-0.3, -0.2, 0.1])
    names = ["clipscore/torchmetrics", "clipscore/cosine", "clipscore"]
    result = run(folder, lines, names)
    clipped, cosine, hessel = (result.summary["metrics"][name] for name in names)
    assert [e["score"] for e in entries(result, names[0])] == pytest.approx([-30, -20, 10], abs=1e-4)
    assert clipped["mean"] == 0.0
    assert clipped["mean_unclipped"] == pytest.approx(-40 / 3, abs=1e-4)
    assert clipped["mean_floor"] == 0.0
    assert clipped["interval95"][0] == 0.0 <= clipped["interval95"][1]
    assert cosine["mean"] == pytest.approx(-0.4 / 3, abs=1e-6)
    assert "mean_floor" not in cosine
    assert hessel["mean"] == pytest.approx(0.25 / 3, abs=1e-6)
    assert any("clipped" in note and "torchmetrics" in note for note in result.summary["notes"])
    halves = clipped["groups"]["data_tag.half"]
    assert halves["low"]["mean"] == 0.0
    assert halves["high"]["mean"] == pytest.approx(10, abs=1e-4)
    assert "mean_unclipped" not in halves["high"]
    from genmeter.analysis.summary import summarize_run

    assert summarize_run(folder / "run")["metrics"][names[0]] == clipped


def test_a_mean_above_the_floor_is_left_alone(folder, table):
    result = run(folder, against(table, [-0.1, 0.3]), ["clipscore/torchmetrics"])
    found = result.summary["metrics"]["clipscore/torchmetrics"]
    assert found["mean"] == pytest.approx(10, abs=1e-4)
    assert "mean_unclipped" not in found
    assert result.summary["notes"] == []


def test_a_set_in_another_language_opens_with_the_sentence_and_a_variant_that_fits(folder, table):
    prompts = {10: "狗", 20: "a dog", 30: "a car"}
    lines = [{"id": str(level), "prompt": text, "output": f"{level}.png"} for level, text in prompts.items()]
    lines.append({"id": "gone", "prompt": "un chien", "output": "gone.png"})
    table.flags["狗"] = ("prompt_language",)
    result = run(folder, lines, ["clipscore/torchmetrics"])
    first = result.summary["notes"][0]
    assert first.startswith("clipscore/torchmetrics: 1 of 3 prompts are outside the languages")
    assert "clipscore@siglip2-vit-b-16/torchmetrics" in first
    assert entries(result, "clipscore/torchmetrics")[0]["flags"] == ["prompt_language"]
    from genmeter.report.tables import render

    assert "siglip2-vit-b-16" in " ".join(render([result.summary]).split()[:60])


# --- profile tiny ---------------------------------------------------------------------------------------------------


def test_profile_tiny_scores_with_the_tiny_network_and_says_so(folder, table):
    lines = [{"id": "1", "prompt": "a cat", "output": "10.png"}]
    result = run(folder, lines, ["clipscore", "clipscore@openai-vit-b-16"], profile="tiny")
    tiny, named = (entries(result, name)[0] for name in ("clipscore", "clipscore@openai-vit-b-16"))
    assert tiny["variant"] == "tiny-clip/hessel2021"
    assert set(tiny["flags"]) == {"not_comparable", "nonstandard_convention"}
    assert named["variant"] == "openai-vit-b-16/hessel2021"
    assert "not_comparable" not in named["flags"]
    assert {model for model, _ in table.encoded} == {"tiny-clip", "clip-openai-vit-b-16"}
    assert "|m:tiny-clip|" in result.summary["metrics"]["clipscore"]["signature"]
    assert any("not comparable" in note for note in result.summary["notes"])


@pytest.mark.parametrize("metrics", [["clipscore"], None])
def test_a_tiny_run_is_not_continued_with_the_reference_network(folder, table, metrics):
    lines = [{"id": "1", "prompt": "a cat", "output": "10.png"}]
    run(folder, lines, metrics, profile="tiny")
    with pytest.raises(ValueError, match="tiny-clip"):
        run(folder, lines, metrics, fresh=False)
