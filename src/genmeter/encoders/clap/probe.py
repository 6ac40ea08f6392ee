"""What loaded CLAP towers must answer before their first score: fixed sounds and texts, against what is stored of them.

An entry may hold ``[model.probe]``:

- ``texts``: four unrelated texts to use instead of :data:`TEXTS` (a network of a narrow world must know their words);
- ``audio_text`` (cosines of the first sound with each text) and ``text_text`` (cosines of all pairs of texts): what
  float32 on a CPU gave with the published weights; :func:`ask` makes them.

Without stored answers the towers are still held to finite features, to telling four unrelated texts apart (a published
checkpoint, larger_clap_music of the model hub, does not: cosine 0.9993), and to telling two unlike sounds apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from genmeter.encoders.clap.backend import Backend
from genmeter.encoders.clap.windows import SAMPLES
from genmeter.errors import GenmeterError

TEXTS = (
    "a dog barks in the distance",
    "a woman gives a speech to an audience",
    "slow piano music",
    "rain falls on a metal roof",
)

COLLAPSED = 0.95
"""Cosine of two unrelated texts at which a text tower tells nothing apart."""

_COLLAPSED_SOUNDS = 0.9999
_TOLERANCE = 1e-3
_TOLERANCE_HALF = 2e-2


class Answers(NamedTuple):
    """Cosines of the first sound with each text (4,), of all pairs of texts (6,), and of the two sounds."""

    audio_text: np.ndarray
    text_text: np.ndarray
    audio_audio: float


def sounds() -> np.ndarray:
    """(2, 480000) int16: a soft tone with overtones that comes and goes, and loud noise; equal on every machine."""
    at = np.arange(SAMPLES, dtype=np.int64)
    # A triangle of 200 Hz under a slow triangle of 2 Hz, in whole numbers.
    fast, slow = np.abs(at % 240 - 120) - 60, np.abs(at % 24000 - 12000)
    tone = fast * slow // 240
    noise = (at * at * 48271 + at * 40692 + 12345) * 69621 // 65536 % 65536 - 32768
    both: np.ndarray = np.stack([tone, noise]).astype(np.int16)
    return both


def ask(backend: Backend, texts: Sequence[str] = TEXTS) -> Answers:
    """Let loaded towers hear the fixed sounds and read ``texts``; NaN where a feature is not finite or zero."""
    tokenizer = backend.tokenizer()
    heard = _unit(backend.encode_audio(sounds()))
    words = _unit(np.concatenate([backend.encode_texts(tokenizer(text).ids[None]) for text in texts]))
    pairs = [float(words[i] @ words[j]) for i, j in itertools.combinations(range(len(texts)), 2)]
    return Answers(words @ heard[0], np.array(pairs), float(heard[0] @ heard[1]))


def check(backend: Backend, model: str, stored: Mapping[str, Any], *, place: str, half: bool) -> None:
    """Compare the towers' answers with the stored ones, and refuse towers that tell nothing apart.

    Args:
        backend: Loaded towers.
        model: The entry's id.
        stored: The entry's ``probe`` table.
        place: Name of the device, for messages.
        half: Whether they run in half precision, which is allowed a wider tolerance.

    Raises:
        GenmeterError: ``model_probe_failed``, saying which answer is off and by how much.
    """
    found = ask(backend, tuple(stored.get("texts", TEXTS)))
    where = f"{model} on {place}"
    if not all(np.isfinite(value).all() for value in found):
        raise _failed(f"{where}: features of the probe's sounds and texts are not finite")
    if (most := float(found.text_text.max())) >= COLLAPSED:
        raise _failed(
            f"{where}: unrelated texts come out alike (cosine {most:.4f}; expected below {COLLAPSED}): "
            "the text tower tells nothing apart"
        )
    if found.audio_audio >= _COLLAPSED_SOUNDS:
        raise _failed(
            f"{where}: unlike sounds come out alike (cosine {found.audio_audio:.6f}): "
            "the audio tower tells nothing apart"
        )
    tolerance = _TOLERANCE_HALF if half else _TOLERANCE
    for key, answer in (("audio_text", found.audio_text), ("text_text", found.text_text)):
        expected = np.array(stored.get(key, answer), np.float64)
        if expected.shape != answer.shape:
            raise _failed(
                f"{model}: models.lock stores {expected.size} values under probe.{key}; expected {answer.size}"
            )
        if (worst := float(np.abs(expected - answer).max())) > tolerance:
            raise _failed(
                f"{where}: cosines of the probe ({key}) differ from the stored ones by up to {worst:.4f}; "
                f"expected at most {tolerance:g}"
            )


def _unit(features: np.ndarray) -> np.ndarray:
    wide = features.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        unit: np.ndarray = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    return unit


def _failed(message: str) -> GenmeterError:
    return GenmeterError(
        "model_probe_failed",
        message,
        "run `genmeter models verify`, and check the entry's architecture; with sound weights the checkpoint itself is "
        "at fault, or the device: try --device cpu, or name another model",
    )
