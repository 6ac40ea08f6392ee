"""What a loaded I3D must answer before its first score: fixed clips against stored logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from genmeter.encoders.i3d.grid import SIDE, taps
from genmeter.errors import GenmeterError

if TYPE_CHECKING:
    from genmeter.encoders.i3d.network import I3dNetwork

_FRAMES, _SIZE, _EVERY = 9, 32, 50
_TOLERANCE = 1e-4
_TOLERANCE_HALF = 3e-2


def clips() -> np.ndarray:
    """(2, 9, 32, 32, 3) uint8: a pattern that moves, and flat grey; integer arithmetic only, so equal everywhere."""
    t, y, x = np.mgrid[0:_FRAMES, 0:_SIZE, 0:_SIZE]
    moving = np.stack([x * y + 9 * t, (x + 2 * t) * 7 + y * 3, 255 - x * 3 + t * y], axis=-1) % 256
    both: np.ndarray = np.stack([moving, np.full_like(moving, 128)]).astype(np.uint8)
    return both


def check(network: I3dNetwork, model: str, stored: Mapping[str, Any], *, half: bool) -> None:
    """Compare the network's answer with the stored one.

    Args:
        network: The network on its device.
        model: The id of its models.lock entry.
        stored: The entry's ``probe`` table: ``logits`` holds every 50th of the moving pattern, float32 on a CPU.
        half: Whether it runs in half precision, which is allowed a wider tolerance.

    Raises:
        GenmeterError: ``model_probe_failed`` when a logit is off by more than the tolerance times the largest one, not
            finite, or the two clips have the same logits. A model without a stored answer is only held to the latter.
    """
    import torch

    from genmeter.encoders.i3d.resize import to_input

    inputs = torch.empty((2, _FRAMES, SIDE, SIDE, 3), device=network.device)
    for clip, out in zip(clips(), inputs, strict=True):
        down, across = taps("tf1", _SIZE, _SIZE)
        to_input(clip, np.stack([down.low, across.low]), np.stack([down.share, across.share]), out)
    moving, flat = network.logits(inputs).cpu().numpy()
    expected = stored.get("logits")
    found = moving[::_EVERY]
    passed = bool(np.isfinite(moving).all() and np.isfinite(flat).all()) and float(np.abs(moving - flat).max()) > 1e-3
    wanted = "finite logits that differ between two clips"
    if expected is not None and passed:
        scale = float(np.abs(expected).max())
        passed = bool(np.abs(found - expected).max() <= (_TOLERANCE_HALF if half else _TOLERANCE) * scale)
        wanted = ", ".join(f"{v:.4f}" for v in expected)
    if not passed:
        raise GenmeterError(
            "model_probe_failed",
            f"{model} on {network.device}: logits {', '.join(f'{v:.4f}' for v in found)} of the probe's clip; "
            f"expected {wanted}",
            "run `genmeter models verify`; with sound weights, try --device cpu and report the device and libraries",
        )
