"""Real I3D logits of clips that are drawn here: soft blobs that move over a gradient, and a model of them that errs."""

from __future__ import annotations

import numpy as np

FRAMES, SIDE = 16, 64


def clip(rng: np.random.Generator, model: bool) -> np.ndarray:
    """One clip, (16, 64, 64, 3) uint8; a ``model``'s is noisier, slower and paler than what it learned from."""
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    time = np.arange(FRAMES)[:, None, None] / FRAMES
    angle = rng.uniform(0, 2 * np.pi)
    ramp = np.cos(angle) * x + np.sin(angle) * y
    frames = 0.5 + 0.3 * ramp[None, :, :, None] * rng.uniform(-1, 1, 3)
    frames = np.repeat(frames, FRAMES, axis=0)
    for _ in range(int(rng.integers(1, 5))):
        place, speed = rng.uniform(0, 1, 2), rng.normal(0, 0.6 if model else 0.9, 2)
        size = rng.uniform(0.05, 0.25)
        far = (x - place[0] - speed[0] * time) ** 2 + (y - place[1] - speed[1] * time) ** 2
        colour = rng.uniform(-1, 1, 3) * (0.8 if model else 1.0)
        frames = frames + np.exp(-far / (2 * size**2))[..., None] * colour
    if model:
        frames = frames + rng.normal(0, 0.03, frames.shape)
    return (np.clip(frames, 0, 1) * 255).astype(np.uint8)


def logits(count: int, seed: int, model: bool) -> np.ndarray:
    """(count, 400) float32: the features of clips of one seed, by the published weights."""
    from genmeter.contract import VideoMedia
    from genmeter.encoders.registry import create_encoder
    from genmeter.registry import parse_variant
    from genmeter.weights.lock import get_entry
    from genmeter.weights.manager import ensure

    entry = get_entry("i3d-k400")
    encoder = create_encoder("i3d", entry, lambda: ensure(entry))
    encoder.load("cpu", "exact")
    view = next(need.view for need in parse_variant("fvd").needs)
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        media = VideoMedia(clip(rng, model), np.arange(FRAMES) / 8.0)
        rows.append(encoder.encode([encoder.prepare(media, view)])[0].values[0])
    return np.stack(rows)
