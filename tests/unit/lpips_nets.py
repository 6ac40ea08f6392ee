"""LPIPS networks with random weights, shaped like the published ones: what unit tests run on, without a download."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from genmeter.weights.lock import ModelEntry

ARCHITECTURES = {"alex": "alexnet", "vgg": "vgg16", "squeeze": "squeezenet1_1"}

# (place in torchvision's features, channels out, kernel side, whether a head follows)
_ALEX = ((0, 64, 11, 1), (3, 192, 5, 1), (6, 384, 3, 1), (8, 256, 3, 1), (10, 256, 3, 1))
_VGG = (
    *((0, 64, 3, 0), (2, 64, 3, 1), (5, 128, 3, 0), (7, 128, 3, 1)),
    *((10, 256, 3, 0), (12, 256, 3, 0), (14, 256, 3, 1), (17, 512, 3, 0), (19, 512, 3, 0), (21, 512, 3, 1)),
    *((24, 512, 3, 0), (26, 512, 3, 0), (28, 512, 3, 1)),
)
# (place, squeezed channels, channels of each expansion, whether a head follows)
_FIRES = (
    *((3, 16, 64, 0), (4, 16, 64, 1), (6, 32, 128, 0), (7, 32, 128, 1)),
    *((9, 48, 192, 1), (10, 48, 192, 1), (11, 64, 256, 1), (12, 64, 256, 1)),
)


def random_tensors(net: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Tensors under the canonical names, float32; scaled so that features neither vanish nor explode."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    heads = 0

    def conv(name: str, out: int, into: int, side: int) -> int:
        spread = np.sqrt(2 / (into * side * side))
        tensors[f"{name}.weight"] = (rng.standard_normal((out, into, side, side)) * spread).astype(np.float32)
        tensors[f"{name}.bias"] = (rng.standard_normal(out) * 0.05).astype(np.float32)
        return out

    def head(width: int) -> None:
        nonlocal heads
        tensors[f"lin.{heads}.weight"] = rng.random((1, width, 1, 1)).astype(np.float32)
        heads += 1

    if net == "squeeze":
        width = conv("features.0", 64, 3, 3)
        head(width)
        for place, inner, expanded, tap in _FIRES:
            conv(f"features.{place}.squeeze", inner, width, 1)
            conv(f"features.{place}.expand1x1", expanded, inner, 1)
            width = conv(f"features.{place}.expand3x3", expanded, inner, 3) * 2
            if tap:
                head(width)
        return tensors
    width = 3
    for place, out, side, tap in _ALEX if net == "alex" else _VGG:
        width = conv(f"features.{place}", out, width, side)
        if tap:
            head(width)
    return tensors


def entry(net: str, *, extra: Mapping[str, Any] | None = None, preprocessing: Mapping[str, Any] | None = None) -> Any:
    """A models.lock entry of a network that nobody published."""
    return ModelEntry(
        id=f"test-{net}",
        task="image-pair",
        loader="lpips",
        architecture=ARCHITECTURES[net],
        preprocessing=preprocessing or {},
        licence="none",
        citation="",
        digest="0" * 64,
        unverified=False,
        sources=(),
        label=f"test-{net}",
        extra=extra or {},
    )


def save(folder: Path, net: str, seed: int = 0) -> Path:
    """Random weights as the safetensors file that an encoder loads."""
    from safetensors.numpy import save_file

    path = folder / f"{net}-{seed}.safetensors"
    save_file(random_tensors(net, seed), path)
    return path
