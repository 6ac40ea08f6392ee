"""What encoders of two towers, one for media and one for texts, have in common: CLIP and CLAP. Imports numpy alone."""

from __future__ import annotations

import importlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from genmeter.config import nearest
from genmeter.contract import EncoderSpec, Feature, Precision, Prepared, View
from genmeter.encoders import scripts
from genmeter.errors import GenmeterError

if TYPE_CHECKING:
    from genmeter.weights.lock import ModelEntry

_NAMES_SHOWN = 4


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


@runtime_checkable
class Measured(Protocol):
    """A backend that knows what an item costs; one that does not is taken for a small network."""

    def bytes_per_item(self, shape: tuple[int, ...]) -> int:
        """Peak working memory, beside the weights, of one item of a tower's input shape; known before ``load``."""
        ...


class Towers(Protocol):
    """What every backend of a two-tower encoder has; its module adds the tower of its media."""

    def tokenizer(self) -> Tokenizer: ...
    def load(self, tensors: dict[str, np.ndarray], device: str, half: bool) -> None: ...
    def encode_texts(self, ids: np.ndarray) -> np.ndarray: ...


def make_backend(encoder: str, backends: Mapping[str, str], entry: ModelEntry, fetch: Callable[[], Path]) -> Any:
    """The backend that ``entry.loader`` names.

    Args:
        encoder: Name of the encoder, for messages.
        backends: Loader to what makes its backend (``module:attribute``), called with entry and fetch.
        entry: A models.lock entry.
        fetch: Returns the path of the verified weights; called for the tokenizer files alone, where they come with
            the weights.

    Raises:
        GenmeterError: ``unknown_metric`` when no backend has this name.
    """
    target = backends.get(entry.loader)
    if target is None:
        raise GenmeterError(
            "unknown_metric",
            f"{entry.id}: the {encoder} encoder has no loader {entry.loader!r}{nearest(entry.loader, list(backends))}",
            f"known: {', '.join(backends)}",
        )
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)(entry, fetch)


class TwoTowerEncoder(ABC):
    """Texts, batches and loading of an encoder of two towers; a subclass adds its media and the probe.

    Args:
        entry: The models.lock entry.
        fetch: Returns the path of the verified weights.
        backend: The towers, not loaded.
    """

    spec: EncoderSpec

    def __init__(self, entry: ModelEntry, fetch: Callable[[], Path], backend: Towers) -> None:
        self._fetch, self._towers = fetch, backend
        self._probe = dict(entry.extra.get("probe", {}))
        self._flags: tuple[str, ...] = ("not_comparable",) if entry.extra.get("profile") == "tiny" else ()
        self._tokenizer: Tokenizer | None = None
        self._lock = threading.Lock()
        self._device: str | None = None

    @abstractmethod
    def bytes_per_item(self, shape: tuple[int, ...]) -> int:
        """Peak working memory of one item of this shape, in bytes."""

    @abstractmethod
    def _pass_bytes(self) -> tuple[int, int]:
        """Working memory of one pass, on a CPU and on a GPU."""

    @abstractmethod
    def _check(self, device: str, half: bool) -> None:
        """Let the loaded towers answer the probe. Raises ``model_probe_failed``."""

    @abstractmethod
    def _tower(self, rows: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """The tower that takes such rows."""

    def load(self, device: str, precision: Precision) -> None:
        """Build the towers on ``device`` and let them answer the probe.

        ``exact`` computes in float32. ``fast`` computes in half precision on CUDA and is the same as ``exact``
        elsewhere, where half precision is slower. Features are normalised in float32 either way.

        Raises:
            GenmeterError: ``weights_unavailable`` or ``weights_mismatch`` from the weights, ``extra_missing`` where
                the network's definitions are not installed, ``model_probe_failed``.
        """
        from genmeter.weights.load import load_tensors

        half = precision == "fast" and device.startswith("cuda")
        self._towers.load(load_tensors(self._fetch()), device, half)
        self._check(device, half)
        self._device = device

    def encode(self, batch: Sequence[Prepared]) -> list[Feature]:
        """Unit vectors of a batch of media, or of texts, of one shape; (k, d) float32 for each item.

        Raises:
            GenmeterError: ``non_finite`` when a feature holds NaN or infinity or has no direction.
        """
        if self._device is None:
            raise RuntimeError("load() comes before encode()")
        rows = np.concatenate([item.arrays[0] for item in batch]) if len(batch) > 1 else batch[0].arrays[0]
        tower = self._tower(rows)
        step = self._rows_at_once(rows.shape[1:], len(batch))
        values = unit(np.concatenate([tower(rows[i : i + step]) for i in range(0, len(rows), step)]))
        features, at = [], 0
        for item in batch:
            k = len(item.weights)
            features.append(Feature(values[at : at + k], item.weights, item.detail, item.flags + self._flags))
            at += k
        return features

    def _prepare_text(self, text: str, view: View) -> Prepared:
        """(1, L) int64 with ``detail.text_tokens`` and its flags; the language is judged without the prefix."""
        if self._tokenizer is None:
            with self._lock:
                self._tokenizer = self._tokenizer or self._towers.tokenizer()
        tokens = self._tokenizer(f"{view.get('prefix') or ''}{text}")
        flags: tuple[str, ...] = ("text_truncated",) if tokens.truncated else ()
        if scripts.outside(text, self.spec.languages):
            flags += ("prompt_language",)
        return Prepared((tokens.ids[None],), np.ones(1, np.float32), {"text_tokens": tokens.count}, flags)

    def _rows_at_once(self, shape: tuple[int, ...], items: int) -> int:
        """Rows in one pass, a function of the batch alone."""
        on_cpu, on_gpu = self._pass_bytes()
        if self._device == "cpu":
            return max(1, on_cpu // self.bytes_per_item(shape))
        return max(1, items, on_gpu // self.bytes_per_item(shape))


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


def refuse_misfits(model: str, wanted: Collection[str], tensors: Collection[str], shapes: Sequence[str]) -> None:
    """Raise ``weights_mismatch``, naming some of them, when tensors are missing, left over or of another shape.

    Args:
        model: Name of the entry.
        wanted: Names that the network has places for.
        tensors: Names that there are.
        shapes: What is said of each tensor that does not fit its place.
    """
    faults = []
    if missing := sorted(set(wanted) - set(tensors)):
        faults.append(f"missing {_some(missing)}")
    if extra := sorted(set(tensors) - set(wanted)):
        faults.append(f"not expected {_some(extra)}")
    if shapes:
        faults.append(f"of another shape or kind {_some(shapes)}")
    if faults:
        raise GenmeterError(
            "weights_mismatch",
            f"{model}: the weights are not those of its architecture: {'; '.join(faults)}",
            "run `genmeter models verify`, and check that models.lock names the architecture the weights were made for",
        )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
