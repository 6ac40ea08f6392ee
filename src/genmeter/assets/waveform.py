"""Sound that is in memory already: ``(samples, rate)``, through the same resampling and checks as a file's."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from genmeter.assets.limits import Limits
from genmeter.contract import AudioMedia, Decoding
from genmeter.errors import GenmeterError

_HINT = "hand over (samples, rate): a numpy array of floats in [-1, 1] or of int16, and a rate in Hz"
_FLOATS = ("float16", "float32", "float64")


def from_object(value: tuple[Any, Any]) -> tuple[AudioMedia, bytes]:
    """Samples in memory, and their digest.

    Args:
        value: ``(samples, rate)``. The samples are a numpy array of float16, float32 or float64 with full scale at 1,
            or of int16 with full scale at 32768. Its shape is (n,), (channels, n) or (n, channels): of two axes, the
            shorter one is the channels. ``rate`` is a whole number of Hz.

    Returns:
        The average of the channels, neither clipped nor resampled yet, and 32 bytes: the SHA-256 over rate, shape and
        samples as float32, the same for int16 and the floats that equal it.

    Raises:
        GenmeterError: ``unsupported_media`` for another type or shape; ``empty_media``.
    """
    samples, rate = value
    if not isinstance(samples, np.ndarray):
        raise GenmeterError(
            "unsupported_media", f"expected a numpy array of samples, found {type(samples).__name__}", _HINT
        )
    if isinstance(rate, float | np.floating) and float(rate).is_integer():
        rate = int(rate)
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer) or rate <= 0:
        raise GenmeterError("unsupported_media", "expected a sample rate: a whole number of Hz above 0", _HINT)
    if samples.dtype != np.int16 and samples.dtype.name not in _FLOATS:
        raise GenmeterError("unsupported_media", f"expected samples of float or int16, found {samples.dtype}", _HINT)
    if not samples.size:
        raise GenmeterError("empty_media", "the array holds no samples")
    with np.errstate(over="ignore"):
        channels = _channels(samples).astype(np.float32)
    if samples.dtype == np.int16:
        channels /= np.float32(2**15)
    head = f"genmeter/samples/1 {int(rate)} {channels.shape[0]} {channels.shape[1]}\n".encode()
    digest = hashlib.sha256(head)
    digest.update(np.ascontiguousarray(channels).data)
    from genmeter.assets.audio import mix

    detail = {"channels": channels.shape[0], "format": "array", "codec": samples.dtype.name}
    return AudioMedia(mix([channels]), int(rate), (), detail), digest.digest()


def _channels(samples: np.ndarray) -> np.ndarray:
    """The samples as (channels, n)."""
    if samples.ndim == 1:
        return samples[None]
    if samples.ndim != 2 or samples.shape[0] == samples.shape[1] > 1:
        shape = "x".join(map(str, samples.shape))
        raise GenmeterError(
            "unsupported_media", f"expected samples of shape (n,), (channels, n) or (n, channels), found {shape}", _HINT
        )
    return samples if samples.shape[0] < samples.shape[1] else samples.T


def at_rates(media: AudioMedia, requests: Sequence[Decoding], limits: Limits) -> list[AudioMedia]:
    """What :func:`from_object` returned, as each request wants it.

    Args:
        media: Samples at their own rate.
        requests: ``rate`` in Hz; without one, the samples' own.
        limits: ``max_seconds`` bounds the length.

    Raises:
        GenmeterError: ``too_large``, ``non_finite``, ``unsupported_media`` (a rate that no sound has).
    """
    from genmeter.assets.audio import Ear

    ear = Ear(media.rate, requests, limits, len(media.samples) / media.rate)
    for start in range(0, len(media.samples), 1 << 16):
        ear.add(media.samples[None, start : start + (1 << 16)])
    return ear.finish(dict(media.detail))
