"""I3D on a real CUDA device: the CPU's logits, whatever the batch; fast mode close to them. ``make test-cuda``."""

from __future__ import annotations

from typing import Any

import i3d_nets
import numpy as np
import pytest

from genmeter.contract import VideoMedia
from genmeter.encoders.i3d import I3dEncoder
from genmeter.engine import device

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return i3d_nets.save(tmp_path_factory.mktemp("weights"))


def loaded(weights: Any, place: str, precision: Any = "exact") -> I3dEncoder:
    encoder = I3dEncoder(i3d_nets.entry(), lambda: weights)
    with device.torch_settings(precision):
        encoder.load(place, precision)
    return encoder


def logits(encoder: I3dEncoder, items: Any, precision: Any = "exact") -> np.ndarray:
    with device.torch_settings(precision):
        return np.concatenate([feature.values for feature in encoder.encode(items)])


def clips(encoder: I3dEncoder, count: int, **view: Any) -> Any:
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (count, 16, 60, 80, 3), dtype=np.uint8)
    return [encoder.prepare(VideoMedia(clip, np.arange(16) / 8), i3d_nets.view(**view)) for clip in frames]


@pytest.mark.parametrize("grid", ["tf1", "half-pixel", "short-side"])
def test_cpu_and_cuda_agree(weights: Any, grid: str) -> None:
    cpu, cuda = loaded(weights, "cpu"), loaded(weights, "cuda")
    items = clips(cpu, 4, grid=grid)
    expected, found = logits(cpu, items), logits(cuda, items)
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_batch_size_does_not_move_a_feature(weights: Any) -> None:
    cuda = loaded(weights, "cuda")
    items = clips(cuda, 6)
    whole = logits(cuda, items)
    for size in (1, 4):
        parts = np.concatenate([logits(cuda, items[i : i + size]) for i in range(0, 6, size)])
        assert np.abs(parts - whole).max() <= 1e-4 * np.abs(whole).max()


def test_fast_mode_is_close_and_not_the_same(weights: Any) -> None:
    exact, fast = loaded(weights, "cuda"), loaded(weights, "cuda", "fast")
    items = clips(exact, 2)
    expected, found = logits(exact, items), logits(fast, items, "fast")
    gap = np.abs(found - expected).max() / np.abs(expected).max()
    assert 0 < gap <= 3e-2
