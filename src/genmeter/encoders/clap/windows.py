"""From decoded audio to the windows a CLAP audio tower hears; numpy only, safe in threads, and never random.

Up to 10 s this is what laion_clap does with a file: samples clipped to [-1, 1], times 32767, cut to int16, and a
shorter clip repeated as often as it fits whole, then zeros; exactly 480,000 samples are taken as they are. laion_clap
cuts longer clips at random; here they are read in windows of 10 s from the start, so the same file always gives the
same numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from genmeter.contract import AudioMedia
from genmeter.errors import GenmeterError

RATE = 48000
"""Samples a second that every CLAP network was trained with."""

SAMPLES = 480_000
"""Samples of a window: 10 s."""

LEAST = 48_000
"""A last piece of fewer samples (1 s) does not count beside whole windows."""

LARGEST = 32767.0
"""What full scale becomes; int16 samples over it are what the network hears."""


class Windows(NamedTuple):
    """The windows of one clip.

    Attributes:
        samples: (k, 480000) int16.
        seconds: (k,) float32, how much of the clip each stands for: 10, or the length of the piece that fills it.
    """

    samples: np.ndarray
    seconds: np.ndarray


def quantize(samples: np.ndarray) -> np.ndarray:
    """float32 samples to int16 as laion_clap does: clipped to [-1, 1], times 32767, cut towards zero.

    Raises:
        GenmeterError: ``non_finite`` for NaN or infinity, which have no integer.
    """
    if not np.isfinite(samples).all():
        raise GenmeterError("non_finite", "the audio holds NaN or infinity")
    scaled = np.clip(samples, -1.0, 1.0).astype(np.float32, copy=False) * np.float32(LARGEST)
    return scaled.astype(np.int16)


def checked(media: object) -> np.ndarray:
    """The samples of audio that a window can be cut from, (n,) float32.

    Raises:
        GenmeterError: ``unsupported_media`` for anything but audio, or for another rate than 48 kHz (such samples
            would be heard at another pitch), ``empty_media`` without samples.
    """
    if not isinstance(media, AudioMedia):
        raise GenmeterError("unsupported_media", f"CLAP's audio tower takes audio, found {type(media).__name__}")
    if media.rate != RATE:
        raise GenmeterError(
            "unsupported_media",
            f"the audio has {media.rate} samples a second; CLAP hears {RATE}",
            "decode it at that rate: what decoding has to deliver is in the encoder's `decoding`",
        )
    if media.samples.ndim != 1 or len(media.samples) == 0:
        raise GenmeterError("empty_media", "the audio holds no samples")
    return media.samples


def windows(media: object) -> Windows:
    """The windows of a clip: 10 s each from the start, at least one.

    A last piece under 1 s is dropped where a whole window exists; a longer one is a window of its own, filled by
    repeating it.

    Args:
        media: Decoded audio at 48 kHz, mono.

    Raises:
        GenmeterError: ``unsupported_media``, ``empty_media``, ``non_finite``.
    """
    samples = quantize(checked(media))
    whole, rest = divmod(len(samples), SAMPLES)
    if whole and rest < LEAST:
        rest = 0
    out = np.zeros((whole + (rest > 0), SAMPLES), np.int16)
    out[:whole] = samples[: whole * SAMPLES].reshape(whole, SAMPLES)
    seconds = np.full(len(out), SAMPLES / RATE, np.float32)
    if rest:
        fill(samples[whole * SAMPLES : whole * SAMPLES + rest], out[whole])
        seconds[whole] = rest / RATE
    return Windows(out, seconds)


def hops(media: object) -> Windows:
    """A window of 10 s begun at each second of a clip, as Microsoft's fadtk cuts them; zeros after the clip's end.

    Windows overlap and share their memory, so that an hour takes no more than its samples.

    Args:
        media: Decoded audio at 48 kHz, mono.

    Returns:
        One window for each second that is begun; each stands for the second it begins with.

    Raises:
        GenmeterError: ``unsupported_media``, ``empty_media``, ``non_finite``.
    """
    samples = quantize(checked(media))
    starts = np.arange(0, len(samples), LEAST)
    padded = np.zeros(int(starts[-1]) + SAMPLES, np.int16)
    padded[: len(samples)] = samples
    seconds = np.minimum(len(samples) - starts, LEAST).astype(np.float32) / np.float32(RATE)
    return Windows(np.lib.stride_tricks.sliding_window_view(padded, SAMPLES)[::LEAST], seconds)


def fill(piece: np.ndarray, into: np.ndarray) -> None:
    """Write a piece as often as it fits whole into a window of zeros (laion_clap's ``repeatpad``)."""
    times = len(into) // len(piece)
    into[: times * len(piece)].reshape(times, len(piece))[:] = piece
