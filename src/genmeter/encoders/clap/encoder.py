"""The CLAP encoder: audio and texts to unit vectors. Imports torch only when it is loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from genmeter.contract import Decoding, EncoderSpec, Feature, Media, Precision, Prepared, View
from genmeter.encoders.clap import preprocessing
from genmeter.encoders.clap.backend import Measured, Tokenizer, Tokens, make_backend
from genmeter.encoders.clap.windows import RATE
from genmeter.encoders.clip import scripts
from genmeter.errors import GenmeterError

if TYPE_CHECKING:
    from genmeter.weights.lock import ModelEntry

VERSION = 1

# Working memory of one pass, which cuts batches on a CPU and the windows of long clips on a GPU.
_CPU_BYTES = 256 << 20
_GPU_BYTES = 8 << 30
# Bytes for each sample and each token of a small network that does not state its own.
_SMALL_SAMPLE = 1 << 6
_SMALL_TOKEN = 1 << 16


class ClapEncoder:
    """The two towers of one models.lock entry (``clap-630k-audioset-best`` ...).

    A feature's values are (k, d) float32 of length 1: one row for a text, one for each window of a clip, whose weight
    is the seconds it stands for.

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
        self._fetch = fetch
        self._probe = dict(entry.extra.get("probe", {}))
        self._flags: tuple[str, ...] = ("not_comparable",) if entry.extra.get("profile") == "tiny" else ()
        self._tokenizer: Tokenizer | None = None
        self._lock = threading.Lock()
        self._device: str | None = None

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
        tokens = self._tokenize(f"{view.get('prefix') or ''}{media}")
        flags: tuple[str, ...] = ("text_truncated",) if tokens.truncated else ()
        if scripts.outside(media, self.spec.languages):
            flags += ("prompt_language",)
        return Prepared((tokens.ids[None],), np.ones(1, np.float32), {"text_tokens": tokens.count}, flags)

    def load(self, device: str, precision: Precision) -> None:
        """Build the towers on ``device`` and let them answer the probe.

        ``exact`` computes in float32. ``fast`` computes in half precision on CUDA and is the same as ``exact``
        elsewhere. The spectrum is taken in float64 and features are normalised in float32 either way.

        Raises:
            GenmeterError: ``weights_unavailable`` or ``weights_mismatch`` from the weights, ``extra_missing``,
                ``model_probe_failed``.
        """
        from genmeter.encoders.clap import probe
        from genmeter.weights.load import load_tensors

        half = precision == "fast" and device.startswith("cuda")
        self._backend.load(load_tensors(self._fetch()), device, half)
        probe.check(self._backend, self.spec.model, self._probe, place=device, half=half)
        self._device = device

    def encode(self, batch: Sequence[Prepared]) -> list[Feature]:
        """Unit vectors of a batch of clips, or of texts, of one shape; (k, d) float32 for each item.

        Raises:
            GenmeterError: ``non_finite`` when a feature holds NaN or infinity or has no direction.
        """
        if self._device is None:
            raise RuntimeError("load() comes before encode()")
        rows = np.concatenate([item.arrays[0] for item in batch]) if len(batch) > 1 else batch[0].arrays[0]
        tower = self._backend.encode_audio if rows.dtype == np.int16 else self._backend.encode_texts
        step = self._rows_at_once(rows.shape[1:], len(batch))
        values = unit(np.concatenate([tower(rows[i : i + step]) for i in range(0, len(rows), step)]))
        features, at = [], 0
        for item in batch:
            k = len(item.weights)
            features.append(Feature(values[at : at + k], item.weights, item.detail, item.flags + self._flags))
            at += k
        return features

    def bytes_per_item(self, shape: tuple[int, ...]) -> int:
        """Peak working memory for one window (480000,) or one text (L,), in bytes."""
        if isinstance(self._backend, Measured):
            return self._backend.bytes_per_item(shape)
        return (_SMALL_SAMPLE if shape[0] > _SMALL_TOKEN else _SMALL_TOKEN) * int(shape[0])

    def _rows_at_once(self, shape: tuple[int, ...], items: int) -> int:
        """Rows in one pass, a function of the batch alone."""
        if self._device == "cpu":
            return max(1, _CPU_BYTES // self.bytes_per_item(shape))
        return max(1, items, _GPU_BYTES // self.bytes_per_item(shape))

    def _tokenize(self, text: str) -> Tokens:
        if self._tokenizer is None:
            with self._lock:
                self._tokenizer = self._tokenizer or self._backend.tokenizer()
        return self._tokenizer(text)


def unit(features: np.ndarray) -> np.ndarray:
    """(n, d) divided by their lengths in float32, whatever precision the towers ran in.

    Raises:
        GenmeterError: ``non_finite`` for NaN, infinity or a vector of zeros.
    """
    features = features.astype(np.float32, copy=False)
    # Scaled by the largest value first: squares of very large or very small ones leave float32's range.
    top = np.abs(features).max(axis=1, keepdims=True)
    if not (np.isfinite(top).all() and (top > 0).all()):
        raise GenmeterError("non_finite", "the network returned NaN, infinity or a vector of zeros for this item")
    scaled = features / top
    found: np.ndarray = scaled / np.sqrt(np.einsum("nd,nd->n", scaled, scaled))[:, None]
    return found
