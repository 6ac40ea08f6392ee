"""The LPIPS networks v0.1 in torch: AlexNet, VGG16 and SqueezeNet 1.1 trunks with their learned heads.

Zhang et al., "The Unreasonable Effectiveness of Deep Features as a Perceptual Metric", CVPR 2018, arXiv 1801.03924.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from genmeter.errors import GenmeterError

# Channel statistics of ImageNet for inputs in [-1, 1], as the authors print them.
MEAN = (-0.030, -0.088, -0.188)
STD = (0.458, 0.448, 0.450)
EPS = 1e-10

_BLOCK_VALUES = 1 << 18


class Conv(NamedTuple):
    """A convolution with ReLU, by its place in torchvision's ``features``; ``tap`` feeds a head."""

    layer: int
    stride: int = 1
    padding: int = 1
    tap: bool = False


class Fire(NamedTuple):
    """SqueezeNet's block: squeeze to few channels, expand by 1x1 and 3x3 side by side."""

    layer: int
    tap: bool = False


class Pool(NamedTuple):
    """Max pooling."""

    size: int
    ceil: bool = False


Step = Conv | Fire | Pool

PLANS: Mapping[str, tuple[Step, ...]] = {
    "alex": (
        Conv(0, stride=4, padding=2, tap=True),
        Pool(3),
        Conv(3, padding=2, tap=True),
        Pool(3),
        Conv(6, tap=True),
        Conv(8, tap=True),
        Conv(10, tap=True),
    ),
    "vgg": (
        *(Conv(0), Conv(2, tap=True), Pool(2)),
        *(Conv(5), Conv(7, tap=True), Pool(2)),
        *(Conv(10), Conv(12), Conv(14, tap=True), Pool(2)),
        *(Conv(17), Conv(19), Conv(21, tap=True), Pool(2)),
        *(Conv(24), Conv(26), Conv(28, tap=True)),
    ),
    "squeeze": (
        *(Conv(0, stride=2, padding=0, tap=True), Pool(3, ceil=True)),
        *(Fire(3), Fire(4, tap=True), Pool(3, ceil=True)),
        *(Fire(6), Fire(7, tap=True), Pool(3, ceil=True)),
        *(Fire(9, tap=True), Fire(10, tap=True), Fire(11, tap=True), Fire(12, tap=True)),
    ),
}


class LpipsNetwork:
    """A trunk and its heads on one device.

    Args:
        net: ``alex``, ``vgg`` or ``squeeze``.
        tensors: ``features.<i>.weight`` and ``.bias`` in torchvision's layout (OIHW), and ``lin.<k>.weight``
            of each tap, float32.
        device: A torch device.
        half: Run the trunk in float16 (the heads always compute in float32).
        mean, std: Of each channel, for inputs in [-1, 1].

    Raises:
        GenmeterError: ``weights_mismatch`` when a tensor is missing or has another shape.
    """

    def __init__(
        self,
        net: str,
        tensors: Mapping[str, np.ndarray],
        device: str = "cpu",
        *,
        half: bool = False,
        mean: Sequence[float] = MEAN,
        std: Sequence[float] = STD,
    ) -> None:
        self.plan = PLANS[net]
        self.device = torch.device(device)
        self.dtype = torch.float16 if half else torch.float32
        self._tensors = tensors
        self._convs: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._heads: list[torch.Tensor] = []
        width = 3
        for step in self.plan:
            if isinstance(step, Conv):
                width = self._take_conv(f"features.{step.layer}", width)
            elif isinstance(step, Fire):
                inner = self._take_conv(f"features.{step.layer}.squeeze", width)
                left = self._take_conv(f"features.{step.layer}.expand1x1", inner)
                width = left + self._take_conv(f"features.{step.layer}.expand3x3", inner)
            if not isinstance(step, Pool) and step.tap:
                self._heads.append(self._take_head(len(self._heads), width))
        del self._tensors
        # (x / 127.5 - 1 - mean) / std in one multiply and add, the constants rounded once.
        wide = torch.tensor([mean, std], dtype=torch.float64)
        self._gain = (1 / (127.5 * wide[1])).float().to(self.device)
        self._offset = ((-1 - wide[0]) / wide[1]).float().to(self.device)

    @property
    def threads(self) -> int:
        """Threads that one operation on the CPU uses."""
        return torch.get_num_threads()

    def distances(self, images: np.ndarray, first: Sequence[int], second: Sequence[int]) -> torch.Tensor:
        """LPIPS of pairs drawn from one batch of images.

        Args:
            images: (m, H, W, 3) uint8, RGB.
            first, second: For each of n pairs, the rows of its two images.

        Returns:
            (n,) float32 on the network's device: 0 for equal images, mostly below 1.
        """
        with torch.inference_mode():
            width = images.shape[2]
            x = torch.from_numpy(images).to(self.device).to(torch.float32)
            # In rows of W*3, so that the innermost loop is long.
            flat = x.view(-1, width * 3)
            flat.mul_(self._gain.repeat(width)).add_(self._offset.repeat(width))
            # (m, H, W, 3) seen as (m, 3, H, W) is channels_last, what the convolutions are fastest with.
            x = x.permute(0, 3, 1, 2).to(self.dtype)
            total = torch.zeros(len(first), device=self.device)
            for head, features in zip(self._heads, self._taps(x), strict=True):
                total += _head(features, first, second, head)
            return total

    def _taps(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        for step in self.plan:
            if isinstance(step, Pool):
                x = F.max_pool2d(x, step.size, 2, ceil_mode=step.ceil)
                continue
            name = f"features.{step.layer}"
            if isinstance(step, Conv):
                x = self._conv(x, name, step.stride, step.padding)
            else:
                x = self._conv(x, f"{name}.squeeze")
                x = torch.cat(
                    [self._conv(x, f"{name}.expand1x1"), self._conv(x, f"{name}.expand3x3", padding=1)], dim=1
                )
            if step.tap:
                yield x

    def _conv(self, x: torch.Tensor, name: str, stride: int = 1, padding: int = 0) -> torch.Tensor:
        weight, bias = self._convs[name]
        return F.conv2d(x, weight, bias, stride=stride, padding=padding).relu_()

    def _take_conv(self, name: str, width: int) -> int:
        weight, bias = self._take(f"{name}.weight"), self._take(f"{name}.bias")
        if weight.ndim != 4 or weight.shape[1] != width or bias.shape != weight.shape[:1]:
            raise GenmeterError(
                "weights_mismatch",
                f"{name}: weight {weight.shape} and bias {bias.shape}; expected {width} channels in, OIHW",
            )
        kernel = torch.from_numpy(weight).to(self.device, self.dtype, memory_format=torch.channels_last)
        self._convs[name] = (kernel, torch.from_numpy(bias).to(self.device, self.dtype))
        return int(weight.shape[0])

    def _take_head(self, index: int, width: int) -> torch.Tensor:
        weight = self._take(f"lin.{index}.weight")
        if weight.size != width:
            raise GenmeterError("weights_mismatch", f"lin.{index}.weight {weight.shape}; expected {width} weights")
        return torch.from_numpy(weight.reshape(-1)).to(self.device)

    def _take(self, name: str) -> np.ndarray:
        if name not in self._tensors:
            raise GenmeterError("weights_mismatch", f"tensor {name!r} is missing; found {len(self._tensors)} tensors")
        return np.array(self._tensors[name], dtype=np.float32, order="C")


def _head(features: torch.Tensor, first: Sequence[int], second: Sequence[int], weight: torch.Tensor) -> torch.Tensor:
    """(n,) mean over positions of the weighted squared difference of channel-normalised features."""
    left, right = _positions(_rows(features, first)), _positions(_rows(features, second))
    weighted = torch.empty(len(left), device=features.device)
    # On a CPU in blocks that stay in its cache: whole maps would be written and read again at every step.
    block = max(1, _BLOCK_VALUES // weight.numel()) if features.device.type == "cpu" else len(left)
    for start in range(0, len(left), block):
        difference = _unit(left[start : start + block])
        difference -= _unit(right[start : start + block])
        torch.mv(difference.square_(), weight, out=weighted[start : start + block])
    distances: torch.Tensor = weighted.view(len(first), -1).mean(dim=1)
    return distances


def _unit(vectors: torch.Tensor) -> torch.Tensor:
    """(p, c) divided by their lengths, in float32."""
    vectors = vectors.float()
    unit: torch.Tensor = vectors / torch.linalg.vector_norm(vectors, dim=1, keepdim=True).add_(EPS)
    return unit


def _positions(features: torch.Tensor) -> torch.Tensor:
    """(n, c, h, w) as (n*h*w, c): a view in channels_last order."""
    return features.permute(0, 2, 3, 1).reshape(-1, features.shape[1])


def _rows(x: torch.Tensor, index: Sequence[int]) -> torch.Tensor:
    """Rows of a tensor: a view when they are consecutive, as they are unless images repeat in a batch."""
    start = index[0]
    if list(index) == list(range(start, start + len(index))):
        return x[start : start + len(index)]
    return x[torch.as_tensor(index, device=x.device)]
