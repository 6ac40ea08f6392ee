"""How much a video changes from frame to frame, in numpy: an encoder without a network."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from genmeter.contract import Decoding, EncoderSpec, Feature, Media, Precision, Prepared, VideoMedia, View
from genmeter.encoders.frames import facts, partial, spread
from genmeter.errors import GenmeterError

if TYPE_CHECKING:
    from genmeter.weights.lock import ModelEntry

VERSION = "motion-1"
"""Raised when anything here could move a number."""

BLOCKS = 16
"""A frame is cut into at most this many blocks along either side."""

# Rows of a frame that are compared at a time, so that what is compared stays in the caches.
_STRIP_BYTES = 1 << 18


class MotionEncoder:
    """Change between consecutive frames, each in [0, 1].

    A feature's values are (k - 1, 2) float32 for k frames: the mean absolute difference of all bytes, divided by 255
    (what VBench's temporal flickering is made of), and the largest change of the mean colour of one block out of at
    most 16x16, divided by 255, which noise and compression hardly reach and a small moving thing does.

    Args:
        entry: A models.lock entry; only its id is looked at.
        fetch: Unused: there are no weights.
    """

    def __init__(self, entry: ModelEntry, fetch: Callable[[], Path] | None = None) -> None:
        digest = hashlib.sha256(VERSION.encode()).hexdigest()  # of what stands in for weights, so that it is cached
        self.spec = EncoderSpec(name="motion", model=entry.id, digest=digest, preprocessing=VERSION)

    def decoding(self, view: View) -> Decoding:
        """Which frames decoding has to deliver; see :func:`genmeter.encoders.frames.spread`."""
        return spread(view)

    def prepare(self, media: Media, view: View) -> Prepared:
        """Compare each frame with the next.

        Args:
            media: The frames that :func:`decoding` asks for.
            view: ``frames``, as for :func:`genmeter.encoders.frames.spread`.

        Raises:
            GenmeterError: ``unsupported_media`` for anything but a video, ``empty_media`` without pixels, ``too_short``
                below two frames.
        """
        if not isinstance(media, VideoMedia):
            raise GenmeterError("unsupported_media", f"motion is that of a video, found {type(media).__name__}")
        if 0 in media.frames.shape:
            raise GenmeterError("empty_media", "the video holds no frames")
        if len(media.frames) < 2:
            raise GenmeterError("too_short", "the video has 1 frame; between frames there is change from 2 on")
        values = np.empty((len(media.frames) - 1, 2), np.float32)
        before = _block_means(media.frames[0])
        for i, (frame, after) in enumerate(itertools.pairwise(media.frames)):
            values[i, 0] = _difference(frame, after) / 255
            blocks = _block_means(after)
            values[i, 1] = np.abs(blocks - before).max() / 255
            before = blocks
        weights = np.ones(len(values), np.float32)
        return Prepared((values,), weights, facts(media), media.flags + partial(media))

    def load(self, device: str, precision: Precision) -> None:
        """Nothing to load; every device and precision gives the same numbers."""

    def encode(self, batch: Sequence[Prepared]) -> list[Feature]:
        """What :meth:`prepare` found."""
        return [Feature(item.arrays[0], item.weights, item.detail, item.flags) for item in batch]

    def bytes_per_item(self, shape: tuple[int, ...]) -> int:
        """Next to nothing: the work is done in :meth:`prepare`."""
        return 1 << 10


def _difference(one: np.ndarray, other: np.ndarray) -> float:
    """Mean absolute difference of two uint8 arrays, exact up to the last division."""
    one, other = one.reshape(-1), other.reshape(-1)
    total = 0
    for start in range(0, one.size, _STRIP_BYTES):
        a, b = one[start : start + _STRIP_BYTES], other[start : start + _STRIP_BYTES]
        total += int((np.maximum(a, b) - np.minimum(a, b)).sum(dtype=np.int64))
    return total / one.size


def _block_means(frame: np.ndarray) -> np.ndarray:
    """(h, w, 3) float64 mean colour of at most 16x16 blocks of a (H, W, 3) uint8 frame."""
    sums = frame
    counts = []
    for axis in (0, 1):
        size = frame.shape[axis]
        edges = np.arange(min(BLOCKS, size) + 1) * size // min(BLOCKS, size)
        sums = np.add.reduceat(sums, edges[:-1], axis=axis, dtype=np.int64)
        counts.append(np.diff(edges))
    means: np.ndarray = sums / (counts[0][:, None] * counts[1])[..., None]
    return means
