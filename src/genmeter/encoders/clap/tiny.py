"""The tiny CLAP as a backend of the clap encoder: for demos, offline trials and tests; see docs/tiny-clap.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from genmeter.encoders.clap import tiny_tokens
from genmeter.encoders.clap.preprocessing import recipe
from genmeter.encoders.clap.windows import LARGEST
from genmeter.encoders.clip.tiny_tokens import TinyTokenizer
from genmeter.errors import GenmeterError

if TYPE_CHECKING:
    from genmeter.encoders.clap.mel import LogMel
    from genmeter.encoders.clap.tiny_network import TinyClap
    from genmeter.weights.lock import ModelEntry

ARCHITECTURE = "tiny-clap-v1"

# Measured on a CPU, rounded up.
_WINDOW_BYTES = 24_000_000
_TEXT_BYTES = 500_000


class TinyClapBackend:
    """Both towers of the tiny CLAP; see :class:`genmeter.encoders.clap.backend.Backend`.

    Args:
        entry: The models.lock entry ``tiny-clap``.
        fetch: Unused: the tokenizer needs no files.

    Raises:
        GenmeterError: ``weights_mismatch`` when the entry names another architecture, or does not say how its spectrum
            is taken.
    """

    loader = "tiny"

    def __init__(self, entry: ModelEntry, fetch: Callable[[], Path] | None = None) -> None:
        if entry.architecture != ARCHITECTURE:
            raise GenmeterError(
                "weights_mismatch",
                f"{entry.id}: architecture {entry.architecture!r}; this version of genmeter holds {ARCHITECTURE!r}",
                "use the models.lock that came with it",
            )
        self._model = entry.id
        self._mel = recipe(entry).mel
        self._front: LogMel | None = None
        self._network: TinyClap | None = None
        self._device = "cpu"

    def tokenizer(self) -> TinyTokenizer:
        """English by words, Chinese by characters; needs neither weights nor files."""
        return tiny_tokens.tokenizer()

    def load(self, tensors: dict[str, np.ndarray], device: str, half: bool) -> None:
        """Build both towers on ``device``; stored float16 values are computed with in float32 unless ``half``.

        Raises:
            GenmeterError: ``weights_mismatch`` naming a tensor that is missing, left over or misshapen, or a spectrum
                that is not the one the network was trained on.
        """
        import torch

        from genmeter.encoders.clap.mel import LogMel
        from genmeter.encoders.clap.tiny_network import MEL, TinyClap
        from genmeter.encoders.clip.tiny_network import fill

        if self._mel != MEL:
            raise GenmeterError(
                "weights_mismatch",
                f"models.lock: {self._model} states the spectrum {self._mel}; expected {MEL}",
                "use the models.lock that came with this version of genmeter",
            )
        network = TinyClap()
        fill(network, tensors, self._model, ARCHITECTURE)
        self._network = network.to(device, torch.float16 if half else torch.float32)
        self._network.audio.to(memory_format=torch.channels_last)
        self._front = LogMel(self._mel, device)
        self._device = device

    def encode_audio(self, samples: np.ndarray) -> np.ndarray:
        """(n, 480000) int16 at 48 kHz to (n, 256) float32, not normalised."""
        import torch

        network, front = self._loaded()
        with torch.inference_mode():
            waves = torch.from_numpy(np.ascontiguousarray(samples)).to(self._device).float() / LARGEST
            features: np.ndarray = network.audio(front(waves)).float().cpu().numpy()
        return features

    def encode_texts(self, ids: np.ndarray) -> np.ndarray:
        """(n, 64) int64 token ids to (n, 256) float32, not normalised."""
        import torch

        network, _ = self._loaded()
        with torch.inference_mode():
            features: np.ndarray = network.text(torch.from_numpy(ids).to(self._device)).float().cpu().numpy()
        return features

    def bytes_per_item(self, shape: tuple[int, ...]) -> int:
        """Peak working memory of one window (480000,) or one text (64,), in bytes."""
        return _TEXT_BYTES if shape[0] == tiny_tokens.CONTEXT_LENGTH else _WINDOW_BYTES

    def _loaded(self) -> tuple[TinyClap, LogMel]:
        if self._network is None or self._front is None:
            raise RuntimeError("load() comes before encoding")
        return self._network, self._front
