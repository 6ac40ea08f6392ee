"""From decoded images to the square byte arrays a CLIP tower sees; numpy and Pillow only, safe in threads.

The arithmetic is that of open_clip's evaluation transform (torchvision on Pillow images), checked pixel by pixel in
tests/parity: resize on bytes with Pillow's antialiased filter, then crop or pad. The division by 255 and the
normalisation happen on the device.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from genmeter.contract import ImageMedia, Prepared, Scalar, VideoMedia, View
from genmeter.encoders.frames import facts, partial
from genmeter.errors import GenmeterError

if TYPE_CHECKING:
    from PIL import Image

    from genmeter.weights.lock import ModelEntry

VERSION = "clip-rgb8-1"
"""Raised when anything here or in the text side could move a score."""

# Pillow's numbers for its filters, so that stating them needs no import of it.
_FILTERS = {"bilinear": 2, "bicubic": 3}
_MODES = ("shortest", "squash", "longest")
# A resized image above this many pixels exists only where sides differ a thousandfold. It is not made whole: its centre
# is resized alone, which rounds some pixels otherwise.
_MOST_PIXELS = 1 << 26


class Recipe(NamedTuple):
    """What models.lock states for a network's images.

    Attributes:
        size: Side of the square the network takes, in pixels.
        resample: Pillow's number of the filter.
        mode: ``shortest`` (short side to ``size``, centre crop), ``squash`` (both sides to ``size``) or ``longest``
            (long side to ``size``, padded with ``fill``).
        fill: Byte value of the padding.
        mean, std: Of each channel, on values in [0, 1].
    """

    size: int
    resample: int
    mode: str
    fill: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def recipe(entry: ModelEntry) -> Recipe:
    """Read an entry's ``[model.preprocessing]``; nothing in it has a default but the padding's colour.

    Raises:
        GenmeterError: ``weights_mismatch`` naming the entry and what it lacks or states wrongly.
    """
    stated = entry.preprocessing
    size, mode = stated.get("size"), stated.get("resize_mode")
    if not isinstance(size, int) or not 1 <= size <= 4096:
        raise _unusable(entry, "size", size, "a side in pixels")
    if mode not in _MODES:
        raise _unusable(entry, "resize_mode", mode, ", ".join(_MODES))
    if stated.get("interpolation") not in _FILTERS:
        raise _unusable(entry, "interpolation", stated.get("interpolation"), ", ".join(_FILTERS))
    triples = {}
    for key in ("mean", "std"):
        value = stated.get(key)
        if not isinstance(value, list | tuple) or len(value) != 3 or not all(isinstance(v, int | float) for v in value):
            raise _unusable(entry, key, value, "three numbers, one a channel")
        triples[key] = (float(value[0]), float(value[1]), float(value[2]))
    fill = int(stated.get("fill", 0))
    return Recipe(size, _FILTERS[stated["interpolation"]], mode, fill, triples["mean"], triples["std"])


def identity(entry: ModelEntry) -> str:
    """Short id of the preprocessing: this module's version and a hash of all that models.lock states for it.

    The view (alpha, prefix) is not in it: it is part of a feature's key beside it.
    """
    stated: dict[str, Any] = {"preprocessing": dict(entry.preprocessing), "architecture": entry.architecture}
    for key in ("activation", "context_length", "tokenizer", "half"):
        if key in entry.extra:
            stated[key] = entry.extra[key]
    canonical = json.dumps(stated, sort_keys=True, separators=(",", ":"), default=str).encode()
    return f"{VERSION}-{hashlib.sha256(canonical).hexdigest()[:8]}"


def prepare(media: object, view: View, how: Recipe) -> Prepared:
    """What the image tower sees of an image, or of each frame of a video.

    Args:
        media: The image or video.
        view: ``alpha``: ``white`` composites on white before resizing; ``drop`` resizes as Pillow resizes RGBA
            (colours weighted by their opacity) and then drops alpha, which is what OpenAI's and open_clip's transforms
            do with such a file.
        how: The network's recipe.

    Returns:
        One array (k, size, size, 3) uint8. Of a video ``detail`` has ``frames_used``, ``size`` and, where they are
        known, ``frames_total`` and ``fps``, with the flag ``partial_video`` where not all frames are used.

    Raises:
        GenmeterError: ``unsupported_media`` for anything but an image or a video, ``empty_media`` without pixels.
    """
    flags: tuple[str, ...] = ()
    detail: dict[str, Scalar] = {}
    if isinstance(media, ImageMedia):
        if 0 in media.pixels.shape:
            raise GenmeterError("empty_media", "the image holds no pixels")
        if view.get("alpha") == "drop":
            frames = [media.pixels if media.transparent else media.rgb("drop")]
        else:
            frames = [media.rgb("white")]
            if media.transparent:
                flags = ("alpha_composited",)
    elif isinstance(media, VideoMedia):
        if 0 in media.frames.shape:
            raise GenmeterError("empty_media", "the video holds no frames")
        frames = list(media.frames)
        flags, detail = partial(media), facts(media)
    else:
        raise GenmeterError("unsupported_media", f"CLIP's image tower takes images, found {type(media).__name__}")
    out = np.empty((len(frames), how.size, how.size, 3), np.uint8)
    for i, frame in enumerate(frames):
        out[i] = _square(frame, how)
    return Prepared((out,), np.ones(len(frames), np.float32), detail, media.flags + flags)


def normalising(how: Recipe) -> Mapping[str, np.ndarray]:
    """``mean`` and ``std`` as (3, 1, 1) float32, to be taken from values in [0, 1] in this order."""
    return {key: np.array(value, np.float32).reshape(3, 1, 1) for key, value in (("mean", how.mean), ("std", how.std))}


def _square(pixels: np.ndarray, how: Recipe) -> np.ndarray:
    """(H, W, 3 or 4) uint8 to (size, size, 3) uint8."""
    from PIL import Image

    height, width = pixels.shape[:2]
    size = how.size
    image = Image.fromarray(np.ascontiguousarray(pixels))
    if how.mode == "squash":
        return _bytes(_resized(image, size, size, how))
    if how.mode == "longest":
        ratio = max(height, width) / size
        # A side of a very thin image would round to nothing.
        image = _resized(image, max(1, round(width / ratio)), max(1, round(height / ratio)), how)
        return _padded(_bytes(image), how)
    # torchvision's rule: the short side becomes `size`, the long one is rounded down, then the centre is cut out.
    if width <= height:
        wide, high = size, int(size * height / width)
    else:
        wide, high = int(size * width / height), size
    left, top = round((wide - size) / 2.0), round((high - size) / 2.0)
    if wide * high > _MOST_PIXELS:
        across, down = width / wide, height / high
        box = (left * across, top * down, (left + size) * across, (top + size) * down)
        return _bytes(image.resize((size, size), how.resample, box=box))
    image = _resized(image, wide, high, how)
    if (wide, high) != (size, size):
        image = image.crop((left, top, left + size, top + size))
    return _bytes(image)


def _resized(image: Image.Image, width: int, height: int, how: Recipe) -> Image.Image:
    return image if image.size == (width, height) else image.resize((width, height), how.resample)


def _bytes(image: Image.Image) -> np.ndarray:
    return np.asarray(image)[..., :3]


def _padded(pixels: np.ndarray, how: Recipe) -> np.ndarray:
    """Centre on the square; the odd pixel of a margin goes to the right and below."""
    height, width = pixels.shape[:2]
    out = np.full((how.size, how.size, 3), how.fill, np.uint8)
    top, left = (how.size - height) // 2, (how.size - width) // 2
    out[top : top + height, left : left + width] = pixels
    return out


def _unusable(entry: ModelEntry, key: str, found: object, expected: str) -> GenmeterError:
    return GenmeterError(
        "weights_mismatch",
        f"models.lock: {entry.id} states preprocessing.{key} = {found!r}; expected {expected}",
        "the entry must say how its network was trained: nothing is assumed",
    )
