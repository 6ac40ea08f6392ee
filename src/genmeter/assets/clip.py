"""Frames that are in memory already: an array (t, H, W, 3), through the same choice of frames as a file's."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from genmeter.assets.image import check_pixels
from genmeter.assets.picks import pick
from genmeter.config import Policy
from genmeter.contract import Decoding, Scalar, VideoMedia
from genmeter.errors import GenmeterError


def from_array(value: np.ndarray, policy: Policy) -> tuple[VideoMedia, bytes]:
    """Frames in memory, and their digest.

    Args:
        value: (t, H, W, 3) uint8.
        policy: ``max_pixels`` bounds one frame.

    Returns:
        A copy of them, a second apart for want of times, and 32 bytes: the SHA-256 over shape and pixels.

    Raises:
        GenmeterError: ``unsupported_media`` for another type or shape, ``empty_media``, ``too_large``.
    """
    if value.ndim != 4 or value.shape[3] != 3 or value.dtype != np.uint8:
        shape = "x".join(map(str, value.shape))
        hint = "channels come last, values are 0..255"
        raise GenmeterError(
            "unsupported_media", f"expected frames of shape (t, H, W, 3) and uint8, found {shape} {value.dtype}", hint
        )
    if not len(value):
        raise GenmeterError("empty_media", "the array holds no frames")
    check_pixels(value.shape[2], value.shape[1], policy)
    frames = np.array(value, order="C")
    frames.flags.writeable = False
    digest = hashlib.sha256(f"genmeter/frames-in-memory/1 {' '.join(map(str, frames.shape))}\n".encode())
    digest.update(frames.data)
    return VideoMedia(frames, np.arange(len(frames), dtype=np.float64)), digest.digest()


def of_requests(
    media: VideoMedia, requests: Sequence[Decoding], policy: Policy, digest: bytes
) -> list[VideoMedia | GenmeterError]:
    """What :func:`from_array` returned, as each request wants it."""
    total, height, width = media.frames.shape[:3]
    found: list[VideoMedia | GenmeterError] = []
    for request in requests:
        indices = pick(request, media.times, float(total), digest)
        if len(indices) > policy.max_frames:
            message = f"{len(indices)} frames are asked for at once; the limit is {policy.max_frames}"
            hint = "ask for fewer frames, or raise policy.max_frames"
            found.append(GenmeterError("too_large", message, hint))
            continue
        frames = media.frames if indices == list(range(total)) else media.frames[indices]
        detail: dict[str, Scalar] = {
            "frames_total": total,
            "width": width,
            "height": height,
            "format": "array",
            "first_frame": indices[0],
        }
        found.append(VideoMedia(frames, media.times[indices], (), detail))
    return found
