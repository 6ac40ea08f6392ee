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

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from genmeter.contract import ImageMedia
from genmeter.encoders.clip import preprocessing
from genmeter.encoders.clip.backend import Backend
from genmeter.encoders.towerprobe import Cosines, cosines, judge
from genmeter.goldens import pattern_pair

TEXTS = (
    "an orange cat asleep on a sofa",
    "the stock market fell sharply on tuesday",
    "a recipe for tomato soup",
    "snow on mountains beneath a night sky",
)

_HINT = (
    "run `genmeter models verify`, and check the entry's architecture and activation; with sound weights, try "
    "--device cpu and report the device and libraries"
)


def ask(backend: Backend, how: preprocessing.Recipe, texts: Sequence[str] = TEXTS) -> Cosines:
    """Show loaded towers the fixed images and ``texts``; NaN where a feature is not finite or zero."""
    images = [preprocessing.prepare(ImageMedia(pixels), {}, how).arrays[0] for pixels in pattern_pair(96, 64).values()]
    tokenizer = backend.tokenizer()
    pictures = np.concatenate([backend.encode_images(image) for image in images])
    return cosines(pictures, np.concatenate([backend.encode_texts(tokenizer(text).ids[None]) for text in texts]))


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
    found = ask(backend, how, tuple(stored.get("texts", TEXTS)))
    judge(found, "image", "images", model, stored, place=place, half=half, hint=_HINT)
