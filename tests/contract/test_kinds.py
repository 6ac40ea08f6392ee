"""One fake of every kind of metric and encoder goes through the engine with no change of contract."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from PIL import Image

import genmeter
from genmeter.contract import AudioMedia, VideoMedia


@pytest.fixture
def raw_media(monkeypatch):
    """Decode assets as raw bytes: float32 samples as audio at 4 Hz, grey bytes as 2x2 frames of a video."""
    from genmeter.assets.workers import DecodePool

    def decode(self, blob, modality, requests):
        if modality == "audio":
            return [AudioMedia(np.frombuffer(blob.data, dtype="<f4"), 4)] * len(requests)
        frames = np.stack([np.full((2, 2, 3), level, np.uint8) for level in blob.data])
        return [VideoMedia(frames, np.arange(len(frames), dtype=np.float64))] * len(requests)

    monkeypatch.setattr(DecodePool, "decode", decode)


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def entries(run, metric):
    return [line["eval_result"]["metrics"][metric] for line in run.samples]


def test_image_metric(make_set, scores, tmp_path, control):
    run = genmeter.score(make_set([10, 20, 30]), ["fake_level"], out=tmp_path / "run", report=False)
    assert scores(run, "fake_level") == [10.0, 20.0, 30.0]
    assert run.summary["metrics"]["fake_level"]["mean"] == 20.0


def test_pair_metric_takes_the_nearest_reference(tmp_path, control):
    for name, level in (("a", 50), ("b", 52), ("c", 90)):
        Image.fromarray(np.full((8, 8, 3), level, np.uint8)).save(tmp_path / f"{name}.png")
    path = write(tmp_path / "s.jsonl", [{"id": "1", "output": "a.png", "reference": ["c.png", "b.png"]}])
    [entry] = entries(genmeter.score(path, ["fake_pair"], out=tmp_path / "run", report=False), "fake_pair")
    assert entry["score"] == 2.0
    assert entry["detail"]["per_reference"] == [40.0, 2.0]
    assert entry["flags"] == ["multi_reference"]
    assert [item["path"] for item in entry["inputs"]] == ["output", "reference[0]", "reference[1]"]


def test_text_and_image_share_one_encoder_and_texts_are_encoded_once(make_set, tmp_path, control):
    path = make_set([10, 20, 30])
    run = genmeter.score(
        path, ["fake_match"], out=tmp_path / "run", report=False, config={"metrics": {"fake_match": {"prefix": "abc"}}}
    )
    found = entries(run, "fake_match")
    assert [entry["score"] for entry in found] == [-6.0, -16.0, -26.0]  # the text is 4 long
    assert found[0]["detail"] == {"text_tokens": 4}
    assert found[0]["variant"] == "joint,prefix=abc"
    assert sum(n for _, n in control.calls) == 4, "three images and one text"


def test_a_list_of_prompts_scores_their_mean(tmp_path, control):
    Image.fromarray(np.full((8, 8, 3), 10, np.uint8)).save(tmp_path / "a.png")
    path = write(tmp_path / "s.jsonl", [{"id": "1", "prompt": ["ab", "abcd"], "output": "a.png"}])
    [entry] = entries(genmeter.score(path, ["fake_match"], out=tmp_path / "run", report=False), "fake_match")
    assert entry["score"] == -7.0
    assert entry["detail"]["per_prompt"] == [-8.0, -6.0]


def test_windowed_audio_metric(tmp_path, control, raw_media):
    samples = {"long": [1.0] * 4 + [0.0] * 2, "short": [0.5] * 3}
    for name, values in samples.items():
        (tmp_path / f"{name}.wav").write_bytes(struct.pack(f"<{len(values)}f", *values))
    lines = [{"id": n, "task_type": "text-to-audio", "prompt": "p", "output": f"{n}.wav"} for n in samples]
    run = genmeter.score(write(tmp_path / "s.jsonl", lines), ["fake_loudness"], out=tmp_path / "run", report=False)
    found = entries(run, "fake_loudness")
    assert [entry["score"] for entry in found] == [pytest.approx(2 / 3), 0.5]  # weighted by the windows' length
    assert [entry["detail"]["windows"] for entry in found] == [2, 1]
    assert control.calls == [("fake_windows", 2)], "items of 1 and 2 windows share a batch"


def test_video_metric(tmp_path, control, raw_media):
    (tmp_path / "a.mp4").write_bytes(bytes([10, 20, 40]))
    (tmp_path / "b.mp4").write_bytes(bytes([10, 20]))
    lines = [{"id": n, "task_type": "text-to-video", "prompt": "p", "output": f"{n}.mp4"} for n in "ab"]
    run = genmeter.score(write(tmp_path / "s.jsonl", lines), ["fake_motion"], out=tmp_path / "run", report=False)
    good, short = entries(run, "fake_motion")
    assert good["score"] == 30.0
    assert short["score"] is None
    assert short["error"]["code"] == "too_short"
    assert short["error"]["asset"] == "b.mp4"


def test_text_metric_needs_no_encoder(tmp_path, control):
    lines = [
        {
            "schema_version": "v1",
            "id": f"q{i}",
            "task_type": "short-answer",
            "messages": [{"role": "user", "content": "2 + 2"}],
            "references": ["4"],
            "predict_result": [{"index": 0, "message": {"role": "assistant", "content": answer}}],
        }
        for i, answer in enumerate(["4", "5"])
    ]
    run = genmeter.score(write(tmp_path / "s.jsonl", lines), ["fake_words"], out=tmp_path / "run", report=False)
    assert [entry["score"] for entry in entries(run, "fake_words")] == [1.0, 0.0]
    assert control.calls == []


def test_set_metric(make_set, tmp_path, control):
    path = make_set([10, 20, 60])
    lines = path.read_text().splitlines()
    Image.fromarray(np.full((20, 20, 3), 120, np.uint8)).save(path.parent / "ref2.png")
    lines[2] = lines[2].replace('"ref.png"', '"ref2.png"')
    (path.parent / "out/1.png").write_bytes(b"")
    path.write_text("\n".join(lines) + "\n")
    run = genmeter.score(path, ["fake_gap"], out=tmp_path / "run", report=False)
    first, broken, last = entries(run, "fake_gap")
    gap = 3**0.5 * (110 - 35)  # references 100 and 120, each once; predictions 10 and 60
    assert first["score"] == last["score"] == pytest.approx(gap)
    assert first["scope"] == "set"
    assert first["set"] == "all"
    assert first["detail"]["n_prediction"] == first["detail"]["n_reference"] == 2
    assert first["detail"]["influence"] == pytest.approx(3**0.5 * 25)
    assert broken["score"] is None
    assert broken["error"]["code"] == "empty_media"
    summary = run.summary["metrics"]["fake_gap"]
    assert summary["n"]["scored"] == 2
    assert summary["n"]["failed"] == {"empty_media": 1}


def test_a_set_below_two_has_no_number(make_set, tmp_path, control):
    [entry] = entries(genmeter.score(make_set([10]), ["fake_gap"], out=tmp_path / "run", report=False), "fake_gap")
    assert entry["score"] is None
    assert entry["error"]["code"] == "too_few_samples"


def test_two_metrics_on_one_encoder_encode_once(make_set, tmp_path, control):
    genmeter.score(make_set([10, 20, 30]), ["fake_level", "fake_gap"], out=tmp_path / "run", report=False)
    assert sum(n for _, n in control.calls) == 4, "three predictions and one reference"


def test_candidates_and_their_choices(tmp_path, control):
    for level in (10, 20, 60):
        Image.fromarray(np.full((8, 8, 3), level, np.uint8)).save(tmp_path / f"{level}.png")
    (tmp_path / "bad.png").write_bytes(b"nothing")
    outputs = ["10.png", "20.png", "60.png"]
    path = write(tmp_path / "s.jsonl", [{"id": "1", "prompt": "p", "output": outputs}])
    expected = {"all": 30.0, "first": 10.0, "last": 60.0, "best": 60.0, 1: 20.0}
    for choice, value in expected.items():
        run = genmeter.score(path, ["fake_level"], out=tmp_path / f"run-{choice}", report=False, candidate=choice)
        [entry] = entries(run, "fake_level")
        assert entry["score"] == value, choice
        assert ("best_of_n" in entry.get("flags", [])) == (choice == "best")
    path = write(tmp_path / "t.jsonl", [{"id": "1", "prompt": "p", "output": [*outputs, "bad.png"]}])
    [entry] = entries(genmeter.score(path, ["fake_level"], out=tmp_path / "fail", report=False), "fake_level")
    assert entry["score"] is None
    assert entry["error"]["code"] == "unsupported_media"
    assert [c["score"] for c in entry["detail"]["per_candidate"]] == [10.0, 20.0, 60.0, None]
    run = genmeter.score(path, ["fake_level"], out=tmp_path / "mean", report=False, partial_candidates="mean")
    [entry] = entries(run, "fake_level")
    assert entry["score"] == 30.0
    assert entry["detail"]["candidates_scored"] == 3
