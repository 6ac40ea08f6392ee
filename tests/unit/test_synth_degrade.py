"""Degradations: of the stated kind and strength."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from genmeter.synth.degrade import DEGRADATIONS, degrade, jpeg_quality
from genmeter.synth.draw import draw
from genmeter.synth.scene import make_scene


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    """Without textures: against a periodic one, a larger shift can be the smaller difference."""
    scene = make_scene(2)
    groups = tuple(replace(g, texture="plain") for g in scene.groups)
    return draw(replace(scene, groups=groups, background_texture="plain"), 128, 96)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a.astype(int) - b.astype(int)).mean())


@pytest.mark.parametrize("kind", DEGRADATIONS)
def test_more_strength_is_more_damage(kind: str, picture: np.ndarray) -> None:
    damage = [distance(degrade(picture, kind, s), picture) for s in (0, 0.1, 0.25, 0.5, 1)]
    assert damage[0] == 0
    assert damage == sorted(damage)
    assert damage[1] > 0
    assert damage[4] > 1.5 * damage[2]


@pytest.mark.parametrize("kind", DEGRADATIONS)
def test_shape_and_input_are_kept(kind: str, picture: np.ndarray) -> None:
    before = picture.copy()
    for strength in (0, 0.3, 1):
        result = degrade(picture, kind, strength)
        assert result.shape == picture.shape
        assert result.dtype == np.uint8
        assert not np.shares_memory(result, picture)
    assert np.array_equal(picture, before)


@pytest.mark.parametrize("kind", DEGRADATIONS)
@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (33, 7)])
def test_odd_sizes(kind: str, shape: tuple[int, int]) -> None:
    pixels = np.full((*shape, 3), 90, np.uint8)
    assert degrade(pixels, kind, 1.0).shape == pixels.shape


def test_noise_has_the_stated_deviation_and_follows_its_seed() -> None:
    grey = np.full((200, 200, 3), 128, np.uint8)
    assert degrade(grey, "noise", 0.5).astype(float).std() == pytest.approx(24, rel=0.02)
    assert np.array_equal(degrade(grey, "noise", 0.5, seed=1), degrade(grey, "noise", 0.5, seed=1))
    assert not np.array_equal(degrade(grey, "noise", 0.5, seed=1), degrade(grey, "noise", 0.5, seed=2))


def test_blur_has_the_stated_deviation() -> None:
    line = np.zeros((65, 65, 3), np.uint8)
    line[:, 32] = 255
    profile = degrade(line, "blur", 0.5)[32, :, 0].astype(float)
    x = np.arange(65) - 32
    assert (profile * x).sum() == pytest.approx(0, abs=1e-9)
    assert np.sqrt((profile * x**2).sum() / profile.sum()) == pytest.approx(2, rel=0.05)


def test_shift_moves_the_picture(picture: np.ndarray) -> None:
    assert np.array_equal(degrade(picture, "shift", 1.0)[8:, 16:], picture[:-8, :-16])
    assert np.array_equal(degrade(picture, "shift", 0.5)[4:, 8:], picture[:-4, :-8])


def test_downscale_averages_blocks(picture: np.ndarray) -> None:
    result = degrade(picture, "downscale", 1.0)
    block = picture[16:24, 40:48].reshape(-1, 3).mean(axis=0)
    assert (result[16:24, 40:48] == np.rint(block)).all()


def test_full_colour_shift_has_no_hue_left_but_the_cast(picture: np.ndarray) -> None:
    result = degrade(picture, "colour", 1.0).astype(int)
    unclipped = ((result > 0) & (result < 255)).all(axis=2)
    assert unclipped.mean() > 0.5
    assert np.abs(result[..., 0] - result[..., 1] - 30)[unclipped].max() <= 1
    assert np.abs(result[..., 1] - result[..., 2] - 30)[unclipped].max() <= 1


def test_jpeg_quality_spans_its_range() -> None:
    assert [jpeg_quality(s) for s in (0.0, 0.5, 1.0)] == [95, 50, 4]


def test_usage_errors(picture: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"'sepia'.*blur"):
        degrade(picture, "sepia", 0.5)
    for strength in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="strength"):
            degrade(picture, "blur", strength)
