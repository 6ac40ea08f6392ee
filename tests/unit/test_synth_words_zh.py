from __future__ import annotations

import re
from dataclasses import replace

import pytest

from genmeter.synth import words_zh
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

SCENE = Scene(
    groups=(Group("cross", "red", "plain", "large", 2, "left"), Group("star", "blue", "striped", "small", 1, "right")),
    background="orange",
    background_texture="plain",
    seed=0,
)


def test_captions() -> None:
    assert caption(SCENE, "zh") == "左边有两个大的红色十字，右边有一个小的蓝色条纹五角星，橙色背景"
    lone = replace(SCENE, groups=SCENE.groups[:1], background_texture="dotted")
    assert caption(lone, "zh") == "左边有两个大的红色十字，橙色波点背景"


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (Edit("background", -1, "white"), "把背景换成白色。"),
        (Edit("colour", 0, "green"), "把大的红色十字改成绿色。"),
        (Edit("shape", 0, "hexagon"), "把大的红色十字变成六边形。"),
        (Edit("shape", 1, "cross"), "把小的蓝色条纹五角星变成一个十字。"),
    ],
)
def test_instructions(edit: Edit, text: str) -> None:
    assert instruction(SCENE, edit, "zh") == text


@pytest.mark.parametrize(
    ("table", "keys"),
    [
        (words_zh.SHAPES, SHAPES),
        (words_zh.COLOURS, COLOURS),
        (words_zh.TEXTURES, TEXTURES),
        (words_zh.SIZES, SIZES),
        (words_zh.PLACES, PLACES),
    ],
)
def test_every_word_has_one_of_its_own(table: dict[str, str], keys: tuple[str, ...]) -> None:
    assert set(table) == set(keys)
    assert len(set(table.values())) == len(table)
    # None is contained in another: a part of a caption is read in one way only.
    values = [v for v in table.values() if v]
    assert not [(a, b) for a in values for b in values if a != b and a in b]


def test_counts_have_words_of_their_own() -> None:
    assert len(set(words_zh.COUNTS)) == len(words_zh.COUNTS) == MAX_COUNT + 1


def test_every_field_is_in_the_caption() -> None:
    changes = {"shape": "ring", "colour": "pink", "texture": "dotted", "size": "small", "count": 3, "place": "top"}
    for name, value in changes.items():
        other = replace(SCENE, groups=(replace(SCENE.groups[0], **{name: value}), SCENE.groups[1]))
        assert caption(other, "zh") != caption(SCENE, "zh")
    assert caption(replace(SCENE, background="white"), "zh") != caption(SCENE, "zh")
    assert caption(replace(SCENE, background_texture="dotted"), "zh") != caption(SCENE, "zh")


def test_a_caption_tells_the_scene() -> None:
    """Read back by the tables, a caption gives the fields it was made from."""

    def one_of(table: dict[str, str]) -> str:
        return "(" + "|".join(sorted(table.values(), key=len, reverse=True)) + ")"

    def key(table: dict[str, str], word: str) -> str:
        return next(k for k, v in table.items() if v == word)

    group = re.compile(
        f"{one_of(words_zh.PLACES)}有([一两三四])个{one_of(words_zh.SIZES)}{one_of(words_zh.COLOURS)}"
        f"{one_of(words_zh.TEXTURES)}{one_of(words_zh.SHAPES)}，"
    )
    ground = re.compile(f"{one_of(words_zh.COLOURS)}{one_of(words_zh.TEXTURES)}背景$")
    for seed in range(300):
        scene = make_scene(seed)
        text = caption(scene, "zh")
        read = [
            Group(
                shape=key(words_zh.SHAPES, m[6]),
                colour=key(words_zh.COLOURS, m[4]),
                texture=key(words_zh.TEXTURES, m[5]),
                size=key(words_zh.SIZES, m[3]),
                count=words_zh.COUNTS.index(m[2]),
                place=key(words_zh.PLACES, m[1]),
            )
            for m in group.finditer(text)
        ]
        found = ground.search(text)
        assert found is not None
        assert tuple(read) == scene.groups
        assert key(words_zh.COLOURS, found[1]) == scene.background
        assert key(words_zh.TEXTURES, found[2]) == scene.background_texture


@pytest.mark.parametrize("seed", range(20))
def test_instructions_name_what_is_asked_for(seed: int) -> None:
    scene = make_scene(seed)
    after, edit = make_edit(scene, seed)
    text = instruction(scene, edit, "zh")
    wanted = words_zh.SHAPES if edit.what == "shape" else words_zh.COLOURS
    assert text.startswith("把")
    assert text.endswith(f"{wanted[edit.value]}。")
    assert caption(after, "zh") != caption(scene, "zh")


def test_both_languages_are_offered() -> None:
    assert list(LANGUAGES) == ["en", "zh"]
