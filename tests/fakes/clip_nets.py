"""CLIP networks with random weights of open_clip's own architectures, saved as checkpoints: no download anywhere."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from genmeter.weights.lock import ModelEntry

CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
SMALL = "ViT-S-32-alt"
"""The smallest of open_clip's plain CLIP architectures (about 40 M parameters)."""

_BUFFERS = ("attn_mask", "position_ids", "token_type_ids")


def build(architecture: str, seed: int = 0, **options: Any) -> Any:
    """open_clip's own model with seeded random weights, in evaluation mode."""
    import open_clip
    import torch

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # it warns of random weights, which are the point
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return open_clip.create_model(architecture, pretrained=None, **options).eval()
    finally:
        logging.disable(before)


def spread(model: Any) -> Any:
    """Make a text tower tell texts apart that, untrained, pools mostly padding (SigLIP) or a mean (XLM-R).

    Such a tower with a library's random weights fails the probe, as it should: there is no switch to pass it.
    """
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("token_embedding.weight", "word_embeddings.weight")):
                weight.mul_(20)
            elif name.endswith("in_proj_weight") and name.startswith("text."):
                weight.mul_(3)
    return model


def save(model: Any, path: Path, extra: Mapping[str, Any] | None = None) -> Path:
    """Save a model's canonical tensors (no buffers), as `genmeter models fetch` would."""
    from safetensors.torch import save_file

    tensors = {k: v.contiguous() for k, v in model.state_dict().items() if k.rpartition(".")[2] not in _BUFFERS}
    save_file({**tensors, **(extra or {})}, path)
    return path


def entry(architecture: str = SMALL, activation: str = "gelu", **changes: Any) -> ModelEntry:
    """A models.lock entry; ``preprocessing`` and ``extra`` are merged into the usual ones, None removes a key."""
    fields: dict[str, Any] = {
        "id": "clip-" + architecture.lower(),
        "task": "image-text",
        "loader": "open_clip",
        "architecture": architecture,
        "licence": "none",
        "citation": "",
        "digest": "",
        "unverified": True,
        "sources": (),
        "label": architecture.lower(),
    }
    preprocessing = {
        "size": 224,
        "interpolation": "bicubic",
        "resize_mode": "shortest",
        "mean": CLIP_MEAN,
        "std": CLIP_STD,
    }
    extra: dict[str, Any] = {"activation": activation, "context_length": 77, "languages": ["en"]}
    for known, given in ((preprocessing, changes.pop("preprocessing", {})), (extra, changes.pop("extra", {}))):
        known.update(given)
        for key in [key for key, value in known.items() if value is None]:
            del known[key]
    return ModelEntry(**{**fields, **changes}, preprocessing=preprocessing, extra=extra)


def make_tokenizer(start: str | None = None, end: str = "<eos>", vocabulary: int = 300) -> bytes:
    """A small byte-level BPE as ``tokenizer.json``: pad 0, end 1, start 2, whatever text it is given."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", end, start or "<bos>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["a photo of a dog on the grass", "the cat and the hat"] * 8, trainer)
    template = f"{start} $A {end}" if start else f"$A {end}"
    used = [(token, special.index(token)) for token in special[1:] if token in template]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=used)
    # Settings of the file that the encoder must not be led by.
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=9)
    return str(tokenizer.to_str()).encode()


def tokenizer_tensor(data: bytes) -> dict[str, Any]:
    """The tokenizer as the tensor that an entry's weights hold."""
    import torch

    return {"tokenizer.json": torch.from_numpy(np.frombuffer(data, np.uint8).copy())}


def tokenizer_folder(data: bytes, folder: Path, end: str = "<eos>", start: str | None = None) -> Path:
    """The same tokenizer as transformers reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_bytes(data)
    stated = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "eos_token": end}
    if start:
        stated["bos_token"] = start
    (folder / "tokenizer_config.json").write_text(json.dumps(stated), encoding="utf-8")
    return folder
