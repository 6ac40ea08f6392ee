"""Memory, threads and handles stay flat: over long inputs, over many openings, and over samples that fail."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import wave
import zlib
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from PIL import Image

FAKES = Path(__file__).resolve().parent.parent / "fakes"
MB = 1_000_000

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs the resource module")


@pytest.fixture
def job(command_env, tmp_path):
    """``job("score", ...)``: what a process of its own used; see memory_process.py."""
    pytest.importorskip("psutil")
    env = {**command_env, "PYTHONPATH": str(FAKES), "GENMETER_CACHE": str(tmp_path / "cache")}

    def run(*words, timeout=280):
        command = [sys.executable, str(Path(__file__).with_name("memory_process.py")), *map(str, words)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture
def lines_of(tmp_path):
    """``lines_of(count)``: that many samples on 64 small outputs and 64 references."""

    def make(count):
        for index in range(64):
            for role, level in (("o", 3 * index), ("r", 255 - index)):
                Image.fromarray(np.full((16, 16, 3), level, np.uint8)).save(tmp_path / f"{role}{index}.png")
        path = tmp_path / f"{count}.jsonl"
        with open(path, "w", encoding="utf-8") as file:
            for i in range(count):
                line = {
                    "id": f"s{i}",
                    "prompt": "ab" * (i % 7 + 1),
                    "output": f"o{i % 64}.png",
                    "reference": f"r{i % 63}.png",
                }
                file.write(json.dumps(line) + "\n")
        return path

    return make


@pytest.fixture
def pairs_of(tmp_path):
    """``pairs_of(count, side)``: that many unlike pairs of a few images."""

    def make(count, side):
        rng = np.random.default_rng(0)
        for index in range(18):
            for role in "or":
                pixels = rng.integers(0, 256, (side, side, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / f"{role}{side}-{index}.png", compress_level=1)
        path = tmp_path / f"{count}-{side}.jsonl"
        lines = [
            {"id": f"s{i}", "output": f"o{side}-{i % 18}.png", "reference": f"r{side}-{i // 18}.png"}
            for i in range(count)
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return path

    return make


@pytest.fixture
def faulty(tmp_path):
    """400 samples of which one in twenty cannot be scored, each for another reason."""
    rng = np.random.default_rng(1)
    for index in range(40):
        side = 12 + 4 * (index % 3)
        level = 80 + 3 * index if 80 + 3 * index != 151 else 150
        for role in "or":
            Image.fromarray(np.full((side, side, 3), level, np.uint8)).save(tmp_path / f"{role}{index}.png")
    for name, level in (("nan", 77), ("raises", 151)):
        Image.fromarray(np.full((12, 12, 3), level, np.uint8)).save(tmp_path / f"{name}.png")
    whole = (tmp_path / "o0.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "noise.png").write_bytes(rng.bytes(500))
    header = b"IHDR" + struct.pack(">II", 60_000, 60_000) + whole[24:29]
    (tmp_path / "giant.png").write_bytes(whole[:12] + header + struct.pack(">I", zlib.crc32(header)) + whole[33:])
    for name in ("tone", "tune"):
        with wave.open(str(tmp_path / f"{name}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(rng.integers(-9000, 9000, 800).astype("<i2").tobytes())
    (tmp_path / "cut.wav").write_bytes((tmp_path / "tone.wav").read_bytes()[:30])
    faults = [
        {"id": "x", "prompt": "p", "output": "cut.png"},
        {"id": "x", "prompt": "p", "output": "gone.png"},
        {"id": "x", "prompt": "p", "output": "empty.png"},
        {"id": "x", "prompt": "p", "output": "noise.png"},
        {"id": "x", "prompt": "p", "output": "giant.png"},
        {"id": "x", "prompt": "p", "output": "../../outside.png"},
        {"id": "x", "prompt": "p", "output": "o1.png", "reference": "r0.png"},
        {"id": "x", "prompt": "p", "output": "nan.png"},
        {"id": "x", "prompt": "p", "output": "raises.png"},
        {"id": "x", "prompt": "p", "output": "http://127.0.0.1:9/a.png"},
        {"id": "x", "prompt": "p", "output": "data:image/png;base64,AAAA"},
        {"id": "x", "prompt": "p"},
        {"id": "x", "prompt": "p", "output": "cut.wav"},
        7,
        {"prompt": 3},
    ]
    lines = []
    for index in range(400):
        if index % 20 == 19:
            lines.append(faults[index // 20 % len(faults)])
        elif index % 20 == 7:
            lines.append({"id": "x", "prompt": "p", "output": ("tone.wav", "tune.wav")[index // 20 % 2]})
        else:
            lines.append({"id": "x", "prompt": "ab", "output": f"o{index % 40}.png", "reference": f"r{index % 40}.png"})
    path = tmp_path / "faulty.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


FAULTS = {
    *("decode_failed", "not_found", "empty_media", "unsupported_media", "too_large", "forbidden", "size_mismatch"),
    *("non_finite", "internal", "bad_sample", "no_prediction"),
}


def is_flat(points, slack=4 * MB):
    """The second half holds what the first one held, once everything had been in use."""
    assert len(points) == 20
    first, second = points[4:10], points[10:]
    for what in ("threads", "handles", "children"):  # medians: a file that is just being read is no leak
        assert median(p[what] for p in second) <= median(p[what] for p in first), what
    grown = median(p["memory"] for p in second) - median(p["memory"] for p in first)
    assert grown <= slack, f"{grown / MB:.1f} MB more"


def compare_lengths(job, lines_of, tmp_path, short, long, timeout=280):
    """Peak memory over a long input is that over a short one, a set metric on."""
    peaks = []
    for count in (short, long):
        used = job("score", lines_of(count), "fake_level,fake_gap", tmp_path / f"run{count}", timeout=timeout)
        assert used["scored"] == {"fake_level": count, "fake_gap": count}
        peaks.append(used["peak"])
    assert peaks[1] <= 1.2 * peaks[0]
    # The libraries alone are half a gigabyte, so the ratio says little; this is what a line may cost.
    assert (peaks[1] - peaks[0]) / (long - short) <= 300


def test_a_hundred_thousand_lines(job, lines_of, tmp_path):
    compare_lengths(job, lines_of, tmp_path, 10_000, 100_000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_lines(job, lines_of, tmp_path):
    compare_lengths(job, lines_of, tmp_path, 10_000, 1_000_000, timeout=1700)


@pytest.mark.weights
@pytest.mark.usefixtures("lpips_weights")
@pytest.mark.parametrize("side", [128, pytest.param(512, marks=pytest.mark.slow)])
def test_many_pairs_take_no_more_than_a_few(job, pairs_of, tmp_path, side):
    few, many = (job("score", pairs_of(count, side), "lpips", tmp_path / f"run{count}")["peak"] for count in (50, 300))
    assert many <= few * 1.2


@pytest.mark.parametrize("count", [300, pytest.param(5000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_engines_leave_nothing_behind(job, lines_of, count):
    is_flat(job("open_engines", lines_of(100), count, timeout=1700)["points"])


@pytest.mark.parametrize("count", [60, pytest.param(5000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_runs_leave_nothing_behind(job, lines_of, count):
    is_flat(job("open_runs", lines_of(1), count, timeout=1700)["points"])


@pytest.mark.parametrize("count", [2000, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_a_long_session_with_faults(job, faulty, count):
    used = job("stream", faulty, count, timeout=900)
    assert set(used["codes"]) - {"not_applicable"} >= FAULTS
    is_flat(used["points"], slack=(12 if count < 20_000 else 4) * MB)


@pytest.mark.parametrize("count", [2000, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_a_long_run_with_faults(job, faulty, tmp_path, count):
    lines = faulty.read_text(encoding="utf-8").splitlines()
    path = faulty.with_name("long.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        for index in range(count):
            file.write(lines[index % len(lines)].replace('"id": "x"', f'"id": "{index}"') + "\n")
    used = job("score", path, "fake_level,fake_pair,fake_match,fake_loudness", tmp_path / "run", timeout=900)
    assert set(used["codes"]) >= FAULTS - {"non_finite", "internal", "bad_sample"}
    is_flat(used["points"], slack=12 * MB)
