"""Audio to samples: mono, at the rate that was asked for, or a typed reason why not.

Decisions that move numbers, all in one place:

- The rate comes from the decoded stream, never from what a sample or a tag declares.
- Channels are averaged in float64, whatever their layout. Samples are resampled by soxr's HQ recipe, in pieces that
  give the same numbers as one call for the whole; n samples at rate s become round(n * d / s) at rate d, half up, at
  least one.
- What encoders add before and after the sound is cut off as FFmpeg does: by gapless tags (MP3), edit lists (MP4) and
  granule positions (Ogg).
- Averaged samples beyond full scale are clipped to [-1, 1] after resampling, and flagged ``clipped``. What only the
  resampling filter swings beyond full scale is clipped without a flag.
- ``silent`` flags audio without a sample that a 16-bit file could hold (all below 1/32767); it is delivered.
- A file with several audio streams gives the one that is marked as default, else its first; ``detail`` names it.
- A file that is cut or damaged is an error, not a shorter clip: :mod:`genmeter.assets.containers`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from genmeter.assets import containers, ffmpeg, sniff
from genmeter.assets.limits import Limits
from genmeter.assets.wire import MAX_RATE
from genmeter.contract import AudioMedia, Decoding, Scalar
from genmeter.errors import GenmeterError

VERSION = 1
"""Raised when the samples of a file could move."""
MIN_RATE = 100
SILENCE = 1 / 32767
"""Below this peak, audio is silent: 16-bit samples would all be zero."""

_OVER = 1 + 1 / 32768
_ABSURD = 1e9  # beyond this, resampling in 32-bit floats leaves their range
_BLOCK = 1 << 16
# What stands for zero and for full scale in FFmpeg's sample formats, by numpy's name for them.
_SCALES = {"uint8": (128.0, 128.0), "int16": (0.0, 2.0**15), "int32": (0.0, 2.0**31)}
_READ = frozenset({"u8", "s16", "s32", "flt", "dbl"})
# Containers that say how long a stream is; the others' lengths are guesses from the bit rate.
_EXACT = frozenset({"wav", "w64", "aiff", "caf", "au", "flac", "ogg", "wv", "tta", "mov", "avi"})
_WHOLE = _EXACT - {"ogg", "caf"}
_SLACK_S = 0.1
_DEFAULT = 1  # AV_DISPOSITION_DEFAULT


def decode_audio(data: memoryview, requests: Sequence[Decoding], limits: Limits) -> list[AudioMedia]:
    """Decode an audio file, or the sound track of a video, once for all requests.

    Args:
        data: The whole file.
        requests: ``rate`` in Hz that each result must have; without one, the file's own.
        limits: ``max_seconds`` bounds the length.

    Returns:
        For each request, mono samples (n,) float32 in [-1, 1]. ``detail`` holds ``source_rate``, ``channels``,
        ``duration_s``, ``format``, ``codec``, and ``audio_streams`` with ``audio_stream`` where there are several.

    Raises:
        GenmeterError: ``unsupported_media`` (no audio in it), ``empty_media``, ``non_finite``, ``too_large``,
            ``decode_failed``, ``out_of_memory``.
    """
    found, name = sniff.kind(data)
    if found in ("image", "text"):
        raise GenmeterError("unsupported_media", f"expected audio, found {sniff.describe(found, name)}")
    checked = containers.check(data, name)
    try:
        container = ffmpeg.open_media(checked.pieces, name)
    except Exception as error:
        raise _unknown(name) if found == "unknown" else ffmpeg.failure(error, name) from None
    if found == "unknown":
        name = ffmpeg.container_name(container)
    try:
        with container:
            return _decode(container, name, requests, limits, checked.samples)
    except Exception as error:
        raise ffmpeg.failure(error, name) from None


def _unknown(name: str) -> GenmeterError:
    return GenmeterError("unsupported_media", f"expected audio, found {name}")


def _decode(
    container: Any, name: str, requests: Sequence[Decoding], limits: Limits, expected: int | None
) -> list[AudioMedia]:
    stream = _choose(container, name)
    declared = _seconds(container, stream)
    if declared is not None and declared > limits.max_seconds:
        raise _too_long(declared, limits)
    ear: Ear | None = None
    channels = 0
    for frame in _frames(container, ffmpeg.strict(stream, name)):
        if ear is None:
            if frame.format.name.rstrip("p") not in _READ:
                raise GenmeterError("unsupported_media", f"samples of the format {frame.format.name} are not read")
            ear = Ear(frame.sample_rate, requests, limits, declared)
        elif frame.sample_rate != ear.rate:
            raise GenmeterError("unsupported_media", f"the {name} file changes its sample rate within", "convert it")
        values = frame.to_ndarray()
        if values.shape[1] != frame.samples:  # the channels of a sample stand side by side
            values = values.reshape(frame.samples, -1).T
        channels = max(channels, len(values))
        ear.add(values)
    heard, heard_s = (ear.heard, ear.heard / ear.rate) if ear is not None else (0, 0.0)
    if expected is not None and heard != expected:
        raise containers.cut_short(f"the {name} says that it holds {expected} samples, and holds {heard}")
    if ffmpeg.container_name(container) in _WHOLE and declared is not None and heard_s < declared - _SLACK_S:
        raise containers.cut_short(f"the {name} says that it lasts {declared:.2f} s, and {heard_s:.2f} s are there")
    if ear is None or not heard:
        raise containers.no_samples(name)
    detail: dict[str, Scalar] = {"channels": channels, "format": name, "codec": ffmpeg.codec_name(stream)}
    others = len(container.streams.audio)
    if others > 1:
        detail.update(audio_streams=others, audio_stream=list(container.streams.audio).index(stream))
    return ear.finish(detail)


def _choose(container: Any, name: str) -> Any:
    streams = list(container.streams.audio)
    if not streams:
        what = ", ".join(sorted({stream.type for stream in container.streams})) or "none"
        raise GenmeterError("unsupported_media", f"the {name} file has no audio stream; its streams: {what}")
    return next((s for s in streams if int(getattr(s, "disposition", 0)) & _DEFAULT), streams[0])


def _seconds(container: Any, stream: Any) -> float | None:
    """The stream's length where the container states it."""
    kind = ffmpeg.container_name(container)
    if kind in _EXACT and stream.duration is not None:
        return float(stream.duration * stream.time_base)
    if kind == "matroska" and container.duration is not None:
        return float(container.duration / 1_000_000)
    return None


def _frames(container: Any, stream: Any) -> Iterator[Any]:
    for packet in container.demux(stream):
        if packet.is_corrupt:
            raise containers.cut_short("a packet is not whole")
        for frame in packet.decode():
            if frame.is_corrupt:
                raise containers.cut_short("a frame is damaged")
            if frame.samples:
                yield frame


def mix(pieces: Sequence[np.ndarray]) -> np.ndarray:
    """The mean of the channels, with full scale at 1.

    Args:
        pieces: In order, each (channels, n), all of one type and number of channels: uint8, int16, int32, or floats.

    Returns:
        (n,) float32; what a float64 holds and a float32 cannot becomes infinite.
    """
    channels: list[np.ndarray] = [np.concatenate([piece[c] for piece in pieces]) for c in range(len(pieces[0]))]
    if len(channels) == 1 and channels[0].dtype == np.float32:
        return channels[0]
    offset, scale = _SCALES.get(channels[0].dtype.name, (0.0, 1.0))
    total: np.ndarray = channels[0].astype(np.float64)
    for channel in channels[1:]:
        total += channel
    if offset:
        total -= offset * len(channels)
    total /= scale * len(channels)
    with np.errstate(over="ignore"):
        mean: np.ndarray = total.astype(np.float32)
    return mean


def _too_long(seconds: float, limits: Limits) -> GenmeterError:
    return GenmeterError(
        "too_large",
        f"the audio lasts {seconds:.1f} s; the limit is {limits.max_seconds:g} s",
        "raise policy.max_seconds if it is meant to be this long",
    )


class Ear:
    """Takes samples as they come, and gives them back in mono, at every rate that was asked for.

    Working memory beside the results does not grow with the length.

    Args:
        rate: Rate of what comes, in Hz.
        requests: See :func:`decode_audio`.
        limits: ``max_seconds`` bounds what may come.
        declared: Expected length in seconds, to take memory for at once; None if not known.

    Raises:
        GenmeterError: ``unsupported_media`` for a rate that no sound has.
    """

    def __init__(self, rate: int, requests: Sequence[Decoding], limits: Limits, declared: float | None = None) -> None:
        if not MIN_RATE <= rate <= MAX_RATE:
            raise GenmeterError(
                "unsupported_media", f"the sample rate is {rate} Hz; expected {MIN_RATE} to {MAX_RATE} Hz"
            )
        self.rate, self.heard = rate, 0
        self._limits = limits
        self._most = int(limits.max_seconds * rate)
        self._peak = 0.0
        self._block: list[np.ndarray] = []
        self._held = 0
        self._sinks = [_Sink(rate, int(request.get("rate") or rate), declared or 0.0) for request in requests]

    def add(self, samples: np.ndarray) -> None:
        """Take (channels, n) samples: uint8, int16, int32, or floats. Raises ``too_large`` and ``non_finite``."""
        count = samples.shape[1]
        self.heard += count
        if self.heard > self._most:
            raise _too_long(self.heard / self.rate, self._limits)
        if self._block and (len(self._block[0]) != len(samples) or self._block[0].dtype != samples.dtype):
            self._pass_on(last=False)
        self._block.append(samples)
        self._held += count
        if self._held >= _BLOCK:
            self._pass_on(last=False)

    def finish(self, detail: dict[str, Scalar]) -> list[AudioMedia]:
        """The results, with ``detail`` beside what is known here."""
        self._pass_on(last=True)
        flags = (("clipped",) if self._peak > _OVER else ()) + (("silent",) if self._peak < SILENCE else ())
        detail = {"source_rate": self.rate, "duration_s": self.heard / self.rate, **detail}
        return [AudioMedia(sink.finish(self.heard), sink.rate, flags, dict(detail)) for sink in self._sinks]

    def _pass_on(self, *, last: bool) -> None:
        block = mix(self._block) if self._block else np.empty(0, np.float32)
        self._block, self._held = [], 0
        if len(block):
            low, high = float(block.min()), float(block.max())
            if not (low > -_ABSURD and high < _ABSURD):  # NaN too
                raise GenmeterError(
                    "non_finite",
                    f"the audio holds NaN, infinity or samples beyond {_ABSURD:g} times full scale",
                    "write it from samples in [-1, 1]",
                )
            self._peak = max(self._peak, high, -low)
        for sink in self._sinks:
            sink.add(block, last)


class _Sink:
    """The samples of one request: resampled piece by piece into one array that grows in place."""

    def __init__(self, source: int, rate: int, declared: float) -> None:
        self.source, self.rate = source, rate
        self._first = np.float32(0)
        self._count = 0
        self._values = np.empty(int(min(declared, 86_400.0) * rate) + _BLOCK, np.float32)
        self._stream: Any = None
        if rate != source:
            import soxr

            self._stream = soxr.ResampleStream(source, rate, 1, dtype="float32", quality="HQ")

    def add(self, samples: np.ndarray, last: bool) -> None:
        if not self._count and len(samples):
            self._first = samples[0]
        if self._stream is not None:
            samples = self._stream.resample_chunk(samples, last=last)
        end = self._count + len(samples)
        if end > len(self._values):
            # In place where the system can: a copy would double the memory of a long file.
            self._values.resize(end + end // 8 + _BLOCK, refcheck=False)
        np.clip(samples, -1.0, 1.0, out=self._values[self._count : end])
        self._count = end

    def finish(self, heard: int) -> np.ndarray:
        wanted = resampled_length(heard, self.source, self.rate)
        if self._count < wanted:  # soxr gives nothing at all for a sample or two at a much higher rate
            self._values[self._count : wanted] = 0.0 if self._count else np.clip(self._first, -1.0, 1.0)
        if len(self._values) - wanted > 2 * _BLOCK:  # shrinking is a copy in some versions of numpy
            self._values.resize(wanted, refcheck=False)
        return self._values[:wanted]


def resampled_length(samples: int, source: int, rate: int) -> int:
    """How many samples there are after resampling: ``samples * rate / source``, rounded half up, at least 1."""
    return max(1, (2 * samples * rate + source) // (2 * source))


@functools.cache
def version() -> str:
    """What turns bytes into samples: this module's version, PyAV, FFmpeg's libraries and soxr."""
    try:
        import soxr
    except ImportError:
        return f"audio-{VERSION}+{ffmpeg.versions()}+no-soxr"
    return f"audio-{VERSION}+{ffmpeg.versions()}+soxr-{soxr.__version__}+libsoxr-{soxr.__libsoxr_version__}"
