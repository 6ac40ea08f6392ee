"""laion_clap's own functions and model, taken from the installed package without running its initialisation.

Importing the package fetches three tokenizers, and its module of data functions does too; so the functions that matter
are compiled from that module's text, and the model class is imported by itself, with RoBERTa built from sizes.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.util
import sys
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from genmeter.weights.lock import ModelEntry

_FUNCTIONS = ("int16_to_float32", "float32_to_int16", "get_mel", "get_audio_features")
_PACKAGE = "laion_reference_module"


def folder() -> Path | None:
    """Where the package lies, when it is installed."""
    spec = importlib.util.find_spec("laion_clap")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


@functools.lru_cache(maxsize=1)
def functions() -> types.SimpleNamespace:
    """``get_audio_features``, ``get_mel`` and the int16 round trip of laion_clap/training/data.py."""
    import torch
    import torch.nn.functional as F
    import torchaudio
    import torchvision

    place = folder()
    assert place is not None
    source = (place / "training" / "data.py").read_text(encoding="utf-8")
    wanted = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name in _FUNCTIONS]
    assert {n.name for n in wanted} == set(_FUNCTIONS)
    names = {"np": np, "torch": torch, "F": F, "torchaudio": torchaudio, "torchvision": torchvision}
    names["suppress"] = contextlib.suppress
    exec(compile(ast.Module(wanted, []), "laion_clap/training/data.py", "exec"), names)
    return types.SimpleNamespace(**{name: names[name] for name in _FUNCTIONS}, globals=names)


def audio_config(entry: ModelEntry) -> dict[str, Any]:
    """What laion_clap's functions and network are told of the spectrogram."""
    how = entry.preprocessing
    return {
        "audio_length": 1024,
        "clip_samples": how["window_samples"],
        "mel_bins": how["mel_bands"],
        "sample_rate": how["sample_rate"],
        "window_size": how["n_fft"],
        "hop_size": how["hop"],
        "fmin": how["fmin"],
        "fmax": how["fmax"],
        "class_num": 527,
        "model_type": "HTSAT",
        "model_name": entry.architecture.removeprefix("HTSAT-"),
    }


@functools.lru_cache(maxsize=1)
def _module() -> Any:
    place = folder()
    assert place is not None
    package = types.ModuleType(_PACKAGE)
    package.__path__ = [str(place / "clap_module")]
    sys.modules[_PACKAGE] = package
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(f"{_PACKAGE}.model")


def model(entry: ModelEntry, tensors: Mapping[str, np.ndarray]) -> Any:
    """LAION's own CLAP of an entry's architecture, with its own front end, holding the canonical ``tensors``."""
    import torch
    from transformers import RobertaConfig, RobertaModel

    from genmeter.encoders.clap.architectures import architecture

    module = _module()
    how = architecture(entry, bool(entry.preprocessing["fusion"]), int(entry.preprocessing["mel_bands"]))

    def roberta(name: str) -> Any:
        assert name == "roberta-base"
        return RobertaModel(
            RobertaConfig(**how.text, type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2)
        )

    def htsat(config: Any, enable_fusion: bool, fusion_type: str) -> Any:
        return sys.modules[f"{_PACKAGE}.htsat"].HTSAT_Swin_Transformer(
            spec_size=256,
            patch_size=4,
            patch_stride=(4, 4),
            num_classes=config.class_num,
            embed_dim=how.width,
            depths=list(how.depths),
            num_heads=list(how.heads),
            window_size=8,
            config=config,
            enable_fusion=enable_fusion,
            fusion_type=fusion_type,
        )

    before = module.RobertaModel, module.create_htsat_model
    module.RobertaModel = types.SimpleNamespace(from_pretrained=roberta)
    module.create_htsat_model = htsat
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            made = module.CLAP(
                embed_dim=how.audio_features,
                audio_cfg=audio_config(entry),
                text_cfg={
                    "context_length": 77,
                    "vocab_size": 49408,
                    "width": 512,
                    "heads": 8,
                    "layers": 12,
                    "model_type": "roberta",
                },
                enable_fusion=how.fusion,
                fusion_type="aff_2d" if how.fusion else "None",
                joint_embed_shape=how.joint,
            )
    finally:
        module.RobertaModel, module.create_htsat_model = before
    if how.text["hidden_size"] != 768:  # a width that is fixed there
        made.text_projection[0] = torch.nn.Linear(how.text["hidden_size"], how.joint)
    state = {name: torch.from_numpy(value) for name, value in tensors.items()}
    missing, unexpected = made.load_state_dict(state, strict=False)
    assert not unexpected
    assert not {name for name in missing if name in state}
    return made.eval()


def checkpoint(made: Any, path: Path, *, extra: Mapping[str, Any] | None = None, drop: str = "") -> Path:
    """Save a model as LAION's training did: ``module.`` names, an optimizer's state, numpy scalars, stray positions."""
    import torch

    state = {f"module.{name}": value for name, value in made.state_dict().items() if name != drop}
    state["module.text_branch.embeddings.position_ids"] = torch.arange(514)[None]
    state.update(extra or {})
    weight = next(iter(made.audio_projection.parameters()))
    optimizer = torch.optim.AdamW([weight.detach().clone().requires_grad_()], lr=1e-4)
    torch.save(
        {
            "epoch": np.float64(15.0),
            "name": "2023_test",
            "state_dict": state,
            "optimizer": {**optimizer.state_dict(), "lr": np.float64(1e-4)},
        },
        path,
    )
    return path
