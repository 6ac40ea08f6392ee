"""Runs over video files: which frames are scored, what has no score and why, and what a set says of its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genmeter
from genmeter.synth.film import write_video
from genmeter.synth.motion import caption, degrade_frames, frames, make_clip

av = pytest.importorskip("av")

pytestmark = pytest.mark.usefixtures("one_torch_thread")


class Videos:
    """A folder of samples in the making."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lines = folder, []
        folder.mkdir(exist_ok=True)

    def write(self, name: str, pixels: np.ndarray, fps: int = 8) -> str:
        write_video(self.folder / name, pixels, fps)
        return name

    def add(self, output: str, reference: str | None = None, prompt: str = "shapes that move", **fields: Any) -> None:
        line = {"id": f"s{len(self.lines)}", "prompt": prompt, "output": output, "task_type": "text-to-video", **fields}
        self.lines.append({**line, **({} if reference is None else {"reference": reference})})

    def score(self, metrics: Any, **settings: Any) -> Any:
        path = self.folder / "samples.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        out = self.folder / f"run{len(list(self.folder.glob('run*')))}"
        settings = {"profile": "tiny", "device": "cpu", "report": False, "cache": False, **settings}
        return genmeter.score(path, metrics, out=out, **settings)


@pytest.fixture
def videos(tmp_path: Path) -> Videos:
    return Videos(tmp_path / "data")


def entries(run: Any, metric: str) -> list[dict[str, Any]]:
    return [line["eval_result"]["metrics"][metric] for line in run.samples]


def code(entry: dict[str, Any]) -> str | None:
    return (entry.get("error") or {}).get("code")


def take(seed: int, count: int, width: int = 64, height: int = 48) -> np.ndarray:
    return frames(make_clip(seed), count, width, height)


# --- FVD -----------------------------------------------------------------------------------------------------------


@pytest.mark.weights
def test_short_videos_are_named_and_nobody_pads_them(videos: Videos) -> None:
    counts = [1, 8, 9, 15, 16, 40]
    for index, count in enumerate(counts):
        videos.add(
            videos.write(f"o{count}.mp4", take(index, count)), videos.write(f"r{count}.mp4", take(50 + index, 16))
        )
    run = videos.score(["fvd", "kvd"])
    found = entries(run, "fvd")
    assert [code(entry) for entry in found] == ["too_short"] * 4 + [None, None]
    for entry, count in zip(found[:4], counts, strict=False):
        assert f"{count} frames" in entry["error"]["message"]
        assert entry["error"]["asset"] == f"o{count}.mp4"
    long = found[5]
    assert long["detail"]["n_prediction"] == 2
    assert long["detail"]["n_reference"] == 6, (
        "references count whether or not the prediction beside them could be read"
    )
    assert (long["detail"]["frames_used"], long["detail"]["frames_total"]) == (16, 40)
    assert "partial_video" in long["flags"]
    assert "partial_video" not in found[4]["flags"]
    assert long["detail"]["feature_distance"] > 0
    assert found[4]["score"] == long["score"] > 0
    assert [code(entry) for entry in entries(run, "kvd")] == ["too_short"] * 4 + [None, None]
    metric = run.summary["metrics"]["fvd"]
    assert metric["n"]["failed"] == {"too_short": 4}
    assert metric["frames"] == {"used": [16, 16], "total": [40, 40]}
    nine = videos.score(["fvd"], config={"metrics": {"fvd": {"frames": 9}}})
    assert [code(entry) for entry in entries(nine, "fvd")] == ["too_short"] * 2 + [None] * 4
    assert entries(nine, "fvd")[2]["variant"] == "i3d-k400/unterthiner2018,frames=9"


@pytest.mark.weights
def test_one_video_is_no_set(videos: Videos) -> None:
    videos.add(videos.write("o.mp4", take(1, 9)), videos.write("r.mp4", take(2, 9)))
    config = {"metrics": {"fvd": {"frames": 9}, "kvd": {"frames": 9}}}
    run = videos.score(["fvd", "kvd"], config=config)
    for metric in ("fvd", "kvd"):
        [entry] = entries(run, metric)
        assert entry["score"] is None
        assert code(entry) == "too_few_samples"
        assert "at least 2" in entry["error"]["message"]
        assert run.summary["metrics"][metric]["score"] is None


@pytest.mark.weights
def test_sets_that_differ_in_size_and_rate_are_flagged(videos: Videos) -> None:
    for index in range(2):
        output = videos.write(f"o{index}.mp4", take(index, 9, 64, 48), 8)
        videos.add(output, videos.write(f"r{index}.mp4", take(9 + index, 9, 96, 64), 12))
    settings = {"config": {"metrics": {"fvd": {"frames": 9}}}}
    first, _ = entries(videos.score(["fvd"], **settings), "fvd")
    assert {"size_mismatch_sets", "frame_rate_mismatch", "low_sample_count"} <= set(first["flags"])
    assert first["detail"]["media"] == {
        "prediction": {"frames_used": 9, "frames_total": 9, "size": "64x48", "fps": 8.0},
        "reference": {"frames_used": 9, "frames_total": 9, "size": "96x64", "fps": 12.0},
    }
    for line in videos.lines:
        line["reference"] = line["output"]
    same, _ = entries(videos.score(["fvd"], **settings), "fvd")
    assert not {"size_mismatch_sets", "frame_rate_mismatch"} & set(same["flags"])
    assert same["score"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.weights
def test_a_random_start_is_the_files_own(videos: Videos) -> None:
    """Drawn from the digest: the same in every run, order and company; and not the start for everybody."""
    for index in range(2):
        videos.add(videos.write(f"o{index}.mp4", take(index, 40)), videos.write(f"r{index}.mp4", take(9 + index, 40)))
    settings = {"config": {"metrics": {"fvd": {"frames": 9, "start": "random"}}}}
    runs = [videos.score(["fvd"], **settings)]
    videos.lines.reverse()
    runs.append(videos.score(["fvd"], workers=3, **settings))
    values = [entries(run, "fvd")[0]["score"] for run in runs]
    assert values[0] == pytest.approx(values[1], rel=1e-9)
    first = videos.score(["fvd"], config={"metrics": {"fvd": {"frames": 9}}})
    assert entries(first, "fvd")[0]["score"] != pytest.approx(values[0], rel=1e-3)


@pytest.mark.weights
def test_black_against_white_from_files(videos: Videos) -> None:
    """From lossless files to the row, the published value of 16 frames (152.9, ports; black is 0 and white is 255)."""
    for index in range(2):
        names = {}
        for role, level in (("output", 0), ("reference", 255)):
            pixels = np.full((16, 64, 64, 3), level, np.uint8)
            # A pixel apart, so that there are two files; beyond the clip, so that both clips are equal.
            extra = np.full((1 + index, 64, 64, 3), level, np.uint8)
            path = videos.folder / f"{role}{index}.mkv"
            with av.open(str(path), "w") as file:
                stream = file.add_stream("ffv1", rate=8)
                stream.width, stream.height, stream.pix_fmt = 64, 64, "bgr0"
                for frame in np.concatenate([pixels, extra]):
                    file.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
                file.mux(stream.encode())
            names[role] = path.name
        videos.add(names["output"], names["reference"])
    first, second = entries(videos.score(["fvd"]), "fvd")
    assert first["score"] == second["score"] == pytest.approx(152.91750309134142, rel=2e-3)
    assert first["score"] == pytest.approx(152.9015, rel=1e-5)


# --- frame by frame ------------------------------------------------------------------------------------------------


def test_clipscore_reads_eight_frames_and_clipsim_all(videos: Videos) -> None:
    for seed, count in ((3, 24), (4, 8), (5, 3)):
        clip = make_clip(seed)
        videos.add(videos.write(f"o{seed}.mp4", frames(clip, count)), prompt=caption(clip))
    videos.add(videos.write("o6.mp4", take(6, 24)), prompt=caption(make_clip(77)))
    run = videos.score(["clipscore/cosine", "clipscore/clipsim"])
    some, every = entries(run, "clipscore/cosine"), entries(run, "clipscore/clipsim")
    assert [entry["detail"]["frames_used"] for entry in some] == [8, 8, 3, 8]
    assert [entry["detail"]["frames_used"] for entry in every] == [24, 8, 3, 24]
    assert ["partial_video" in entry["flags"] for entry in some] == [True, False, False, True]
    assert not any("partial_video" in entry["flags"] for entry in every)
    for one, other in zip(some, every, strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=0.05)
    assert some[1]["score"] == every[1]["score"], "all eight frames are all frames"
    assert min(entry["score"] for entry in some[:3]) > 0.3 > some[3]["score"]
    assert run.summary["metrics"]["clipscore/cosine"]["frames"] == {"used": [8, 8], "total": [24, 24]}


def test_consistency_flicker_and_a_frozen_video(videos: Videos) -> None:
    pixels = take(8, 16, 128, 96)
    kinds = {
        "good": pixels,
        "flicker": degrade_frames(pixels, "flicker", 1.0),
        "frozen": degrade_frames(pixels, "frozen", 1.0),
        "one": pixels[:1],
    }
    for name, found in kinds.items():
        videos.add(videos.write(f"{name}.mp4", found), id=name)
    names = ["clip_temporal", "clip_temporal/all_pairs", "clip_temporal/vbench_background", "temporal_flicker"]
    run = videos.score(names)
    for name in names:
        good, flicker, frozen, one = entries(run, name)
        assert flicker["score"] < good["score"] < frozen["score"] <= 1.0
        assert frozen["score"] > 0.99
        assert code(one) == "too_short"
        assert "static_video" in frozen["flags"]
        assert "static_video" not in (*good.get("flags", ()), *flicker.get("flags", ()))
        assert frozen["detail"]["motion"] < 2 / 255 < good["detail"]["motion"]


@pytest.mark.weights
def test_lpips_of_two_videos(videos: Videos) -> None:
    clean = take(2, 10)
    clean_name = videos.write("clean.mp4", clean)
    for name, pixels in (
        ("same", clean),
        ("noisy", degrade_frames(clean, "noise", 0.5)),
        ("shorter", clean[:9]),
        ("larger", take(2, 10, 80, 64)),
    ):
        videos.add(videos.write(f"{name}.mp4", pixels), clean_name, id=name)
    same, noisy, shorter, larger = entries(videos.score(["lpips"]), "lpips")
    assert same["score"] == 0.0
    assert noisy["score"] > 0.1
    assert noisy["detail"]["frames_used"] == 10
    assert code(shorter) == "length_mismatch"
    assert "9 frames" in shorter["error"]["message"]
    assert "10" in shorter["error"]["message"]
    assert code(larger) == "size_mismatch"


def test_one_decoding_serves_all_metrics_and_one_encoding_all_conventions(videos: Videos) -> None:
    for index in range(3):
        videos.add(videos.write(f"o{index}.mp4", take(index, 12)))
    one = videos.score(["clip_temporal"])
    many = videos.score(["clip_temporal", "clip_temporal/all_pairs", "clipscore/clipsim", "temporal_flicker"])
    encoded = [json.loads((run.run_dir / "run.json").read_text())["counts"].get("encoded") for run in (one, many)]
    assert entries(one, "clip_temporal") == entries(many, "clip_temporal")
    if encoded[0] is not None:
        assert encoded[1] == encoded[0] + 1, "three prompts are one text more; frames and motion are there already"


def test_a_task_without_video_is_not_judged_as_one(videos: Videos) -> None:
    videos.add(videos.write("o0.mp4", take(0, 16)), task_type="text-to-image")
    videos.add(videos.write("o1.mp4", take(1, 16)))
    found = entries(videos.score(["clip_temporal"]), "clip_temporal")
    assert code(found[0]) == "not_applicable"
    assert found[1]["score"] is not None


def test_arrays_in_memory_are_bytes_or_refused(tmp_path: Path) -> None:
    """Nobody can pass a wrong range: uint8 is scored, floats in any range are an error that says so."""
    clip = make_clip(3)
    pixels = frames(clip, 10)
    forms = [pixels, pixels.astype(np.float32) / 255, pixels.astype(np.float32), pixels / 127.5 - 1]
    with genmeter.Engine(["clipscore@tiny-clip/clipsim"], device="cpu", media_root=str(tmp_path)) as engine:
        results = list(
            engine.score(
                {"id": str(i), "prompt": caption(clip), "output": form, "task_type": "text-to-video"}
                for i, form in enumerate(forms)
            )
        )
    assert results[0].scores["clipscore@tiny-clip/clipsim"] > 0.3
    for result in results[1:]:
        assert result.scores["clipscore@tiny-clip/clipsim"] is None
        assert "uint8" in str(result.errors)
