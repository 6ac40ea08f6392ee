"""The CLAP encoder: audio and texts to unit vectors. Imports torch only when it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from genmeter.contract import Decoding, EncoderSpec, Media, Prepared, View
from genmeter.encoders.clap import preprocessing
from genmeter.encoders.clap.backend import make_backend
from genmeter.encoders.clap.windows import RATE
from genmeter.encoders.twotower import Measured, TwoTowerEncoder

if TYPE_CHECKING:
    from genmeter.weights.lock import ModelEntry

VERSION = 1

# Working memory of one pass, which cuts batches on a CPU and the windows of long clips on a GPU.
_CPU_BYTES = 256 << 20
_GPU_BYTES = 8 << 30
# Bytes for each sample and each token of a small network that does not state its own.
_SMALL_SAMPLE = 1 << 6
_SMALL_TOKEN = 1 << 16


class ClapEncoder(TwoTowerEncoder):
    """The two towers of one models.lock entry (``clap-630k-audioset-best`` ...).

    A feature's values are (k, d) float32 of length 1: one row for a text, one for each window of a clip, whose weight
    is the seconds it stands for. The spectrum is taken in float64, whatever precision the towers run in.

    Args:
        entry: The models.lock entry; ``loader`` names the backend, and architecture, preprocessing, context length and
            languages are its own, never a default.
        fetch: Returns the path of the verified weights.

    Raises:
        GenmeterError: ``unknown_metric`` when no backend can run this entry, ``weights_mismatch`` when it leaves
            something unsaid.
    """

    def __init__(self, entry: ModelEntry, fetch: Callable[[], Path]) -> None:
        from genmeter.weights.lock import entry_digest

        self.recipe = preprocessing.recipe(entry)
        self._backend = make_backend(entry, fetch)
        self.spec = EncoderSpec(
            name="clap",
            model=entry.id,
            digest=entry_digest(entry),
            preprocessing=preprocessing.identity(entry, self._backend.loader),
            version=VERSION,
            languages=tuple(entry.extra.get("languages", ())),
        )
        super().__init__(entry, fetch, self._backend)

    def decoding(self, view: View) -> Decoding:
        """48 kHz, whatever the view."""
        return {"rate": RATE}

    def prepare(self, media: Media, view: View) -> Prepared:
        """What a tower hears of a clip, or reads of a text.

        Args:
            media: Audio at 48 kHz, or a text.
            view: ``long`` and ``level`` for audio (see :func:`genmeter.encoders.clap.preprocessing.prepare`),
                ``prefix`` for texts.

        Returns:
            (k, 480000) int16, weights in seconds, or (1, L) int64 with ``detail.text_tokens`` (start and end token
            included, before cutting) and the flags ``text_truncated`` and ``prompt_language``.

        Raises:
            GenmeterError: ``unsupported_media``, ``empty_media``, ``non_finite``; ``weights_unavailable`` where a
                tokenizer comes with weights that cannot be had.
        """
        if not isinstance(media, str):
            return preprocessing.prepare(media, view, self.recipe, self.spec.model)
        return self._prepare_text(media, view)

    def bytes_per_item(self, shape: tuple[int, ...]) -> int:
        """Peak working memory for one window (480000,) or one text (L,), in bytes."""
        if isinstance(self._backend, Measured):
            return self._backend.bytes_per_item(shape)
        return (_SMALL_SAMPLE if shape[0] > _SMALL_TOKEN else _SMALL_TOKEN) * int(shape[0])

    def _pass_bytes(self) -> tuple[int, int]:
        return _CPU_BYTES, _GPU_BYTES

    def _check(self, device: str, half: bool) -> None:
        from genmeter.encoders.clap import probe

        probe.check(self._backend, self.spec.model, self._probe, place=device, half=half)

    def _tower(self, rows: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        return self._backend.encode_audio if rows.dtype == np.int16 else self._backend.encode_texts
