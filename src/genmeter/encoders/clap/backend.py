"""What the clap encoder asks of the network behind it. Imports numpy alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

import numpy as np

from genmeter.config import nearest
from genmeter.encoders.clip.backend import Tokenizer, Tokens
from genmeter.errors import GenmeterError

if TYPE_CHECKING:
    from genmeter.weights.lock import ModelEntry


class Backend(Protocol):
    """A pair of towers. Made from a models.lock entry without torch and without weights; ``load`` brings both.

    Attributes:
        loader: Whose network definitions run (``laion_clap``, ``transformers``, ``tiny``). It enters the identity of
            the encoder's numbers: two loaders agree to rounding, not to the bit.
    """

    loader: str

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
            GenmeterError: ``weights_mismatch`` naming the tensors that are missing, left over or misshapen,
                ``extra_missing`` where the network definitions cannot be imported.
        """
        ...

    def encode_audio(self, samples: np.ndarray) -> np.ndarray:
        """(n, s) int16 samples at 48 kHz to (n, d) float32, not normalised.

        s is 480,000, a window; for a network with feature fusion it may be more: one long clip as a whole.
        """
        ...

    def encode_texts(self, ids: np.ndarray) -> np.ndarray:
        """(n, L) int64 token ids to (n, d) float32, not normalised."""
        ...


@runtime_checkable
class Measured(Protocol):
    """A backend that knows what an item costs; one that does not is taken for a small network."""

    def bytes_per_item(self, shape: tuple[int, ...]) -> int:
        """Peak working memory, beside the weights, of one window (480000,) or one text (L,); known before ``load``."""
        ...


# loader of models.lock -> what makes its backend, called with the entry and a function returning the weights' path.
# ``clap`` takes LAION's own definitions where they are installed, else transformers'.
BACKENDS: Mapping[str, str] = {
    "clap": "genmeter.encoders.clap.towers:default_backend",
    "laion_clap": "genmeter.encoders.clap.towers:laion_backend",
    "transformers_clap": "genmeter.encoders.clap.towers:transformers_backend",
    "tiny_clap": "genmeter.encoders.clap.tiny:TinyClapBackend",
}


def make_backend(entry: ModelEntry, fetch: Callable[[], Path]) -> Backend:
    """The backend that ``entry.loader`` names.

    Args:
        entry: A models.lock entry.
        fetch: Returns the path of the verified weights; called for the tokenizer files alone, which lie in them.

    Raises:
        GenmeterError: ``unknown_metric`` when no backend has this name.
    """
    target = BACKENDS.get(entry.loader)
    if target is None:
        raise GenmeterError(
            "unknown_metric",
            f"{entry.id}: the clap encoder has no loader {entry.loader!r}{nearest(entry.loader, list(BACKENDS))}",
            f"known: {', '.join(BACKENDS)}",
        )
    module, _, name = target.partition(":")
    return cast(Backend, getattr(importlib.import_module(module), name)(entry, fetch))


__all__ = ["BACKENDS", "Backend", "Measured", "Tokenizer", "Tokens", "make_backend"]
