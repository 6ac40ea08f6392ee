"""I3D with random weights, shaped like the published one: what unit tests run on, without a download."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from genmeter.weights.i3d import BRANCHES, LOGITS, MIXED
from genmeter.weights.lock import ModelEntry

# Out of the paper's table: 1x1; 1x1 and 3x3; 1x1 and 3x3; 1x1 behind the pooling.
_WIDTHS = {
    "3b": (64, 96, 128, 16, 32, 32),
    "3c": (128, 128, 192, 32, 96, 64),
    "4b": (192, 96, 208, 16, 48, 64),
    "4c": (160, 112, 224, 24, 64, 64),
    "4d": (128, 128, 256, 24, 64, 64),
    "4e": (112, 144, 288, 32, 64, 64),
    "4f": (256, 160, 320, 32, 128, 128),
    "5b": (256, 160, 320, 32, 128, 128),
    "5c": (384, 192, 384, 48, 128, 128),
}


def random_tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """Tensors under the canonical names, float32; scaled so that features neither vanish nor explode."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}

    def unit(name: str, out: int, into: int, side: int) -> None:
        spread = np.sqrt(2 / (into * side**3))
        tensors[f"{name}.weight"] = (rng.standard_normal((out, into, side, side, side)) * spread).astype(np.float32)
        tensors[f"{name}.beta"] = (rng.standard_normal(out) * 0.1).astype(np.float32)
        tensors[f"{name}.mean"] = (rng.standard_normal(out) * 0.1).astype(np.float32)
        # Some close to 0, where the eps counts.
        tensors[f"{name}.variance"] = (rng.random(out) ** 2 * 2 + 2e-3).astype(np.float32)

    unit("Conv3d_1a_7x7", 64, 3, 7)
    unit("Conv3d_2b_1x1", 64, 64, 1)
    unit("Conv3d_2c_3x3", 192, 64, 3)
    width = 192
    for block in MIXED:
        b0, b1, c1, b2, c2, b3 = _WIDTHS[block]
        sizes = ((b0, width, 1), (b1, width, 1), (c1, b1, 3), (b2, width, 1), (c2, b2, 3), (b3, width, 1))
        for branch, size in zip(BRANCHES, sizes, strict=True):
            unit(f"Mixed_{block}.{branch}", *size)
        width = b0 + c1 + c2 + b3
    tensors[f"{LOGITS}.weight"] = (rng.standard_normal((400, width, 1, 1, 1)) * 0.05).astype(np.float32)
    tensors[f"{LOGITS}.bias"] = rng.standard_normal(400).astype(np.float32)
    return tensors


def entry(*, extra: Mapping[str, Any] | None = None, architecture: str = "inception-i3d") -> ModelEntry:
    """A models.lock entry of a network that nobody published."""
    return ModelEntry(
        id="test-i3d",
        task="video",
        loader="i3d",
        architecture=architecture,
        preprocessing={"size": 224},
        licence="none",
        citation="",
        digest="0" * 64,
        unverified=False,
        sources=(),
        label="test-i3d",
        extra={"batch_norm_eps": 1e-3} if extra is None else extra,
    )


def save(folder: Path, seed: int = 0) -> Path:
    """Random weights as the safetensors file that an encoder loads."""
    from safetensors.numpy import save_file

    path = folder / f"i3d-{seed}.safetensors"
    save_file(random_tensors(seed), path)
    return path


def view(**changes: Any) -> dict[str, Any]:
    """The default view of FVD."""
    default = {"frames": 16, "start": "first", "stride": 1, "sampling": "index", "fps": 8.0}
    return {**default, "grid": "tf1", "pre_resize": "none", **changes}
