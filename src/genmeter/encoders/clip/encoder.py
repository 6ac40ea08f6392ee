"""The CLIP encoder: images, frames and texts to unit vectors. Imports torch only when it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from genmeter.contract import Decoding, EncoderSpec, Media, Prepared, View
from genmeter.encoders.clip import preprocessing
from genmeter.encoders.clip.backend import make_backend
from genmeter.encoders.frames import spread
from genmeter.encoders.twotower import Measured, TwoTowerEncoder

if TYPE_CHECKING:
    from genmeter.weights.lock import ModelEntry

VERSION = 1

# Working memory of one pass, which cuts batches on a CPU and the frames of long clips on a GPU.
_CPU_BYTES = 192 << 20
_GPU_BYTES = 4 << 30
# Bytes for each pixel and each token of a small network that does not state its own.
_SMALL_IMAGE = 1 << 10
_SMALL_TOKEN = 1 << 16


class ClipEncoder(TwoTowerEncoder):
    """The two towers of one models.lock entry (``clip-openai-vit-b-32`` ...).

    A feature's values are (k, d) float32 of length 1: one row for an image or a text, k for the frames of a video.

    Args:
        entry: The models.lock entry; ``loader`` names the backend, and architecture, activation, preprocessing, context
            length and languages are its own, never a default.
        fetch: Returns the path of the verified weights.

    Raises:
        GenmeterError: ``unknown_metric`` when no backend can run this entry, ``weights_mismatch`` when it leaves
            something unsaid.
    """

    def __init__(self, entry: ModelEntry, fetch: Callable[[], Path]) -> None:
        from genmeter.weights.lock import entry_digest

        self.recipe = preprocessing.recipe(entry)
        self.spec = EncoderSpec(
            name="clip",
            model=entry.id,
            digest=entry_digest(entry),
            preprocessing=preprocessing.identity(entry),
            version=VERSION,
            languages=tuple(entry.extra.get("languages", ())),
        )
        self._backend = make_backend(entry, fetch)
        super().__init__(entry, fetch, self._backend)

    def decoding(self, view: View) -> Decoding:
        """Which frames of a video decoding has to deliver; see :func:`genmeter.encoders.frames.spread`."""
        return spread(view)

    def prepare(self, media: Media, view: View) -> Prepared:
        """What a tower sees of an image, a video's frames or a text.

        Args:
            media: Image, video or text.
            view: ``alpha`` for images (see :func:`genmeter.encoders.clip.preprocessing.prepare`), ``prefix`` for texts.

        Returns:
            (k, size, size, 3) uint8, or (1, L) int64 with ``detail.text_tokens`` (start and end token included, before
            cutting) and the flags ``text_truncated`` and ``prompt_language``, the latter judged without the prefix.

        Raises:
            GenmeterError: ``unsupported_media``, ``empty_media``; ``weights_unavailable`` where a tokenizer comes with
                weights that cannot be had.
        """
        if not isinstance(media, str):
            return preprocessing.prepare(media, view, self.recipe)
        return self._prepare_text(media, view)

    def bytes_per_item(self, shape: tuple[int, ...]) -> int:
        """Peak working memory for one image (S, S, 3) or one text (L,), in bytes."""
        if isinstance(self._backend, Measured):
            return self._backend.bytes_per_item(shape)
        return _SMALL_IMAGE * int(shape[0]) * int(shape[1]) if len(shape) == 3 else _SMALL_TOKEN * int(shape[0])

    def _pass_bytes(self) -> tuple[int, int]:
        return _CPU_BYTES, _GPU_BYTES

    def _check(self, device: str, half: bool) -> None:
        from genmeter.encoders.clip import probe

        probe.check(self._backend, self.recipe, self.spec.model, self._probe, place=device, half=half)

    def _tower(self, rows: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        return self._backend.encode_images if rows.ndim == 4 else self._backend.encode_texts
