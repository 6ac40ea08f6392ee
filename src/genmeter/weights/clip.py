"""CLIP checkpoints to canonical tensors: open_clip's names of parameters, no buffers, the checkpoint's own dtypes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from genmeter.errors import GenmeterError
from genmeter.weights.safefile import read_safetensors
from genmeter.weights.torch_reader import read_torchscript

TOKENIZER = "tokenizer.json"
"""The tensor that holds the bytes of a tokenizer which comes with the weights: (n,) uint8."""

# What checkpoints hold beside parameters: masks and positions, and numbers that OpenAI stored as tensors.
_NOT_PARAMETERS = frozenset({"attn_mask", "position_ids", "input_resolution", "context_length", "vocab_size"})
_FLOATS = frozenset({"float16", "float32"})
_MAX_TOKENIZER = 256 << 20


def openai_jit(parts: Mapping[str, BinaryIO]) -> dict[str, np.ndarray]:
    """A vision-transformer CLIP from OpenAI's TorchScript archive (part ``weights``); none of its code is run.

    The names are open_clip's as they stand. Matrices are float16 there and stay so: whoever loads them decides on
    what to compute in.

    Raises:
        GenmeterError: ``weights_mismatch`` when it is damaged or holds another network.
    """
    flat: dict[str, np.ndarray] = {}
    _flatten(read_torchscript(parts["weights"]), "", flat)
    tensors = _parameters(flat)
    expected = _vit_names(tensors)
    if set(tensors) != expected:
        extra, missing = sorted(set(tensors) - expected), sorted(expected - set(tensors))
        said = [f"{word} {', '.join(keys[:5])}" for word, keys in (("unexpected", extra), ("missing", missing)) if keys]
        raise GenmeterError(
            "weights_mismatch",
            f"the archive has other tensors than a CLIP with a vision transformer: {'; '.join(said)}",
            "the file is of another network or version than models.lock says",
        )
    return tensors


def open_clip(parts: Mapping[str, BinaryIO]) -> dict[str, np.ndarray]:
    """A checkpoint of open_clip as safetensors (part ``weights``).

    Raises:
        GenmeterError: ``weights_mismatch`` when it is damaged or no pair of towers.
    """
    tensors = _parameters(read_safetensors(parts["weights"]))
    if "logit_scale" not in tensors or not any(name.startswith("visual.") for name in tensors):
        raise GenmeterError(
            "weights_mismatch",
            "the file holds no logit_scale or no visual tower, so it is no CLIP of open_clip",
            "the file is of another network or version than models.lock says",
        )
    return tensors


def open_clip_tokenizer(parts: Mapping[str, BinaryIO]) -> dict[str, np.ndarray]:
    """As :func:`open_clip`, with the tokenizer (part ``tokenizer``) as one tensor more, :data:`TOKENIZER`.

    So one file, with one digest, holds all that a text goes through.
    """
    tensors = open_clip(parts)
    data = parts["tokenizer"].read(_MAX_TOKENIZER + 1)
    if not data.lstrip().startswith(b"{") or len(data) > _MAX_TOKENIZER:
        raise GenmeterError(
            "weights_mismatch", f"{TOKENIZER} is no JSON document of a tokenizer", "fetch it again, or check the mirror"
        )
    tensors[TOKENIZER] = np.frombuffer(data, np.uint8)
    return tensors


def _flatten(value: Any, prefix: str, into: dict[str, np.ndarray]) -> None:
    """Arrays under dotted names. Numbers, flags and lists are settings of modules, not weights."""
    if isinstance(value, np.ndarray):
        into[prefix] = value
    elif isinstance(value, dict):
        for key, item in value.items():
            _flatten(item, f"{prefix}.{key}" if prefix else str(key), into)


def _parameters(flat: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    tensors = {n: a for n, a in flat.items() if n.rpartition(".")[2] not in _NOT_PARAMETERS}
    for name, array in tensors.items():
        if array.dtype.name not in _FLOATS:
            raise GenmeterError(
                "weights_mismatch",
                f"{name} is {array.dtype} where a float16 or float32 parameter is expected",
                "the file is of another network or version than models.lock says",
            )
    return tensors


def _vit_names(tensors: Mapping[str, np.ndarray]) -> set[str]:
    """All parameters of a CLIP with a vision transformer that has as many blocks as ``tensors``."""
    names = {"positional_embedding", "text_projection", "logit_scale", "token_embedding.weight"}
    names |= {f"visual.{name}" for name in ("class_embedding", "positional_embedding", "proj", "conv1.weight")}
    norms = ["ln_final", "visual.ln_pre", "visual.ln_post"]
    for tower in ("transformer", "visual.transformer"):
        block = re.compile(re.escape(f"{tower}.resblocks.") + r"(\d{1,4})\.")
        found = [int(match[1]) for name in tensors if (match := block.match(name))]
        for i in range(max(found, default=0) + 1):
            base = f"{tower}.resblocks.{i}"
            norms += [f"{base}.ln_1", f"{base}.ln_2", f"{base}.attn.out_proj", f"{base}.mlp.c_fc", f"{base}.mlp.c_proj"]
            names |= {f"{base}.attn.in_proj_weight", f"{base}.attn.in_proj_bias"}
    return names | {f"{name}.{kind}" for name in norms for kind in ("weight", "bias")}
