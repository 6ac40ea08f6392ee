"""CLAP networks with random weights, saved as checkpoints of each published form: no download anywhere."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from genmeter.weights.lock import ModelEntry

SMALL_AUDIO = {"width": 16, "depths": [2, 2], "heads": [2, 4]}
SMALL_TEXT = {
    "vocab_size": 500,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 80,
    "layer_norm_eps": 1e-5,
}
_SENTENCES = (
    "a dog barks in the distance while rain falls on a metal roof",
    "a woman gives a speech to an audience and they don't applaud",
    "slow piano music, 12 bars of it, with café noise behind",
    "it's the sound of waves: 3 gulls cry, they're far away",
)


def entry(loader: str = "clap", *, small: bool = True, fusion: bool = False, **changes: Any) -> ModelEntry:
    """A models.lock entry; ``preprocessing`` and ``extra`` are merged into the usual ones, None removes a key."""
    fields: dict[str, Any] = {
        "id": "clap-test",
        "task": "audio-text",
        "loader": loader,
        "architecture": "HTSAT-tiny",
        "licence": "none",
        "citation": "",
        "digest": "",
        "unverified": True,
        "sources": (),
        "label": "test",
    }
    preprocessing: dict[str, Any] = {
        "sample_rate": 48000,
        "window_samples": 480_000,
        "n_fft": 1024,
        "hop": 480,
        "mel_bands": 64,
        "fmin": 50,
        "fmax": 14000,
        "mel_scale": "htk" if fusion else "slaney",
        "fusion": fusion,
    }
    extra: dict[str, Any] = {
        "context_length": 77,
        "embed_dim": 32 if small else 512,
        "languages": ["en"],
        "text_config": dict(SMALL_TEXT) if small else {"layer_norm_eps": 1e-5, "vocab_size": 500},
    }
    if small:
        extra["audio_config"] = dict(SMALL_AUDIO)
    for known, given in ((preprocessing, changes.pop("preprocessing", {})), (extra, changes.pop("extra", {}))):
        known.update(given)
        for key in [key for key, value in known.items() if value is None]:
            del known[key]
    return ModelEntry(**{**fields, **changes}, preprocessing=preprocessing, extra=extra)


@functools.lru_cache(maxsize=1)
def tokenizer_files(vocabulary: int = 500) -> tuple[bytes, bytes]:
    """vocab.json and merges.txt of a small byte-level BPE with RoBERTa's special tokens."""
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator(
        _SENTENCES * 4, vocab_size=vocabulary, min_frequency=2, special_tokens=special, show_progress=False
    )
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_model(folder)
        return (Path(folder) / "vocab.json").read_bytes(), (Path(folder) / "merges.txt").read_bytes()


def random_tensors(made: ModelEntry, seed: int = 0) -> dict[str, np.ndarray]:
    """Canonical tensors of an entry's architecture, without the tokenizer, such that texts do not all look alike."""
    from genmeter.encoders.clap.architectures import architecture
    from genmeter.encoders.clap.huggingface import TransformersNetwork

    how = architecture(made, bool(made.preprocessing["fusion"]), int(made.preprocessing["mel_bands"]))
    rng = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for name, parts in sorted(TransformersNetwork(how).places().items()):
        first = parts[0]
        shape = (sum(p.shape[0] for p in parts), *first.shape[1:]) if first.dim() else ()
        kind = name.rpartition(".")[2]
        wide = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        value = rng.standard_normal(shape, dtype=np.float32)
        if "word_embeddings" in name:
            value *= 3
        elif "relative_position" in name:
            value *= 0.5
        elif len(shape) > 1:
            value *= wide**-0.5 * (4 if "attention.self.query" in name else 1)
        elif kind == "running_var":
            value = np.abs(value) * 50 + 300 if ".bn0." in name else np.abs(value) + 0.5
        elif kind == "running_mean":
            value = value * 3 - (45 if ".bn0." in name else 0)
        elif kind == "weight":
            value = 1 + 0.2 * value
        else:
            value *= 0.1
        tensors[name] = np.ascontiguousarray(value, np.float32)
    return tensors


def save(tensors: Mapping[str, np.ndarray], path: Path, tokenizer: bool = True) -> Path:
    """Save canonical tensors, as `genmeter models fetch` would."""
    from safetensors.numpy import save_file

    files: dict[str, np.ndarray] = {}
    if tokenizer:
        vocabulary, merges = tokenizer_files()
        files = {"vocab.json": np.frombuffer(vocabulary, np.uint8), "merges.txt": np.frombuffer(merges, np.uint8)}
    save_file({**tensors, **files}, path)
    return path
