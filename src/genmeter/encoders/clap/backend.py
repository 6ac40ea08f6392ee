"""What the clap encoder asks of the network behind it. Imports numpy alone."""

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


# loader of models.lock -> what makes its backend, called with the entry and a function returning the weights' path.
# ``clap`` takes LAION's own definitions where they are installed, else transformers'.
BACKENDS: Mapping[str, str] = {
    "clap": "genmeter.encoders.clap.towers:default_backend",
    "laion_clap": "genmeter.encoders.clap.towers:laion_backend",
    "transformers_clap": "genmeter.encoders.clap.towers:transformers_backend",
    "tiny_clap": "genmeter.encoders.clap.tiny:TinyClapBackend",
}


def make_backend(entry: ModelEntry, fetch: Callable[[], Path]) -> Backend:
    """The backend that ``entry.loader`` names; see :func:`genmeter.encoders.twotower.make_backend`."""
    return cast(Backend, twotower.make_backend("clap", BACKENDS, entry, fetch))


__all__ = ["BACKENDS", "Backend", "Measured", "Tokenizer", "Tokens", "make_backend"]
