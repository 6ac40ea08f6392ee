"""What a synthetic picture shows, as data: groups of coloured shapes on a background.

A scene is drawn by :mod:`genmeter.synth.draw` and put into words by :mod:`genmeter.synth.words`. Words and pixels are
made from the same fields, so a caption is true of its picture by construction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

SHAPES = ("circle", "square", "triangle", "diamond", "star", "ring", "cross", "hexagon")
COLOURS = {
    "red": (214, 40, 40),
    "orange": (244, 132, 30),
    "yellow": (250, 213, 46),
    "green": (44, 150, 66),
    "blue": (38, 84, 200),
    "purple": (128, 54, 160),
    "pink": (246, 142, 186),
    "brown": (124, 76, 40),
    "black": (24, 24, 28),
    "white": (246, 246, 244),
    "grey": (138, 140, 146),
    "cyan": (58, 196, 214),
}
TEXTURES = ("plain", "striped", "dotted", "checkered")
SIZES = ("small", "large")
PLACES = ("left", "right", "top", "bottom", "centre")
MAX_COUNT = 4

# Two groups of one scene stand on opposite sides, so that neither hides the other.
_PAIRS = (("left", "right"), ("right", "left"), ("top", "bottom"), ("bottom", "top"))


@dataclass(frozen=True)
class Group:
    """Some equal shapes standing together. ``count`` is 1 to :data:`MAX_COUNT`; the rest are words of this module."""

    shape: str
    colour: str
    texture: str
    size: str
    count: int
    place: str


@dataclass(frozen=True)
class Scene:
    """One picture: one or two groups on a background. ``seed`` fixes where exactly each shape stands."""

    groups: tuple[Group, ...]
    background: str
    background_texture: str
    seed: int


class Edit(NamedTuple):
    """One change of a scene: ``what`` is colour, shape or background; ``group`` is -1 for the background."""

    what: str
    group: int
    value: str


def make_scene(seed: int) -> Scene:
    """The scene of a seed (a non-negative integer): every field drawn evenly, no group in the background's colour."""
    rng = np.random.default_rng([seed, 1])
    colours = [str(c) for c in rng.permutation(list(COLOURS))]
    shapes = [str(s) for s in rng.permutation(SHAPES)]
    if rng.integers(2):
        places: tuple[str, ...] = _PAIRS[int(rng.integers(len(_PAIRS)))]
    else:
        # Pairs never use the centre, so a lone group takes it more often: over all groups the places come out even.
        places = (_pick(rng, (*PLACES, "centre", "centre", "centre")),)
    groups = tuple(
        Group(
            shape=shapes[i],
            colour=colours[i + 1],
            texture=_pick(rng, TEXTURES),
            size=_pick(rng, SIZES),
            count=1 + int(rng.integers(MAX_COUNT)),
            place=place,
        )
        for i, place in enumerate(places)
    )
    return Scene(groups=groups, background=colours[0], background_texture=_pick(rng, TEXTURES), seed=seed)


def make_edit(scene: Scene, seed: int) -> tuple[Scene, Edit]:
    """A scene that differs in one field, and what was changed; nothing moves, since the scene's seed stays."""
    rng = np.random.default_rng([seed, 2])
    what = _pick(rng, ("colour", "shape", "background"))
    used = {scene.background, *(g.colour for g in scene.groups)}
    if what == "background":
        value = _pick(rng, tuple(c for c in COLOURS if c not in used))
        return replace(scene, background=value), Edit(what, -1, value)
    index = int(rng.integers(len(scene.groups)))
    if what == "colour":
        value = _pick(rng, tuple(c for c in COLOURS if c not in used))
        changed = replace(scene.groups[index], colour=value)
    else:
        value = _pick(rng, tuple(s for s in SHAPES if all(s != g.shape for g in scene.groups)))
        changed = replace(scene.groups[index], shape=value)
    groups = tuple(changed if i == index else g for i, g in enumerate(scene.groups))
    return replace(scene, groups=groups), Edit(what, index, value)


def _pick(rng: np.random.Generator, words: tuple[str, ...]) -> str:
    return words[int(rng.integers(len(words)))]
