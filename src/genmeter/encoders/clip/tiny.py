"""The tiny CLIP as a backend of the clip encoder: for demos, offline trials and tests; see docs/tiny-clip.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from genmeter.encoders.clip.tiny_tokens import TinyTokenizer
from genmeter.errors import GenmeterError

if TYPE_CHECKING:
    from genmeter.encoders.clip.tiny_network import TinyClip
    from genmeter.weights.lock import ModelEntry

ARCHITECTURE = "tiny-clip-v1"
MEAN = (0.5, 0.5, 0.5)
STD = (0.25, 0.25, 0.25)

# Measured on a CPU, rounded up.
_IMAGE_BYTES = 800_000
_TEXT_BYTES = 500_000


class TinyClipBackend:
    """Both towers of the tiny CLIP; see :class:`genmeter.encoders.clip.backend.Backend`.

    Args:
        entry: The models.lock entry ``tiny-clip``.
        fetch: Unused: the tokenizer needs no files.

    Raises:
        GenmeterError: ``weights_mismatch`` when the entry names another architecture.
    """

    def __init__(self, entry: ModelEntry, fetch: Callable[[], Path] | None = None) -> None:
        if entry.architecture != ARCHITECTURE:
            raise GenmeterError(
                "weights_mismatch",
                f"{entry.id}: architecture {entry.architecture!r}; this version of genmeter holds {ARCHITECTURE!r}",
                "use the models.lock that came with it",
            )
        self._model = entry.id
        self._mean = tuple(float(v) for v in entry.preprocessing.get("mean", MEAN))
        self._std = tuple(float(v) for v in entry.preprocessing.get("std", STD))
        self._network: TinyClip | None = None
        self._device = "cpu"

    def tokenizer(self) -> TinyTokenizer:
        """English by words, Chinese by characters; needs neither weights nor files."""
        return TinyTokenizer()

    def load(self, tensors: dict[str, np.ndarray], device: str, half: bool) -> None:
        """Build both towers on ``device``; stored float16 values are computed with in float32 unless ``half``.

        Raises:
            GenmeterError: ``weights_mismatch`` naming a tensor that is missing, left over or misshapen.
        """
        import torch

        from genmeter.encoders.clip.tiny_network import TinyClip, fill

        network = TinyClip()
        fill(network, tensors, self._model, ARCHITECTURE)
        self._network = network.to(device, torch.float16 if half else torch.float32)
        self._network.image.to(memory_format=torch.channels_last)
        self._device = device

    def encode_images(self, pixels: np.ndarray) -> np.ndarray:
        """(n, 96, 96, 3) uint8 RGB to (n, 256) float32, not normalised."""
        import torch

        network = self._loaded()
        with torch.inference_mode():
            x = torch.from_numpy(np.ascontiguousarray(pixels)).to(self._device).float() / 255
            mean, std = (torch.tensor(v, device=self._device) for v in (self._mean, self._std))
            # (n, H, W, 3) seen as (n, 3, H, W) is channels_last.
            x = ((x - mean) / std).permute(0, 3, 1, 2).to(network.text.positions.dtype)
            features: np.ndarray = network.image(x).float().cpu().numpy()
        return features

    def encode_texts(self, ids: np.ndarray) -> np.ndarray:
        """(n, 64) int64 token ids to (n, 256) float32, not normalised."""
        import torch

        network = self._loaded()
        with torch.inference_mode():
            features: np.ndarray = network.text(torch.from_numpy(ids).to(self._device)).float().cpu().numpy()
        return features

    def bytes_per_item(self, shape: tuple[int, ...]) -> int:
        """Peak working memory of one image (96, 96, 3) or one text (64,), in bytes."""
        return _IMAGE_BYTES if len(shape) == 3 else _TEXT_BYTES

    def _loaded(self) -> TinyClip:
        if self._network is None:
            raise RuntimeError("load() comes before encoding")
        return self._network
