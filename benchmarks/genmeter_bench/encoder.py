"""The encoder that is not one: the mean colour of an image, computed for a batch at once as a network does."""

from __future__ import annotations

from typing import Any

import numpy as np

from genmeter.contract import EncoderSpec, Feature, Prepared

ONE = np.ones(1, dtype=np.float32)


class MeanColour:
    """Mean of each channel of 8-bit pixels: (1, 3), in [0, 255]."""

    def __init__(self, entry: Any, fetch: Any) -> None:
        self.spec = EncoderSpec("bench_mean", entry.id, "digest-of-bench_mean", "bench_mean-1")

    def prepare(self, media: Any, view: Any) -> Prepared:
        return Prepared((media.rgb()[None],), ONE, flags=media.flags)

    def load(self, device: str, precision: str) -> None:
        pass

    def bytes_per_item(self, shape: tuple[int, ...]) -> int:
        return 1_000_000

    def encode(self, batch: list[Prepared]) -> list[Feature]:
        pixels = np.stack([item.arrays[0] for item in batch]).reshape(len(batch), -1, 3)
        # A product with ones adds up what a reduction over a short last axis does slowly; sums of bytes are exact.
        totals = np.ones(pixels.shape[1], dtype=np.float32) @ pixels.astype(np.float32)
        means = (totals / pixels.shape[1])[:, None, :]
        return [Feature(mean, ONE, item.detail, item.flags) for mean, item in zip(means, batch, strict=True)]
