"""Four views of a clip for LAION's feature fusion, at fixed places.

laion_clap draws the three excerpts at random from NumPy's global generator, so that one file scores differently with
every call. Here each excerpt is the middle one of its third, and the rest is laion_clap's: the whole spectrogram shrunk
to 10 s, then an excerpt of 10 s from the front, the middle and the back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def starts(frames: int, window: int) -> tuple[int, int, int]:
    """First frames of the three excerpts: the middle of each third of all possible ones.

    A third that is empty, since the clip is hardly longer than a window, starts at 0.

    Args:
        frames: Frames of the clip, more than ``window``.
        window: Frames of an excerpt.
    """
    thirds = np.array_split(np.arange(frames - window + 1), 3)
    front, middle, back = (int(third[len(third) // 2]) if len(third) else 0 for third in thirds)
    return front, middle, back


def views(mel: torch.Tensor, window: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The four views of each clip, and which clips are longer than a window.

    Up to a window's frames all four are the clip itself and the network does not fuse: so for a clip up to 10 s, and
    for one that is longer by less than a hop.

    Args:
        mel: (n, frames, bands) decibels of clips of one length.
        window: Frames of a window.

    Returns:
        (n, 4, window, bands), and (n,) bool.
    """
    import torch

    frames = mel.shape[1]
    longer = torch.full((len(mel),), frames > window, dtype=torch.bool, device=mel.device)
    if frames <= window:
        return mel[:, None].expand(-1, 4, -1, -1), longer
    # Bilinear without antialiasing, as torchvision resized tensors when these networks were trained.
    shrunk = torch.nn.functional.interpolate(
        mel[:, None], size=(window, mel.shape[2]), mode="bilinear", align_corners=False
    )[:, 0]
    excerpts = [mel[:, at : at + window] for at in starts(frames, window)]
    return torch.stack([shrunk, *excerpts], dim=1), longer
