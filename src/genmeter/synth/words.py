"""Captions and editing instructions of a scene. A language is one pair of functions in :data:`LANGUAGES`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from genmeter.synth import words_zh
from genmeter.synth.scene import Edit, Group, Scene


class Language(NamedTuple):
    """How one language says what a scene shows and what an edit asks for."""

    caption: Callable[[Scene], str]
    instruction: Callable[[Scene, Edit], str]


def caption(scene: Scene, language: str = "en") -> str:
    """One sentence that names every field of the scene. Raises ``ValueError`` for an unknown language."""
    return _language(language).caption(scene)


def instruction(scene: Scene, edit: Edit, language: str = "en") -> str:
    """The sentence that asks for an edit of ``scene`` (the scene before it). Raises ``ValueError`` as above."""
    return _language(language).instruction(scene, edit)


def _language(name: str) -> Language:
    if name not in LANGUAGES:
        raise ValueError(f"language {name!r} is not among {', '.join(LANGUAGES)}")
    return LANGUAGES[name]


_EN_COUNT = ("no", "one", "two", "three", "four")
_EN_PLACE = {
    "left": "on the left",
    "right": "on the right",
    "top": "at the top",
    "bottom": "at the bottom",
    "centre": "in the centre",
}


def _en_noun(shape: str, count: int) -> str:
    if count == 1:
        return shape
    return shape + ("es" if shape.endswith("s") else "s")


def _en_group(group: Group) -> str:
    texture = "" if group.texture == "plain" else f"{group.texture} "
    return f"{group.size} {group.colour} {texture}{_en_noun(group.shape, group.count)}"


def _en_caption(scene: Scene) -> str:
    groups = " and ".join(f"{_EN_COUNT[g.count]} {_en_group(g)} {_EN_PLACE[g.place]}" for g in scene.groups)
    article = "an" if scene.background[0] in "aeiou" and scene.background_texture == "plain" else "a"
    texture = "" if scene.background_texture == "plain" else f"{scene.background_texture} "
    return f"{groups}, on {article} {texture}{scene.background} background"


def _en_instruction(scene: Scene, edit: Edit) -> str:
    if edit.what == "background":
        return f"Make the background {edit.value}."
    group = scene.groups[edit.group]
    if edit.what == "colour":
        return f"Make the {_en_group(group)} {edit.value}."
    target = f"a {edit.value}" if group.count == 1 else _en_noun(edit.value, group.count)
    return f"Turn the {_en_group(group)} into {target}."


LANGUAGES: dict[str, Language] = {
    "en": Language(_en_caption, _en_instruction),
    "zh": Language(words_zh.caption, words_zh.instruction),
}
