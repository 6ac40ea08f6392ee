"""CLAP checkpoints to canonical tensors: LAION's names of what a feature depends on, and the tokenizer's files.

Two forms are published of the same networks: LAION's own training checkpoints, and transformers' ClapModel. Both become
tensors of the same names. Left out are constants that a network computes by itself (masks, positions, counters) and
heads that no feature passes through.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from genmeter.errors import GenmeterError
from genmeter.weights.torch_reader import read_checkpoint

VOCABULARY, MERGES = "vocab.json", "merges.txt"
"""The tensors, (n,) uint8, that hold the bytes of the tokenizer's files."""

STRAY = "text_branch.embeddings.position_ids"
"""Positions 0 to 513, which old versions of transformers stored and newer ones refuse: no weight, so forgiven."""

FRONT_END = (
    "audio_branch.spectrogram_extractor.stft.conv_real.weight",
    "audio_branch.spectrogram_extractor.stft.conv_imag.weight",
    "audio_branch.logmel_extractor.melW",
)
"""The constant parameters of LAION's spectrogram: kept where a checkpoint has them, and compared with what is computed
when the network is loaded."""

_log = logging.getLogger(__name__)
_MAX_TOKENIZER = 64 << 20
_FLOATS = frozenset({"float16", "float32"})
_CONSTANTS = frozenset({"num_batches_tracked", "relative_position_index", "attn_mask"})
_HF_CONSTANTS = _CONSTANTS | {"position_ids", "token_type_ids"}
_BOTH = ("weight", "bias")
_NORM2D = (*_BOTH, "running_mean", "running_var")
_BLOCK = re.compile(r"layers\.(\d{1,3})\.blocks\.(\d{1,3})\.")
_TEXT_LAYER = re.compile(r"encoder\.layer\.(\d{1,3})\.")
# Parameters of LAION's checkpoints that no feature depends on.
_UNUSED = (
    *(f"audio_branch.{module}.{kind}" for module in ("tscam_conv", "head") for kind in _BOTH),
    *(f"{tower}_transform.sequential.{n}.{kind}" for tower in ("audio", "text") for n in (0, 3) for kind in _BOTH),
)
# Module of a block -> module of ClapModel's; the rest of a name stays.
_BLOCK_WORDS = {
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "attn.proj": "attention.output.dense",
    "attn.relative_position_bias_table": "attention.self.relative_position_bias_table",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
_PROJECTIONS = {"0": "linear1", "2": "linear2"}


def laion_clap(parts: Mapping[str, BinaryIO]) -> dict[str, np.ndarray]:
    """A training checkpoint of LAION (part ``weights``) with the tokenizer's files (parts ``vocab``, ``merges``).

    The file may hold an optimizer and numpy scalars beside the ``state_dict``, and ``module.`` before each name.

    Raises:
        GenmeterError: ``weights_mismatch`` naming keys that are missing or not expected; only :data:`STRAY` is
            forgiven, and noted in the log.
    """
    state = _state(read_checkpoint(parts["weights"], only="state_dict"))
    if state and all(name.startswith("module.") for name in state):
        state = {name[len("module.") :]: value for name, value in state.items()}
    if state.pop(STRAY, None) is not None:
        _log.info("the checkpoint holds %s, positions that are no weights: left out", STRAY)
    found = {name: value for name, value in state.items() if name.rpartition(".")[2] not in _CONSTANTS}
    depths, layers, fusion = _structure(found, "audio_branch.patch_embed.mel_conv2d.weight")
    kept = set(canonical_names(depths, layers, fusion))
    _same_keys(found, kept | set(_UNUSED) | set(FRONT_END))
    _check_constants(state, depths)
    kept |= set(FRONT_END)
    return _floats({name: found[name] for name in kept}) | _tokenizer(parts)


def transformers_clap(parts: Mapping[str, BinaryIO]) -> dict[str, np.ndarray]:
    """A ``pytorch_model.bin`` of transformers' ClapModel, with the tokenizer's files, under LAION's names.

    Query, key and value of a block, three matrices there, are one again.

    Raises:
        GenmeterError: ``weights_mismatch`` naming keys that are missing or not expected.
    """
    state = _state(read_checkpoint(parts["weights"], only="state_dict"))
    found = {name: value for name, value in state.items() if name.rpartition(".")[2] not in _HF_CONSTANTS}
    depths, layers, fusion = _structure(found, "audio_model.audio_encoder.patch_embed.mel_conv2d.weight")
    kept = {name: transformers_names(name) for name in canonical_names(depths, layers, fusion)}
    _same_keys(found, {name for names in kept.values() for name in names})
    _floats(found)
    joined = {
        name: found[names[0]] if len(names) == 1 else np.concatenate([found[n] for n in names])
        for name, names in kept.items()
    }
    return joined | _tokenizer(parts)


def canonical_names(depths: Iterable[int], text_layers: int, fusion: bool) -> Iterator[str]:
    """The names of all canonical tensors but the tokenizer's, for an HTSAT of these depths and a RoBERTa."""
    yield from ("logit_scale_a", "logit_scale_t")
    for tower in ("audio", "text"):
        yield from (f"{tower}_projection.{n}.{kind}" for n in (0, 2) for kind in _BOTH)
    yield from (f"audio_branch.{name}" for name in _audio_names(tuple(depths), fusion))
    yield from (f"text_branch.{name}" for name in _text_names(text_layers))


def transformers_names(name: str) -> tuple[str, ...]:
    """What ClapModel calls a canonical tensor: one name, or three that it splits into along the first axis."""
    head, _, rest = name.partition(".")
    if head == "text_branch":
        return (f"text_model.{rest}",)
    if head in ("audio_projection", "text_projection"):
        layer, _, kind = rest.partition(".")
        return (f"{head}.{_PROJECTIONS[layer]}.{kind}",)
    if head != "audio_branch":
        return (name,)
    base = "audio_model.audio_encoder."
    block = _BLOCK.match(rest)
    if block:
        inner = rest[block.end() :]
        if inner.startswith("attn.qkv."):
            kind = inner.rpartition(".")[2]
            return tuple(f"{base}{block[0]}attention.self.{part}.{kind}" for part in ("query", "key", "value"))
        for word, theirs in _BLOCK_WORDS.items():
            if inner == word or inner.startswith(word + "."):
                return (f"{base}{block[0]}{theirs}{inner[len(word) :]}",)
    return (base + ("batch_norm" + rest[3:] if rest.startswith("bn0.") else rest),)


def _audio_names(depths: tuple[int, ...], fusion: bool) -> Iterator[str]:
    yield from (f"bn0.{kind}" for kind in _NORM2D)
    for module in ("patch_embed.proj", "patch_embed.norm", "norm"):
        yield from (f"{module}.{kind}" for kind in _BOTH)
    if fusion:
        yield from (f"patch_embed.mel_conv2d.{kind}" for kind in _BOTH)
        for branch, convs, norms in (("local_att", (0, 3), (1, 4)), ("global_att", (1, 4), (2, 5))):
            base = f"patch_embed.fusion_model.{branch}"
            yield from (f"{base}.{n}.{kind}" for n in convs for kind in _BOTH)
            yield from (f"{base}.{n}.{kind}" for n in norms for kind in _NORM2D)
    for stage, depth in enumerate(depths):
        for block in range(depth):
            base = f"layers.{stage}.blocks.{block}"
            yield f"{base}.attn.relative_position_bias_table"
            for module in ("norm1", "norm2", "attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"):
                yield from (f"{base}.{module}.{kind}" for kind in _BOTH)
        if stage < len(depths) - 1:
            yield f"layers.{stage}.downsample.reduction.weight"
            yield from (f"layers.{stage}.downsample.norm.{kind}" for kind in _BOTH)


def _text_names(layers: int) -> Iterator[str]:
    yield from (f"embeddings.{table}_embeddings.weight" for table in ("word", "position", "token_type"))
    modules = ["embeddings.LayerNorm", "pooler.dense"]
    for layer in range(layers):
        base = f"encoder.layer.{layer}"
        modules += [f"{base}.attention.self.{part}" for part in ("query", "key", "value")]
        modules += [
            f"{base}.{kind}.{part}" for kind in ("attention.output", "output") for part in ("dense", "LayerNorm")
        ]
        modules.append(f"{base}.intermediate.dense")
    yield from (f"{module}.{kind}" for module in modules for kind in _BOTH)


def _state(tree: Any) -> dict[str, Any]:
    state = tree.get("state_dict", tree) if isinstance(tree, dict) else None
    if not isinstance(state, dict) or not state:
        raise _wrong("the checkpoint holds no state_dict")
    return {str(name): value for name, value in state.items()}


def _structure(names: Iterable[str], fusion_name: str) -> tuple[tuple[int, ...], int, bool]:
    """Blocks of each audio stage, layers of the text tower, and whether there is a fusion branch."""
    blocks: dict[int, int] = {}
    layers, fusion = 0, False
    for name in names:
        if found := _BLOCK.search(name):
            stage = int(found[1])
            blocks[stage] = max(blocks.get(stage, 0), int(found[2]) + 1)
        elif found := _TEXT_LAYER.search(name):
            layers = max(layers, int(found[1]) + 1)
        fusion = fusion or name == fusion_name
    if not blocks or not layers:
        raise _wrong("the checkpoint holds no pair of an HTSAT and a RoBERTa tower")
    return tuple(blocks.get(stage, 0) for stage in range(max(blocks) + 1)), layers, fusion


def _same_keys(found: Mapping[str, Any], expected: set[str]) -> None:
    extra, missing = sorted(set(found) - expected), sorted(expected - set(found))
    said = [f"{word} {', '.join(keys[:5])}" for word, keys in (("unexpected", extra), ("missing", missing)) if keys]
    if said:
        raise _wrong(f"the checkpoint has other tensors than a CLAP of HTSAT and RoBERTa: {'; '.join(said)}")


def _check_constants(state: Mapping[str, Any], depths: tuple[int, ...]) -> None:
    """A constant without the module it belongs to is as foreign as any other key."""
    blocks = [f"audio_branch.layers.{s}.blocks.{b}" for s, depth in enumerate(depths) for b in range(depth)]
    owners = {*blocks, *(f"{block}.attn" for block in blocks)}
    for name in state:
        owner, _, kind = name.rpartition(".")
        if kind in _CONSTANTS and f"{owner}.weight" not in state and owner not in owners:
            raise _wrong(f"the checkpoint has other tensors than a CLAP of HTSAT and RoBERTa: unexpected {name}")


def _floats(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    for name, array in tensors.items():
        if not isinstance(array, np.ndarray) or array.dtype.name not in _FLOATS:
            raise _wrong(f"{name} is {getattr(array, 'dtype', type(array).__name__)}, no float16 or float32 parameter")
    return tensors


def _tokenizer(parts: Mapping[str, BinaryIO]) -> dict[str, np.ndarray]:
    """The two files as tensors, so that one digest covers all that a text goes through."""
    vocabulary, merges = (parts[part].read(_MAX_TOKENIZER + 1) for part in ("vocab", "merges"))
    try:
        known = json.loads(vocabulary.decode("utf-8"))
        sound = isinstance(known, dict) and all(isinstance(n, int) for n in known.values()) and "</s>" in known
    except ValueError:
        sound = False
    if not sound or len(vocabulary) > _MAX_TOKENIZER:
        raise GenmeterError(
            "weights_mismatch", f"{VOCABULARY} is no vocabulary of a RoBERTa", "fetch it again, or check the mirror"
        )
    if not merges.startswith(b"#version") or len(merges) > _MAX_TOKENIZER:
        raise GenmeterError("weights_mismatch", f"{MERGES} is no list of merges", "fetch it again, or check the mirror")
    return {VOCABULARY: np.frombuffer(vocabulary, np.uint8), MERGES: np.frombuffer(merges, np.uint8)}


def _wrong(message: str) -> GenmeterError:
    return GenmeterError("weights_mismatch", message, "the file is of another network or version than models.lock says")
