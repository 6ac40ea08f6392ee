"""I3D as it reads in the paper, in torch's own modules: slow and obvious, what the encoder is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class Plain(torch.nn.Module):
    """The network with unfolded normalisation, and padding in tensors of zeros.

    Args:
        tensors: As for :class:`genmeter.encoders.i3d.network.I3dNetwork`.
        eps: Of the normalisation.
        dtype: What it computes in.
    """

    def __init__(self, tensors: dict[str, np.ndarray], eps: float = 1e-3, dtype: Any = torch.float32) -> None:
        super().__init__()
        self.t = {name: torch.from_numpy(value).to(dtype) for name, value in tensors.items()}
        self.eps, self.dtype = eps, dtype

    def pad(self, x: Any, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Any:
        pads: list[int] = []
        for n, k, s in zip(x.shape[2:], kernel, stride, strict=True):
            total = max(k - s, 0) if n % s == 0 else max(k - n % s, 0)
            pads = [total // 2, total - total // 2, *pads]
        return torch.nn.functional.pad(x, pads)

    def unit(self, x: Any, name: str, stride: int = 1) -> Any:
        weight = self.t[f"{name}.weight"]
        x = torch.nn.functional.conv3d(self.pad(x, tuple(weight.shape[2:]), (stride,) * 3), weight, stride=stride)
        stats = (self.t[f"{name}.mean"], self.t[f"{name}.variance"])
        x = torch.nn.functional.batch_norm(x, *stats, bias=self.t[f"{name}.beta"], eps=self.eps)
        return torch.relu(x)

    def pool(self, x: Any, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Any:
        return torch.nn.functional.max_pool3d(self.pad(x, kernel, stride), kernel, stride)

    def mixed(self, x: Any, name: str) -> Any:
        b0 = self.unit(x, f"{name}.Branch_0.Conv3d_0a_1x1")
        b1 = self.unit(self.unit(x, f"{name}.Branch_1.Conv3d_0a_1x1"), f"{name}.Branch_1.Conv3d_0b_3x3")
        b2 = self.unit(self.unit(x, f"{name}.Branch_2.Conv3d_0a_1x1"), f"{name}.Branch_2.Conv3d_0b_3x3")
        b3 = self.unit(self.pool(x, (3, 3, 3), (1, 1, 1)), f"{name}.Branch_3.Conv3d_0b_1x1")
        return torch.cat([b0, b1, b2, b3], 1)

    def forward(self, clips: Any) -> Any:
        x = clips.to(self.dtype).permute(0, 4, 1, 2, 3)
        x = self.pool(self.unit(x, "Conv3d_1a_7x7", 2), (1, 3, 3), (1, 2, 2))
        x = self.pool(self.unit(self.unit(x, "Conv3d_2b_1x1"), "Conv3d_2c_3x3"), (1, 3, 3), (1, 2, 2))
        x = self.mixed(self.mixed(x, "Mixed_3b"), "Mixed_3c")
        x = self.pool(x, (3, 3, 3), (2, 2, 2))
        for block in "bcdef":
            x = self.mixed(x, f"Mixed_4{block}")
        x = self.pool(x, (2, 2, 2), (2, 2, 2))
        x = self.mixed(self.mixed(x, "Mixed_5b"), "Mixed_5c")
        x = torch.nn.functional.avg_pool3d(x, (2, 7, 7), 1)
        name = "Logits.Conv3d_0c_1x1"
        x = torch.nn.functional.conv3d(x, self.t[f"{name}.weight"], self.t[f"{name}.bias"])
        return x.squeeze(4).squeeze(3).mean(2)
