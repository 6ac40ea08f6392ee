"""From decoded images to the byte arrays of an LPIPS pair; numpy and Pillow only, safe in threads.

Pixels stay uint8 until they are on the device: the one scaling to [-1, 1] is the network's, so no caller can
choose a wrong range. Nothing is resized unless the view says so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from genmeter.contract import Alpha, ImageMedia, Media, Prepared, Scalar, VideoMedia, View
from genmeter.errors import GenmeterError

VERSION = "lpips-rgb8-1"
"""Raised when anything here could move a score."""

_ROLES = ("prediction", "reference")


def identity(stated: Mapping[str, Any]) -> str:
    """Short id of the preprocessing: this module's version and a hash of what models.lock states for the network.

    The view (alpha, resize) is not in it: it is part of a feature's key beside it.
    """
    canonical = json.dumps(dict(stated), sort_keys=True, separators=(",", ":")).encode()
    return f"{VERSION}-{hashlib.sha256(canonical).hexdigest()[:8]}"


def prepare(media: Media, view: View) -> Prepared:
    """One half of a pair.

    Args:
        media: An image, or the frames of a video.
        view: ``alpha``: white or drop; ``resize``: none, reference or a side N (both sides become N pixels, by
            Pillow's antialiased bicubic filter on bytes).

    Returns:
        One array (k, H, W, 3) uint8; ``detail.size`` is the size before any resizing, as WIDTHxHEIGHT, and
        ``detail.frames_used`` the number of frames of a video.

    Raises:
        GenmeterError: ``unsupported_media`` for anything but an image or a video, ``empty_media`` without pixels.
    """
    flags: tuple[str, ...] = ()
    detail: dict[str, Scalar] = {}
    if isinstance(media, ImageMedia):
        alpha: Alpha = "drop" if view.get("alpha") == "drop" else "white"
        frames = media.rgb(alpha)[None]
        if alpha == "white" and media.transparent:
            flags = ("alpha_composited",)
    elif isinstance(media, VideoMedia):
        frames = media.frames
        detail["frames_used"] = len(frames)
    else:
        raise GenmeterError("unsupported_media", f"LPIPS compares images, found {type(media).__name__}")
    if 0 in frames.shape:
        raise GenmeterError("empty_media", "the image holds no pixels")
    size = _size(frames)
    side = view.get("resize", "none")
    if isinstance(side, int):
        frames = resize(frames, side, side)
    return Prepared(
        arrays=(np.ascontiguousarray(frames),),
        weights=np.ones(len(frames), np.float32),
        detail={**detail, "size": size},
        flags=media.flags + flags,
    )


def join(parts: Sequence[Prepared], view: View, least: int) -> Prepared:
    """Both halves of a pair: prediction first, then what it is compared with.

    Args:
        parts: Two results of :func:`prepare`.
        view: As for :func:`prepare`; ``resize: reference`` brings the prediction to the second half's size.
        least: Smallest side in pixels the network accepts.

    Returns:
        Arrays (k, H, W, 3) and (k, H, W, 3) uint8. ``detail.size`` is the size that is scored;
        ``detail.prediction_size`` and ``detail.reference_size`` are there where it was another before.

    Raises:
        GenmeterError: ``size_mismatch`` or ``length_mismatch`` naming both, ``too_small`` naming the side.
    """
    first, second = parts
    prediction, reference = first.arrays[0], second.arrays[0]
    if len(prediction) != len(reference):
        raise GenmeterError(
            "length_mismatch", f"prediction has {len(prediction)} frames, reference {len(reference)}; expected as many"
        )
    if view.get("resize") == "reference":
        prediction = resize(prediction, reference.shape[2], reference.shape[1])
    if prediction.shape != reference.shape:
        raise GenmeterError(
            "size_mismatch",
            f"prediction {_size(prediction)}, reference {_size(reference)}; set lpips.resize to compare them",
            "lpips.resize: reference brings the prediction to the reference's size, a number N both to NxN; "
            "either is another variant and moves the score",
        )
    scored = _size(reference)
    if min(reference.shape[1:3]) < least:
        raise GenmeterError(
            "too_small",
            f"the images are {scored}; this network needs at least {least} pixels on each side",
            f"set lpips.resize to a number of at least {least} to enlarge them",
        )
    detail = {**first.detail, "size": scored}
    for role, part in zip(_ROLES, parts, strict=True):
        if part.detail.get("size", scored) != scored:
            detail[f"{role}_size"] = part.detail["size"]
    return Prepared(
        arrays=(prediction, reference),
        weights=first.weights,
        detail=detail,
        flags=tuple(dict.fromkeys(first.flags + second.flags)),
    )


def resize(frames: np.ndarray, width: int, height: int) -> np.ndarray:
    """Frames (k, H, W, 3) uint8 at another size, bicubic with antialiasing; the same array when it fits already."""
    if frames.shape[1:3] == (height, width):
        return frames
    from PIL import Image

    out = np.empty((len(frames), height, width, 3), np.uint8)
    for i, frame in enumerate(frames):
        out[i] = np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling.BICUBIC))
    return out


def _size(frames: np.ndarray) -> str:
    return f"{frames.shape[2]}x{frames.shape[1]}"
