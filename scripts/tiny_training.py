"""What the trainings of the tiny networks have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from genmeter.encoders.clip.tiny_network import COUNTER, TextTower
from genmeter.encoders.clip.tiny_tokens import TinyTokenizer


def deterministic(seed: int, threads: int) -> None:
    """Make torch repeat itself to the bit on one machine."""
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.set_num_threads(threads)


def contrast(logits: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Symmetric contrastive loss, to which the false captions are more texts that nothing owns.

    Args:
        logits: (n, 2n): images or sounds against their own captions in order, then the false ones.
        truth: (n, 2n) bool, which captions are true of which; a true one is never a negative.
    """
    negatives = logits.masked_fill(truth, -torch.inf)
    own = torch.diagonal(logits)
    of_media = F.softplus(torch.logsumexp(negatives, dim=1) - own)
    of_text = F.softplus(torch.logsumexp(negatives[:, : len(own)], dim=0) - own)
    return (of_media.mean() + of_text.mean()) / 2


def ids_of(
    tokenizer: TinyTokenizer, texts: list[str], fillers: tuple[int, ...] = (), rng: np.random.Generator | None = None
) -> np.ndarray:
    """(n, L) token ids cut to the longest text; some get words without meaning when ``rng`` is given."""
    ids = np.stack([tokenizer(text).ids for text in texts])
    if rng is not None:
        for row in np.flatnonzero(rng.random(len(ids)) < 0.15):
            for _ in range(int(rng.integers(1, 4))):
                at = int(rng.integers(1, int((ids[row] != 0).sum())))
                if ids[row, -2] == 0:
                    ids[row, at + 1 :] = ids[row, at:-1]
                    ids[row, at] = fillers[int(rng.integers(len(fillers)))]
    return ids[:, : int((ids != 0).any(axis=0).sum())]


def text_features(tower: TextTower, ids: np.ndarray) -> torch.Tensor:
    """The text tower's hidden layer, in three passes of texts of like length: padding costs as much as words."""
    lengths = (ids != 0).sum(axis=1)
    order = np.argsort(lengths, kind="stable")
    parts = [
        tower.features(torch.from_numpy(np.ascontiguousarray(ids[rows, : lengths[rows].max()])))
        for rows in np.array_split(order, 3)
    ]
    return torch.cat(parts)[torch.from_numpy(np.argsort(order, kind="stable"))]


def pace(part: float) -> float:
    """The learning rate after ``part`` of the training, as a share of the highest: up over a twentieth, then down."""
    return part / 0.05 + 0.01 if part < 0.05 else 0.01 + 0.99 * float(np.cos((part - 0.05) / 0.95 * np.pi / 2) ** 2)


def optimizer_of(
    modules: list[nn.Module], scale: nn.Parameter, rate: float
) -> tuple[torch.optim.Optimizer, list[nn.Parameter]]:
    """AdamW over the modules, of which only matrices decay, and the contrastive scale; and the modules' parameters."""
    parameters = [p for module in modules for p in module.parameters()]
    decayed, others = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim <= 1]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": 0.05},
        {"params": [*others, scale], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=True), [*decayed, *others]


def save(model: nn.Module, path: Path) -> None:
    """Write all tensors but the counters of batch normalisation as float16."""
    from safetensors.numpy import save_file

    from genmeter.weights.digest import tensors_digest

    tensors = {
        name: np.ascontiguousarray(value.detach().numpy().astype(np.float16))
        for name, value in model.state_dict().items()
        if not name.endswith(COUNTER)
    }
    save_file(tensors, path)
    print(f"{path.name}: {path.stat().st_size} bytes, digest {tensors_digest(tensors)}", flush=True)
