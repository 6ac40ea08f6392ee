"""Sounds hold what their scenes say, measured from the samples alone."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest
from scipy import signal

from genmeter.synth.sound import render
from genmeter.synth.sound_scene import (
    BEATS,
    CHORDS,
    ENVELOPES,
    FIELDS,
    KINDS,
    NAMES,
    NOISES,
    PACES,
    PITCHES,
    WAVES,
    Event,
    SoundScene,
    make_change,
    make_sound,
)

RATE = 48_000
SEEDS = range(4)


def one(kind: str, seed: int = 0, rate: int = RATE, seconds: float = 4.0, **given: str) -> np.ndarray:
    """A single event; fields that are not given take their first word."""
    words = {name: given.get(name, options[0]) for name, options in FIELDS[kind].items()}
    return render(SoundScene((Event(kind, **words),), seed), rate, seconds).astype(float)


def spectrum(samples: np.ndarray, rate: int = RATE) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies, and magnitudes of the whole under a window whose far side lobes are below -90 dB."""
    window = signal.windows.blackmanharris(len(samples))
    # Four times as fine as the length gives: a peak between two bins would look smaller than it is.
    length = 1 << (2 * len(samples)).bit_length()
    return np.fft.rfftfreq(length, 1 / rate), np.abs(np.fft.rfft(samples * window, length))


def peak_near(frequency: np.ndarray, magnitude: np.ndarray, at: float) -> float:
    """The largest magnitude within 3 Hz."""
    return float(magnitude[np.abs(frequency - at) < 3].max())


def loudness(samples: np.ndarray, parts: int) -> np.ndarray:
    """RMS of equal parts."""
    n = len(samples) // parts * parts
    return np.sqrt((samples[:n].reshape(parts, -1) ** 2).mean(axis=1))


# --- tones ------------------------------------------------------------------------------------------------------------

RANGES = {"low": (90, 180), "medium": (380, 700), "high": (1500, 2800)}


@pytest.mark.parametrize("voice", WAVES)
@pytest.mark.parametrize("pitch", PITCHES)
def test_tones_have_their_pitch(voice: str, pitch: str) -> None:
    for seed in SEEDS:
        frequency, magnitude = spectrum(one("tone", seed, voice=voice, pitch=pitch))
        low, high = RANGES[pitch]
        assert low - 1 < frequency[magnitude.argmax()] < high + 1


# Strength of the second, third and fifth harmonic against the first.
HARMONICS = {
    "sine": (0, 0, 0),
    "square": (0, 1 / 3, 1 / 5),
    "sawtooth": (1 / 2, 1 / 3, 1 / 5),
    "triangle": (0, 1 / 9, 1 / 25),
}


@pytest.mark.parametrize("voice", WAVES)
@pytest.mark.parametrize("pitch", PITCHES)
def test_waves_have_their_harmonics(voice: str, pitch: str) -> None:
    frequency, magnitude = spectrum(one("tone", voice=voice, pitch=pitch, seconds=6.0))
    root = frequency[magnitude.argmax()]
    for number, expected in zip((2, 3, 5), HARMONICS[voice], strict=True):
        if number * root < 13_500:
            assert peak_near(frequency, magnitude, number * root) / magnitude.max() == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 48_000])
@pytest.mark.parametrize("voice", WAVES)
def test_nothing_aliases(rate: int, voice: str) -> None:
    frequency, magnitude = spectrum(one("tone", rate=rate, voice=voice, pitch="high", seconds=6.0), rate)
    root = frequency[magnitude.argmax()]
    between = np.abs(frequency / root - np.rint(frequency / root)) * root > 6
    assert magnitude[between].max() < 1e-3 * magnitude.max()


@pytest.mark.parametrize("pitch", PITCHES)
@pytest.mark.parametrize("form", CHORDS)
def test_chords_have_their_notes(form: str, pitch: str) -> None:
    for seed in SEEDS:
        frequency, magnitude = spectrum(one("chord", seed, form=form, pitch=pitch, seconds=6.0))
        found, _ = signal.find_peaks(magnitude, height=0.3 * magnitude.max(), distance=20)
        notes = frequency[found]
        assert len(notes) == 3
        steps = 12 * np.log2(notes / notes[0])
        assert steps == pytest.approx([0, 4 if form == "major" else 3, 7], abs=0.05)


# --- what moves -------------------------------------------------------------------------------------------------------


def course(samples: np.ndarray) -> np.ndarray:
    """The strongest frequency of each 40 ms."""
    frequency, _, power = signal.spectrogram(samples, RATE, nperseg=1920, noverlap=0, nfft=8192)
    return frequency[power.argmax(axis=0)]


@pytest.mark.parametrize("voice", WAVES)
@pytest.mark.parametrize("form", ["rising", "falling"])
def test_slow_sweeps_go_once_and_fast_ones_many_times(voice: str, form: str) -> None:
    sign = 1 if form == "rising" else -1
    for seed in SEEDS:
        slow = course(one("sweep", seed, voice=voice, form=form, pace="slow"))
        steps = sign * np.diff(np.log2(slow))[3:-3]
        assert (steps > -0.02).all()
        assert abs(np.log2(slow[2] / slow[-3])) > 2
        fast = course(one("sweep", seed, voice=voice, form=form, pace="fast"))
        jumps = int((sign * np.diff(np.log2(fast)) < -1).sum())
        assert 4 / 0.46 - 2 <= jumps <= 4 / 0.29


@pytest.mark.parametrize("voice", NOISES)
def test_noises_have_their_slope(voice: str) -> None:
    frequency, power = signal.welch(one("noise", voice=voice, seconds=10.0), RATE, nperseg=8192)
    used = (frequency > 100) & (frequency < 12_000)
    slope = np.polyfit(np.log10(frequency[used]), np.log10(power[used]), 1)[0]
    assert slope == pytest.approx({"white": 0, "pink": -1, "brown": -2}[voice], abs=0.1)


def test_bands_are_narrow_and_have_their_pitch() -> None:
    centres = {}
    for pitch, seed in itertools.product(PITCHES, SEEDS):
        frequency, power = signal.welch(one("band", seed, pitch=pitch), RATE, nperseg=16384)
        total = np.cumsum(power) / power.sum()
        low, centre, high = (frequency[np.searchsorted(total, part)] for part in (0.1, 0.5, 0.9))
        assert high / low < 2.2
        centres.setdefault(pitch, []).append(centre)
    assert max(centres["low"]) * 2 < min(centres["medium"])
    assert max(centres["medium"]) * 2 < min(centres["high"])


def onsets(samples: np.ndarray) -> np.ndarray:
    """Seconds at which the loudness of 10 ms jumps up."""
    level = loudness(samples, len(samples) // 480)
    peaks, _ = signal.find_peaks(np.concatenate([[0], level]), height=0.25 * level.max(), distance=8)
    return peaks * 0.01


@pytest.mark.parametrize("voice", BEATS)
@pytest.mark.parametrize("pace", PACES)
def test_rhythms_have_their_tempo(voice: str, pace: str) -> None:
    for seed in SEEDS:
        between = np.diff(onsets(one("rhythm", seed, voice=voice, pace=pace)))
        low, high = {"slow": (0.55, 0.75), "fast": (0.18, 0.26)}[pace]
        assert low - 0.02 < np.median(between) < high + 0.02
        assert np.ptp(between) <= 0.04


def test_beats_sound_unlike_each_other() -> None:
    medians = {}
    for voice, seed in itertools.product(BEATS, SEEDS):
        frequency, power = signal.welch(one("rhythm", seed, voice=voice), RATE, nperseg=4096)
        medians.setdefault(voice, []).append(frequency[np.searchsorted(np.cumsum(power), power.sum() / 2)])
    assert max(medians["drum"]) < 200
    assert 900 < min(medians["click"]) < max(medians["click"]) < 2200
    assert min(medians["shaker"]) > 4000


@pytest.mark.parametrize("kind", KINDS)
def test_loudness_follows_the_envelope(kind: str) -> None:
    for envelope, seed in itertools.product(FIELDS[kind]["envelope"], SEEDS):
        # Slow rhythms have too few beats for parts.
        level = loudness(one(kind, seed, 16_000, 6.0, envelope=envelope, pace="fast"), 6)
        if envelope == "fade in":
            assert (np.diff(level) > 0).all()
            assert level[-1] > 8 * level[0]
        elif envelope == "fade out":
            assert (np.diff(level) < 0).all()
            assert level[0] > 8 * level[-1]
        elif envelope == "plucked":
            assert level[0] > 20 * level[1] > 0
        else:
            assert level.max() < 1.4 * level.min()
        if envelope == "tremolo":
            fine = loudness(one(kind, seed, 16_000, envelope=envelope), 200)
            turns, _ = signal.find_peaks(fine, distance=5, prominence=0.3 * fine.max())
            assert 4 * 4.5 <= len(turns) <= 4 * 7.5


# --- scenes -----------------------------------------------------------------------------------------------------------


def test_two_events_come_one_after_the_other() -> None:
    low, high = Event("tone", "sine", "", "low", "", "steady"), Event("tone", "sine", "", "high", "", "steady")
    for seed, (first, second) in itertools.product(SEEDS, ((low, high), (high, low))):
        samples = render(SoundScene((first, second), seed), RATE, 4.0).astype(float)
        halves = [spectrum(part) for part in (samples[: RATE * 3 // 2], samples[-RATE * 3 // 2 :])]
        found = [frequency[magnitude.argmax()] for frequency, magnitude in halves]
        assert (found[0] < found[1]) == (first is low)
        quiet = np.flatnonzero(loudness(samples, 400) == 0)
        assert len(quiet) >= 3
        assert 150 < quiet.min() < quiet.max() < 250


def test_every_word_is_used_evenly() -> None:
    scenes = [make_sound(seed) for seed in range(2000)]
    assert 900 < sum(len(scene.events) == 2 for scene in scenes) < 1100
    events = [event for scene in scenes for event in scene.events]
    assert set(Counter(event.kind for event in events)) == set(KINDS)
    for kind, name in ((kind, name) for kind in KINDS for name in NAMES):
        words = FIELDS[kind].get(name, ("",))
        seen = Counter(getattr(event, name) for event in events if event.kind == kind)
        assert set(seen) == set(words)
        assert min(seen.values()) > 0.6 * seen.total() / len(words)
    assert all(len({event.kind for event in scene.events}) == len(scene.events) for scene in scenes)


def test_a_seed_is_a_sound() -> None:
    assert make_sound(7) == make_sound(7)
    assert np.array_equal(render(make_sound(7)), render(make_sound(7)))
    assert len({render(make_sound(seed), 8000, 1.0).tobytes() for seed in range(100)}) == 100
    scene = next(scene for scene in map(make_sound, range(50)) if scene.events[0].kind == "tone")
    other = replace(scene, seed=scene.seed + 1000)
    assert not np.array_equal(render(scene), render(other))


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 44_100, 48_000, 96_000])
@pytest.mark.parametrize("seconds", [1.0, 2.5, 3.3333])
def test_any_rate_and_length(rate: int, seconds: float) -> None:
    for seed in range(15):
        samples = render(make_sound(seed), rate, seconds)
        assert samples.shape == (round(rate * seconds),)
        assert samples.dtype == np.float32
        assert 0.29 < np.abs(samples).max() < 0.91


def test_one_sound_at_two_rates_has_one_pitch() -> None:
    for seed in SEEDS:
        found = []
        for rate in (16_000, 48_000):
            frequency, magnitude = spectrum(one("tone", seed, rate=rate, pitch="medium"), rate)
            found.append(frequency[magnitude.argmax()])
        assert found[0] == pytest.approx(found[1], abs=0.2)


@pytest.mark.parametrize(
    ("rate", "seconds", "named"), [(7999, 2.0, "7999"), (8000, 0.9, "0.9"), (8000, float("nan"), "nan")]
)
def test_too_little_is_refused(rate: int, seconds: float, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        render(make_sound(0), rate, seconds)


@pytest.mark.parametrize("seed", range(40))
def test_a_change_is_one_change(seed: int) -> None:
    scene = make_sound(seed)
    after, change = make_change(scene, seed)
    assert after.seed == scene.seed
    if change.what == "order":
        assert after.events == scene.events[::-1]
        assert after != scene
        return
    assert getattr(after.events[change.event], change.what) == change.value
    for index, (old, new) in enumerate(zip(scene.events, after.events, strict=True)):
        differing = {f.name for f in fields(Event) if getattr(old, f.name) != getattr(new, f.name)}
        assert differing == ({change.what} if index == change.event else set())
    assert all(e.envelope in ENVELOPES for e in after.events)


def test_a_change_can_be_asked_for() -> None:
    tone = SoundScene((Event("tone", "sine", "", "low", "", "steady"),), 3)
    assert {make_change(tone, seed, "pitch")[0].events[0].pitch for seed in range(20)} == {"medium", "high"}
    for what in ("order", "form", "pace"):
        with pytest.raises(ValueError, match=what):
            make_change(tone, 0, what)
