"""Text-to-video demo samples: a caption in one of two languages, a clip of known fault, and another take of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from genmeter.synth.film import write_video
from genmeter.synth.motion import DEGRADATIONS, FPS, Clip, caption, degrade_frames, frames, make_clip
from genmeter.synth.scene import make_edit

FRAMES = 16
WIDTH, HEIGHT = 128, 96
STRENGTHS = {"mild": 0.15, "strong": 1.0}


class Case(NamedTuple):
    """What a clip has to do with its caption.

    Attributes:
        match: The value of ``data_tag.match``: ``matching``; a kind of :data:`genmeter.synth.motion.DEGRADATIONS`, done
            to a matching clip; ``one_field`` (one colour, shape or background differs), ``unrelated``; or a fault
            (``truncated``, ``short``: fewer frames than I3D reads, ``missing``, ``no_prompt``).
        strength: The value of ``data_tag.strength``: ``good``, ``mild`` or ``strong`` (degraded), ``wrong`` (intact and
            not what was asked for) or ``broken`` (cannot be scored by every metric).
        language: Language of the caption.
        frames: Of the output.
    """

    match: str
    strength: str
    language: str
    frames: int = FRAMES


# Mixed, so that the first lines of a run already show some of each.
CASES: tuple[Case, ...] = (
    Case("matching", "good", "en"),
    Case("matching", "good", "zh"),
    Case("unrelated", "wrong", "en"),
    Case("flicker", "strong", "zh"),
    Case("frozen", "strong", "en"),
    Case("matching", "good", "en", 40),
    Case("one_field", "wrong", "zh"),
    Case("truncated", "broken", "en"),
    Case("noise", "strong", "en"),
    Case("matching", "good", "zh"),
    Case("flicker", "mild", "en"),
    Case("short", "broken", "zh", 7),
    Case("matching", "good", "en"),
    Case("blur", "strong", "zh"),
    Case("shuffled", "strong", "en"),
    Case("unrelated", "wrong", "zh"),
    Case("matching", "good", "en"),
    Case("noise", "mild", "zh"),
    Case("missing", "broken", "en"),
    Case("matching", "good", "zh"),
    Case("one_field", "wrong", "en"),
    Case("blur", "mild", "en"),
    Case("no_prompt", "broken", "en"),
    Case("matching", "good", "zh"),
)

# Far from the seeds of any demo, so that neither is a sample's own.
_OTHER, _TAKE = 700_001, 800_003


def write(folder: Path, n: int, seed: int) -> Iterator[dict[str, Any]]:
    """Write the media of ``n`` samples under ``folder`` and yield their lines (see :func:`write_demo`)."""
    for part in ("outputs", "references"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for i in range(n):
        case = CASES[i % len(CASES)]
        clip = make_clip(seed * 1_000_003 + 900_007 + i)
        name = f"video-{i:04d}"
        output, reference = f"outputs/{name}.mp4", f"references/{name}.mp4"
        take = clip._replace(scene=replace(clip.scene, seed=clip.scene.seed + _TAKE), period=clip.period * 1.1)
        write_video(folder / reference, frames(take, FRAMES, WIDTH, HEIGHT), FPS)
        _write_output(folder / output, clip, case)
        text = "" if case.match == "no_prompt" else caption(clip, case.language)
        yield {
            "schema_version": "v1",
            "id": name,
            "task_type": "text-to-video",
            "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}],
            "references": [{"answer": [_video(reference)]}],
            "predict_result": [{"index": 0, "message": {"role": "assistant", "content": [_video(output)]}}],
            "data_tag": {"match": case.match, "strength": case.strength, "language": case.language},
        }


def shown(clip: Clip, match: str) -> Clip:
    """The clip that an output is made from: ``clip``, or what a wrong model takes it for."""
    if match == "unrelated":
        return make_clip(clip.scene.seed + _OTHER)
    if match == "one_field":
        return clip._replace(scene=make_edit(clip.scene, clip.scene.seed)[0])
    return clip


def _write_output(path: Path, clip: Clip, case: Case) -> None:
    if case.match == "missing":
        path.unlink(missing_ok=True)
        return
    pixels = frames(shown(clip, case.match), case.frames, WIDTH, HEIGHT)
    if case.match in DEGRADATIONS:
        pixels = degrade_frames(pixels, case.match, STRENGTHS[case.strength], seed=clip.scene.seed)
    write_video(path, np.ascontiguousarray(pixels), FPS)
    if case.match == "truncated":
        # The index is at the front of the file, so what is left opens, and breaks off in the frames.
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])


def _video(uri: str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": uri}}
