"""Runs over videos of every kind, and folders of frames: files on disk to rows."""

from __future__ import annotations

import json
import os
import shutil

import film_files as films
import numpy as np
import pytest
import sound_files
from PIL import Image

import genmeter


def sample(name: str, fragment: str = "video_url") -> dict:
    answer = [{"type": fragment, fragment: {"url": name}}]
    return {
        "schema_version": "v1",
        "id": name,
        "task_type": "text-to-video",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "greys"}]}],
        "predict_result": [{"index": 0, "message": {"role": "assistant", "content": answer}}],
    }


def write(folder, names):
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps(sample(name)) + "\n" for name in names))
    return path


def entries(run, metric="fake_motion"):
    return [line["eval_result"]["metrics"][metric] for line in run.samples]


def frames_into(folder, levels):
    folder.mkdir()
    for index, level in enumerate(levels):
        Image.fromarray(films.grey(level)).save(folder / f"{index}.png")


@pytest.fixture
def clips(tmp_path):
    for kind in ("mp4", "webm", "mkv", "avi-mjpeg", "mpg"):
        (tmp_path / f"{kind}.{kind[:3]}").write_bytes(films.film(kind, 30))
    first, *rest = (Image.fromarray(films.grey(i)).convert("L") for i in range(30))
    first.save(tmp_path / "anim.gif", save_all=True, append_images=rest, duration=50)
    frames_into(tmp_path / "folder", range(30))
    good = ["mp4.mp4", "webm.web", "mkv.mkv", "avi-mjpeg.avi", "mpg.mpg", "anim.gif", "folder"]
    bad = {
        "cut.mp4": films.film("mp4", 30)[:3000],
        "empty.mp4": b"",
        "sound.mp4": sound_files.encoded("mp4", "aac", sound_files.tone(44100, 0.2), 44100),
        "page.mp4": b"<html>",
        "short.mp4": films.film("mp4", 1),
    }
    for name, data in bad.items():
        (tmp_path / name).write_bytes(data)
    codes = ["decode_failed", "empty_media", "unsupported_media", "unsupported_media", "too_short"]
    return tmp_path, good, [*bad], codes


def test_every_kind_of_video_is_scored_and_every_bad_one_says_why(clips, tmp_path):
    folder, good, bad, codes = clips
    run = genmeter.score(write(folder, good + bad), ["fake_motion"], out=tmp_path / "run", report=False)
    found = entries(run)
    scores = [entry["score"] for entry in found[: len(good)]]
    assert scores == [pytest.approx(scores[-1], abs=3)] * len(good), "the folder's frames are exact"
    assert [entry["error"]["code"] for entry in found[len(good) :]] == codes
    assert all(entry["error"]["asset"] == name for entry, name in zip(found[len(good) :], bad, strict=True))


def test_a_frame_that_changes_between_two_runs_is_scored_again(clips, tmp_path):
    folder, *_ = clips
    frames_into(folder / "other", range(10))
    path = write(folder, ["folder", "other", "mp4.mp4"])
    out = tmp_path / "run"
    before = entries(genmeter.score(path, ["fake_motion"], out=out, report=False))
    same = entries(genmeter.score(path, ["fake_motion"], out=out, report=False))
    assert before == same
    Image.fromarray(films.grey(200)).save(folder / "folder" / "2.png")
    os.utime(folder / "folder" / "2.png", (1, 1))
    after = entries(genmeter.score(path, ["fake_motion"], out=out, report=False))
    assert after[0]["score"] != before[0]["score"]
    assert after[1:] == before[1:]
    shutil.copy(folder / "other" / "9.png", folder / "other" / "00.png")  # a frame more
    assert entries(genmeter.score(path, ["fake_motion"], out=out, report=False))[1]["score"] != before[1]["score"]


def test_a_folder_is_a_video_and_nothing_else(clips, tmp_path):
    folder, *_ = clips
    line = sample("folder", "image_url")
    line["task_type"] = "text-to-image"
    (folder / "s.jsonl").write_text(json.dumps(line) + "\n")
    run = genmeter.score(folder / "s.jsonl", ["fake_level"], out=tmp_path / "run", report=False)
    [entry] = entries(run, "fake_level")
    assert entry["error"]["code"] == "forbidden"


def test_the_same_bytes_whatever_the_workers(clips, tmp_path):
    folder, good, bad, _ = clips
    path = write(folder, good + bad)
    seen = set()
    for workers in (1, 3):
        out = tmp_path / f"run-{workers}"
        config = {"workers": workers, "cache": False}
        genmeter.score(path, ["fake_motion"], out=out, report=False, config=config)
        seen.add((out / "samples.jsonl").read_bytes())
    assert len(seen) == 1


def test_frames_in_memory():
    frames = np.stack([films.grey(index) for index in range(12)])
    samples = [{"id": "array", "output": frames}, {"id": "bytes", "output": films.film("mkv-ffv1", 12)}]
    with genmeter.Engine(["fake_motion"]) as engine:
        first, second = engine.score(samples)
    assert first.scores["fake_motion"] == pytest.approx(second.scores["fake_motion"], abs=1e-6)
