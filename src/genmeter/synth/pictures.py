"""Text-to-image demo samples: a caption in one of two languages, and a picture that follows it, or does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from genmeter.synth.draw import draw
from genmeter.synth.edits import HEIGHT, WIDTH
from genmeter.synth.scene import make_edit, make_scene
from genmeter.synth.words import caption


class Case(NamedTuple):
    """What a picture has to do with its caption.

    Attributes:
        match: The value of ``data_tag.match``: ``matching``, ``one_field`` (one colour, shape or background differs),
            ``unrelated``, or a fault (``truncated``, ``no_prompt``).
        strength: The value of ``data_tag.strength``: ``good``, ``wrong`` or ``broken``.
        language: Language of the caption.
    """

    match: str
    strength: str
    language: str


# Mixed, so that the first lines of a run already show some of each.
CASES: tuple[Case, ...] = (
    Case("matching", "good", "en"),
    Case("matching", "good", "zh"),
    Case("unrelated", "wrong", "en"),
    Case("unrelated", "wrong", "zh"),
    Case("matching", "good", "en"),
    Case("one_field", "wrong", "en"),
    Case("truncated", "broken", "en"),
    Case("matching", "good", "zh"),
    Case("one_field", "wrong", "zh"),
    Case("unrelated", "wrong", "en"),
    Case("no_prompt", "broken", "en"),
    Case("matching", "good", "zh"),
)

_OTHER = 700_001  # far from the seeds of any demo, so that an unrelated picture is never a sample's own


def write(folder: Path, n: int, seed: int) -> Iterator[dict[str, Any]]:
    """Write the media of ``n`` samples under ``folder`` and yield their lines (see :func:`write_demo`)."""
    from PIL import Image

    (folder / "outputs").mkdir(parents=True, exist_ok=True)
    for i in range(n):
        case = CASES[i % len(CASES)]
        scene = make_scene(seed * 1_000_003 + 300_007 + i)
        shown = scene
        if case.match == "one_field":
            shown, _ = make_edit(scene, scene.seed)
        elif case.match == "unrelated":
            shown = make_scene(scene.seed + _OTHER)
        name = f"picture-{i:04d}"
        output = folder / "outputs" / f"{name}.png"
        Image.fromarray(draw(shown, WIDTH, HEIGHT)).save(output)
        if case.match == "truncated":
            data = output.read_bytes()
            output.write_bytes(data[: len(data) // 2])
        text = "" if case.match == "no_prompt" else caption(scene, case.language)
        yield {
            "schema_version": "v1",
            "id": name,
            "task_type": "text-to-image",
            "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}],
            "predict_result": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": [{"type": "image_url", "image_url": {"url": f"outputs/{name}.png"}}],
                    },
                }
            ],
            "data_tag": {"match": case.match, "strength": case.strength, "language": case.language},
        }
