"""From decoded frames to the byte arrays of an I3D clip; numpy and Pillow only, safe in threads.

Frames stay uint8 until they are on the device, where they are resized to 224x224 and scaled to [-1, 1] once: no caller
can choose a range. What the device resizes from is at most 448x448, since bilinear taps look no further.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from genmeter.contract import Decoding, Media, Prepared, Scalar, VideoMedia, View
from genmeter.encoders.frames import facts, partial
from genmeter.encoders.i3d.grid import reduce, taps
from genmeter.errors import GenmeterError

VERSION = "i3d-rgb8-1"
"""Raised when anything here or in the resize could move a score."""

LEAST_FRAMES = 9
"""Below this the last layers have fewer than the two steps in time that the average pooling spans."""


def identity(stated: Mapping[str, Any]) -> str:
    """Short id of the preprocessing: this module's version and a hash of what models.lock states for the network.

    The view (frames, grid, pre_resize ...) is not in it: it is part of a feature's key beside it.
    """
    canonical = json.dumps(dict(stated), sort_keys=True, separators=(",", ":")).encode()
    return f"{VERSION}-{hashlib.sha256(canonical).hexdigest()[:8]}"


def decoding(view: View) -> Decoding:
    """Which frames a view asks for: ``frames`` from ``start`` on, each ``stride`` frames, or at ``fps`` in time."""
    wanted: dict[str, Scalar] = {key: view[key] for key in ("frames", "start", "stride", "sampling")}
    if view["sampling"] == "time":
        wanted["fps"] = view["fps"]
    return wanted


def prepare(media: Media, view: View) -> Prepared:
    """One clip.

    Args:
        media: The frames that :func:`decoding` asks for, in order, fewer where the video is shorter.
        view: ``frames``; ``grid`` (see :func:`genmeter.encoders.i3d.grid.taps`); ``pre_resize``: none, or a side N to
            which the short side is brought first (Pillow's antialiased bilinear filter, on bytes) and the rest cut off
            around the centre.

    Returns:
        Arrays (1, T, h, w, 3) uint8, (1, 2, 224) int32 and (1, 2, 224) float32: the clip and the taps into its rows
        and columns. ``detail`` has ``frames_used``, ``size`` (WIDTHxHEIGHT of the file) and, where they are known,
        ``frames_total`` and ``fps``; the flag ``partial_video`` where not all frames are used.

    Raises:
        GenmeterError: ``unsupported_media`` for anything but a video, ``empty_media`` without pixels, ``too_short``.
    """
    if not isinstance(media, VideoMedia):
        raise GenmeterError("unsupported_media", f"I3D reads videos, found {type(media).__name__}")
    if 0 in media.frames.shape:
        raise GenmeterError("empty_media", "the video holds no frames")
    wanted = int(view["frames"] or 0)
    _refuse_short(media, wanted)
    frames, side = media.frames, view.get("pre_resize", "none")
    if isinstance(side, int):
        frames = pre_resize(frames, side)
    frames, down, across = reduce(frames, *taps(str(view["grid"]), *frames.shape[1:3]))
    return Prepared(
        arrays=(
            np.ascontiguousarray(frames)[None],
            np.stack([down.low, across.low])[None],
            np.stack([down.share, across.share])[None],
        ),
        weights=np.ones(1, np.float32),
        detail=facts(media),
        flags=media.flags + partial(media),
    )


def pre_resize(frames: np.ndarray, side: int) -> np.ndarray:
    """(T, H, W, 3) uint8 with the short side brought to ``side`` pixels and the long one cut to it at the centre."""
    from PIL import Image

    height, width = frames.shape[1:3]
    short = min(height, width)
    high, wide = int(side * height / short), int(side * width / short)
    top, left = round((high - side) / 2), round((wide - side) / 2)
    out = np.empty((len(frames), side, side, 3), np.uint8)
    for i, frame in enumerate(frames):
        image = Image.fromarray(frame)
        if (wide, high) != (width, height):
            image = image.resize((wide, high), Image.Resampling.BILINEAR)
        out[i] = np.asarray(image)[top : top + side, left : left + side]
    return out


def _refuse_short(media: VideoMedia, wanted: int) -> None:
    found = len(media.frames)
    if wanted < LEAST_FRAMES:
        raise GenmeterError(
            "too_short", f"I3D needs clips of at least {LEAST_FRAMES} frames, the view asks for {wanted}"
        )
    if found < wanted:
        total = media.detail.get("frames_total")
        whole = f" (the video has {total})" if total is not None and total != found else ""
        raise GenmeterError(
            "too_short",
            f"{found} frames where the clip needs {wanted}{whole}; nothing is padded",
            f"set frames to a number from {LEAST_FRAMES} on that all videos have, or lower the stride; "
            "either is another variant",
        )
    if found > wanted:
        raise GenmeterError("internal", f"decoding delivered {found} frames, {wanted} were asked for")
