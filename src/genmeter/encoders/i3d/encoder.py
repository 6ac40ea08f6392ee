"""The I3D encoder: clips to Kinetics-400 logits. Imports torch only when it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from genmeter.contract import Decoding, EncoderSpec, Feature, Media, Precision, Prepared, View
from genmeter.encoders.i3d import preprocessing
from genmeter.encoders.i3d.grid import SIDE
from genmeter.errors import GenmeterError

if TYPE_CHECKING:
    import torch

    from genmeter.encoders.i3d.network import I3dNetwork
    from genmeter.weights.lock import ModelEntry

VERSION = 1
ARCHITECTURE = "inception-i3d"

# Peak bytes for each of the network's input frames, measured on a CPU, with room for a GPU's convolution workspace.
_BYTES_FRAME = 10 << 20
_BYTES_FIXED = 16 << 20


class I3dEncoder:
    """I3D of one models.lock entry (``i3d-k400``).

    A feature's values are (1, 400) float32: the logits of one clip, averaged over its steps in time.

    Args:
        entry: The models.lock entry; ``batch_norm_eps`` is its own, never a default.
        fetch: Returns the path of the verified weights.

    Raises:
        GenmeterError: ``unknown_metric`` for another architecture, ``weights_mismatch`` where the entry leaves the
            eps unsaid.
    """

    def __init__(self, entry: ModelEntry, fetch: Callable[[], Path]) -> None:
        from genmeter.weights.lock import entry_digest

        if entry.architecture != ARCHITECTURE:
            raise GenmeterError(
                "unknown_metric", f"I3D has no network {entry.architecture!r}", f"known: {ARCHITECTURE}"
            )
        self._eps = _eps(entry)
        self.spec = EncoderSpec(
            name="i3d",
            model=entry.id,
            digest=entry_digest(entry),
            preprocessing=preprocessing.identity({**entry.preprocessing, "batch_norm_eps": self._eps}),
            version=VERSION,
        )
        self._fetch = fetch
        self._probe = dict(entry.extra.get("probe", {}))
        self._network: I3dNetwork | None = None

    def decoding(self, view: View) -> Decoding:
        """Which frames decoding has to deliver; see :func:`genmeter.encoders.i3d.preprocessing.decoding`."""
        return preprocessing.decoding(view)

    def prepare(self, media: Media, view: View) -> Prepared:
        """One clip; see :func:`genmeter.encoders.i3d.preprocessing.prepare`."""
        return preprocessing.prepare(media, view)

    def load(self, device: str, precision: Precision) -> None:
        """Build the network on ``device`` and let it answer the probe.

        ``exact`` computes in float32. ``fast`` computes in float16 on CUDA (resizing and the last layer stay float32)
        and is the same as ``exact`` elsewhere, where half precision is slower.

        Raises:
            GenmeterError: ``weights_unavailable`` or ``weights_mismatch`` from the weights, ``model_probe_failed``.
        """
        from genmeter.encoders.i3d import probe
        from genmeter.encoders.i3d.network import I3dNetwork
        from genmeter.weights.load import load_tensors

        half = precision == "fast" and device.startswith("cuda")
        network = I3dNetwork(load_tensors(self._fetch()), device, half=half, eps=self._eps)
        probe.check(network, self.spec.model, self._probe, half=half)
        self._network = network

    def encode(self, batch: Sequence[Prepared]) -> list[Feature]:
        """Logits of a batch of clips of one shape; (1, 400) float32 for each."""
        if self._network is None:
            raise RuntimeError("load() comes before encode()")
        # A CPU is fastest on one clip at a time, whose layers fit its caches; a GPU takes the batch whole.
        step = 1 if self._network.device.type == "cpu" else len(batch)
        passes = [self._logits(self._network, batch[i : i + step]) for i in range(0, len(batch), step)]
        # Every pass is launched before the first result is waited for.
        values = np.concatenate([logits.cpu().numpy() for logits in passes])
        return [Feature(values[i : i + 1], item.weights, item.detail, item.flags) for i, item in enumerate(batch)]

    def bytes_per_item(self, shape: tuple[int, ...]) -> int:
        """Peak working memory for one clip of shape (T, h, w, 3), in bytes."""
        return _BYTES_FIXED + int(shape[0]) * (_BYTES_FRAME + 16 * int(shape[1]) * int(shape[2]))

    @staticmethod
    def _logits(network: I3dNetwork, items: Sequence[Prepared]) -> torch.Tensor:
        import torch

        from genmeter.encoders.i3d.resize import to_input

        with torch.inference_mode():
            frames = items[0].shape[0]
            inputs = torch.empty((len(items), frames, SIDE, SIDE, 3), device=network.device)
            for item, out in zip(items, inputs, strict=True):
                clip, low, share = item.arrays
                to_input(clip[0], low[0], share[0], out)
            return network.logits(inputs)


def _eps(entry: ModelEntry) -> float:
    value = entry.extra.get("batch_norm_eps")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise GenmeterError(
            "weights_mismatch",
            f"models.lock: {entry.id} states batch_norm_eps = {value!r}; expected a small positive number",
            "the entry must say how its network normalises: nothing is assumed",
        )
    return float(value)
