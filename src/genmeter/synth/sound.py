"""Sounds to samples, with numpy alone. Waves hold only harmonics below half the rate, so that nothing aliases."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from genmeter.synth.sound_scene import Event, SoundScene

# Hz. Ranges of one kind leave gaps, so that a word is never a matter of taste.
_TONES = {"low": (90.0, 180.0), "medium": (380.0, 700.0), "high": (1500.0, 2800.0)}
_ROOTS = {"low": (196.0, 294.0), "medium": (440.0, 660.0), "high": (990.0, 1480.0)}
_BANDS = {"low": (120.0, 200.0), "medium": (700.0, 1200.0), "high": (4200.0, 6500.0)}
_SEMITONES = {"major": (0, 4, 7), "minor": (0, 3, 7)}
_SWEEP_FROM, _SWEEP_TO = (150.0, 300.0), (1600.0, 3200.0)
# Seconds between fast sweeps, and between beats.
_SWEEP_PERIOD = (0.3, 0.45)
_BEAT_PERIOD = {"slow": (0.55, 0.75), "fast": (0.18, 0.26)}
_TREMOLO = (5.0, 7.0)  # Hz
_DECAY = (0.16, 0.3)  # seconds in which a plucked sound falls to 1/e
_HIGHEST = 14_000.0
_TABLE = 4096
_EDGE = 0.004  # seconds over which every event comes and goes, so that it does not click


class _Task(NamedTuple):
    """One event to render: ``n`` samples at ``rate`` Hz."""

    event: Event
    n: int
    rate: int
    rng: np.random.Generator

    @property
    def time(self) -> np.ndarray:
        return np.arange(self.n) / self.rate


def render(scene: SoundScene, rate: int = 48_000, seconds: float = 4.0) -> np.ndarray:
    """Render a sound.

    The same scene at another rate is the same sound, but for noise, which is drawn anew.

    Args:
        scene: What to render; no field of an event left open.
        rate: Samples a second, at least 8,000. What lies above half of it is left out.
        seconds: Length, at least 1. Two events take about half of it each.

    Returns:
        (round(rate * seconds),) float32, mono, with a peak between 0.3 and 0.9.

    Raises:
        ValueError: For a rate or a length below that.
    """
    if rate < 8000:
        raise ValueError(f"a sound needs a rate of at least 8000 Hz, not {rate}")
    if not seconds >= 1:
        raise ValueError(f"a sound needs at least 1 second, not {seconds}")
    rng = np.random.default_rng([scene.seed, 7])
    n = round(rate * seconds)
    samples = np.zeros(n)
    # Drawn in any case, so that an event sounds alike alone and in company.
    part, gap, level = rng.uniform(0.44, 0.56), rng.uniform(0.05, 0.12), rng.uniform(0.3, 0.9)
    spans = [(0, n)]
    if len(scene.events) == 2:
        spans = [(0, round(n * part - gap * rate / 2)), (round(n * part + gap * rate / 2), n)]
    for i, (event, (start, end)) in enumerate(zip(scene.events, spans, strict=True)):
        task = _Task(event, end - start, rate, np.random.default_rng([scene.seed, 8, i]))
        body = _KINDS[event.kind](task)
        body *= _edges(task)
        if event.kind != "rhythm":
            body *= _envelope(task)
        # Events of one sound are equally loud at their loudest.
        samples[start:end] = body / max(float(np.abs(body).max()), 1e-9)
    return (samples * level).astype(np.float32)


def _edges(task: _Task) -> np.ndarray:
    edge = min(round(_EDGE * task.rate), task.n // 2)
    gain = np.ones(task.n)
    ramp = (np.arange(edge) + 0.5) / edge
    gain[:edge], gain[task.n - edge :] = ramp, ramp[::-1]
    return gain


def _envelope(task: _Task) -> np.ndarray:
    """Gain (n,) in [0, 1]. Fades go with the square of time, since loudness goes with the logarithm of gain."""
    time, rng = task.time, task.rng
    part = time * task.rate / task.n
    gain: np.ndarray
    if task.event.envelope == "fade in":
        gain = part**2
    elif task.event.envelope == "fade out":
        gain = (1 - part) ** 2
    elif task.event.envelope == "plucked":
        gain = np.exp(-time / rng.uniform(*_DECAY))
    elif task.event.envelope == "tremolo":
        gain = 0.55 - 0.45 * np.cos(2 * math.pi * rng.uniform(*_TREMOLO) * time)
    else:
        gain = np.ones(task.n)
    return gain


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    """A frequency or duration between two others, even in its logarithm."""
    return float(low * (high / low) ** rng.uniform())


def _wave(voice: str, phase: np.ndarray, highest: float, rate: int) -> np.ndarray:
    """One wave form of unit power at ``phase`` (in turns), which never goes above ``highest`` turns a second."""
    count = max(1, int(min(_HIGHEST, 0.47 * rate) / highest))
    k = np.arange(1, count + 1)
    odd = k % 2 == 1
    strength = {
        "sine": np.where(k == 1, 1.0, 0.0),
        "square": np.where(odd, 1.0 / k, 0.0),
        "sawtooth": 1.0 / k,
        "triangle": np.where(odd, (-1.0) ** (k // 2) / k**2, 0.0),
    }[voice]
    spectrum = np.zeros(_TABLE // 2 + 1, dtype=complex)
    spectrum[1 : 1 + min(count, _TABLE // 2 - 1)] = -1j * strength[: _TABLE // 2 - 1]
    table = np.fft.irfft(spectrum) * _TABLE / 2 / math.sqrt(float((strength**2).sum()))
    at = np.mod(phase, 1.0) * _TABLE
    index = np.minimum(at.astype(np.int64), _TABLE - 1)
    table = np.append(table, table[0])
    value: np.ndarray = table[index] + (table[index + 1] - table[index]) * (at - index)
    return value


def _tone(task: _Task) -> np.ndarray:
    frequency = _between(task.rng, *_TONES[task.event.pitch])
    return _wave(task.event.voice, frequency * task.time + task.rng.uniform(), frequency, task.rate)


def _chord(task: _Task) -> np.ndarray:
    root = _between(task.rng, *_ROOTS[task.event.pitch])
    notes = [root * 2 ** (step / 12) for step in _SEMITONES[task.event.form]]
    time = task.time
    parts = [_wave(task.event.voice, note * time + task.rng.uniform(), note, task.rate) for note in notes]
    chord: np.ndarray = np.sum(parts, axis=0)
    return chord


def _sweep(task: _Task) -> np.ndarray:
    """Equal times for equal intervals, from low to high or back."""
    low, high = _between(task.rng, *_SWEEP_FROM), _between(task.rng, *_SWEEP_TO)
    period = _between(task.rng, *_SWEEP_PERIOD)
    if task.event.pace == "slow":
        period = task.n / task.rate
    part = np.mod(task.time / period, 1.0)
    if task.event.form == "falling":
        part = 1 - part
    phase = np.cumsum(low * (high / low) ** part) / task.rate + task.rng.uniform()
    return _wave(task.event.voice, phase, high, task.rate)


def _shaped(n: int, rate: int, rng: np.random.Generator, shape: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """(n,) Gaussian noise whose spectrum has the magnitude ``shape(frequency in Hz)``."""
    length = 1 << max(n - 1, 1).bit_length()
    frequency = np.arange(length // 2 + 1) * (rate / length)
    gain = shape(np.maximum(frequency, rate / length))
    # As float32 on both sides: half the random bits, and quite enough of them.
    draws = rng.standard_normal((2, length // 2 + 1), dtype=np.float32)
    spectrum = (draws[0] + 1j * draws[1]) * gain
    spectrum[0] = 0
    noise: np.ndarray = np.fft.irfft(spectrum, length)[:n]
    return noise / math.sqrt(float(np.mean(noise**2)) + 1e-30)


def _noise(task: _Task) -> np.ndarray:
    """Power even over frequency (white), falling with it (pink) or with its square (brown), from 20 Hz on."""
    slope = {"white": 0.0, "pink": 0.5, "brown": 1.0}[task.event.voice]
    return _shaped(task.n, task.rate, task.rng, lambda f: np.where(f < 20, 0.0, f**-slope))


def _band(task: _Task) -> np.ndarray:
    """Noise about one frequency, a third of an octave to either side, falling steeply beyond."""
    centre = _between(task.rng, *_BANDS[task.event.pitch])
    top = min(centre, 0.35 * task.rate)
    return _shaped(task.n, task.rate, task.rng, lambda f: np.exp(-0.5 * (np.log2(f / top) / 0.3) ** 2))


def _rhythm(task: _Task) -> np.ndarray:
    """Equal beats; the envelope sets how loud each one is, from first to last."""
    period = _between(task.rng, *_BEAT_PERIOD[task.event.pace])
    beat = _BEATS[task.event.voice](task)
    starts = np.arange(0.02, task.n / task.rate - 0.05, period)
    part = np.arange(len(starts)) / max(len(starts) - 1, 1)
    loud = {"steady": np.ones_like(part), "fade in": 0.06 + 0.94 * part**2, "fade out": 0.06 + 0.94 * (1 - part) ** 2}
    samples = np.zeros(task.n)
    for start, gain in zip(starts, loud[task.event.envelope], strict=True):
        at = round(start * task.rate)
        piece = beat[: task.n - at]
        samples[at : at + len(piece)] += gain * piece
    return samples


def _click(task: _Task) -> np.ndarray:
    """A wooden click: a short ring between 1 and 2 kHz."""
    time = np.arange(round(0.05 * task.rate)) / task.rate
    click: np.ndarray = np.sin(2 * math.pi * _between(task.rng, 1100, 2000) * time) * np.exp(-time / 0.006)
    return click


def _drum(task: _Task) -> np.ndarray:
    """A drum: a low ring that falls in pitch."""
    time = np.arange(round(0.3 * task.rate)) / task.rate
    low = _between(task.rng, 55, 80)
    turns = low * time + 1.6 * low * 0.03 * (1 - np.exp(-time / 0.03))
    drum: np.ndarray = np.sin(2 * math.pi * turns) * np.exp(-time / 0.05)
    return drum


def _shaker(task: _Task) -> np.ndarray:
    """A shaker: a short hiss of the upper frequencies."""
    n = round(0.15 * task.rate)
    edge = min(5000.0, 0.25 * task.rate)
    hiss = _shaped(n, task.rate, task.rng, lambda f: 1 / (1 + (edge / f) ** 6))
    time = np.arange(n) / task.rate
    shaker: np.ndarray = hiss * np.minimum(time / 0.008, 1) * np.exp(-time / 0.03)
    return shaker


_BEATS: dict[str, Callable[[_Task], np.ndarray]] = {"click": _click, "drum": _drum, "shaker": _shaker}
_KINDS: dict[str, Callable[[_Task], np.ndarray]] = {
    "tone": _tone,
    "chord": _chord,
    "sweep": _sweep,
    "noise": _noise,
    "band": _band,
    "rhythm": _rhythm,
}
