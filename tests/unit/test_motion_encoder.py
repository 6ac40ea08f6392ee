"""The motion encoder: exact changes between frames, without a network."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from genmeter.contract import ImageMedia, MediaEncoder, VideoMedia
from genmeter.encoders.motion import BLOCKS, MotionEncoder
from genmeter.encoders.registry import create_encoder, list_encoders
from genmeter.engine.catalog import weightless
from genmeter.errors import GenmeterError
from genmeter.stats.motion import STATIC, motion_of


def encoder() -> Any:
    return create_encoder("motion", weightless("motion"), lambda: pytest.fail("there are no weights"))


def video(pixels: np.ndarray, **detail: Any) -> VideoMedia:
    return VideoMedia(pixels, np.arange(len(pixels)) / 8, (), detail)


def changes(pixels: np.ndarray, **detail: Any) -> Any:
    made = encoder()
    made.load("cpu", "exact")
    [feature] = made.encode([made.prepare(video(pixels, **detail), {"frames": "all"})])
    return feature


def noise(frames: int, height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (frames, height, width, 3), dtype=np.uint8)


def test_it_is_registered_needs_no_torch_and_can_be_cached() -> None:
    assert "motion" in list_encoders()
    made = encoder()
    assert isinstance(made, MotionEncoder)
    assert isinstance(made, MediaEncoder)
    assert made.spec.digest
    assert made.decoding({"frames": "all"}) == {}
    assert made.decoding({"frames": 8}) == {"spread": 8}
    assert made.bytes_per_item((2,)) > 0
    code = "import sys; import genmeter.encoders.motion; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (31, 33), (90, 160), (100, 2000)])
def test_differences_are_the_mean_of_all_bytes(height: int, width: int) -> None:
    frames = noise(4, height, width)
    feature = changes(frames)
    wide = frames.astype(np.float64)
    expected = [np.abs(a - b).mean() / 255 for a, b in itertools.pairwise(wide)]
    assert feature.values.shape == (3, 2)
    assert feature.values.dtype == np.float32
    np.testing.assert_allclose(feature.values[:, 0], expected, rtol=1e-6)
    assert feature.weights.tolist() == [1.0] * 3


@pytest.mark.parametrize(("height", "width"), [(20, 70), (64, 64), (100, 33)])
def test_blocks_are_means_of_equal_cuts(height: int, width: int) -> None:
    frames = noise(2, height, width)
    rows = np.array_split(np.arange(height), min(BLOCKS, height))
    columns = np.array_split(np.arange(width), min(BLOCKS, width))
    assert len(rows) <= BLOCKS
    cells = []
    for frame in frames.astype(float):
        down = [i * height // len(rows) for i in range(len(rows) + 1)]
        across = [i * width // len(columns) for i in range(len(columns) + 1)]
        cells.append(
            [
                frame[top:bottom, left:right].mean(axis=(0, 1))
                for top, bottom in itertools.pairwise(down)
                for left, right in itertools.pairwise(across)
            ]
        )
    expected = np.abs(np.array(cells[0]) - np.array(cells[1])).max() / 255
    assert changes(frames).values[0, 1] == pytest.approx(expected, rel=1e-6)


def test_extremes_are_exact() -> None:
    frames = np.zeros((3, 40, 40, 3), np.uint8)
    frames[1:] = 255
    assert changes(frames).values.tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_a_small_thing_that_moves_is_told_from_noise_that_stands() -> None:
    rng = np.random.default_rng(1)
    still = np.full((8, 128, 128, 3), 100.0)
    moving = still.copy()
    for t in range(8):
        moving[t, 60:66, 10 * t : 10 * t + 6] = 220.0
    noisy = still + rng.normal(0, 2, still.shape)
    found = [changes(np.clip(v, 0, 255).astype(np.uint8)) for v in (still, noisy, moving)]
    assert found[1].values[:, 0].mean() > found[2].values[:, 0].mean(), "by mean differences noise looks like motion"
    motions = [motion_of(feature) for feature in found]
    assert [flags for _, flags in motions] == [("static_video",), ("static_video",), ()]
    assert motions[0][0] == 0.0
    assert motions[1][0] < STATIC < motions[2][0]


def test_facts_of_the_file_and_frames_left_out() -> None:
    frames = noise(4, 30, 50)
    feature = changes(frames, frames_total=90, fps=24.0)
    assert feature.detail == {"frames_used": 4, "frames_total": 90, "size": "50x30", "fps": 24.0}
    assert feature.flags == ("partial_video",)
    assert changes(frames, frames_total=4).flags == ()


@pytest.mark.parametrize(
    ("media", "code"),
    [
        (video(noise(1, 8, 8)), "too_short"),
        (video(noise(0, 8, 8)), "empty_media"),
        (video(noise(3, 0, 8)), "empty_media"),
        (ImageMedia(noise(1, 8, 8)[0]), "unsupported_media"),
        ("text", "unsupported_media"),
    ],
)
def test_what_has_no_motion(media: Any, code: str) -> None:
    with pytest.raises(GenmeterError) as caught:
        encoder().prepare(media, {"frames": "all"})
    assert caught.value.code == code


def test_frames_that_are_a_view_into_a_larger_array() -> None:
    frames = noise(6, 40, 60)
    part = frames[::2, 5:25, 7:47]
    np.testing.assert_array_equal(changes(part).values, changes(np.ascontiguousarray(part)).values)


def test_cuts_and_jumps_of_key_frames_are_no_motion() -> None:
    """A slide show of still pictures hardly moves, although each cut changes everything."""
    pictures = noise(2, 40, 40)
    show = np.concatenate([np.repeat(picture[None], 12, 0) for picture in pictures])
    motion, flags = motion_of(changes(show))
    assert (motion, flags) == (0.0, ("static_video",))
    few = np.concatenate([np.repeat(picture[None], 2, 0) for picture in pictures])
    assert motion_of(changes(few))[0] > STATIC, "in three changes one is not left out"
