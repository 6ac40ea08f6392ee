"""Chinese captions and editing instructions of a scene; registered in :mod:`genmeter.synth.words`."""

from __future__ import annotations

from genmeter.synth.scene import Edit, Group, Scene

SHAPES = {
    "circle": "圆形",
    "square": "正方形",
    "triangle": "三角形",
    "diamond": "菱形",
    "star": "五角星",
    "ring": "圆环",
    "cross": "十字",
    "hexagon": "六边形",
}
COLOURS = {
    "red": "红色",
    "orange": "橙色",
    "yellow": "黄色",
    "green": "绿色",
    "blue": "蓝色",
    "purple": "紫色",
    "pink": "粉色",
    "brown": "棕色",
    "black": "黑色",
    "white": "白色",
    "grey": "灰色",
    "cyan": "青色",
}
TEXTURES = {"plain": "", "striped": "条纹", "dotted": "波点", "checkered": "格子"}
SIZES = {"small": "小的", "large": "大的"}
PLACES = {"left": "左边", "right": "右边", "top": "上方", "bottom": "下方", "centre": "中间"}
COUNTS = ("零", "一", "两", "三", "四")


def caption(scene: Scene) -> str:
    """One sentence that names every field of the scene, without a full stop."""
    groups = "，".join(f"{PLACES[g.place]}有{COUNTS[g.count]}个{_group(g)}" for g in scene.groups)
    return f"{groups}，{COLOURS[scene.background]}{TEXTURES[scene.background_texture]}背景"


def instruction(scene: Scene, edit: Edit) -> str:
    """The sentence that asks for an edit of ``scene``, the scene before it."""
    if edit.what == "background":
        return f"把背景换成{COLOURS[edit.value]}。"
    group = scene.groups[edit.group]
    if edit.what == "colour":
        return f"把{_group(group)}改成{COLOURS[edit.value]}。"
    target = f"一个{SHAPES[edit.value]}" if group.count == 1 else SHAPES[edit.value]
    return f"把{_group(group)}变成{target}。"


def _group(group: Group) -> str:
    return f"{SIZES[group.size]}{COLOURS[group.colour]}{TEXTURES[group.texture]}{SHAPES[group.shape]}"
