"""CLAP as transformers defines it (ClapModel), under LAION's names of tensors. Imports torch."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from genmeter.encoders.clap.architectures import Architecture
from genmeter.encoders.clip.skeleton import without_random_values
from genmeter.weights.clap import canonical_names, transformers_names

_UNREAD = ("logit_scale_a", "logit_scale_t")


class TransformersNetwork:
    """Both towers with memory but no values yet.

    Args:
        how: The sizes.
    """

    def __init__(self, how: Architecture) -> None:
        transformers: Any = importlib.import_module("transformers")
        text = {**how.text, "type_vocab_size": 1, "hidden_act": "gelu", "pad_token_id": 1}
        audio = {
            "window_size": how.window,
            "num_mel_bins": how.mel_bands,
            "spec_size": how.spec_size,
            "patch_size": how.patch,
            "patch_stride": [how.patch, how.patch],
            "hidden_size": how.audio_features,
            "depths": list(how.depths),
            "num_attention_heads": list(how.heads),
            "num_hidden_layers": len(how.depths),
            "enable_fusion": how.fusion,
            "patch_embeds_hidden_size": how.width,
            "layer_norm_eps": 1e-5,
        }
        config = transformers.ClapConfig(
            text_config=text,
            audio_config=audio,
            projection_dim=how.joint,
            projection_hidden_act="relu",
            attn_implementation="eager",
        )
        with torch.random.fork_rng(devices=[]), without_random_values():
            self._model = transformers.ClapModel(config)
        self._model.eval().requires_grad_(False)
        self._names = list(canonical_names(how.depths, how.text["num_hidden_layers"], how.fusion))

    def places(self) -> dict[str, list[torch.Tensor]]:
        """Where each canonical tensor belongs; one that is three here is split along its first axis."""
        state = self._model.state_dict()
        wanted = {name: transformers_names(name) for name in self._names if name not in _UNREAD}
        return {name: [state[theirs] for theirs in names] for name, names in wanted.items()}

    def to(self, device: str) -> None:
        """Move to a device."""
        self._model.to(device)

    def audio(self, mel: torch.Tensor, longer: torch.Tensor | None) -> torch.Tensor:
        """(n, 1 or 4, frames, bands) decibels, and with fusion which clips are longer than a window, to (n, d)."""
        is_longer = None if longer is None else longer[:, None]
        pooled = self._model.audio_model.audio_encoder(mel, is_longer=is_longer).pooler_output
        projected: torch.Tensor = self._model.audio_projection(pooled)
        return projected

    def text(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(n, L) token ids and mask to (n, d)."""
        pooled = self._model.text_model(input_ids=ids, attention_mask=mask).pooler_output
        projected: torch.Tensor = self._model.text_projection(pooled)
        return projected
