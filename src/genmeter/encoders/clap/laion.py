"""CLAP as LAION defines it: the audio tower of the laion-clap package around transformers' RoBERTa. Imports torch.

Importing ``laion_clap`` itself fetches three tokenizers from a hub, and its model class asks one for RoBERTa's
configuration. So only the module that holds the audio tower is imported, as part of a package of our own without
LAION's initialisation, and the text tower is built from sizes.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from genmeter.encoders.clap.architectures import Architecture
from genmeter.encoders.clip.skeleton import without_random_values
from genmeter.errors import GenmeterError

_PACKAGE = "genmeter_clap_module"


class LaionNetwork:
    """Both towers with memory but no values yet.

    Args:
        how: The sizes.

    Raises:
        GenmeterError: ``extra_missing`` when the package cannot be imported.
    """

    def __init__(self, how: Architecture) -> None:
        htsat = _htsat()
        with torch.random.fork_rng(devices=[]), without_random_values(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._parts = nn.ModuleDict(
                {
                    "audio_branch": _audio_tower(htsat, how),
                    "text_branch": _text_tower(how),
                    "audio_projection": _projection(how.audio_features, how.joint),
                    "text_projection": _projection(how.text["hidden_size"], how.joint),
                }
            )
        self._parts.eval().requires_grad_(False)
        audio: Any = self._parts["audio_branch"]
        for stage in audio.layers:
            # A stage in evaluation joins all attention maps for a picture that nobody asks for; its blocks stay as
            # they are, and the mode of the stage itself decides nothing else.
            stage.training = True

    def places(self) -> dict[str, list[torch.Tensor]]:
        """Where each canonical tensor belongs."""
        return {name: [place] for name, place in self._parts.state_dict().items()}

    def to(self, device: str) -> None:
        """Move to a device."""
        self._parts.to(device)

    def audio(self, mel: torch.Tensor, longer: torch.Tensor | None) -> torch.Tensor:
        """(n, 1 or 4, frames, bands) decibels, and with fusion which clips are longer than a window, to (n, d)."""
        key = "waveform" if longer is None else "mel_fusion"
        found: dict[str, Any] = self._parts["audio_branch"]({key: mel, "longer": longer}, device=mel.device)
        projected: torch.Tensor = self._parts["audio_projection"](found["embedding"])
        return projected

    def text(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(n, L) token ids and mask to (n, d)."""
        pooled = self._parts["text_branch"](input_ids=ids, attention_mask=mask).pooler_output
        projected: torch.Tensor = self._parts["text_projection"](pooled)
        return projected


def _audio_tower(htsat: Any, how: Architecture) -> nn.Module:
    front_end = types.SimpleNamespace(
        mel_bins=how.mel_bands, window_size=0, hop_size=0, sample_rate=0, fmin=0, fmax=0
    )  # the front end is ours; the tower reads no more than the bands
    tower: nn.Module = htsat.HTSAT_Swin_Transformer(
        spec_size=how.spec_size,
        patch_size=how.patch,
        patch_stride=(how.patch, how.patch),
        num_classes=1,
        embed_dim=how.width,
        depths=list(how.depths),
        num_heads=list(how.heads),
        window_size=how.window,
        config=front_end,
        enable_fusion=how.fusion,
        fusion_type="aff_2d" if how.fusion else "None",
    )
    # Heads of the classifier that the tower was before: no feature passes through them.
    tower.tscam_conv, tower.head = nn.Identity(), nn.Identity()
    return tower


def _text_tower(how: Architecture) -> nn.Module:
    transformers: Any = importlib.import_module("transformers")
    config = transformers.RobertaConfig(
        **how.text,
        type_vocab_size=1,
        hidden_act="gelu",
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        attn_implementation="eager",
    )
    tower: nn.Module = transformers.RobertaModel(config)
    return tower


def _projection(wide: int, joint: int) -> nn.Module:
    return nn.Sequential(nn.Linear(wide, joint), nn.ReLU(), nn.Linear(joint, joint))


@functools.lru_cache(maxsize=1)
def _folder() -> Path | None:
    try:
        spec = importlib.util.find_spec("laion_clap")
    except (ImportError, ValueError):
        return None
    for place in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(place) / "clap_module"
        if (folder / "htsat.py").is_file():
            return folder
    return None


@functools.lru_cache(maxsize=1)
def _htsat() -> Any:
    folder = _folder()
    if folder is None:
        raise GenmeterError(
            "extra_missing", "laion-clap is not installed", "pip install 'genmeter[clap]' (Python below 3.13)"
        )
    package = types.ModuleType(_PACKAGE, "LAION's network definitions without their package's initialisation.")
    package.__path__ = [str(folder)]
    sys.modules[_PACKAGE] = package
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importlib.import_module(f"{_PACKAGE}.htsat")
    except ImportError as error:
        raise GenmeterError(
            "extra_missing",
            f"laion-clap is installed but cannot be imported: {error}",
            "install it anew (pip install 'genmeter[clap]'), or remove it: transformers then runs the same checkpoints",
        ) from None
    # The tower's own front end: its transform alone takes seconds to make, and ours stands in its place.
    module.Spectrogram = module.LogmelFilterBank = _nothing  # type: ignore[attr-defined]
    return module


def _nothing(**settings: Any) -> nn.Module:
    return nn.Identity()
