"""What the clip encoder asks of the network behind it. Imports numpy alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np

from genmeter.config import nearest
from genmeter.errors import GenmeterError

if TYPE_CHECKING:
    from genmeter.weights.lock import ModelEntry


class Tokens(NamedTuple):
    """A tokenized text.

    Attributes:
        ids: (L,) int64, start and end token included, cut to the context length and padded to L, which is the context
            length or, where a tower cannot see what follows the end token, a shorter step above the text's own.
        count: Tokens before cutting, start and end token included where the tokenizer has them.
        truncated: Whether any were cut; the end token never is.
    """

    ids: np.ndarray
    count: int  # type: ignore[assignment]  # tuple has a method of this name, which nobody calls here
    truncated: bool


class Tokenizer(Protocol):
    """From text to token ids. Called in decode threads: thread-safe, without the network's weights."""

    def __call__(self, text: str) -> Tokens:
        """Tokenize one text, any string whatever. Raises ``GenmeterError`` only where no tokenizer can be had."""
        ...


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


@runtime_checkable
class Measured(Protocol):
    """A backend that knows what an item costs; one that does not is taken for a small network."""

    def bytes_per_item(self, shape: tuple[int, ...]) -> int:
        """Peak working memory, beside the weights, of one image (S, S, 3) or one text (L,); known before ``load``."""
        ...


# loader of models.lock -> the class of its backend, called with the entry and a function returning the weights' path.
BACKENDS: Mapping[str, str] = {
    "open_clip": "genmeter.encoders.clip.openclip:OpenClipBackend",
    "tiny_clip": "genmeter.encoders.clip.tiny:TinyClipBackend",
}


def make_backend(entry: ModelEntry, fetch: Callable[[], Path]) -> Backend:
    """The backend that ``entry.loader`` names.

    Args:
        entry: A models.lock entry.
        fetch: Returns the path of the verified weights; called for the tokenizer files alone, where they come with
            the weights.

    Raises:
        GenmeterError: ``unknown_metric`` when no backend has this name.
    """
    target = BACKENDS.get(entry.loader)
    if target is None:
        raise GenmeterError(
            "unknown_metric",
            f"{entry.id}: the clip encoder has no loader {entry.loader!r}{nearest(entry.loader, list(BACKENDS))}",
            f"known: {', '.join(BACKENDS)}",
        )
    module, _, name = target.partition(":")
    return cast(Backend, getattr(importlib.import_module(module), name)(entry, fetch))
