"""Bytes to the input of I3D, on the device: bilinear between given taps, and one conversion to [-1, 1]."""

from __future__ import annotations

import numpy as np
import torch

from genmeter.encoders.i3d.grid import SIDE


def to_input(frames: np.ndarray, low: np.ndarray, share: np.ndarray, out: torch.Tensor) -> None:
    """Resize one clip, in float32.

    Args:
        frames: (T, H, W, 3) uint8.
        low: (2, 224) int32, the nearer row and column of each pixel (:class:`genmeter.encoders.i3d.grid.Taps`).
        share: (2, 224) float32, the weight of the one after it.
        out: (T, 224, 224, 3) float32, contiguous; filled with values in [-1, 1].
    """
    count, height, width, _ = frames.shape
    rows = frames.reshape(count, height, width * 3)
    flat = out.view(count, SIDE, SIDE * 3)
    channel = torch.arange(3, dtype=torch.int32, device=out.device)
    top = torch.from_numpy(low[0]).to(out.device)
    left = torch.from_numpy(low[1]).to(out.device)
    bottom, right = (top + 1).clamp_(max=height - 1), (left + 1).clamp_(max=width - 1)
    # Columns as positions in a row of W*3 values, so that picking them is one step along the last axis.
    left, right = (((at[:, None] * 3) + channel).view(-1) for at in (left, right))
    down = torch.from_numpy(share[0]).to(out.device).view(SIDE, 1)
    across = torch.from_numpy(share[1]).to(out.device).repeat_interleave(3)
    # On a CPU frame by frame, which stays within its caches.
    step = 1 if out.device.type == "cpu" else count
    for start in range(0, count, step):
        # Copied by numpy, since torch warns of arrays that it cannot write to.
        values = rows[start : start + step].astype(np.float32 if step == 1 else np.uint8)
        x = torch.from_numpy(values).to(out.device).float()
        near = x.index_select(1, top)
        y = x.index_select(1, bottom).sub_(near).mul_(down).add_(near).div_(127.5).sub_(1).view(-1, width * 3)
        near = y.index_select(1, left)
        part = flat[start : start + step].view(-1, SIDE * 3)
        torch.add(y.index_select(1, right).sub_(near).mul_(across), near, out=part)
