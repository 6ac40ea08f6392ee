"""What loaded CLIP towers must answer before their first score: fixed images and texts, against what is stored of them.

An entry may hold ``[model.probe]``:

- ``texts``: four unrelated texts to use instead of :data:`TEXTS` (a network of a narrow world must know their words);
- ``image_text`` (cosines of the first image with each text) and ``text_text`` (cosines of all pairs of texts): what
  float32 on a CPU gave with the published weights; :func:`ask` makes them.

Without stored answers the towers are still held to finite features, to telling four unrelated texts apart, and to
telling two unlike images apart. Nothing switches that off: a plain CLIP passes it with open_clip's random weights
already.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from genmeter.contract import ImageMedia
from genmeter.encoders.clip import preprocessing
from genmeter.encoders.clip.backend import Backend
from genmeter.errors import GenmeterError
from genmeter.goldens import pattern_pair

TEXTS = (
    "an orange cat asleep on a sofa",
    "the stock market fell sharply on tuesday",
    "a recipe for tomato soup",
    "snow on mountains beneath a night sky",
)

COLLAPSED = 0.95
"""Cosine of two unrelated texts at which a text tower tells nothing apart (case: a checkpoint with 0.9993)."""

_COLLAPSED_IMAGES = 0.9999
_TOLERANCE = 1e-3
_TOLERANCE_HALF = 2e-2


class Answers(NamedTuple):
    """Cosines of the first image with each text (4,), of all pairs of texts (6,), and of the two images."""

    image_text: np.ndarray
    text_text: np.ndarray
    image_image: float


def ask(backend: Backend, how: preprocessing.Recipe, texts: Sequence[str] = TEXTS) -> Answers:
    """Show loaded towers the fixed images and ``texts``; NaN where a feature is not finite or zero."""
    images = [preprocessing.prepare(ImageMedia(pixels), {}, how).arrays[0] for pixels in pattern_pair(96, 64).values()]
    tokenizer = backend.tokenizer()
    pictures = _unit(np.concatenate([backend.encode_images(image) for image in images]))
    words = _unit(np.concatenate([backend.encode_texts(tokenizer(text).ids[None]) for text in texts]))
    pairs = [float(words[i] @ words[j]) for i, j in itertools.combinations(range(len(texts)), 2)]
    return Answers(words @ pictures[0], np.array(pairs), float(pictures[0] @ pictures[1]))


def check(
    backend: Backend, how: preprocessing.Recipe, model: str, stored: Mapping[str, Any], *, place: str, half: bool
) -> None:
    """Compare the towers' answers with the stored ones, and refuse towers that tell nothing apart.

    Args:
        backend: Loaded towers.
        how: The entry's image recipe.
        model: The entry's id.
        stored: The entry's ``probe`` table.
        place: Name of the device, for messages.
        half: Whether they run in half precision, which is allowed a wider tolerance.

    Raises:
        GenmeterError: ``model_probe_failed``, saying which answer is off and by how much.
    """
    texts = tuple(stored.get("texts", TEXTS))
    found = ask(backend, how, texts)
    where = f"{model} on {place}"
    if not all(np.isfinite(value).all() for value in found):
        raise _failed(f"{where}: features of the probe's images and texts are not finite")
    if (most := float(found.text_text.max())) >= COLLAPSED:
        raise _failed(
            f"{where}: unrelated texts come out alike (cosine {most:.4f}; expected below {COLLAPSED}): "
            "the text tower tells nothing apart"
        )
    if found.image_image >= _COLLAPSED_IMAGES:
        raise _failed(
            f"{where}: unlike images come out alike (cosine {found.image_image:.6f}): "
            "the image tower tells nothing apart"
        )
    tolerance = _TOLERANCE_HALF if half else _TOLERANCE
    for key, answer in (("image_text", found.image_text), ("text_text", found.text_text)):
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
        "run `genmeter models verify`, and check the entry's architecture and activation; with sound weights, try "
        "--device cpu and report the device and libraries",
    )
