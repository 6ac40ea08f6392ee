"""LPIPS on a real CUDA device: the CPU's numbers, flat memory, recovery. Run with ``make test-cuda``."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

import genmeter

pytestmark = pytest.mark.cuda


@pytest.fixture
def pairs(tmp_path):
    """``pairs(n, side)``: samples.jsonl of noisy outputs against their references."""

    def make(count, side):
        rng = np.random.default_rng(0)
        lines = []
        for index in range(count):
            clean = rng.integers(0, 256, (side, side, 3), dtype=np.uint8)
            noisy = np.clip(clean.astype(int) + rng.integers(-40, 40, clean.shape), 0, 255).astype(np.uint8)
            for name, pixels in (("o", noisy), ("r", clean)):
                Image.fromarray(pixels).save(tmp_path / f"{name}{index}.png")
            lines.append({"id": str(index), "output": f"o{index}.png", "reference": f"r{index}.png"})
        path = tmp_path / "samples.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return make


def scores(run, name="lpips"):
    return np.array([line["eval_result"]["metrics"][name]["score"] for line in run.samples])


@pytest.mark.parametrize("net", ["alex", "vgg"])
def test_cpu_and_cuda_agree(pairs, tmp_path, net):
    path, name = pairs(24, 128), f"lpips@{net}"
    cpu = genmeter.score(path, [name], out=tmp_path / "cpu", device="cpu", report=False)
    cuda = genmeter.score(path, [name], out=tmp_path / "cuda", device="cuda", report=False)
    np.testing.assert_allclose(scores(cuda, name), scores(cpu, name), rtol=1e-4)
    assert cuda.run["device"] == "cuda:0"


def test_batch_size_does_not_move_a_score(pairs, tmp_path):
    path = pairs(24, 96)
    runs = [
        genmeter.score(
            path, ["lpips"], out=tmp_path / str(size), device="cuda", batch_size=size, cache=False, report=False
        )
        for size in (1, 7, 24)
    ]
    for run in runs[1:]:
        np.testing.assert_allclose(scores(run), scores(runs[0]), rtol=1e-4)


def test_memory_is_flat(pairs, tmp_path):
    import torch

    path = pairs(64, 256)
    samples = [json.loads(line) for line in path.read_text().splitlines()]
    with genmeter.Engine(["lpips"], device="cuda", media_root=str(path.parent)) as engine:
        list(engine.score(samples))
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        for _ in range(5):
            list(engine.score(samples))
        assert torch.cuda.memory_allocated() <= before * 1.01 + 1_000_000


def test_global_flags_are_put_back(pairs, tmp_path):
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    try:
        genmeter.score(pairs(2, 64), ["lpips"], out=tmp_path / "run", device="cuda", cache=False, report=False)
        assert torch.backends.cuda.matmul.allow_tf32 is True
        assert torch.backends.cudnn.benchmark is True
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.benchmark = False
