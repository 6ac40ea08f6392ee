"""The two towers of the tiny CLIP in torch: a small convolutional network and a small transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from genmeter.encoders.clip import tiny_tokens
from genmeter.errors import GenmeterError

IMAGE_SIZE = 96
EMBED_DIM = 256
COUNTER = "num_batches_tracked"
"""End of the names of tensors that a checkpoint leaves out."""

_WIDTHS = (48, 96, 128)
_MAP_WIDTH = 64
_IMAGE_GATHERED = 352
_IMAGE_HIDDEN = 320
_TEXT_WIDTH = 128
_TEXT_LAYERS = 2
_TEXT_HEADS = 4
_TEXT_HIDDEN = 384
_QUERIES = 16
_FAR = -12.0
# Distance in normalised colour (mean 0.5, standard deviation 0.25) above which a pixel is no background, textures
# included, and over which the answer changes.
_APART, _APART_WIDTH = 1.08, 0.16


_Size = int | tuple[int, int]


class Conv(nn.Sequential):
    """Convolution and batch normalisation."""

    def __init__(self, inner: int, outer: int, size: _Size = 3, stride: _Size = 1, padding: _Size = 1) -> None:
        super().__init__(nn.Conv2d(inner, outer, size, stride, padding, bias=False), nn.BatchNorm2d(outer))


class Residual(nn.Module):
    """Two convolutions of one width, added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = Conv(width, width)
        self.second = Conv(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.second(F.relu(self.first(x))))


def _set_apart(pixels: torch.Tensor) -> torch.Tensor:
    """(n, 3, H, W) to (n, 7, H, W): the pixels, those unlike the picture's median colour alone, and which these are.

    What stands before a large background is small, and its colour counts for as much as the background's.
    """
    sample = pixels[:, :, 1::2, 1::2].flatten(2)
    median = sample.sort(dim=2).values[:, :, sample.shape[2] // 2, None, None]
    distance = (pixels - median).square().sum(dim=1, keepdim=True).sqrt()
    apart = torch.sigmoid((distance - _APART) / _APART_WIDTH)
    return torch.cat([pixels, apart * pixels, apart], dim=1)


class ImageTower(nn.Module):
    """(n, 3, 96, 96) normalised pixels to (n, EMBED_DIM).

    The last map is read position by position, not averaged: where things stand is part of a caption. Beside it goes
    the picture itself, averaged over squares of 8 pixels.
    """

    def __init__(self) -> None:
        super().__init__()
        a, b, c = _WIDTHS
        fine, coarse = _MAP_WIDTH * (IMAGE_SIZE // 16) ** 2, 7 * (IMAGE_SIZE // 8) ** 2
        self.stem = Conv(7, a, size=4, stride=4, padding=0)
        self.down1 = Conv(a, b, stride=2)
        self.stage1 = Residual(b)
        self.down2 = Conv(b, c, stride=2)
        self.stage2 = Residual(c)
        self.narrow = nn.Conv2d(c, _MAP_WIDTH, 1)
        self.fine_norm = nn.BatchNorm1d(fine)
        self.coarse_norm = nn.BatchNorm1d(coarse)
        self.gather = nn.Linear(fine + coarse, _IMAGE_GATHERED)
        self.hidden = nn.Linear(_IMAGE_GATHERED, _IMAGE_HIDDEN)
        self.projection = nn.Linear(_IMAGE_HIDDEN, EMBED_DIM)

    def features(self, pixels: torch.Tensor) -> torch.Tensor:
        """(n, hidden) activations before the projection."""
        with torch.no_grad():
            given = _set_apart(pixels).contiguous(memory_format=torch.channels_last)
        x = F.relu(self.stem(given))
        x = self.stage1(F.relu(self.down1(x)))
        x = self.stage2(F.relu(self.down2(x)))
        fine = F.relu(self.fine_norm(self.narrow(x).flatten(1)))
        coarse = self.coarse_norm(F.avg_pool2d(given, 8).flatten(1))
        gathered = F.gelu(self.gather(torch.cat([fine, coarse], dim=1)))
        hidden: torch.Tensor = F.gelu(self.hidden(gathered))
        return hidden

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.projection(self.features(pixels))
        return embedded


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.merge = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.grow = nn.Linear(width, 2 * width)
        self.shrink = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        n, length, width = x.shape
        y = self.norm1(x)
        q, k, v = (
            part(y).view(n, length, self.heads, -1).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.merge(attended.transpose(1, 2).reshape(n, length, width))
        grown: torch.Tensor = x + self.shrink(F.relu(self.grow(self.norm2(x))))
        return grown


def nearness(length: int) -> torch.Tensor:
    """(4, length, length) what is added to attention: words are first read with their neighbours.

    One head looks back, one ahead, one to both sides, and one everywhere.
    """
    ahead = torch.arange(length)[None] - torch.arange(length)[:, None]
    distance = ahead.abs().float()
    far = torch.full_like(distance, _FAR)
    back = torch.where(ahead <= 0, -0.5 * distance, far)
    return torch.stack([back, back.T, -0.2 * distance, torch.zeros_like(distance)])


class TextTower(nn.Module):
    """(n, L) token ids, L up to the context length, to (n, EMBED_DIM). Padding takes no part.

    Learned queries gather the words: each can ask after one part of what is described.

    Args:
        size: Number of token ids.
    """

    def __init__(self, size: int = tiny_tokens.SIZE) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size, _TEXT_WIDTH)
        self.positions = nn.Parameter(torch.zeros(tiny_tokens.CONTEXT_LENGTH, _TEXT_WIDTH))
        self.layers = nn.ModuleList(Layer(_TEXT_WIDTH, _TEXT_HEADS) for _ in range(_TEXT_LAYERS))
        self.norm = nn.LayerNorm(_TEXT_WIDTH)
        self.queries = nn.Linear(_TEXT_WIDTH, _QUERIES)
        self.values = nn.Linear(_TEXT_WIDTH, _TEXT_WIDTH // 2)
        self.hidden = nn.Linear(_QUERIES * _TEXT_WIDTH // 2, _TEXT_HIDDEN)
        self.projection = nn.Linear(_TEXT_HIDDEN, EMBED_DIM)
        self.register_buffer("nearness", nearness(tiny_tokens.CONTEXT_LENGTH), persistent=False)
        nn.init.normal_(self.tokens.weight, std=0.3)
        nn.init.normal_(self.positions, std=0.1)

    def features(self, ids: torch.Tensor) -> torch.Tensor:
        """(n, hidden) activations before the projection."""
        length = ids.shape[1]
        used = ids != tiny_tokens.PAD
        x = self.tokens(ids) + self.positions[:length]
        near = cast(torch.Tensor, self.nearness)[:, :length, :length]
        mask = near.masked_fill(~used[:, None, None, :], 100 * _FAR)
        for layer in self.layers:
            x = layer(x, mask)
        x = self.norm(x)
        weights = self.queries(x).masked_fill(~used[..., None], 100 * _FAR).softmax(dim=1)
        gathered = weights.transpose(1, 2) @ self.values(x)
        hidden: torch.Tensor = F.gelu(self.hidden(gathered.flatten(1)))
        return hidden

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.projection(self.features(ids))
        return embedded


def fill(network: nn.Module, tensors: Mapping[str, np.ndarray], model: str, architecture: str) -> None:
    """Fill a tiny network in float32, whatever the tensors are stored in, and freeze it.

    Args:
        network: The module, with random weights.
        tensors: All tensors by name, without the counters of batch normalisation.
        model: The entry's id, for messages.
        architecture: The network's name, for messages.

    Raises:
        GenmeterError: ``weights_mismatch`` naming a tensor that is missing, left over or misshapen.
    """
    expected = {k: tuple(v.shape) for k, v in network.state_dict().items() if not k.endswith(COUNTER)}
    found = {name: tuple(array.shape) for name, array in tensors.items()}
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if wrong:
        name = wrong[0]
        raise GenmeterError(
            "weights_mismatch",
            f"{model}: {len(wrong)} tensors do not fit {architecture}; {name}: found "
            f"{found.get(name, 'nothing')}, expected {expected.get(name, 'nothing')}",
            "fetch the weights again with `genmeter models fetch`",
        )
    state = {name: torch.from_numpy(np.array(array, dtype=np.float32)) for name, array in tensors.items()}
    network.load_state_dict(state, strict=False)
    network.eval().requires_grad_(False)


class TinyClip(nn.Module):
    """Both towers. The tensors of a checkpoint are this module's, without the counters of batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.image = ImageTower()
        self.text = TextTower()
