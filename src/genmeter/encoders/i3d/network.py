"""Inception-3D on RGB in torch: the network whose Kinetics-400 logits FVD is defined on.

Carreira and Zisserman, "Quo Vadis, Action Recognition?", CVPR 2017, arXiv 1705.07750; as TF-Hub's i3d-kinetics-400
computes it: TF's SAME padding for convolutions and poolings, batch normalisation with eps 1e-3 and no scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from genmeter.encoders.i3d.grid import SIDE
from genmeter.errors import GenmeterError

CLASSES = 400
EPS = 1e-3

_STEM = (("Conv3d_1a_7x7", 3, 64, 7), ("Conv3d_2b_1x1", 64, 64, 1), ("Conv3d_2c_3x3", 64, 192, 3))
# Channels of each block: the 1x1 of branch 0; 1x1 and 3x3 of branches 1 and 2; the 1x1 behind branch 3's pooling.
_MIXED = {
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
_LOGITS = "Logits.Conv3d_0c_1x1"
_CL = torch.channels_last_3d


class I3dNetwork:
    """The network on one device.

    Args:
        tensors: ``<unit>.weight`` (O, I, T, H, W), ``.beta``, ``.mean``, ``.variance`` (O,) of each convolution, and
            ``Logits.Conv3d_0c_1x1.weight`` and ``.bias``; float32. See :mod:`genmeter.weights.i3d`.
        device: A torch device.
        half: Compute in float16; the logits are float32 either way.
        eps: Of the batch normalisation. 1e-3 is the original's; several ports use 1e-5.

    Raises:
        GenmeterError: ``weights_mismatch`` when a tensor is missing or has another shape.
    """

    def __init__(
        self, tensors: Mapping[str, np.ndarray], device: str = "cpu", *, half: bool = False, eps: float = EPS
    ) -> None:
        self.device = torch.device(device)
        self.dtype = torch.float16 if half else torch.float32
        self._convolve = _convolution(self.device)
        self._units: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for name, into, out, side in _STEM:
            self._take(tensors, name, (out, into, side), eps)
        width = _STEM[-1][2]
        for block, (b0, b1, c1, b2, c2, b3) in _MIXED.items():
            for branch, out, into, side in (
                ("Branch_0.Conv3d_0a_1x1", b0, width, 1),
                ("Branch_1.Conv3d_0a_1x1", b1, width, 1),
                ("Branch_1.Conv3d_0b_3x3", c1, b1, 3),
                ("Branch_2.Conv3d_0a_1x1", b2, width, 1),
                ("Branch_2.Conv3d_0b_3x3", c2, b2, 3),
                ("Branch_3.Conv3d_0b_1x1", b3, width, 1),
            ):
                self._take(tensors, f"Mixed_{block}.{branch}", (out, into, side), eps)
            width = b0 + c1 + c2 + b3
        weight = _tensor(tensors, f"{_LOGITS}.weight", (CLASSES, width, 1, 1, 1)).reshape(CLASSES, width)
        bias = _tensor(tensors, f"{_LOGITS}.bias", (CLASSES,))
        self._head = tuple(torch.from_numpy(part).to(self.device) for part in (weight, bias))

    def logits(self, clips: torch.Tensor) -> torch.Tensor:
        """Kinetics-400 logits, averaged over time.

        Args:
            clips: (n, T, 224, 224, 3) float32 in [-1, 1] on the network's device, T at least 9.

        Returns:
            (n, 400) float32 on the network's device.
        """
        with torch.inference_mode():
            x = clips.to(self.dtype).permute(0, 4, 1, 2, 3)  # channels_last_3d, which convolutions are fastest with
            (t0, t1), (s0, s1) = same_padding(x.shape[2], 7, 2), same_padding(SIDE, 7, 2)
            x = F.pad(x, (s0, s1, s0, s1, t0, t1)).contiguous(memory_format=_CL)
            x = _pool(self._unit(x, "Conv3d_1a_7x7", stride=2), (1, 3, 3), (1, 2, 2))
            x = self._unit(self._unit(x, "Conv3d_2b_1x1"), "Conv3d_2c_3x3", padding=1)
            x = _pool(x, (1, 3, 3), (1, 2, 2))
            for block in _MIXED:
                if block == "4b":
                    x = _pool(x, (3, 3, 3), (2, 2, 2))
                elif block == "5b":
                    x = _pool(x, (2, 2, 2), (2, 2, 2))
                x = self._mixed(x, f"Mixed_{block}")
            pooled = F.avg_pool3d(x.float(), (2, 7, 7), 1).flatten(2).transpose(1, 2)
            return F.linear(pooled, *self._head).mean(dim=1)

    def _mixed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        branches = [
            self._unit(x, f"{name}.Branch_0.Conv3d_0a_1x1"),
            self._unit(self._unit(x, f"{name}.Branch_1.Conv3d_0a_1x1"), f"{name}.Branch_1.Conv3d_0b_3x3", padding=1),
            self._unit(self._unit(x, f"{name}.Branch_2.Conv3d_0a_1x1"), f"{name}.Branch_2.Conv3d_0b_3x3", padding=1),
            self._unit(_pool(x, (3, 3, 3), (1, 1, 1)), f"{name}.Branch_3.Conv3d_0b_1x1"),
        ]
        return torch.cat(branches, dim=1).contiguous(memory_format=_CL)

    def _unit(self, x: torch.Tensor, name: str, *, stride: int = 1, padding: int = 0) -> torch.Tensor:
        weight, bias = self._units[name]
        return self._convolve(x, weight, bias, [padding] * 3, [stride] * 3).relu_()

    def _take(self, tensors: Mapping[str, np.ndarray], name: str, shape: tuple[int, int, int], eps: float) -> None:
        """Fold the batch normalisation into the convolution before it, rounding once."""
        out, into, side = shape
        weight = _tensor(tensors, f"{name}.weight", (out, into, side, side, side)).astype(np.float64)
        beta, mean, variance = (_tensor(tensors, f"{name}.{key}", (out,)) for key in ("beta", "mean", "variance"))
        gain = 1 / np.sqrt(variance.astype(np.float64) + eps)
        kernel = torch.from_numpy(weight * gain[:, None, None, None, None])
        bias = torch.from_numpy(beta - mean.astype(np.float64) * gain)
        self._units[name] = (
            kernel.to(self.dtype).to(self.device).contiguous(memory_format=_CL),
            bias.to(self.dtype).to(self.device),
        )


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """How much TF's SAME rule pads before and after an axis of ``size``; the odd one goes after."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def _pool(x: torch.Tensor, kernel: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """Max pooling under the SAME rule: torch pads both sides alike, and lets the last window run over the end."""
    before = [same_padding(n, k, s)[0] for n, k, s in zip(x.shape[2:], kernel, stride, strict=True)]
    return F.max_pool3d(x, tuple(kernel), tuple(stride), padding=before, ceil_mode=True)


Convolve = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, list[int], list[int]], torch.Tensor]


def _convolution(device: torch.device) -> Convolve:
    """3-d convolution. On a CPU straight to oneDNN: torch takes a slow path of its own for small or 1x1x1 ones."""
    onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if device.type == "cpu" and onednn:
        one = [1, 1, 1]
        call = torch.ops.aten.mkldnn_convolution
        return lambda x, weight, bias, padding, stride: call(x, weight, bias, padding, stride, one, 1)
    return lambda x, weight, bias, padding, stride: F.conv3d(x, weight, bias, stride=stride, padding=padding)


def _tensor(tensors: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name not in tensors:
        raise GenmeterError("weights_mismatch", f"tensor {name!r} is missing; found {len(tensors)} tensors")
    value = np.array(tensors[name], dtype=np.float32, order="C")
    if value.shape != shape:
        raise GenmeterError("weights_mismatch", f"{name} is {value.shape}; expected {shape}")
    return value
