"""What a caption of a synthetic scene may say, and in how many ways: the texts that the tiny CLIP is trained on.

A :class:`Claim` is a scene with some fields left open, as a table of numbers, so that whether a claim is true of a
scene can be computed for thousands of pairs at once. ``say`` puts a claim into words, English or Chinese.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from genmeter.synth import words, words_zh
from genmeter.synth.scene import COLOURS, MAX_COUNT, PLACES, SHAPES, SIZES, TEXTURES, Group, Scene

FIELDS = ("colour", "shape", "count", "size", "place", "texture", "background", "background_texture", "swap")
"""What a false caption gets wrong; ``swap`` exchanges the colours of two groups."""

OPEN = -1
MANY = 0  # as a count: more than one
NO_GROUP = -2
# Columns of a group, and of the background after two groups.
SHAPE, COLOUR, TEXTURE, SIZE, COUNT, PLACE = range(6)
WIDTH = 6
BACKGROUND, BACKGROUND_TEXTURE = 12, 13
_COLOURS = tuple(COLOURS)
_OPPOSITE = {"left": "right", "right": "left", "top": "bottom", "bottom": "top"}
_COLUMNS = {"colour": COLOUR, "shape": SHAPE, "count": COUNT, "size": SIZE, "texture": TEXTURE}
_CHOICES = {SHAPE: len(SHAPES), COLOUR: len(_COLOURS), TEXTURE: len(TEXTURES), SIZE: len(SIZES)}


class Claim(NamedTuple):
    """``table`` is (14,) int8: two groups of six columns, then the background; ``full`` says it in the words of
    :mod:`genmeter.synth.words`, which leave nothing open."""

    table: np.ndarray
    full: bool


def table_of(scene: Scene) -> np.ndarray:
    """The (14,) int8 table of a scene."""
    table = np.full(14, NO_GROUP, dtype=np.int8)
    for i, g in enumerate(scene.groups):
        table[i * WIDTH : (i + 1) * WIDTH] = (
            SHAPES.index(g.shape),
            _COLOURS.index(g.colour),
            TEXTURES.index(g.texture),
            SIZES.index(g.size),
            g.count,
            PLACES.index(g.place),
        )
    table[BACKGROUND] = _COLOURS.index(scene.background)
    table[BACKGROUND_TEXTURE] = TEXTURES.index(scene.background_texture)
    return table


def scene_of(table: np.ndarray) -> Scene:
    """A scene that says what a table without open fields says; its seed is 0."""
    groups = tuple(
        Group(
            shape=SHAPES[row[SHAPE]],
            colour=_COLOURS[row[COLOUR]],
            texture=TEXTURES[row[TEXTURE]],
            size=SIZES[row[SIZE]],
            count=int(row[COUNT]),
            place=PLACES[row[PLACE]],
        )
        for row in _groups(table)
    )
    return Scene(groups, _COLOURS[table[BACKGROUND]], TEXTURES[table[BACKGROUND_TEXTURE]], 0)


def _groups(table: np.ndarray) -> list[np.ndarray]:
    rows = [table[:WIDTH], table[WIDTH : 2 * WIDTH]]
    return [row for row in rows if row[SHAPE] != NO_GROUP]


def holds(claims: np.ndarray, scenes: np.ndarray) -> np.ndarray:
    """Which claims are true of which scenes.

    Args:
        claims: (c, 14) tables with open fields.
        scenes: (s, 14) tables without.

    Returns:
        (s, c) bool. Each group of a claim must be found in the scene, two of them as two; a claim is not false for
        leaving a group out.
    """
    c, s = claims[None], scenes[:, None]
    fits = np.zeros((2, 2, len(scenes), len(claims)), dtype=bool)
    for i in (0, 1):
        asked = c[..., i * WIDTH : (i + 1) * WIDTH]
        for j in (0, 1):
            shown = s[..., j * WIDTH : (j + 1) * WIDTH]
            equal = (asked == OPEN) | (asked == shown)
            equal[..., COUNT] |= (asked[..., COUNT] == MANY) & (shown[..., COUNT] > 1)
            fits[i, j] = equal.all(axis=-1) & (shown[..., SHAPE] != NO_GROUP)
    absent = c[..., [SHAPE, WIDTH + SHAPE]] == NO_GROUP
    straight = (fits[0, 0] | absent[..., 0]) & (fits[1, 1] | absent[..., 1])
    crossed = (fits[0, 1] | absent[..., 0]) & (fits[1, 0] | absent[..., 1])
    ground = c[..., BACKGROUND:]
    return (straight | crossed) & ((ground == OPEN) | (ground == s[..., BACKGROUND:])).all(axis=-1)


def loosen(table: np.ndarray, rng: np.random.Generator) -> Claim:
    """A claim about a scene with fields and maybe a group or the background left open."""
    table = table.copy()
    groups = len(_groups(table))
    kept = list(range(groups))
    if groups == 2 and rng.random() < 0.35:
        kept = [int(rng.integers(2))]
    if rng.random() < 0.06:
        kept = []
    for i in range(2):
        if i not in kept:
            table[i * WIDTH : (i + 1) * WIDTH] = NO_GROUP
    # Fields of both groups are left open together, as one speaker would.
    for column, chance in ((SHAPE, 0.1), (COLOUR, 0.15), (TEXTURE, 0.45), (SIZE, 0.45), (PLACE, 0.4)):
        if rng.random() < chance:
            for i in kept:
                table[i * WIDTH + column] = OPEN
    for i in kept:
        if table[i * WIDTH + TEXTURE] == 0 and rng.random() < 0.7:
            table[i * WIDTH + TEXTURE] = OPEN
        if table[i * WIDTH + COUNT] > 1 and rng.random() < 0.2:
            table[i * WIDTH + COUNT] = MANY
    if kept and rng.random() < 0.5:
        table[BACKGROUND:] = OPEN
    elif rng.random() < 0.3 or (table[BACKGROUND_TEXTURE] == 0 and rng.random() < 0.7):
        table[BACKGROUND_TEXTURE] = OPEN
    return Claim(table, False)


def spoil(claim: Claim, scene: np.ndarray, rng: np.random.Generator, field: str | None = None) -> Claim | None:
    """The claim with one field changed so that it is false of ``scene``; None where it does not state that field."""
    for name in [field] if field else rng.permutation(FIELDS):
        table = _changed(claim.table.copy(), str(name), rng)
        if table is not None and not holds(table[None], scene[None])[0, 0]:
            return Claim(table, claim.full)
    return None


def _changed(table: np.ndarray, field: str, rng: np.random.Generator) -> np.ndarray | None:
    rows = _groups(table)
    if field in ("background", "background_texture"):
        column = BACKGROUND if field == "background" else BACKGROUND_TEXTURE
        if table[column] < 0:
            return None
        used = {int(row[COLOUR]) for row in rows} if field == "background" else set()
        table[column] = _other(
            len(_COLOURS) if field == "background" else len(TEXTURES), {int(table[column])} | used, rng
        )
        return table
    if field == "swap":
        if len(rows) < 2 or rows[0][COLOUR] < 0:
            return None
        rows[0][COLOUR], rows[1][COLOUR] = int(rows[1][COLOUR]), int(rows[0][COLOUR])
        return table
    if field == "place":
        if not rows or rows[0][PLACE] < 0:
            return None
        if len(rows) == 2:
            rows[0][PLACE], rows[1][PLACE] = int(rows[1][PLACE]), int(rows[0][PLACE])
        else:
            rows[0][PLACE] = _other(len(PLACES), {int(rows[0][PLACE])}, rng)
        return table
    column = _COLUMNS[field]
    stated = [row for row in rows if row[column] >= (1 if column == COUNT else 0)]
    if not stated:
        return None
    row = stated[int(rng.integers(len(stated)))]
    taken = {int(r[column]) for r in rows} if column in (SHAPE, COLOUR) else {int(row[column])}
    if column == COLOUR:
        taken.add(int(table[BACKGROUND]))
    row[column] = (
        1 + _other(MAX_COUNT, {t - 1 for t in taken}, rng) if column == COUNT else _other(_CHOICES[column], taken, rng)
    )
    return table


def _other(n: int, taken: set[int], rng: np.random.Generator) -> int:
    free = [i for i in range(n) if i not in taken]
    return free[int(rng.integers(len(free)))]


def say(claim: Claim, language: str, rng: np.random.Generator) -> str:
    """The claim in words, drawn among many ways; a full claim in the words of :func:`genmeter.synth.words.caption`."""
    if claim.full:
        text = words.caption(scene_of(claim.table), language)
        # What CLIPScore sets before a caption, and a full stop, must not matter.
        if language == "en" and rng.random() < 0.2:
            text = "A photo depicts " + text
        return text + ("" if rng.random() < 0.85 else "。" if language == "zh" else ".")
    return _say_zh(claim.table, rng) if language == "zh" else _say_en(claim.table, rng)


def _pick(rng: np.random.Generator, options: Sequence[str]) -> str:
    return options[int(rng.integers(len(options)))]


# Repeated options are the likelier ones.
_EN_SHAPES = {
    "circle": ("circle", "circle", "disc", "disk"),
    "square": ("square",),
    "triangle": ("triangle",),
    "diamond": ("diamond", "diamond", "rhombus"),
    "star": ("star",),
    "ring": ("ring", "ring", "hoop"),
    "cross": ("cross", "cross", "plus sign"),
    "hexagon": ("hexagon",),
}
_EN_COLOURS = {"grey": ("grey", "gray"), "purple": ("purple", "violet"), "cyan": ("cyan", "turquoise")}
_EN_TEXTURES = (
    ("plain", "solid"),
    ("striped",),
    ("dotted", "spotted", "polka dot"),
    ("checkered", "checked", "chequered"),
)
_EN_WITH = ("", " with stripes", " with dots", " with checks")
_EN_SIZES = {"small": ("small", "small", "little", "tiny"), "large": ("large", "large", "big", "huge")}
_EN_COUNTS = (("some", "several", ""), ("one", "a", "a", "1", "a single"), ("two", "2"), ("three", "3"), ("four", "4"))
_EN_PLACES = {
    "left": ("on the left", "on the left side", "at left", "to the left"),
    "right": ("on the right", "on the right side", "at right", "to the right"),
    "top": ("at the top", "on top", "above", "in the upper part"),
    "bottom": ("at the bottom", "below", "in the lower part"),
    "centre": ("in the centre", "in the center", "in the middle", "at the center"),
}
_EN_BETWEEN = {
    "left": ("to the left of", "left of"),
    "right": ("to the right of", "right of"),
    "top": ("above", "over"),
    "bottom": ("below", "under"),
}
_EN_PREFIX = ("a photo of ", "a picture of ", "an image of ", "a drawing of ", "a photo depicts ", "a picture showing ")


def _en_noun(row: np.ndarray, rng: np.random.Generator) -> str:
    adjectives, after = [], ""
    if row[SIZE] >= 0:
        adjectives.append(_pick(rng, _EN_SIZES[SIZES[row[SIZE]]]))
    if row[COLOUR] >= 0:
        colour = _COLOURS[row[COLOUR]]
        adjectives.append(_pick(rng, _EN_COLOURS.get(colour, (colour,))))
    if row[TEXTURE] > 0 and rng.random() < 0.2:
        after = _EN_WITH[row[TEXTURE]]
    elif row[TEXTURE] >= 0:
        adjectives.append(_pick(rng, _EN_TEXTURES[row[TEXTURE]]))
    if rng.random() < 0.25:
        adjectives = [str(a) for a in rng.permutation(adjectives)]
    noun = _pick(rng, _EN_SHAPES[SHAPES[row[SHAPE]]]) if row[SHAPE] >= 0 else _pick(rng, ("shape", "figure"))
    if row[COUNT] != 1:
        noun += "es" if noun.endswith("s") else "s"
    text = " ".join([*adjectives, noun]) + after
    count = _pick(rng, _EN_COUNTS[row[COUNT]])
    if count == "a" and text[0] in "aeiou":
        count = "an"
    return f"{count} {text}".strip()


def _en_phrase(row: np.ndarray, rng: np.random.Generator) -> str:
    noun = _en_noun(row, rng)
    if row[PLACE] < 0:
        return noun
    place = _pick(rng, _EN_PLACES[PLACES[row[PLACE]]])
    how = rng.random()
    if how < 0.75:
        return f"{noun} {place}"
    return f"{place} {noun}" if how < 0.85 else f"{place} there {'is' if row[COUNT] == 1 else 'are'} {noun}"


def _say_en(table: np.ndarray, rng: np.random.Generator) -> str:
    rows = _groups(table)
    if len(rows) == 2 and rng.random() < 0.5:
        rows.reverse()
    if len(rows) == 2 and rows[0][PLACE] >= 0 and rng.random() < 0.3:
        between = _pick(rng, _EN_BETWEEN[PLACES[rows[0][PLACE]]])
        text = f"{_en_noun(rows[0], rng)} {between} {_en_noun(rows[1], rng)}"
    else:
        text = _pick(rng, (" and ", " and ", ", ", " with ")).join(_en_phrase(row, rng) for row in rows)
    if table[BACKGROUND] >= 0:
        colour = _COLOURS[table[BACKGROUND]]
        ground = _pick(rng, _EN_COLOURS.get(colour, (colour,)))
        if table[BACKGROUND_TEXTURE] >= 0:
            ground = f"{_pick(rng, _EN_TEXTURES[table[BACKGROUND_TEXTURE]])} {ground}"
        article = "an" if ground[0] in "aeiou" else "a"
        if not rows:
            text = _pick(rng, (f"{article} {ground} background", f"{ground} background", f"the background is {ground}"))
        else:
            text = _pick(
                rng,
                (
                    f"{text} on {article} {ground} background",
                    f"{text}, on {article} {ground} background",
                    f"{text} against {article} {ground} backdrop",
                    f"{text}, {ground} background",
                    f"{text} with {article} {ground} background",
                    f"{text}. The background is {ground}",
                    f"on {article} {ground} background, {text}",
                ),
            )
    if rng.random() < 0.2:
        text = _pick(rng, _EN_PREFIX) + text
    return text + ("." if rng.random() < 0.15 else "")


_ZH_SHAPES = {
    "circle": ("圆形", "圆形", "圆", "圆圈"),
    "square": ("正方形", "正方形", "方形", "方块"),
    "triangle": ("三角形", "三角形", "三角"),
    "diamond": ("菱形",),
    "star": ("五角星", "五角星", "星星", "星形"),
    "ring": ("圆环", "圆环", "环形"),
    "cross": ("十字", "十字", "十字形"),
    "hexagon": ("六边形", "六边形", "六角形"),
}
_ZH_COLOURS = {"orange": ("橙色", "橘色"), "brown": ("棕色", "褐色"), "pink": ("粉色", "粉红色"), "purple": ("紫色",)}
_ZH_TEXTURES = (
    ("纯色",),
    ("条纹", "带条纹的"),
    ("波点", "带波点的", "带圆点的", "斑点"),
    ("格子", "带格子的", "棋盘格"),
)
_ZH_SIZES = {"small": ("小的", "小", "小小的"), "large": ("大的", "大", "巨大的")}
_ZH_COUNTS = (
    ("一些", "几个", ""),
    ("一个", "一个", "1个", "一颗", "单个"),
    ("两个", "两个", "2个"),
    ("三个", "3个"),
    ("四个", "4个"),
)
_ZH_PLACES = {
    "left": ("左边", "左侧", "左面"),
    "right": ("右边", "右侧", "右面"),
    "top": ("上方", "上面", "顶部"),
    "bottom": ("下方", "下面", "底部"),
    "centre": ("中间", "中央", "中心"),
}
_ZH_PREFIX = ("一张图片，", "画面上有", "图中有", "图片里有", "这是", "一幅画，")


def _zh_noun(row: np.ndarray, rng: np.random.Generator) -> str:
    parts = []
    if row[SIZE] >= 0:
        parts.append(_pick(rng, _ZH_SIZES[SIZES[row[SIZE]]]))
    if row[COLOUR] >= 0:
        colour = _COLOURS[row[COLOUR]]
        parts.append(_pick(rng, _ZH_COLOURS.get(colour, (words_zh.COLOURS[colour],))) + _pick(rng, ("", "", "的")))
    if row[TEXTURE] >= 0:
        parts.append(_pick(rng, _ZH_TEXTURES[row[TEXTURE]]))
    if rng.random() < 0.25:
        parts = [str(p) for p in rng.permutation(parts)]
    noun = _pick(rng, _ZH_SHAPES[SHAPES[row[SHAPE]]]) if row[SHAPE] >= 0 else _pick(rng, ("图形", "形"))
    return _pick(rng, _ZH_COUNTS[row[COUNT]]) + "".join(parts) + noun


def _zh_phrase(row: np.ndarray, rng: np.random.Generator) -> str:
    noun = _zh_noun(row, rng)
    if row[PLACE] < 0:
        return noun
    place = _pick(rng, _ZH_PLACES[PLACES[row[PLACE]]])
    return _pick(
        rng, (f"{place}有{noun}", f"{place}有{noun}", f"{place}是{noun}", f"{place}的{noun}", f"{noun}在{place}")
    )


def _say_zh(table: np.ndarray, rng: np.random.Generator) -> str:
    rows = _groups(table)
    if len(rows) == 2 and rng.random() < 0.5:
        rows.reverse()
    if len(rows) == 2 and rows[0][PLACE] >= 0 and rng.random() < 0.2:
        place = _pick(rng, _ZH_PLACES[PLACES[rows[0][PLACE]]])
        text = f"{_zh_noun(rows[0], rng)}在{_zh_noun(rows[1], rng)}的{place}"
    else:
        text = _pick(rng, ("，", "，", "和", "、")).join(_zh_phrase(row, rng) for row in rows)
    if rng.random() < 0.2 and rows:
        text = _pick(rng, _ZH_PREFIX) + text
    if table[BACKGROUND] >= 0:
        colour = _COLOURS[table[BACKGROUND]]
        ground = _pick(rng, _ZH_COLOURS.get(colour, (words_zh.COLOURS[colour],)))
        if table[BACKGROUND_TEXTURE] >= 0:
            ground += _pick(rng, _ZH_TEXTURES[table[BACKGROUND_TEXTURE]])
        if not rows:
            text = _pick(rng, (f"{ground}背景", f"{ground}的背景", f"背景是{ground}"))
        else:
            text = _pick(
                rng,
                (
                    f"{text}，{ground}背景",
                    f"{text}，背景是{ground}",
                    f"{text}，背景为{ground}",
                    f"{ground}背景上，{text}",
                ),
            )
    return text + ("。" if rng.random() < 0.15 else "")
