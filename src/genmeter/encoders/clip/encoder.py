"""The CLIP encoder: images, frames and texts to unit vectors. Imports torch only when it is loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from genmeter.contract import Decoding, EncoderSpec, Feature, Media, Precision, Prepared, View
from genmeter.encoders.clip import preprocessing, scripts
from genmeter.encoders.clip.backend import Measured, Tokenizer, Tokens, make_backend
from genmeter.encoders.frames import spread
from genmeter.errors import GenmeterError

if TYPE_CHECKING:
    from genmeter.weights.lock import ModelEntry

VERSION = 1

# Working memory of one pass, which cuts batches on a CPU and the frames of long clips on a GPU.
_CPU_BYTES = 192 << 20
_GPU_BYTES = 4 << 30
# Bytes for each pixel and each token of a small network that does not state its own.
_SMALL_IMAGE = 1 << 10
_SMALL_TOKEN = 1 << 16


class ClipEncoder:
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
        self._fetch = fetch
        self._probe = dict(entry.extra.get("probe", {}))
        self._flags: tuple[str, ...] = ("not_comparable",) if entry.extra.get("profile") == "tiny" else ()
        self._backend = make_backend(entry, fetch)
        self._tokenizer: Tokenizer | None = None
        self._lock = threading.Lock()
        self._device: str | None = None

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
        tokens = self._tokenize(f"{view.get('prefix') or ''}{media}")
        flags: tuple[str, ...] = ("text_truncated",) if tokens.truncated else ()
        if scripts.outside(media, self.spec.languages):
            flags += ("prompt_language",)
        return Prepared((tokens.ids[None],), np.ones(1, np.float32), {"text_tokens": tokens.count}, flags)

    def load(self, device: str, precision: Precision) -> None:
        """Build the towers on ``device`` and let them answer the probe.

        ``exact`` computes in float32. ``fast`` computes in half precision on CUDA and is the same as ``exact``
        elsewhere, where half precision is slower. Features are normalised in float32 either way.

        Raises:
            GenmeterError: ``weights_unavailable`` or ``weights_mismatch`` from the weights, ``model_probe_failed``.
        """
        from genmeter.encoders.clip import probe
        from genmeter.weights.load import load_tensors

        half = precision == "fast" and device.startswith("cuda")
        self._backend.load(load_tensors(self._fetch()), device, half)
        probe.check(self._backend, self.recipe, self.spec.model, self._probe, place=device, half=half)
        self._device = device

    def encode(self, batch: Sequence[Prepared]) -> list[Feature]:
        """Unit vectors of a batch of images, or of texts, of one shape; (k, d) float32 for each item.

        Raises:
            GenmeterError: ``non_finite`` when a feature holds NaN or infinity or has no direction.
        """
        if self._device is None:
            raise RuntimeError("load() comes before encode()")
        rows = np.concatenate([item.arrays[0] for item in batch]) if len(batch) > 1 else batch[0].arrays[0]
        tower = self._backend.encode_images if rows.ndim == 4 else self._backend.encode_texts
        step = self._rows_at_once(rows.shape[1:], len(batch))
        values = _unit(np.concatenate([tower(rows[i : i + step]) for i in range(0, len(rows), step)]))
        features, at = [], 0
        for item in batch:
            k = len(item.weights)
            features.append(Feature(values[at : at + k], item.weights, item.detail, item.flags + self._flags))
            at += k
        return features

    def bytes_per_item(self, shape: tuple[int, ...]) -> int:
        """Peak working memory for one image (S, S, 3) or one text (L,), in bytes."""
        if isinstance(self._backend, Measured):
            return self._backend.bytes_per_item(shape)
        return _SMALL_IMAGE * int(shape[0]) * int(shape[1]) if len(shape) == 3 else _SMALL_TOKEN * int(shape[0])

    def _rows_at_once(self, shape: tuple[int, ...], items: int) -> int:
        """Rows in one pass, a function of the batch alone."""
        if self._device == "cpu":
            return max(1, _CPU_BYTES // self.bytes_per_item(shape))
        return max(items, _GPU_BYTES // self.bytes_per_item(shape))

    def _tokenize(self, text: str) -> Tokens:
        if self._tokenizer is None:
            with self._lock:
                self._tokenizer = self._tokenizer or self._backend.tokenizer()
        return self._tokenizer(text)


def _unit(features: np.ndarray) -> np.ndarray:
    """(n, d) divided by their lengths in float32, whatever precision the towers ran in."""
    features = features.astype(np.float32, copy=False)
    # Scaled by the largest value first: squares of very large or very small ones leave float32's range.
    top = np.abs(features).max(axis=1, keepdims=True)
    if not (np.isfinite(top).all() and (top > 0).all()):
        raise GenmeterError("non_finite", "the network returned NaN, infinity or a vector of zeros for this item")
    scaled = features / top
    unit: np.ndarray = scaled / np.sqrt(np.einsum("nd,nd->n", scaled, scaled))[:, None]
    return unit
