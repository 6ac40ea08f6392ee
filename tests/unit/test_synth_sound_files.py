"""WAV files and damage to sounds: of the stated form, kind and strength."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from genmeter.synth.degrade_sound import DEGRADATIONS, degrade_sound
from genmeter.synth.sound import render
from genmeter.synth.sound_scene import Event, SoundScene, make_sound
from genmeter.synth.wav import read_wav, write_wav

RATE = 16_000


@pytest.fixture(scope="module")
def sound() -> np.ndarray:
    return render(SoundScene((Event("tone", "sawtooth", "", "medium", "", "steady"),), 1), RATE, 2.0)


def test_a_file_holds_the_rounded_samples(tmp_path: Path) -> None:
    samples = np.array([0, 1, -1, 0.5, 1.7, -3.0, 0.4 / 32767, 0.6 / 32767], np.float32)
    write_wav(tmp_path / "a.wav", samples, 22_050)
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert file.getparams()[:4] == (1, 2, 22_050, 8)
        data = np.frombuffer(file.readframes(8), "<i2")
    assert data.tolist() == [0, 32767, -32767, 16384, 32767, -32767, 0, 1]


@pytest.mark.parametrize("channels", [1, 2, 6])
def test_a_file_comes_back(tmp_path: Path, channels: int) -> None:
    samples = np.stack([render(make_sound(i), 8000, 1.0) for i in range(channels)], axis=1)
    write_wav(tmp_path / "a.wav", samples if channels > 1 else samples[:, 0], 8000)
    found, rate = read_wav(tmp_path / "a.wav")
    assert (rate, found.shape, found.dtype) == (8000, samples.shape, np.dtype(np.float32))
    assert np.abs(found - samples).max() <= 0.5 / 32767 + 1e-7


def test_equal_samples_are_equal_files(tmp_path: Path, sound: np.ndarray) -> None:
    for name in ("a.wav", "b.wav"):
        write_wav(tmp_path / name, sound, RATE)
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()


def test_what_is_no_sound_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="NaN"):
        write_wav(tmp_path / "a.wav", np.array([0.0, np.nan]), RATE)
    with pytest.raises(ValueError, match=r"\(2, 2, 2\)"):
        write_wav(tmp_path / "a.wav", np.zeros((2, 2, 2)), RATE)
    with wave.open(str(tmp_path / "b.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(8000)
        file.writeframes(b"\x80")
    with pytest.raises(ValueError, match="8 bits"):
        read_wav(tmp_path / "b.wav")


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DEGRADATIONS)
def test_more_strength_is_more_damage(kind: str, sound: np.ndarray) -> None:
    damage = [float(np.abs(degrade_sound(sound, RATE, kind, s) - sound).mean()) for s in (0, 0.2, 0.4, 0.7, 1)]
    assert damage[0] == 0
    assert damage == sorted(damage)
    assert damage[1] > 0
    assert damage[4] > 1.2 * damage[2]


@pytest.mark.parametrize("kind", DEGRADATIONS)
@pytest.mark.parametrize("n", [1, 777, 16_001])
def test_shape_and_input_are_kept(kind: str, n: int, sound: np.ndarray) -> None:
    samples = sound[:n]
    before = samples.copy()
    for strength in (0, 0.3, 1):
        found = degrade_sound(samples, RATE, kind, strength)
        assert (found.shape, found.dtype) == (samples.shape, np.dtype(np.float32))
        assert np.isfinite(found).all()
        assert np.abs(found).max() <= 1
        assert not np.shares_memory(found, samples)
    assert np.array_equal(samples, before)


def test_noise_is_as_loud_as_stated_and_follows_its_seed() -> None:
    tone = 0.1 * np.sin(np.arange(64_000) * 0.3).astype(np.float32)
    for strength, ratio in ((1.0, 0), (0.5, 30), (0.1, 54)):
        noise = degrade_sound(tone, RATE, "noise", strength) - tone
        assert 20 * np.log10(tone.std() / noise.std()) == pytest.approx(ratio, abs=0.2)
    one, same, other = (degrade_sound(tone, RATE, "noise", 0.5, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_clipping_cuts_at_full_scale() -> None:
    tone = 0.5 * np.sin(np.arange(64_000) * 0.3).astype(np.float32)
    found = degrade_sound(tone, RATE, "clipping", 1.0)
    gain = 10 ** (36 / 20)
    assert found == pytest.approx(np.clip(tone * gain, -1, 1), abs=1e-6)
    assert (np.abs(found) == 1).mean() == pytest.approx(1 - 2 / np.pi * np.arcsin(2 / gain), abs=0.01)


def test_lowpass_takes_what_lies_above() -> None:
    noise = 0.1 * np.random.default_rng(0).standard_normal(64_000).astype(np.float32)
    frequency = np.fft.rfftfreq(len(noise), 1 / RATE)
    for strength, edge in ((1.0, 400.0), (0.5, np.sqrt(400 * 8000))):
        gain = np.abs(np.fft.rfft(degrade_sound(noise, RATE, "lowpass", strength))) / np.abs(np.fft.rfft(noise))
        assert gain[(frequency > 10) & (frequency < edge / 2)].min() > 0.99
        assert gain[frequency > 2 * edge].max() < 0.01


def test_dropouts_silence_a_part_of_the_time(sound: np.ndarray) -> None:
    for strength in (1.0, 0.5):
        found = degrade_sound(sound, RATE, "dropouts", strength)
        assert (found == 0).mean() == pytest.approx(0.7 * strength, abs=0.02)
        assert np.array_equal(found[found != 0], sound[found != 0])


def test_usage_errors(sound: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"'wow'.*noise"):
        degrade_sound(sound, RATE, "wow", 0.5)
    for strength in (-0.1, 1.1):
        with pytest.raises(ValueError, match="strength"):
            degrade_sound(sound, RATE, "noise", strength)
