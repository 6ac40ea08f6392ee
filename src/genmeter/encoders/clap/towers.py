"""The CLAP networks of LAION as a backend of the clap encoder, by either of two network definitions.

Front end, tokenizer and tensors are the same for both: only the layers between them come from laion-clap or from
transformers. A parity test holds the two together.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from genmeter.encoders.clap import preprocessing
from genmeter.encoders.clap.architectures import Architecture, architecture
from genmeter.encoders.clap.backend import Tokenizer
from genmeter.encoders.clap.windows import LARGEST, SAMPLES
from genmeter.encoders.twotower import refuse_misfits
from genmeter.errors import GenmeterError
from genmeter.weights.clap import FRONT_END, MERGES, VOCABULARY

if TYPE_CHECKING:
    from genmeter.weights.lock import ModelEntry

Loader = Literal["laion_clap", "transformers"]
_SCALES = ("logit_scale_a", "logit_scale_t")
_CONSTANTS = frozenset(
    {"num_batches_tracked", "relative_position_index", "attn_mask", "position_ids", "token_type_ids"}
)


def default_backend(entry: ModelEntry, fetch: Callable[[], Path]) -> ClapTowers:
    """LAION's own definitions where the package is installed, else transformers'."""
    from importlib.util import find_spec

    if find_spec("laion_clap") is not None:
        return ClapTowers(entry, fetch, "laion_clap")
    return ClapTowers(entry, fetch, "transformers")


def laion_backend(entry: ModelEntry, fetch: Callable[[], Path]) -> ClapTowers:
    """LAION's own definitions, and nothing else."""
    return ClapTowers(entry, fetch, "laion_clap")


def transformers_backend(entry: ModelEntry, fetch: Callable[[], Path]) -> ClapTowers:
    """transformers' ClapModel, also where laion-clap is installed."""
    return ClapTowers(entry, fetch, "transformers")


class ClapTowers:
    """Both towers of one entry; see :class:`genmeter.encoders.clap.backend.Backend`.

    Args:
        entry: A models.lock entry.
        fetch: Returns the path of the verified weights; called for the tokenizer alone, which is stored in them.
        loader: Whose network definitions run.

    Raises:
        GenmeterError: ``unknown_metric`` for an architecture that is not known, ``weights_mismatch`` when the entry
            leaves something unsaid.
    """

    def __init__(self, entry: ModelEntry, fetch: Callable[[], Path], loader: Loader) -> None:
        self.loader: str = loader
        self._entry, self._fetch = entry, fetch
        self._recipe = preprocessing.recipe(entry)
        self._how = architecture(entry, self._recipe.fusion, self._recipe.mel.bands)
        self._window = self._recipe.mel.frames(SAMPLES)
        self._tokenizer: Tokenizer | None = None
        self._lock = threading.Lock()
        self._network: Any = None
        self._front: Any = None
        self._device, self._half = "cpu", False

    def tokenizer(self) -> Tokenizer:
        """The entry's tokenizer. Raises ``GenmeterError`` where the weights that hold it cannot be had."""
        from genmeter.encoders.clap.roberta_bpe import RobertaTokenizer, read_files

        with self._lock:
            if self._tokenizer is None:
                files = read_files(self._fetch(), self._entry.id, (VOCABULARY, MERGES))
                self._tokenizer = RobertaTokenizer(*files, self._how.context, self._entry.id)
            return self._tokenizer

    def load(self, tensors: dict[str, np.ndarray], device: str, half: bool) -> None:
        """Build the towers on ``device`` from ``tensors``, which are used up.

        Raises:
            GenmeterError: ``weights_mismatch`` naming what is missing, left over or misshapen, or the front end that
                the checkpoint had and this is not; ``extra_missing`` without the network definitions.
        """
        from genmeter.encoders.clap.mel import LogMel

        for name in (VOCABULARY, MERGES, *_SCALES):
            tensors.pop(name, None)
        self._check_front_end(tensors)
        network = _build(self.loader, self._how, self._entry.id)
        _fill(network.places(), tensors, self._entry.id)
        network.to(device)
        self._network, self._device = network, device
        self._half = half and device.startswith("cuda")
        self._front = LogMel(self._recipe.mel, device)

    def encode_audio(self, samples: np.ndarray) -> np.ndarray:
        """(n, s) int16 at 48 kHz to (n, d) float32, not normalised; s is 480,000, or with fusion more."""
        import torch

        from genmeter.encoders.clap.fusion import views

        with torch.inference_mode():
            waves = torch.from_numpy(np.ascontiguousarray(samples)).to(self._device).float().div_(LARGEST)
            mel = self._front(waves)
            if self._recipe.fusion:
                mel, longer = views(mel, self._window)
            else:
                mel, longer = mel[:, None], None
            with self._autocast():
                return _out(self._network.audio(mel, longer))

    def encode_texts(self, ids: np.ndarray) -> np.ndarray:
        """(n, L) int64 to (n, d) float32, not normalised."""
        import torch

        with torch.inference_mode(), self._autocast():
            tokens = torch.from_numpy(np.ascontiguousarray(ids)).to(self._device)
            return _out(self._network.text(tokens, _mask(tokens)))

    def bytes_per_item(self, shape: tuple[int, ...]) -> int:
        """Peak working memory of one window (480000,), one long clip (n,) or one text (L,), in bytes."""
        how = self._how
        if shape[0] <= how.context:
            wide, heads = how.text["hidden_size"], how.text["num_attention_heads"]
            return int(4 * shape[0] * (24 * wide + 3 * heads * shape[0]))
        patches = (how.spec_size // how.patch) ** 2
        # The first stage is the largest: its layers' inputs and outputs, and the maps of its attention windows.
        tower = 4 * patches * (_ACTIVATIONS * how.width + _MAPS * how.heads[0] * how.window**2)
        return int(tower) + _BYTES_OF_SAMPLE * shape[0]

    def _check_front_end(self, tensors: dict[str, np.ndarray]) -> None:
        """A checkpoint that brings its own spectrogram must have been trained on the one that is computed here."""
        from genmeter.encoders.clap.mel import transform

        slaney = self._recipe.mel._replace(scale="slaney")
        for name, ours in zip(FRONT_END, transform(slaney), strict=True):
            theirs = tensors.pop(name, None)
            if theirs is None:
                continue
            if theirs.shape != ours.shape or np.abs(theirs - ours).max() > 1e-5 * np.abs(ours).max():
                raise GenmeterError(
                    "weights_mismatch",
                    f"{self._entry.id}: {name} is not what the preprocessing of models.lock gives",
                    "the checkpoint was trained on another spectrogram than the entry states",
                )

    @contextlib.contextmanager
    def _autocast(self) -> Iterator[None]:
        import torch

        if not self._half:
            yield
            return
        with torch.autocast("cuda", torch.float16):
            yield


# Fitted to peaks measured on a CPU in float32; see bytes_per_item.
_ACTIVATIONS, _MAPS = 16, 3
# As int16, float32 and, twice, float64; spectra come and go in pieces.
_BYTES_OF_SAMPLE = 28


def _mask(tokens: Any) -> Any:
    """1 up to the end token, which is the last of its kind; what follows is padding."""
    import torch

    places = torch.arange(tokens.shape[1], device=tokens.device)
    ends = torch.where(tokens == 2, places, torch.zeros_like(places)).amax(dim=1, keepdim=True)
    return (places <= ends).long()


def _build(loader: str, how: Architecture, model: str) -> Any:
    try:
        if loader == "laion_clap":
            from genmeter.encoders.clap.laion import LaionNetwork

            return LaionNetwork(how)
        from genmeter.encoders.clap.huggingface import TransformersNetwork

        return TransformersNetwork(how)
    except ImportError as error:
        raise GenmeterError(
            "extra_missing", f"{model} needs {error.name or error} for its network", "pip install transformers"
        ) from None


def _fill(places: dict[str, list[Any]], tensors: dict[str, np.ndarray], name: str) -> None:
    """Copy every tensor to its place; the mapping is emptied on the way, so that no more than one copy is whole."""
    import torch

    places = {key: parts for key, parts in places.items() if key.rpartition(".")[2] not in _CONSTANTS}
    shapes = []
    for key, parts in places.items():
        wanted = (sum(part.shape[0] for part in parts), *parts[0].shape[1:]) if parts[0].dim() else ()
        if key in tensors and (tensors[key].shape != wanted or tensors[key].dtype.kind != "f"):
            shapes.append(f"{key} {tensors[key].shape} for {tuple(wanted)}")
    refuse_misfits(name, places, tensors, shapes)
    with torch.no_grad():
        for key, parts in places.items():
            # Copied, not borrowed: torch's own memory is aligned, so equal batches give equal bytes in every process.
            whole: Any = torch.from_numpy(np.ascontiguousarray(tensors.pop(key)))
            for part, piece in zip(parts, whole.split([p.shape[0] for p in parts]), strict=True):
                part.copy_(piece)


def _out(features: Any) -> np.ndarray:
    array: np.ndarray = features.float().cpu().numpy()
    return array
