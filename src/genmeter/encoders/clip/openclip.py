"""The open_clip backend: networks built from a models.lock entry, without a network connection and without defaults."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from genmeter.config import nearest
from genmeter.encoders.clip import preprocessing
from genmeter.encoders.clip.backend import Tokenizer
from genmeter.encoders.clip.bpe import BpeTokenizer
from genmeter.encoders.clip.cleaning import CLEANINGS
from genmeter.encoders.clip.published import activation_of
from genmeter.encoders.clip.subwords import TENSOR, SubwordTokenizer, read_file
from genmeter.encoders.twotower import refuse_misfits
from genmeter.errors import GenmeterError

if TYPE_CHECKING:
    from genmeter.weights.lock import ModelEntry

_VOCABULARY = "bpe_simple_vocab_16e6.txt.gz"
_ACTIVATIONS = ("quickgelu", "gelu")
_HALVES = ("float16", "bfloat16")
# Buffers that some releases of open_clip and transformers store and others do not; constants, all of them.
_NOT_WEIGHTS = ("attn_mask", "position_ids", "token_type_ids")
# Texts of a causal tower are padded to a multiple of this: what follows the end token cannot reach it.
_TEXT_STEP = 16


class OpenClipBackend:
    """The towers of one entry, as open_clip defines them.

    Args:
        entry: A models.lock entry; its ``architecture`` is a configuration of open_clip.
        fetch: Returns the path of the verified weights; called for the tokenizer alone, where it is stored in them.

    Raises:
        GenmeterError: ``unknown_metric`` for an architecture that open_clip does not have or that this backend cannot
            run, ``extra_missing`` without open_clip, ``weights_mismatch`` when the entry leaves something unsaid.
    """

    def __init__(self, entry: ModelEntry, fetch: Callable[[], Path]) -> None:
        self._entry, self._fetch = entry, fetch
        self._recipe = preprocessing.recipe(entry)
        self.config = read_config(entry)
        self._text = self.config["text_cfg"]
        self._built_in = not (self._text.get("hf_tokenizer_name") or self._text.get("hf_model_name"))
        # Pooling on the end token under a causal mask: what stands behind it is never seen.
        self._causal = (
            self._built_in
            and self._text.get("pool_type", "argmax") == "argmax"
            and not any(self._text.get(key) for key in ("no_causal_mask", "embed_cls"))
            and not self.config.get("custom_text")
        )
        self._tokenizer: Tokenizer | None = None
        self._lock = threading.Lock()
        self._model: Any = None
        self._shorter: dict[int, Any] = {}
        self._device = "cpu"
        self._half: str | None = None

    def tokenizer(self) -> Tokenizer:
        """The entry's tokenizer. Raises ``GenmeterError`` where it is stored in weights that cannot be had."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._make_tokenizer()
            return self._tokenizer

    def load(self, tensors: dict[str, np.ndarray], device: str, half: bool) -> None:
        """Build the towers on ``device`` from ``tensors``, which are used up.

        Raises:
            GenmeterError: ``weights_mismatch`` naming what is missing, left over, misshapen or contradicted.
        """
        self._check_statements()
        model = self._build()
        tensors.pop(TENSOR, None)
        _fill(model, tensors, self._entry.id)
        model.eval().requires_grad_(False)
        self._model, self._device, self._shorter = model.to(device), device, {}
        self._half = str(self._entry.extra.get("half", "float16")) if half and device.startswith("cuda") else None
        import torch

        self._mean, self._std = (
            torch.from_numpy(array).to(device) for array in preprocessing.normalising(self._recipe).values()
        )

    def encode_images(self, pixels: np.ndarray) -> np.ndarray:
        """(n, S, S, 3) uint8 to (n, d) float32, not normalised."""
        import torch

        with torch.inference_mode(), self._autocast():
            x = torch.from_numpy(pixels).to(self._device).permute(0, 3, 1, 2)
            # Byte to [0, 1] to normalised in this order: the values of open_clip's transform to the last bit.
            x = x.to(torch.float32, memory_format=torch.contiguous_format)
            x.div_(255).sub_(self._mean).div_(self._std)
            return self._out(self._model.encode_image(x))

    def encode_texts(self, ids: np.ndarray) -> np.ndarray:
        """(n, L) int64 to (n, d) float32, not normalised."""
        import torch

        with torch.inference_mode(), self._autocast():
            tokens = torch.from_numpy(ids).to(self._device)
            return self._out(self._text_model(ids.shape[1]).encode_text(tokens))

    def bytes_per_item(self, shape: tuple[int, ...]) -> int:
        """Peak working memory of one image (S, S, 3) or one text (L,), in bytes."""
        if len(shape) == 1:
            stated = {**self._entry.extra.get("text_config", {}), **self._text}
            return _tower_bytes(shape[0], *_width_and_heads(stated))
        vision = self.config["vision_cfg"]
        patch = vision.get("patch_size") or _patch_of(str(vision.get("timm_model_name", "")))
        tokens = (shape[0] // patch) * (shape[1] // patch) + 1
        # The image itself as bytes and, twice, as float32.
        return _tower_bytes(tokens, *_width_and_heads(vision)) + 9 * shape[0] * shape[1] * shape[2]

    # --- texts -------------------------------------------------------------------------------------------------------

    def _make_tokenizer(self) -> Tokenizer:
        stated = dict(self._entry.extra.get("tokenizer", {}))
        options = {**self._text.get("tokenizer_kwargs", {}), **stated}
        length = self._entry.extra["context_length"]
        if self._built_in:
            path = _package(self._entry.id) / _VOCABULARY
            cleaning = str(options.get("clean", "lower"))
            return BpeTokenizer(path, length, cleaning, _TEXT_STEP if self._causal else 0)
        hf = self._entry.extra.get("text_config", {})
        pad = options.get("pad_id", hf.get("pad_token_id", self._text.get("pad_id", 0)))
        data = read_file(self._fetch(), self._entry.id)
        cleaning = str(options.get("clean", "whitespace"))
        return SubwordTokenizer(data, length, int(pad), cleaning, self._entry.id, options.get("end_id"))

    def _text_model(self, length: int) -> Any:
        """The model for rows of ``length`` tokens: the same layers, with positions and mask cut to them."""
        if length == self._text.get("context_length", 77) or not self._causal:
            return self._model
        if length not in self._shorter:
            import torch

            model = copy.copy(self._model)
            positions = torch.nn.Parameter(self._model.positional_embedding[:length].clone(), requires_grad=False)
            model._parameters = {**self._model._parameters, "positional_embedding": positions}
            model._buffers = {**self._model._buffers, "attn_mask": self._model.attn_mask[:length, :length].contiguous()}
            self._shorter[length] = model
        return self._shorter[length]

    # --- building ----------------------------------------------------------------------------------------------------

    def _check_statements(self) -> None:
        """What the entry states must agree with itself, with the architecture and with what is known of its files."""
        entry = self._entry
        vision, text = self.config["vision_cfg"], self._text
        activation = entry.extra["activation"]
        named = "quickgelu" if entry.architecture.endswith("-quickgelu") else None
        source, trained = activation_of(entry)
        for origin, found in ((f"architecture {entry.architecture}", named), (source, trained)):
            if found is not None and found != activation:
                raise _contradiction(entry, f"activation = {activation!r}", f"{origin} was trained with {found!r}")
        if not text.get("hf_model_name") and entry.extra["context_length"] != text.get("context_length", 77):
            stated = f"context_length = {entry.extra['context_length']}"
            raise _contradiction(entry, stated, f"{entry.architecture} has {text.get('context_length', 77)}")
        if vision.get("image_size", 224) != self._recipe.size:
            raise _contradiction(
                entry, f"size = {self._recipe.size}", f"{entry.architecture} takes {vision.get('image_size', 224)}"
            )
        if entry.extra.get("embed_dim", self.config["embed_dim"]) != self.config["embed_dim"]:
            stated = f"embed_dim = {entry.extra['embed_dim']}"
            raise _contradiction(entry, stated, f"{entry.architecture} has {self.config['embed_dim']}")

    def _build(self) -> Any:
        """The towers with memory but no values yet."""
        import torch

        from genmeter.encoders.clip.skeleton import without_random_values

        config = json.loads(json.dumps(self.config))
        config["quick_gelu"] = self._entry.extra["activation"] == "quickgelu"
        with contextlib.ExitStack() as stack:
            if config["text_cfg"].get("hf_model_name"):
                # open_clip asks a hub for this tower's configuration unless its name is a folder.
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="genmeter-")))
                stated = dict(self._entry.extra["text_config"])
                (folder / "config.json").write_text(json.dumps(stated), encoding="utf-8")
                config["text_cfg"].update(hf_model_name=str(folder), hf_model_pretrained=False)
            if config["vision_cfg"].get("timm_model_name"):
                config["vision_cfg"]["timm_model_pretrained"] = False
            custom = config.pop("custom_text", False) or "hf_model_name" in config["text_cfg"]
            import open_clip

            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(without_random_values())
            return (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**config)

    @contextlib.contextmanager
    def _autocast(self) -> Iterator[None]:
        import torch

        if self._half is None:
            yield
        else:
            with torch.autocast("cuda", dtype=getattr(torch, self._half)):
                yield

    @staticmethod
    def _out(features: Any) -> np.ndarray:
        array: np.ndarray = features.float().cpu().numpy()
        return array


def read_config(entry: ModelEntry) -> dict[str, Any]:
    """open_clip's configuration of the entry's architecture, read without importing open_clip.

    Raises:
        GenmeterError: As :class:`OpenClipBackend`.
    """
    folder = _package(entry.id) / "model_configs"
    path = folder / f"{entry.architecture}.json"
    known = sorted(file.stem for file in folder.glob("*.json"))
    if entry.architecture not in known:
        raise GenmeterError(
            "unknown_metric",
            f"{entry.id}: open_clip has no architecture {entry.architecture!r}{nearest(entry.architecture, known)}",
            "update open_clip_torch, or name one that `open_clip.list_models()` lists",
        )
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    text = config["text_cfg"]
    reason = ""
    if "multimodal_cfg" in config:
        reason = "it is a captioning model"
    elif text.get("tokenizer_mode") or set(text.get("tokenizer_kwargs", {})) - {"clean"}:
        reason = "its tokenizer has settings that are not supported"
    elif text.get("hf_model_name") and not isinstance(entry.extra.get("text_config"), Mapping):
        raise _unstated(entry, "text_config", "a table with its text tower's configuration")
    if reason:
        raise GenmeterError("unknown_metric", f"{entry.id}: {entry.architecture} cannot be used here: {reason}")
    if entry.extra.get("activation") not in _ACTIVATIONS:
        raise _unstated(entry, "activation", " or ".join(_ACTIVATIONS))
    length = entry.extra.get("context_length")
    if not isinstance(length, int) or length < 2:
        raise _unstated(entry, "context_length", "a number of tokens")
    if entry.extra.get("half", "float16") not in _HALVES:
        raise _unstated(entry, "half", " or ".join(_HALVES))
    if dict(entry.extra.get("tokenizer", {})).get("clean", "lower") not in CLEANINGS:
        raise _unstated(entry, "tokenizer.clean", ", ".join(CLEANINGS))
    return config


@functools.lru_cache(maxsize=1)
def _folder_of_open_clip() -> Path | None:
    try:
        spec = importlib.util.find_spec("open_clip")
    except (ImportError, ValueError):
        return None
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def _package(model: str) -> Path:
    folder = _folder_of_open_clip()
    if folder is None:
        raise GenmeterError("extra_missing", f"{model} needs open_clip", "pip install open_clip_torch")
    return folder


def _fill(model: Any, tensors: dict[str, np.ndarray], name: str) -> None:
    """Copy every tensor to its place; the mapping is emptied on the way, so that no more than one copy is whole."""
    import torch

    places = {key: place for key, place in model.state_dict().items() if not _is_constant(key)}
    for key in [key for key in tensors if _is_constant(key)]:
        del tensors[key]
    shapes = [
        f"{key} {tensors[key].shape} for {tuple(place.shape)}"
        for key, place in places.items()
        if key in tensors and not _fits(tensors[key], place)
    ]
    refuse_misfits(name, places, tensors, shapes)
    with torch.no_grad():
        for key, place in places.items():
            # Copied, not borrowed: torch's own memory is aligned, so equal batches give equal bytes in every process.
            place.copy_(torch.from_numpy(np.ascontiguousarray(tensors.pop(key))).view(place.shape))


def _fits(array: np.ndarray, place: Any) -> bool:
    same = tuple(array.shape) == tuple(place.shape) or (array.size == 1 == place.numel())
    return bool(same and (array.dtype.kind == "f") == place.is_floating_point())


def _is_constant(name: str) -> bool:
    return name.rpartition(".")[2] in _NOT_WEIGHTS


def _unstated(entry: ModelEntry, key: str, expected: str) -> GenmeterError:
    return GenmeterError(
        "weights_mismatch",
        f"models.lock: {entry.id} states {key} = {entry.extra.get(key)!r}; expected {expected}",
        "the entry must say how its network was trained: nothing is assumed",
    )


def _contradiction(entry: ModelEntry, stated: str, known: str) -> GenmeterError:
    return GenmeterError(
        "weights_mismatch",
        f"models.lock: {entry.id} states {stated}, but {known}",
        "correct the entry: with the wrong one the network loads and every score is wrong",
    )


def _width_and_heads(config: Mapping[str, Any]) -> tuple[int, int]:
    unstated = 1152 if config.get("timm_model_name") else 768
    width = int(config.get("width") or config.get("hidden_size") or unstated)
    heads = config.get("heads") or config.get("num_attention_heads") or width // int(config.get("head_width", 64))
    return width, int(heads)


def _patch_of(name: str) -> int:
    found = name.partition("patch")[2].partition("_")[0]
    return int(found) if found.isdecimal() else 14


def _tower_bytes(tokens: int, width: int, heads: int) -> int:
    """Upper bound of what one item adds to the peak, fitted to peaks measured on a CPU in float32.

    Measured in MB for an image: ViT-B/32 6.6, B/16 14.1, L/14 37.7; for a text of 77 tokens 3.8, 3.5, 3.1.
    """
    return 4 * tokens * (36 * width + heads * tokens)
