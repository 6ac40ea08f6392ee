"""The LPIPS pair encoder: two images in, their distance out. Imports torch only when it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from genmeter.contract import Decoding, EncoderSpec, Feature, Media, Precision, Prepared, View
from genmeter.encoders.lpips import preprocessing
from genmeter.errors import GenmeterError

if TYPE_CHECKING:
    from genmeter.encoders.lpips.network import LpipsNetwork
    from genmeter.weights.lock import ModelEntry

VERSION = 1

LEAST_SIDE = {"alex": 31, "vgg": 16, "squeeze": 17}
"""Smallest side in pixels at which every layer of a network still has a position."""

# Peak bytes for each pixel of a pair, measured on a CPU from 512 to 2048 pixels (alex 120, squeeze 354, vgg 1089), with
# room for a GPU's convolution workspace.
_BYTES = {"alex": 150, "vgg": 1200, "squeeze": 400}
_BYTES_FIXED = 1 << 20
# Pixels of one pass for each CPU thread.
_CPU_PIXELS = {"alex": 1 << 17, "vgg": 1 << 16, "squeeze": 1 << 16}
# Working memory in which the frames of clips pass through a GPU, unless the batch itself needs more.
_FRAME_BYTES = 1 << 30


class LpipsEncoder:
    """LPIPS v0.1 of one models.lock entry (``lpips-alex``, ``lpips-vgg``, ``lpips-squeeze``).

    A feature's values are (k, 1) float32: the distance of each pair of frames, one row for two images.

    Args:
        entry: The models.lock entry; its ``architecture`` is alex, vgg or squeeze.
        fetch: Returns the path of the verified weights.
    """

    def __init__(self, entry: ModelEntry, fetch: Callable[[], Path]) -> None:
        from genmeter.weights.lock import entry_digest

        self.net = net_of(entry.architecture)
        self.spec = EncoderSpec(
            name="lpips",
            model=entry.id,
            digest=entry_digest(entry),
            preprocessing=preprocessing.identity(entry.preprocessing),
            version=VERSION,
            pair=True,
        )
        self._fetch = fetch
        self._probe = dict(entry.extra.get("probe", {}))
        self._constants = {key: entry.preprocessing[key] for key in ("mean", "std") if key in entry.preprocessing}
        self._network: LpipsNetwork | None = None

    def decoding(self, view: View) -> Decoding:
        """Every frame of a video: two videos are compared frame by frame, so none may be left out unseen."""
        return {}

    def prepare(self, media: Media, view: View) -> Prepared:
        """One half of a pair; see :func:`genmeter.encoders.lpips.preprocessing.prepare`."""
        return preprocessing.prepare(media, view)

    def join(self, parts: Sequence[Prepared], view: View) -> Prepared:
        """Both halves of a pair; see :func:`genmeter.encoders.lpips.preprocessing.join`."""
        return preprocessing.join(parts, view, LEAST_SIDE[self.net])

    def load(self, device: str, precision: Precision) -> None:
        """Build the network on ``device`` and let it answer the probe.

        ``exact`` computes in float32. ``fast`` runs the trunk in float16 on CUDA (heads stay float32) and is the
        same as ``exact`` elsewhere, where half precision is slower.

        Raises:
            GenmeterError: ``weights_unavailable`` or ``weights_mismatch`` from the weights, ``model_probe_failed``.
        """
        from genmeter.encoders.lpips import probe
        from genmeter.encoders.lpips.network import LpipsNetwork
        from genmeter.weights.load import load_tensors

        half = precision == "fast" and device.startswith("cuda")
        network = LpipsNetwork(self.net, load_tensors(self._fetch()), device, half=half, **self._constants)
        probe.check(network, self.spec.model, self._probe, half=half)
        self._network = network

    def encode(self, batch: Sequence[Prepared]) -> list[Feature]:
        """Distances of a batch of joined pairs of one size; (k, 1) float32 for each item."""
        if self._network is None:
            raise RuntimeError("load() comes before encode()")
        height, width, _ = batch[0].shape
        pairs = [(item.arrays, frame) for item in batch for frame in range(len(item.weights))]
        step = self._pairs_at_once(height, width, len(batch))
        chunks = [self._chunk(self._network, pairs[i : i + step]) for i in range(0, len(pairs), step)]
        # Every chunk is launched before the first result is waited for.
        values = np.concatenate([chunk.cpu().numpy() for chunk in chunks])[:, None]
        features, at = [], 0
        for item in batch:
            k = len(item.weights)
            features.append(Feature(values[at : at + k], item.weights, item.detail, item.flags))
            at += k
        return features

    def bytes_per_item(self, shape: tuple[int, ...]) -> int:
        """Peak working memory for one pair of images of shape (H, W, 3), in bytes."""
        return _BYTES_FIXED + _BYTES[self.net] * int(shape[0]) * int(shape[1])

    def _pairs_at_once(self, height: int, width: int, items: int) -> int:
        """Pairs in one pass, a function of the batch alone.

        A CPU is fastest while a pass stays within its caches and the allocator's reusable blocks, so batches are
        cut there; a GPU takes the batch whole and cuts only the frames of long clips.
        """
        assert self._network is not None
        if self._network.device.type == "cpu":
            return max(1, self._network.threads * _CPU_PIXELS[self.net] // (height * width))
        return max(items, _FRAME_BYTES // self.bytes_per_item((height, width, 3)))

    @staticmethod
    def _chunk(network: LpipsNetwork, pairs: Sequence[tuple[tuple[np.ndarray, ...], int]]) -> Any:
        # Row of each distinct image: an array that several pairs share (one reference, many candidates) runs once.
        rows: dict[tuple[int, int], int] = {}
        images: list[np.ndarray] = []
        sides: tuple[list[int], list[int]] = ([], [])
        for side in (0, 1):
            for arrays, frame in pairs:
                key = (id(arrays[side]), frame)
                if key not in rows:
                    rows[key] = len(images)
                    images.append(arrays[side][frame])
                sides[side].append(rows[key])
        return network.distances(np.stack(images), *sides)


def net_of(architecture: str) -> str:
    """``alex``, ``vgg`` or ``squeeze`` for an architecture named in models.lock. Raises ``unknown_metric``."""
    for net in LEAST_SIDE:
        if architecture.lower().startswith(net):
            return net
    raise GenmeterError("unknown_metric", f"LPIPS has no network {architecture!r}", f"known: {', '.join(LEAST_SIDE)}")
