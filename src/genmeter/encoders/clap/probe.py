"""What loaded CLAP towers must answer before their first score: fixed sounds and texts, against what is stored of them.

An entry may hold ``[model.probe]``:

- ``texts``: four unrelated texts to use instead of :data:`TEXTS` (a network of a narrow world must know their words);
- ``audio_text`` (cosines of the first sound with each text) and ``text_text`` (cosines of all pairs of texts): what
  float32 on a CPU gave with the published weights; :func:`ask` makes them.

Without stored answers the towers are still held to finite features, to telling four unrelated texts apart (a published
checkpoint, larger_clap_music of the model hub, does not: cosine 0.9993), and to telling two unlike sounds apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from genmeter.encoders.clap.backend import Backend
from genmeter.encoders.clap.windows import SAMPLES
from genmeter.encoders.towerprobe import Cosines, cosines, judge

TEXTS = (
    "a dog barks in the distance",
    "a woman gives a speech to an audience",
    "slow piano music",
    "rain falls on a metal roof",
)

_HINT = (
    "run `genmeter models verify`, and check the entry's architecture; with sound weights the checkpoint itself is "
    "at fault, or the device: try --device cpu, or name another model"
)


def sounds() -> np.ndarray:
    """(2, 480000) int16: a soft tone with overtones that comes and goes, and loud noise; equal on every machine."""
    at = np.arange(SAMPLES, dtype=np.int64)
    # A triangle of 200 Hz under a slow triangle of 2 Hz, in whole numbers.
    fast, slow = np.abs(at % 240 - 120) - 60, np.abs(at % 24000 - 12000)
    tone = fast * slow // 240
    noise = (at * at * 48271 + at * 40692 + 12345) * 69621 // 65536 % 65536 - 32768
    both: np.ndarray = np.stack([tone, noise]).astype(np.int16)
    return both


def ask(backend: Backend, texts: Sequence[str] = TEXTS) -> Cosines:
    """Let loaded towers hear the fixed sounds and read ``texts``; NaN where a feature is not finite or zero."""
    tokenizer = backend.tokenizer()
    words = np.concatenate([backend.encode_texts(tokenizer(text).ids[None]) for text in texts])
    return cosines(backend.encode_audio(sounds()), words)


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
    judge(found, "audio", "sounds", model, stored, place=place, half=half, hint=_HINT)
