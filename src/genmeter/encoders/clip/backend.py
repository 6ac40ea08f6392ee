"""What the clip encoder asks of the network behind it. Imports numpy alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from genmeter.encoders import twotower
from genmeter.encoders.twotower import Measured, Tokenizer, Tokens

if TYPE_CHECKING:
    from genmeter.weights.lock import ModelEntry


class Backend(Protocol):
    """A pair of towers. Made from a models.lock entry without torch and without weights; ``load`` brings both."""

    def tokenizer(self) -> Tokenizer:
        """The entry's tokenizer; usable before ``load``."""
        ...

    def load(self, tensors: dict[str, np.ndarray], device: str, half: bool) -> None:
        """Build the network on ``device`` and fill it.

        Args:
            tensors: All tensors by name; the backend may empty the mapping to free memory early.
            device: ``cpu``, ``cuda`` or ``cuda:i``.
            half: Compute in half precision (features still come back in float32).

        Raises:
            GenmeterError: ``weights_mismatch`` naming the tensors that are missing, left over or misshapen, or the
                statement of the entry that the weights contradict.
        """
        ...

    def encode_images(self, pixels: np.ndarray) -> np.ndarray:
        """(n, S, S, 3) uint8 RGB, resized and cropped already, to (n, d) float32, not normalised."""
        ...

    def encode_texts(self, ids: np.ndarray) -> np.ndarray:
        """(n, L) int64 token ids to (n, d) float32, not normalised."""
        ...


# loader of models.lock -> the class of its backend, called with the entry and a function returning the weights' path.
BACKENDS: Mapping[str, str] = {
    "open_clip": "genmeter.encoders.clip.openclip:OpenClipBackend",
    "tiny_clip": "genmeter.encoders.clip.tiny:TinyClipBackend",
}


def make_backend(entry: ModelEntry, fetch: Callable[[], Path]) -> Backend:
    """The backend that ``entry.loader`` names; see :func:`genmeter.encoders.twotower.make_backend`."""
    return cast(Backend, twotower.make_backend("clip", BACKENDS, entry, fetch))


__all__ = ["BACKENDS", "Backend", "Measured", "Tokenizer", "Tokens", "make_backend"]
