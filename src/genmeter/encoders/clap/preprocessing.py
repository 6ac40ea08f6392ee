"""What models.lock states of a CLAP network's input, and what prepared audio carries beside its windows."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from genmeter.contract import AudioMedia, Prepared, View
from genmeter.encoders.clap.mel import MelRecipe
from genmeter.encoders.clap.windows import RATE, SAMPLES, Windows, checked, hops, quantize, windows
from genmeter.errors import GenmeterError

if TYPE_CHECKING:
    from genmeter.weights.lock import ModelEntry

VERSION = "clap-int16-1"
"""Raised when anything here or in the text side could move a score."""

LOWEST_RATE = 16_000
"""Source rate in Hz below which audio is flagged ``band_limited``.

The networks hear up to 14 kHz, so strictly every rate below 28 kHz leaves part of the band empty. 16 kHz is what many
published text-to-audio models emit and what their CLAP scores were computed from; below it (telephone rates) the score
is no longer that of the sound. The rate itself is always in the row (``detail.source_rate``).
"""

_PEAK = 10.0 ** (-1.0 / 20.0)  # -1 dB below full scale
_LONG = ("windows", "fusion", "hops")
_LEVELS = ("asis", "peak-1db")


class Recipe(NamedTuple):
    """What models.lock states for a network's audio.

    Attributes:
        mel: The log-mel front end.
        fusion: Whether the network was trained to fuse four views of a clip longer than 10 s.
    """

    mel: MelRecipe
    fusion: bool


def recipe(entry: ModelEntry) -> Recipe:
    """Read an entry's ``[model.preprocessing]``; nothing in it has a default.

    Raises:
        GenmeterError: ``weights_mismatch`` naming the entry and what it lacks or states wrongly.
    """
    stated = entry.preprocessing
    for key, expected in (("sample_rate", RATE), ("window_samples", SAMPLES)):
        if stated.get(key) != expected:
            raise _unusable(entry, key, stated.get(key), str(expected))
    numbers: dict[str, Any] = {}
    for key, name in (("n_fft", "n_fft"), ("hop", "hop"), ("bands", "mel_bands"), ("low", "fmin"), ("high", "fmax")):
        value = stated.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise _unusable(entry, name, value, "a number")
        numbers[key] = value
    scale, fusion = stated.get("mel_scale"), stated.get("fusion")
    if scale not in ("slaney", "htk"):
        raise _unusable(entry, "mel_scale", scale, "slaney or htk")
    if not isinstance(fusion, bool):
        raise _unusable(entry, "fusion", fusion, "true or false")
    return Recipe(MelRecipe(rate=RATE, scale=scale, **numbers), fusion)


def identity(entry: ModelEntry, loader: str) -> str:
    """Short id of the preprocessing and of whose network definitions run.

    This module's version, a hash of all that models.lock states for the input, and the loader: features of two loaders
    agree to rounding alone, so they are never mixed in one run or cache.
    """
    stated: dict[str, Any] = {"preprocessing": dict(entry.preprocessing), "architecture": entry.architecture}
    for key in ("context_length", "text_config", "audio_config"):
        if key in entry.extra:
            stated[key] = entry.extra[key]
    canonical = json.dumps(stated, sort_keys=True, separators=(",", ":"), default=str).encode()
    return f"{VERSION}-{hashlib.sha256(canonical).hexdigest()[:8]}-{loader}"


def prepare(media: object, view: View, how: Recipe, model: str) -> Prepared:
    """What the audio tower hears of a clip.

    Args:
        media: Decoded audio at 48 kHz.
        view: ``long``: ``windows`` (default) reads 10 s windows from the start; ``fusion`` hands a clip over 10 s to a
            network with feature fusion as a whole; ``hops`` begins a window at each second. ``level``: ``asis``
            (default), or ``peak-1db``, which scales the clip to a peak of -1 dB first.
        how: The network's recipe.
        model: Name of the entry, for messages.

    Returns:
        One array (k, 480000) int16, or (1, n) for a long clip as a whole; weights are seconds. ``detail``:
        ``seconds`` that were heard, ``windows``, and ``source_rate`` where decoding knows it. Flags: those of decoding,
        ``silent`` where nothing is left after quantizing, ``band_limited`` below :data:`LOWEST_RATE`.

    Raises:
        GenmeterError: ``unsupported_media``, ``empty_media``, ``non_finite``; ``unknown_metric`` for a view that the
            network cannot have.
    """
    long, level = view.get("long", "windows"), view.get("level", "asis")
    if long not in _LONG or level not in _LEVELS:
        raise GenmeterError("unknown_metric", f"{model}: no view with long={long!r}, level={level!r}")
    if long == "fusion" and not how.fusion:
        raise GenmeterError(
            "unknown_metric",
            f"{model} was trained without feature fusion",
            "name a checkpoint that has it (630k-audioset-fusion-best), or use the convention windows",
        )
    samples = checked(media)
    assert isinstance(media, AudioMedia)
    if level == "peak-1db":
        media = media._replace(samples=_to_peak(samples))
    if long == "fusion" and len(samples) > SAMPLES:
        whole = quantize(media.samples)[None]
        found = Windows(whole, np.array([whole.shape[1] / RATE], np.float32))
    else:
        found = hops(media) if long == "hops" else windows(media)
    detail = {"seconds": round(float(found.seconds.sum()), 3), "windows": len(found.samples)}
    rate = media.detail.get("source_rate")
    if isinstance(rate, int | float):
        detail["source_rate"] = rate
    flags = media.flags
    if "silent" not in flags and not found.samples.any():
        flags += ("silent",)
    if isinstance(rate, int | float) and rate < LOWEST_RATE:
        flags += ("band_limited",)
    return Prepared((found.samples,), found.seconds, detail, flags)


def _to_peak(samples: np.ndarray) -> np.ndarray:
    """Scaled so that the largest sample stands at -1 dB; silence and what is not finite stay as they are."""
    peak = float(np.abs(samples).max())
    if not np.isfinite(peak) or peak == 0:
        return samples
    return (samples * np.float32(_PEAK / peak)).astype(np.float32, copy=False)


def _unusable(entry: ModelEntry, key: str, found: object, expected: str) -> GenmeterError:
    return GenmeterError(
        "weights_mismatch",
        f"models.lock: {entry.id} states preprocessing.{key} = {found!r}; expected {expected}",
        "the entry must say how its network was trained: nothing is assumed",
    )
