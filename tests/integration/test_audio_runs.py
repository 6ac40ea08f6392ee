"""Runs over sound: files on disk to rows, whatever a file does to its decoder."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import sound_files as files
from decoders import misbehaving
from PIL import Image

import genmeter


def entries(run, metric="fake_loudness"):
    return [line["eval_result"]["metrics"][metric] for line in run.samples]


@pytest.fixture
def sounds(tmp_path):
    """samples.jsonl of eight good files of one loudness, in eight kinds, and five bad ones."""
    loudness = 0.5 * 2 / np.pi  # the mean of |sin|, times the level
    good = {
        "a.wav": files.wav(files.tone(48000, 1.0), 48000, "s24", after=files.chunk(b"LIST", b"INFOabcd")),
        "b.wav": files.wav(np.repeat(files.tone(44100, 1.0)[:, None], 6, 1), 44100, "f32"),
        "c.wav": files.wav(files.tone(8000, 1.0, 441.0), 8000, "mulaw"),
        "d.flac": files.encoded_kind("flac", files.tone, 1.0),
        "e.mp3": files.encoded_kind("mp3", files.tone, 1.0),
        "f.ogg": files.encoded_kind("ogg-opus", files.tone, 1.0),
        "g.m4a": files.encoded_kind("m4a", files.tone, 1.0),
        "h.mp4": files.with_pictures("mp4", "aac", 48000, files.tone(48000, 1.0)),
    }
    bad = {
        "cut.wav": (good["a.wav"][:9000], "decode_failed"),
        "empty.wav": (b"", "empty_media"),
        "header.wav": (files.wav(np.zeros(0)), "empty_media"),
        "page.wav": (b"<html>error</html>", "unsupported_media"),
        "nan.wav": (files.wav(np.full(100, np.nan), kind="f32"), "non_finite"),
    }
    lines = []
    for name, data in {**good, **{name: data for name, (data, _) in bad.items()}}.items():
        (tmp_path / name).write_bytes(data)
        answer = [{"type": "audio_url", "audio_url": {"url": name}}]  # of a video, the sound track
        line = {"schema_version": "v1", "id": name, "task_type": "text-to-audio"}
        line["messages"] = [{"role": "user", "content": [{"type": "text", "text": "a tone"}]}]
        line["predict_result"] = [{"index": 0, "message": {"role": "assistant", "content": answer}}]
        lines.append(line)
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path, loudness, len(good), [code for _, code in bad.values()]


def test_every_kind_of_file_is_scored_and_every_bad_one_says_why(sounds, tmp_path):
    path, loudness, good, codes = sounds
    run = genmeter.score(path, ["fake_loudness"], out=tmp_path / "run", report=False)
    found = entries(run)
    assert [entry["score"] for entry in found[:good]] == [pytest.approx(loudness, abs=0.02)] * good
    assert [entry["error"]["code"] for entry in found[good:]] == codes
    assert found[good]["error"]["asset"] == "cut.wav"
    assert run.summary["metrics"]["fake_loudness"]["n"]["scored"] == good


def test_the_same_bytes_whatever_the_workers(sounds, tmp_path):
    """B14's kind: one process, several, images apart too, a second run."""
    path, *_ = sounds
    seen = set()
    for workers, isolate in ((1, "media"), (3, "media"), (2, "all"), (1, "media")):
        out = tmp_path / f"run-{workers}-{isolate}-{len(seen)}"
        config = {"workers": workers, "policy": {"isolate": isolate}, "cache": False}
        genmeter.score(path, ["fake_loudness"], out=out, report=False, config=config, fresh=True)
        seen.add((out / "samples.jsonl").read_bytes())
    assert len(seen) == 1


def test_images_apart_are_scored_alike(tmp_path):
    rng = np.random.default_rng(0)
    lines = []
    for index in range(6):
        Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(tmp_path / f"{index}.png")
        lines.append({"id": str(index), "prompt": "p", "output": f"{index}.png"})
    (tmp_path / "3.png").write_bytes((tmp_path / "2.png").read_bytes()[:300])
    path = tmp_path / "s.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = []
    for isolate in ("media", "all"):
        config = {"policy": {"isolate": isolate}, "cache": False}
        genmeter.score(path, ["fake_level"], out=tmp_path / isolate, report=False, config=config)
        rows.append((tmp_path / isolate / "samples.jsonl").read_bytes())
    assert rows[0] == rows[1]


def test_a_decoder_that_hangs_or_dies_costs_one_sample(tmp_path, monkeypatch):
    """One file stops its decoder, one kills it; the samples around them have their scores."""
    from genmeter.assets import workers

    command = misbehaving(
        "if len(parts[0]) == 64: os.kill(os.getpid(), signal.SIGSTOP)\n"
        "if len(parts[0]) == 65: os.kill(os.getpid(), signal.SIGSEGV)"
    )
    monkeypatch.setattr(workers, "worker_command", lambda memory: command)
    names = ["a.wav", "stop.wav", "b.wav", "crash.wav", "c.wav"]
    for name in names:
        data = {"stop.wav": bytes(64), "crash.wav": bytes(65)}.get(name, files.wav(files.tone(16000, 0.1), 16000))
        (tmp_path / name).write_bytes(data)
    path = tmp_path / "s.jsonl"
    lines = [{"id": name, "task_type": "text-to-audio", "prompt": "p", "output": name} for name in names]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = {"policy": {"decode_timeout_s": 1.0}, "workers": 2, "max_failed": 5}
    run = genmeter.score(path, ["fake_loudness"], out=tmp_path / "run", report=False, config=config)
    found = entries(run)
    assert [(entry.get("error") or {}).get("code") for entry in found] == [
        None,
        "timed_out",
        None,
        "decode_failed",
        None,
    ]
    assert "SIGSEGV" in found[3]["error"]["message"]
    assert not [pid for pid in _children() if "genmeter.assets.worker" in _command(pid)], "all workers are gone"


def _children() -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process().children()]


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def test_sound_in_memory(tmp_path):
    tone = files.tone(16000, 0.5)
    (tmp_path / "t.wav").write_bytes(files.wav(tone, 16000, "f32"))
    samples = [
        {"id": "tuple", "output": (tone.astype("f4"), 16000)},
        {"id": "stereo", "output": (np.stack([tone, tone], 1).astype("f4"), 16000)},
        {"id": "bytes", "output": (tmp_path / "t.wav").read_bytes()},
        {"id": "path", "output": os.fspath(tmp_path / "t.wav")},
        {"id": "list", "output": [(tone.astype("f4"), 16000), (np.zeros(8000, "f4"), 16000)]},
        {"id": "ints", "output": (np.zeros(8000, "i4"), 16000)},
    ]
    with genmeter.Engine(["fake_loudness"], media_root=os.fspath(tmp_path)) as engine:
        *scored, refused = engine.score(samples)
    values = [result.scores["fake_loudness"] for result in scored]
    assert values[:4] == [pytest.approx(values[0], abs=1e-7)] * 4
    assert values[4] == pytest.approx(values[0] / 2, abs=1e-6)
    assert refused.errors["fake_loudness"]["code"] == "unsupported_media"


def test_ctrl_c_ends_a_run_and_its_decoders(tmp_path, genmeter_command):
    """The whole group of the terminal gets the signal; the same command goes on later."""
    import signal
    import time

    for index in range(16):
        (tmp_path / f"{index}.wav").write_bytes(files.wav(files.tone(16000, 0.2, level=0.01 * (index + 1)), 16000))
    lines = [
        {"id": str(index), "task_type": "text-to-audio", "prompt": "p", "output": f"{index}.wav"} for index in range(16)
    ]
    path = tmp_path / "s.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("score", path, "--metrics", "fake_loudness", "-o", tmp_path / "run", "--batch-size", "1")
    slow = {"GENMETER_FAKE_DELAY": "0.2"}
    process = genmeter_command(*words, background=True, extra=slow, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "journal.sqlite").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.0)
    os.killpg(process.pid, signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130, (out, error)
    assert b"Traceback" not in error
    assert genmeter_command(*words).returncode == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert all(row["eval_result"]["metrics"]["fake_loudness"]["score"] is not None for row in rows)
