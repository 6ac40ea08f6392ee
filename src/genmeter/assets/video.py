"""Video to frames: upright RGB bytes of just the frames that are asked for, or a typed reason why not.

Decisions that move numbers, all in one place:

- Frames are counted and told apart by what is in the file, never by a header's count or rate
  (:mod:`genmeter.assets.film`); which of them a request means is arithmetic on indices (:mod:`genmeter.assets.picks`).
- Colour: the matrix and range that the frames name, else BT.601 and limited range (:mod:`genmeter.assets.colours`).
  Frames with transparency are composited on white and flagged ``alpha_composited``.
- The display matrix is applied (quarter turns, mirror images); pixel aspect is not, and is noted in
  ``detail["pixel_aspect"]``.
- Of several video streams the one that is marked as default is taken, else the first; cover art is none.
- Damaged frames are never delivered. A request for single frames is refused when one of them is damaged; one for every
  frame gets the good ones, with the flag ``damaged_frames`` and their number in ``detail``. A file that is cut is read
  up to the cut, with the same flag, where it tells when its frames are shown (MP4, Matroska, WebM; AVI from its start).
- Animated GIF, WebP, PNG and AVIF files, and folders of pictures, are videos too (:mod:`genmeter.assets.animation`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from genmeter.assets import containers, ffmpeg, sniff
from genmeter.assets.animation import ANIMATED, Animation, Stack
from genmeter.assets.colours import Painter
from genmeter.assets.film import Film
from genmeter.assets.image import check_pixels
from genmeter.assets.limits import Limits
from genmeter.assets.picks import pick
from genmeter.contract import Decoding, Scalar, VideoMedia
from genmeter.errors import GenmeterError

VERSION = 1
"""Raised when the frames of a file could move."""

_Source: TypeAlias = Film | Animation | Stack
# What the results of one file may take of a decoder's memory; the rest is for decoding.
_SHARE = 0.6


def decode_video(
    parts: Sequence[memoryview], requests: Sequence[Decoding], limits: Limits, digest: bytes, *, folder: bool = False
) -> list[VideoMedia | GenmeterError]:
    """Decode a video once for all requests; memory holds the frames that are asked for and no others.

    Args:
        parts: The whole file; of a folder of frames, its files in order.
        requests: Which frames each result must have; see :func:`genmeter.assets.picks.pick`.
        limits: ``max_pixels`` bounds a frame, ``max_frames`` and ``decode_memory`` what is held of a video.
        digest: The asset's digest, which decides a random start.
        folder: Whether the parts are the files of a folder.

    Returns:
        For each request, frames (t, H, W, 3) uint8 and their times in seconds from the first frame of the video, or why
        there are none. ``detail`` holds ``frames_total``, ``fps`` (where known), ``duration_s``, ``width``, ``height``,
        ``format``, ``codec``, ``first_frame``, and where they apply ``rotation`` (degrees clockwise), ``mirrored``,
        ``pixel_aspect``, ``damaged_frames``. A clip has fewer frames than asked where the video is shorter.

    Raises:
        GenmeterError: ``unsupported_media``, ``empty_media``, ``too_large``, ``decode_failed``, ``out_of_memory``.
    """
    name = "folder of frames" if folder else sniff.kind(parts[0])[1]
    try:
        source = _open(parts, name, limits, folder)
        return _decode(source, name, requests, limits, digest)
    except (ValueError, AssertionError):
        raise
    except Exception as error:
        raise ffmpeg.failure(error, name) from None


def _open(parts: Sequence[memoryview], name: str, limits: Limits, folder: bool) -> _Source:
    if folder:
        return Stack(parts, limits)
    found, _ = sniff.kind(parts[0])
    if found == "image" and name in ANIMATED:
        return Animation(parts[0], name, limits)
    if found != "video" and name != "Ogg" and found != "unknown":
        raise GenmeterError("unsupported_media", f"expected video, found {sniff.describe(found, name)}")
    fault = None
    try:
        containers.check(parts[0], name)
    except GenmeterError as error:
        fault = error
    return Film(parts[0], name, fault, limits)


def _decode(
    source: _Source, name: str, requests: Sequence[Decoding], limits: Limits, digest: bytes
) -> list[VideoMedia | GenmeterError]:
    width, height = source.size
    check_pixels(width, height, limits)
    picks = [pick(request, source.times, source.duration_s, digest) for request in requests]
    refused = _refused(picks, source, limits)
    kept = [indices for indices, error in zip(picks, refused, strict=True) if error is None]
    arrays = [np.empty((len(indices), height, width, 3), np.uint8) for indices in kept]
    places: dict[int, list[np.ndarray]] = {}
    for indices, array in zip(kept, arrays, strict=True):
        for place, index in enumerate(indices):
            places.setdefault(index, []).append(array[place])
    got = set()
    for index, pixels in _pixels(source, places):
        for target in places[index]:
            if target is not pixels:
                target[...] = pixels
        got.add(index)
    source.damaged |= set(places) - got
    results = iter(zip(kept, arrays, strict=True))
    return [
        error or _result(source, name, request, *next(results))
        for request, error in zip(requests, refused, strict=True)
    ]


def _pixels(source: _Source, places: dict[int, list[np.ndarray]]) -> Iterator[tuple[int, np.ndarray]]:
    """Each frame that is wanted, upright; a film's are painted right where the first request wants them."""
    if not places:
        return
    if not isinstance(source, Film):
        for index, pixels in source.frames(places):
            first = places[index][0]
            if pixels.shape != first.shape:
                raise GenmeterError(
                    "unsupported_media",
                    f"frame {index} is {pixels.shape[1]}x{pixels.shape[0]}; the first is {first.shape[1]}x"
                    f"{first.shape[0]}",
                    "write all frames in one size",
                )
            yield index, pixels
        return
    painter = Painter(source.turn)
    for index, frame in source.frames(places):
        first = places[index][0]
        painter.paint(frame, first)
        yield index, first
    source.transparent = painter.transparent


def _refused(picks: Sequence[list[int]], source: _Source, limits: Limits) -> list[GenmeterError | None]:
    """Why each request asks for more than may be held; each is judged by itself."""
    found: list[GenmeterError | None] = []
    size = source.size[0] * source.size[1] * 3
    for indices in picks:
        count = len(indices)
        if count > limits.max_frames:
            found.append(
                GenmeterError(
                    "too_large",
                    f"{count} frames are asked for at once; the limit is {limits.max_frames}",
                    "ask for fewer frames, or raise policy.max_frames",
                )
            )
            continue
        if count * size > _SHARE * limits.decode_memory:
            found.append(
                GenmeterError(
                    "too_large",
                    f"{count} frames of {source.size[0]}x{source.size[1]} hold {count * size / 1e9:.1f} GB; a decoder "
                    f"may take {limits.decode_memory / 1e9:.1f} GB",
                    "ask for fewer frames, or raise policy.decode_memory",
                )
            )
            continue
        found.append(None)
    return found


def _result(
    source: _Source, name: str, request: Decoding, indices: list[int], frames: np.ndarray
) -> VideoMedia | GenmeterError:
    total = len(source.times)
    hurt = [index for index in indices if index in source.damaged]
    whole = len(indices) == total and not request.get("frames")
    lost = source.missing
    if hurt and (not whole or len(hurt) == total):
        return GenmeterError(
            "decode_failed",
            f"{len(hurt)} of the {len(indices)} frames that are asked for are damaged; the first is frame {hurt[0]} of "
            f"{total}",
            "write or download the file again",
        )
    detail: dict[str, Scalar] = {
        "frames_total": total,
        "duration_s": source.duration_s,
        "width": source.size[0],
        "height": source.size[1],
        "format": name,
        "codec": source.codec,
    }
    if source.fps:
        detail["fps"] = round(source.fps, 6)
    if isinstance(source, Film):
        detail.update(source.facts())
    times = source.times[indices]
    if hurt:
        good = [place for place, index in enumerate(indices) if index not in source.damaged]
        frames, times = frames[good], times[good]
        lost = max(lost, len(hurt))
    if indices:
        detail["first_frame"] = indices[0]
    flags = ("alpha_composited",) if source.transparent else ()
    if lost or source.cut:
        flags = (*flags, "damaged_frames")
        detail["damaged_frames"] = lost
    return VideoMedia(frames, times, flags, detail)


@functools.cache
def version() -> str:
    """What turns bytes into frames: this module's version, PyAV, FFmpeg's libraries and Pillow."""
    import PIL

    return f"video-{VERSION}+{ffmpeg.versions()}+pillow-{PIL.__version__}"
