"""How the answers of two loaded towers to their probe are judged, whatever their media are. Imports numpy alone."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from genmeter.errors import GenmeterError

COLLAPSED = 0.95
"""Cosine of two unrelated texts at which a text tower tells nothing apart (case: a checkpoint with 0.9993)."""

_COLLAPSED_MEDIA = 0.9999
_TOLERANCE = 1e-3
_TOLERANCE_HALF = 2e-2


class Cosines(NamedTuple):
    """Cosines of the first media with each text, of all pairs of texts, and of the two media."""

    media_text: np.ndarray
    text_text: np.ndarray
    media_media: float


def cosines(media: np.ndarray, texts: np.ndarray) -> Cosines:
    """Cosines of two media (2, d) and texts (n, d); NaN where a feature is not finite or zero."""
    media, texts = _unit(media), _unit(texts)
    pairs = [float(texts[i] @ texts[j]) for i, j in itertools.combinations(range(len(texts)), 2)]
    return Cosines(texts @ media[0], np.array(pairs), float(media[0] @ media[1]))


def judge(
    found: Cosines,
    tower: str,
    media: str,
    model: str,
    stored: Mapping[str, Any],
    *,
    place: str,
    half: bool,
    hint: str,
) -> None:
    """Compare answers with the stored ones, and refuse towers that tell nothing apart.

    Args:
        found: What the towers answered.
        tower: Which tower takes the media (``image``): in messages, and in the keys of ``stored``.
        media: What messages call the media (``images``).
        model: The entry's id.
        stored: The entry's ``probe`` table; ``<tower>_text`` and ``text_text`` are compared where it holds them.
        place: Name of the device, for messages.
        half: Whether they run in half precision, which is allowed a wider tolerance.
        hint: What a reader can do about it.

    Raises:
        GenmeterError: ``model_probe_failed``, saying which answer is off and by how much.
    """

    def failed(message: str) -> GenmeterError:
        return GenmeterError("model_probe_failed", message, hint)

    where = f"{model} on {place}"
    if not all(np.isfinite(value).all() for value in found):
        raise failed(f"{where}: features of the probe's {media} and texts are not finite")
    if (most := float(found.text_text.max())) >= COLLAPSED:
        raise failed(
            f"{where}: unrelated texts come out alike (cosine {most:.4f}; expected below {COLLAPSED}): "
            "the text tower tells nothing apart"
        )
    if found.media_media >= _COLLAPSED_MEDIA:
        raise failed(
            f"{where}: unlike {media} come out alike (cosine {found.media_media:.6f}): "
            f"the {tower} tower tells nothing apart"
        )
    tolerance = _TOLERANCE_HALF if half else _TOLERANCE
    for key, answer in ((f"{tower}_text", found.media_text), ("text_text", found.text_text)):
        expected = np.array(stored.get(key, answer), np.float64)
        if expected.shape != answer.shape:
            raise failed(
                f"{model}: models.lock stores {expected.size} values under probe.{key}; expected {answer.size}"
            )
        if (worst := float(np.abs(expected - answer).max())) > tolerance:
            raise failed(
                f"{where}: cosines of the probe ({key}) differ from the stored ones by up to {worst:.4f}; "
                f"expected at most {tolerance:g}"
            )


def _unit(features: np.ndarray) -> np.ndarray:
    wide = features.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        unit: np.ndarray = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    return unit
