"""Text-to-audio demo samples: a caption in one of two languages, a sound of known fault, and another take of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from genmeter.synth.degrade_sound import DEGRADATIONS, degrade_sound
from genmeter.synth.sound import render
from genmeter.synth.sound_scene import SoundScene, make_change, make_sound
from genmeter.synth.wav import write_wav
from genmeter.synth.words_sound import caption

SECONDS = 3.0
RATE = 32_000
STRENGTHS = {"mild": 0.2, "strong": 1.0}


class Case(NamedTuple):
    """What a sound has to do with its caption.

    Attributes:
        match: The value of ``data_tag.match``: ``matching``; a kind of :mod:`genmeter.synth.degrade_sound`, done to a
            matching sound; ``one_field`` (one word of the caption is not true), ``order`` (its two events exchanged),
            ``unrelated``, ``silence``; or a fault (``truncated``, ``empty``, ``missing``, ``no_prompt``).
        strength: The value of ``data_tag.strength``: ``good``, ``mild`` or ``strong`` (degraded), ``wrong`` (intact and
            not what was asked for) or ``broken`` (cannot be scored).
        language: Language of the caption.
        rate: Samples a second of the output.
        channels: Of the output, all alike.
    """

    match: str
    strength: str
    language: str
    rate: int = RATE
    channels: int = 1


# Mixed, so that the first lines of a run already show some of each.
CASES: tuple[Case, ...] = (
    Case("matching", "good", "en"),
    Case("matching", "good", "zh"),
    Case("unrelated", "wrong", "en"),
    Case("noise", "strong", "zh"),
    Case("matching", "good", "en", 44_100, 2),
    Case("one_field", "wrong", "zh"),
    Case("lowpass", "strong", "en"),
    Case("truncated", "broken", "en"),
    Case("matching", "good", "zh", 16_000),
    Case("noise", "mild", "en"),
    Case("order", "wrong", "en"),
    Case("silence", "wrong", "zh"),
    Case("matching", "good", "en", 48_000),
    Case("clipping", "mild", "zh"),
    Case("unrelated", "wrong", "zh"),
    Case("dropouts", "strong", "en"),
    Case("empty", "broken", "zh"),
    Case("matching", "good", "en", 22_050),
    Case("one_field", "wrong", "en"),
    Case("clipping", "strong", "en"),
    Case("matching", "good", "zh"),
    Case("no_prompt", "broken", "en"),
    Case("lowpass", "mild", "zh"),
    Case("missing", "broken", "en"),
)

# Far from the seeds of any demo, so that neither is a sample's own.
_OTHER, _TAKE = 700_001, 800_003


def write(folder: Path, n: int, seed: int) -> Iterator[dict[str, Any]]:
    """Write the media of ``n`` samples under ``folder`` and yield their lines (see :func:`write_demo`)."""
    for part in ("outputs", "references"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for i in range(n):
        case = CASES[i % len(CASES)]
        scene = _scene(seed * 1_000_003 + 600_011 + i, pair=case.match == "order")
        name = f"sound-{i:04d}"
        output, reference = f"outputs/{name}.wav", f"references/{name}.wav"
        write_wav(folder / reference, render(replace(scene, seed=scene.seed + _TAKE), RATE, SECONDS), RATE)
        _write_output(folder / output, scene, case)
        text = "" if case.match == "no_prompt" else caption(scene, case.language)
        yield {
            "schema_version": "v1",
            "id": name,
            "task_type": "text-to-audio",
            "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}],
            "references": [{"answer": [_audio(reference)]}],
            "predict_result": [{"index": 0, "message": {"role": "assistant", "content": [_audio(output)]}}],
            # The second is no default of the task: most runs have no audio to compare with.
            "eval_config": {"metrics": ["clapscore", "clap_a"]},
            "data_tag": {"match": case.match, "strength": case.strength, "language": case.language},
        }


def shown(scene: SoundScene, match: str) -> SoundScene:
    """The sound that an output is made from: ``scene``, or what a wrong model takes it for."""
    if match == "unrelated":
        return make_sound(scene.seed + _OTHER)
    if match == "one_field":
        what = "pitch" if any(event.pitch for event in scene.events) else "envelope"
        return make_change(scene, scene.seed, what)[0]
    if match == "order":
        return make_change(scene, scene.seed, "order")[0]
    return scene


def _write_output(path: Path, scene: SoundScene, case: Case) -> None:
    if case.match == "missing":
        path.unlink(missing_ok=True)
        return
    if case.match == "empty":
        path.write_bytes(b"")
        return
    samples = render(shown(scene, case.match), case.rate, SECONDS)
    if case.match in DEGRADATIONS:
        samples = degrade_sound(samples, case.rate, case.match, STRENGTHS[case.strength], seed=scene.seed)
    elif case.match == "silence":
        samples = np.zeros_like(samples)
    write_wav(path, samples if case.channels == 1 else np.repeat(samples[:, None], case.channels, axis=1), case.rate)
    if case.match == "truncated":
        data = path.read_bytes()
        path.write_bytes(data[: len(data) * 3 // 5])


def _scene(seed: int, *, pair: bool) -> SoundScene:
    while pair and len(make_sound(seed).events) == 1:
        seed += 100_003
    return make_sound(seed)


def _audio(uri: str) -> dict[str, Any]:
    return {"type": "audio_url", "audio_url": {"url": uri}}
