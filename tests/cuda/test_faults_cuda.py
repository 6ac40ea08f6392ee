"""Faults of a real CUDA device: memory that runs out, and a kernel that takes the device down. ``make test-cuda``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from genmeter_fakes import encoders as fakes
from PIL import Image

import genmeter

pytestmark = pytest.mark.cuda
LEVELS = [float(level) for level in range(100, 140)]
# Encodes on the device, and from the third batch on runs a kernel that reads outside of its array.
FAULTY = """
import torch
from genmeter_fakes.encoders import _Fake
right, calls = _Fake.encode, []
def encode(self, batch):
    calls.append(len(batch))
    if len(calls) == 3:
        torch.arange(4, device="cuda")[torch.tensor([9], device="cuda")].cpu()
    return right(self, batch)
_Fake.encode = encode
"""


@pytest.fixture(autouse=True)
def _device():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.fixture
def data(tmp_path):
    lines = []
    for index, level in enumerate(LEVELS):
        Image.fromarray(np.full((8, 8, 3), int(level), np.uint8)).save(tmp_path / f"{index}.png")
        lines.append({"id": str(index), "output": f"{index}.png"})
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def scores(run):
    lines = (run / "samples.jsonl").read_text().splitlines()
    return [json.loads(line)["eval_result"]["metrics"]["fake_level"]["score"] for line in lines]


def test_memory_of_the_device_that_runs_out(data, tmp_path, monkeypatch):
    import torch

    right, sizes = fakes._Fake.encode, []

    def encode(self, batch):
        sizes.append(len(batch))
        if len(batch) > 4:
            torch.empty(1 << 50, dtype=torch.uint8, device=self.device)
        return right(self, batch)

    monkeypatch.setattr(fakes._Fake, "encode", encode)
    genmeter.score(data, ["fake_level"], out=tmp_path / "run", device="cuda", batch_size=16, report=False, cache=False)
    assert scores(tmp_path / "run") == LEVELS
    assert max(sizes) == 16
    assert min(sizes) <= 4


def test_a_kernel_that_takes_the_device_down(data, tmp_path):
    env = {**os.environ, "PYTHONPATH": str(Path(fakes.__file__).resolve().parent.parent)}
    words = ["score", data, "-o", tmp_path / "run", "--metrics", "fake_level", "--device", "cuda", "--batch-size", "8"]

    def score(setup):
        code = f"{setup}\nfrom genmeter.cli.main import main\nmain()"
        command = [sys.executable, "-c", code, *map(str, words), "--no-report", "--no-cache"]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)

    broken = score(FAULTY)
    assert broken.returncode == 3, broken.stderr
    assert "failed and cannot be used any more in this process" in broken.stderr
    assert "run the same command to go on" in broken.stderr
    assert "Traceback" not in broken.stderr
    again = score("")
    assert again.returncode == 0, again.stderr
    assert "going on with an earlier run: 16 scores are already there" in again.stderr
    assert scores(tmp_path / "run") == LEVELS
