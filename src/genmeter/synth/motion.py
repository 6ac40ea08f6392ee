"""Short clips of a synthetic scene whose shapes move, as frames and as captions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from genmeter.synth.degrade import degrade
from genmeter.synth.draw import draw
from genmeter.synth.scene import Scene, make_scene
from genmeter.synth.words import caption as scene_caption

MOTIONS = ("sway", "bob", "circle")
"""Side to side, up and down, round and round: all around where the scene puts the shapes."""

FPS = 8

_WORDS: Mapping[str, Mapping[str, str]] = {
    "en": {"sway": "swaying from side to side", "bob": "bobbing up and down", "circle": "going round in circles"},
    "zh": {"sway": "左右摇摆", "bob": "上下跳动", "circle": "绕圈移动"},
}
_JOIN = {"en": ", ", "zh": "，"}
# How far shapes move to either side, as a fraction of the shorter side.
_REACH = 0.07

DEGRADATIONS = {
    "flicker": "each frame lighter or darker by up to 60 of 255 at strength 1",
    "noise": "independent noise in each frame, standard deviation 48 of 255 at strength 1",
    "blur": "Gaussian blur, standard deviation 4 pixels at strength 1",
    "frozen": "all frames are the first one; any strength above 0",
    "shuffled": "the frames in random order; any strength above 0",
}


class Clip(NamedTuple):
    """A scene in motion. ``motion`` is one of :data:`MOTIONS`; ``period`` is the seconds that one round takes."""

    scene: Scene
    motion: str
    period: float


def make_clip(seed: int) -> Clip:
    """The clip of a seed (a non-negative integer): the scene of that seed, moving one way or another."""
    rng = np.random.default_rng([seed, 20])
    return Clip(make_scene(seed), MOTIONS[int(rng.integers(len(MOTIONS)))], float(rng.uniform(1.2, 2.4)))


def caption(clip: Clip, language: str = "en") -> str:
    """What the clip shows and how it moves. Raises ``ValueError`` for an unknown language."""
    return f"{scene_caption(clip.scene, language)}{_JOIN[language]}{_WORDS[language][clip.motion]}"


def frames(clip: Clip, count: int = 20, width: int = 128, height: int = 96) -> np.ndarray:
    """Draw a clip at :data:`FPS` frames a second.

    Args:
        clip: What to draw.
        count: Frames.
        width, height: Pixels, at least 16.

    Returns:
        (count, height, width, 3) uint8, sRGB.
    """
    reach = _REACH * min(width, height)
    out = np.empty((count, height, width, 3), np.uint8)
    for i in range(count):
        turn = 2 * math.pi * i / (FPS * clip.period)
        across = reach * math.sin(turn) if clip.motion in ("sway", "circle") else 0.0
        down = reach * (math.sin(turn) if clip.motion == "bob" else math.cos(turn) if clip.motion == "circle" else 0.0)
        out[i] = draw(clip.scene, width, height, (across, down))
    return out


def degrade_frames(pixels: np.ndarray, kind: str, strength: float, *, seed: int = 0) -> np.ndarray:
    """Degrade a clip as a poor generator would.

    Args:
        pixels: (t, H, W, 3) uint8.
        kind: A key of :data:`DEGRADATIONS`.
        strength: 0 (nothing) to 1.
        seed: For what is random.

    Returns:
        (t, H, W, 3) uint8, a new array.

    Raises:
        ValueError: For an unknown kind, or a strength outside [0, 1].
    """
    if kind not in DEGRADATIONS:
        raise ValueError(f"degradation {kind!r} is not among {', '.join(DEGRADATIONS)}")
    if not 0 <= strength <= 1:
        raise ValueError(f"strength must be in [0, 1], not {strength}")
    if strength == 0:
        return np.array(pixels)
    return _FUNCTIONS[kind](pixels, strength, np.random.default_rng([seed, 21]))


def _flicker(pixels: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    levels = rng.uniform(-60.0, 60.0, len(pixels)) * strength
    changed: np.ndarray = np.clip(np.rint(pixels + levels[:, None, None, None]), 0, 255).astype(np.uint8)
    return changed


def _noise(pixels: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    seeds = rng.integers(1 << 30, size=len(pixels))
    return np.stack([degrade(frame, "noise", strength, seed=int(s)) for frame, s in zip(pixels, seeds, strict=True)])


def _blur(pixels: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    return np.stack([degrade(frame, "blur", strength) for frame in pixels])


def _frozen(pixels: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    return np.repeat(pixels[:1], len(pixels), axis=0)


def _shuffled(pixels: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    mixed: np.ndarray = pixels[rng.permutation(len(pixels))]
    return mixed


_FUNCTIONS: Mapping[str, Callable[[np.ndarray, float, np.random.Generator], np.ndarray]] = {
    "flicker": _flicker,
    "noise": _noise,
    "blur": _blur,
    "frozen": _frozen,
    "shuffled": _shuffled,
}
