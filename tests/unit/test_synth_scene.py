"""Scenes, their pictures and their words say the same thing."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest
from scipy import ndimage

from genmeter.synth.draw import draw
from genmeter.synth.scene import (
    COLOURS,
    MAX_COUNT,
    PLACES,
    SHAPES,
    SIZES,
    TEXTURES,
    Edit,
    Group,
    Scene,
    make_edit,
    make_scene,
)
from genmeter.synth.words import LANGUAGES, caption, instruction


def plain(scene: Scene) -> Scene:
    groups = tuple(replace(g, texture="plain") for g in scene.groups)
    return replace(scene, groups=groups, background_texture="plain")


def changed(scene: Scene, other: Scene, width: int = 160, height: int = 120) -> np.ndarray:
    """Where two scenes differ visibly."""
    a, b = (draw(s, width, height).astype(int) for s in (scene, other))
    return np.abs(a - b).max(axis=2) > 24


@pytest.mark.parametrize("seed", range(40))
def test_as_many_shapes_as_the_scene_says_and_where_it_says(seed: int) -> None:
    scene = plain(make_scene(seed))
    for index, group in enumerate(scene.groups):
        others = replace(scene, groups=tuple(g for i, g in enumerate(scene.groups) if i != index))
        alone = replace(scene, groups=(group,))
        mask = changed(alone, replace(scene, groups=()))
        assert others.groups != scene.groups
        _, count = ndimage.label(mask, structure=np.ones((3, 3)))
        assert count == group.count
        cy, cx = (c / side for c, side in zip(ndimage.center_of_mass(mask), mask.shape, strict=True))
        where = {"left": cx < 0.5, "right": cx > 0.5, "top": cy < 0.5, "bottom": cy > 0.5}
        assert where.get(group.place, 0.3 < cx < 0.7 and 0.3 < cy < 0.7)


@pytest.mark.parametrize("seed", range(12))
def test_colours_are_the_named_ones(seed: int) -> None:
    scene = plain(make_scene(seed))
    pixels = draw(scene, 160, 120)
    mask = changed(scene, replace(scene, groups=()))
    assert np.abs(np.median(pixels[~mask], axis=0) - COLOURS[scene.background]).max() < 20
    alone = replace(scene, groups=scene.groups[:1])
    first = changed(alone, replace(scene, groups=()))
    assert np.abs(np.median(draw(alone, 160, 120)[first], axis=0) - COLOURS[scene.groups[0].colour]).max() < 20


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("place", PLACES)
def test_large_is_larger_than_small(shape: str, place: str) -> None:
    areas = []
    for size in SIZES:
        group = Group(shape, "red", "plain", size, MAX_COUNT, place)
        scene = Scene((group,), "white", "plain", seed=5)
        areas.append(int(changed(scene, replace(scene, groups=()), 256, 192).sum()))
    assert areas[1] > 1.5 * areas[0]


def test_shapes_and_textures_look_different() -> None:
    def one(shape: str, texture: str) -> np.ndarray:
        return draw(Scene((Group(shape, "blue", texture, "large", 1, "centre"),), "white", "plain", 3), 96, 96).astype(
            int
        )

    pictures = [one(s, t) for s in SHAPES for t in TEXTURES]
    for i, a in enumerate(pictures):
        for b in pictures[i + 1 :]:
            assert (np.abs(a - b).max(axis=2) > 40).sum() > 20


def test_every_word_is_used() -> None:
    scenes = [make_scene(seed) for seed in range(600)]
    groups = [g for s in scenes for g in s.groups]
    for name, words in {
        "shape": SHAPES,
        "colour": COLOURS,
        "texture": TEXTURES,
        "size": SIZES,
        "place": PLACES,
    }.items():
        seen = Counter(getattr(g, name) for g in groups)
        assert set(seen) == set(words)
        assert min(seen.values()) > 0.4 * len(groups) / len(words), name
    assert {g.count for g in groups} == set(range(1, MAX_COUNT + 1))
    assert {s.background for s in scenes} == set(COLOURS)
    assert all(g.colour != s.background for s in scenes for g in s.groups)


def test_a_seed_is_a_picture() -> None:
    assert make_scene(7) == make_scene(7)
    assert np.array_equal(draw(make_scene(7), 100, 80), draw(make_scene(7), 100, 80))
    assert len({draw(make_scene(seed), 48, 48).tobytes() for seed in range(100)}) == 100


@pytest.mark.parametrize(("width", "height"), [(16, 16), (300, 40), (40, 300), (96, 96)])
def test_any_size_is_drawn(width: int, height: int) -> None:
    for seed in range(20):
        pixels = draw(make_scene(seed), width, height)
        assert pixels.shape == (height, width, 3)
        assert pixels.dtype == np.uint8
        assert pixels.std() > 2


def test_a_side_below_sixteen_is_refused() -> None:
    with pytest.raises(ValueError, match="15x64"):
        draw(make_scene(0), 15, 64)


@pytest.mark.parametrize("seed", range(30))
def test_an_edit_changes_one_field_and_moves_nothing(seed: int) -> None:
    scene = make_scene(seed)
    after, edit = make_edit(scene, seed)
    assert caption(after) != caption(scene)
    if edit.what == "background":
        assert after == replace(scene, background=edit.value)
        return
    assert after.background == scene.background
    for index, (old, new) in enumerate(zip(scene.groups, after.groups, strict=True)):
        differing = {f.name for f in fields(Group) if getattr(old, f.name) != getattr(new, f.name)}
        assert differing == ({edit.what} if index == edit.group else set())
    # Far from the group nothing moves: the corners show the background before and after.
    a, b = draw(scene), draw(after)
    for corner in (np.s_[:4, :4], np.s_[:4, -4:], np.s_[-4:, :4], np.s_[-4:, -4:]):
        assert np.array_equal(a[corner], b[corner])


SCENE = Scene(
    groups=(Group("cross", "red", "plain", "large", 2, "left"), Group("star", "blue", "striped", "small", 1, "right")),
    background="orange",
    background_texture="plain",
    seed=0,
)


def test_captions() -> None:
    assert caption(SCENE) == (
        "two large red crosses on the left and one small blue striped star on the right, on an orange background"
    )
    assert caption(replace(SCENE, groups=SCENE.groups[:1], background_texture="dotted")) == (
        "two large red crosses on the left, on a dotted orange background"
    )


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (Edit("background", -1, "white"), "Make the background white."),
        (Edit("colour", 0, "green"), "Make the large red crosses green."),
        (Edit("shape", 0, "hexagon"), "Turn the large red crosses into hexagons."),
        (Edit("shape", 1, "cross"), "Turn the small blue striped star into a cross."),
    ],
)
def test_instructions(edit: Edit, text: str) -> None:
    assert instruction(SCENE, edit) == text


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_field_is_in_the_caption(language: str) -> None:
    changes = {"shape": "ring", "colour": "pink", "texture": "dotted", "size": "small", "count": 3, "place": "top"}
    for name, value in changes.items():
        other = replace(SCENE, groups=(replace(SCENE.groups[0], **{name: value}), SCENE.groups[1]))
        assert caption(other, language) != caption(SCENE, language)
    for name, value in {"background": "white", "background_texture": "dotted"}.items():
        assert caption(replace(SCENE, **{name: value}), language) != caption(SCENE, language)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_scene_and_edit_has_words(language: str) -> None:
    scenes = [make_scene(seed) for seed in range(300)]
    assert len({caption(scene, language) for scene in scenes}) == len(scenes)
    assert all(instruction(scene, make_edit(scene, scene.seed)[1], language) for scene in scenes)


def test_an_unknown_language_is_named() -> None:
    with pytest.raises(ValueError, match=r"'xx'.*en"):
        caption(SCENE, "xx")
