"""The standard's own examples with media and answers put in: each is scored where it names a metric."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import genmeter
from genmeter.schema.normalize import normalize_sample

SAMPLES = Path(__file__).resolve().parent.parent / "fixtures" / "samples"
TEXT = {"exact_match", "trajectory_match"}


def example(stem: str) -> dict[str, Any]:
    (path,) = SAMPLES.glob(f"*{stem}.json")
    sample: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return sample


def answered(sample: dict[str, Any], *content: dict[str, Any], **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": list(content), **more}
    return {**sample, "predict_result": [{"index": 0, "message": message}]}


def media(kind: str, path: str) -> dict[str, Any]:
    return {"type": f"{kind}_url", f"{kind}_url": {"url": path}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every path that the examples name, and an output beside each reference."""
    from genmeter.synth.film import write_video
    from genmeter.synth.motion import FPS, frames, make_clip
    from genmeter.synth.sound import render
    from genmeter.synth.sound_scene import make_sound
    from genmeter.synth.wav import write_wav

    root = tmp_path_factory.mktemp("examples")
    for name in ("refs", "inputs", "out"):
        (root / name).mkdir()
    rng = np.random.default_rng(0)
    for name in (
        "refs/apple_0001.png",
        "inputs/sketch_0001.png",
        "refs/color_0001.png",
        "out/apple.png",
        "out/color.png",
    ):
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(root / name)
    for seed, name in enumerate(("refs/piano_0001.wav", "out/piano.wav")):
        write_wav(root / name, render(make_sound(seed), 16_000, 3.0), 16_000)
    for seed, name in enumerate(("refs/sunset_0001.mp4", "out/sunset.mp4", "refs/other.mp4", "out/other.mp4")):
        write_video(root / name, frames(make_clip(seed), 16, 64, 64), FPS)
    return root


def scored(folder: Path, samples: list[dict[str, Any]], out: Path) -> dict[str, dict[str, Any]]:
    path = folder / f"{out.name}.jsonl"
    path.write_text("".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples), encoding="utf-8")
    run = genmeter.score(path, out=out, profile="tiny", device="cpu", report=False)
    return {row["id"]: row["eval_result"]["metrics"] for row in run.samples}


@pytest.mark.weights
@pytest.mark.usefixtures("lpips_weights")
@pytest.mark.parametrize("normalized", [False, True])
def test_examples_that_name_a_metric(folder: Path, tmp_path: Path, normalized: bool) -> None:
    film = example("text_to_video")
    other = json.loads(json.dumps(film).replace("t2v-0001", "t2v-0002").replace("sunset_0001", "other"))
    agent = example("agent")
    calls = agent["golden_trajectories"][0][0]["tool_calls"]
    samples = [
        answered(example("short_answer"), {"type": "text", "text": "4"}),
        answered(example("text_to_image"), media("image", "out/apple.png")),
        answered(example("image_to_image"), media("image", "out/color.png")),
        answered(example("text_to_audio"), media("audio", "out/piano.wav")),
        answered(film, media("video", "out/sunset.mp4")),
        answered(other, media("video", "out/other.mp4")),
        answered(agent, {"type": "text", "text": "31.1"}, tool_calls=calls),
    ]
    if normalized:
        samples = [normalize_sample(sample) for sample in samples]
    found = scored(folder, samples, tmp_path / "run")
    for sample in samples:
        entries = found[sample["id"]]
        assert set(entries) == set(sample["eval_config"]["metrics"])
        for name, entry in entries.items():
            assert entry["score"] is not None, (sample["id"], entry)
            if name in TEXT:
                assert entry["score"] == 1.0


def test_the_english_edition(folder: Path, tmp_path: Path) -> None:
    """Ids with underscores, no eval_config, texts as fragments of an answer: the defaults of the task are scored."""
    sample = {
        "schema_version": "0.0.1",
        "id": "t2i_0001",
        "task_type": "text-to-image",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a red apple on a wooden table"}]}],
        "references": [{"answer": [{"type": "text", "text": "an apple, red, on a table of wood"}]}],
        "raw_assets": {"image": ["refs/apple_0001.png"]},
    }
    assert genmeter.Sample.model_validate(sample).to_record() == sample
    found = scored(folder, [answered(sample, media("image", "out/apple.png"))], tmp_path / "english")
    assert list(found["t2i_0001"]) == ["clipscore"]
    assert found["t2i_0001"]["clipscore"]["score"] is not None
