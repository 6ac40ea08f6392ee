"""The two towers of the tiny CLAP in torch: convolutions over a log-mel spectrum that are read in time like words."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from genmeter.encoders.clap import tiny_tokens
from genmeter.encoders.clap.mel import MelRecipe
from genmeter.encoders.clip.tiny_network import EMBED_DIM, Conv, Layer, Residual, TextTower, nearness

MEL = MelRecipe(n_fft=4096, hop=2400, bands=96)
"""Longer frames than LAION's, which tell the notes of a chord apart, and a tenth of the frames a second."""

FRAMES = MEL.frames(480_000)

_WIDTHS = (32, 48, 80)
_STEPS = 26  # positions in time that are left of FRAMES
_HEIGHT = 8  # and in pitch, of the bands
_READ = 128
_LAYERS = 2
_HEADS = 4
_QUERIES = 16
_HIDDEN = 384
# Decibels below the loudest band at which nothing is heard any more, and the level at which that band still counts.
_DEPTH, _QUIET = 72.0, -45.0


class AudioTower(nn.Module):
    """(n, FRAMES, bands) decibels to (n, EMBED_DIM). Level takes no part: decibels count from the loudest band.

    Convolutions shrink time and pitch; what is left at each time is one vector, and these are read as a text's words
    are: what comes first, and what after it, is part of a caption.
    """

    def __init__(self) -> None:
        super().__init__()
        a, b, c = _WIDTHS
        # Twelve bands span a chord.
        self.stem = Conv(1, a, size=(5, 12), stride=(2, 3), padding=(2, 5))
        self.down1 = Conv(a, b, stride=2)
        self.stage1 = Residual(b)
        self.down2 = Conv(b, c, stride=2)
        self.stage2 = Residual(c)
        self.narrow = nn.Linear(c * _HEIGHT, _READ)
        self.positions = nn.Parameter(torch.zeros(_STEPS, _READ))
        self.layers = nn.ModuleList(Layer(_READ, _HEADS) for _ in range(_LAYERS))
        self.norm = nn.LayerNorm(_READ)
        self.queries = nn.Linear(_READ, _QUERIES)
        self.values = nn.Linear(_READ, _READ // 2)
        self.hidden = nn.Linear(_QUERIES * _READ // 2, _HIDDEN)
        self.projection = nn.Linear(_HIDDEN, EMBED_DIM)
        self.register_buffer("nearness", nearness(_STEPS), persistent=False)
        nn.init.normal_(self.positions, std=0.1)

    def features(self, decibels: torch.Tensor) -> torch.Tensor:
        """(n, hidden) activations before the projection."""
        x = levelled(decibels).to(self.positions.dtype)[:, None].contiguous(memory_format=torch.channels_last)
        x = F.relu(self.stem(x))
        x = self.stage1(F.relu(self.down1(x)))
        x = self.stage2(F.relu(self.down2(x)))
        x = self.narrow(x.permute(0, 2, 3, 1).flatten(2)) + self.positions
        near = cast(torch.Tensor, self.nearness)[None].to(x.dtype)
        for layer in self.layers:
            x = layer(x, near)
        x = self.norm(x)
        weights = self.queries(x).softmax(dim=1)
        gathered = weights.transpose(1, 2) @ self.values(x)
        hidden: torch.Tensor = F.gelu(self.hidden(gathered.flatten(1)))
        return hidden

    def forward(self, decibels: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.projection(self.features(decibels))
        return embedded


def levelled(decibels: torch.Tensor) -> torch.Tensor:
    """(n, FRAMES, bands) decibels to numbers from -1.5 (not heard) to 1.5 (the loudest band)."""
    loudest = decibels.flatten(1).amax(dim=1).clamp(min=_QUIET)[:, None, None]
    return (decibels - loudest).clamp(min=-_DEPTH) / (_DEPTH / 3) + 1.5


class TinyClap(nn.Module):
    """Both towers. The tensors of a checkpoint are this module's, without the counters of batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.audio = AudioTower()
        self.text = TextTower(tiny_tokens.SIZE)
