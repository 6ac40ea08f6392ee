"""What a loaded LPIPS network must answer before its first score: one fixed pair against a stored distance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from genmeter.errors import GenmeterError
from genmeter.goldens import pattern_pair

if TYPE_CHECKING:
    from genmeter.encoders.lpips.network import LpipsNetwork

# Distances of PAIR with the published weights, float32 on a CPU; models.lock may state another under
# [model.probe] value.
EXPECTED: Mapping[str, float] = {"lpips-alex": 0.6636996, "lpips-vgg": 0.8399408}

# Busy pattern and smooth ramps.
PAIR = pattern_pair(64, 64)

_TOLERANCE = 1e-4
_TOLERANCE_HALF = 1e-2


def check(network: LpipsNetwork, model: str, stored: Mapping[str, Any], *, half: bool) -> None:
    """Compare the network's answer with the stored one.

    Args:
        network: The network on its device.
        model: The id of its models.lock entry.
        stored: The entry's ``probe`` table; ``value`` wins over the built-in figure.
        half: Whether it runs in half precision, which is allowed a wider (relative) tolerance.

    Raises:
        GenmeterError: ``model_probe_failed`` when the answer is off, not finite, or the same for unlike images. A
            model without a stored answer is only held to the last two.
    """
    images = np.stack([PAIR["prediction"], PAIR["reference"]])
    unlike, same = (float(v) for v in network.distances(images, [0, 1], [1, 1]).cpu())
    expected = stored.get("value", EXPECTED.get(model))
    if expected is None:
        passed, wanted = bool(np.isfinite(unlike)) and unlike > 0, "a finite distance above 0"
    else:
        tolerance = _TOLERANCE_HALF if half else _TOLERANCE
        passed, wanted = abs(unlike - expected) <= tolerance * max(1.0, abs(expected)), f"{expected:.6f}"
    if not passed or same != 0:
        raise GenmeterError(
            "model_probe_failed",
            f"{model} on {network.device}: distance {unlike:.6f} between the probe's images and {same:.6f} between "
            f"equal ones; expected {wanted}, and 0",
            "run `genmeter models verify`; with sound weights, try --device cpu and report the device and libraries",
        )
