"""What CLAP hears of a clip: windows, quantizing, level, flags; and the front end on closed forms."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import clap_nets
import numpy as np
import pytest

from genmeter.contract import AudioMedia, ImageMedia, Prepared
from genmeter.encoders.clap import ClapEncoder, preprocessing
from genmeter.encoders.clap.mel import LogMel, MelRecipe, filterbank
from genmeter.encoders.clap.windows import LEAST, RATE, SAMPLES, fill, quantize, windows
from genmeter.errors import GenmeterError

HOW = preprocessing.recipe(clap_nets.entry())
FUSED = preprocessing.recipe(clap_nets.entry(fusion=True))


def audio(count: int, *, flags: tuple[str, ...] = (), **detail: Any) -> AudioMedia:
    """A ramp, so that a sample's value tells where it stood."""
    samples = (np.arange(count) % 30_000 + 1).astype(np.float32) / np.float32(32767)
    return AudioMedia(samples, RATE, flags, detail)


def whole(count: int) -> np.ndarray:
    return quantize(audio(count).samples)


def prepare(media: Any, how: preprocessing.Recipe = HOW, **view: Any) -> Prepared:
    return preprocessing.prepare(media, view, how, "clap-test")


# --- windows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "seconds"),
    [
        (1, [1 / RATE]),
        (240, [0.005]),
        (SAMPLES - 1, [(SAMPLES - 1) / RATE]),
        (SAMPLES, [10.0]),
        (SAMPLES + 1, [10.0]),
        (SAMPLES + LEAST - 1, [10.0]),
        (SAMPLES + LEAST, [10.0, 1.0]),
        (2 * SAMPLES, [10.0, 10.0]),
        (2 * SAMPLES + 120_000, [10.0, 10.0, 2.5]),
        (3 * SAMPLES - 1, [10.0, 10.0, (SAMPLES - 1) / RATE]),
    ],
)
def test_windows_cover_the_clip_from_the_start(count: int, seconds: list[float]) -> None:
    found = windows(audio(count))
    assert found.samples.shape == (len(seconds), SAMPLES)
    assert found.samples.dtype == np.int16
    assert found.seconds.dtype == np.float32
    assert found.seconds == pytest.approx(seconds, rel=1e-6)
    heard = whole(count)
    for index, row in enumerate(found.samples):
        piece = heard[index * SAMPLES : (index + 1) * SAMPLES]
        length = round(float(seconds[index]) * RATE)
        assert np.array_equal(row[:length], piece[:length])


@pytest.mark.parametrize("count", [1, 7, 239_999, 240_000, 240_001, 48_000, 479_999])
def test_a_short_clip_is_repeated_whole_and_then_silent(count: int) -> None:
    [row] = windows(audio(count)).samples
    times = SAMPLES // count
    assert np.array_equal(row[: times * count], np.tile(whole(count), times))
    assert not row[times * count :].any()


def test_a_last_piece_is_filled_like_a_short_clip() -> None:
    row = windows(audio(SAMPLES + 100_000)).samples[1]
    expected = np.zeros(SAMPLES, np.int16)
    fill(whole(SAMPLES + 100_000)[SAMPLES:], expected)
    assert np.array_equal(row, expected)
    assert np.count_nonzero(row) == 400_000


def test_quantizing_clips_and_cuts_towards_zero() -> None:
    values = np.array([0, 1, -1, 1.5, -7, 0.99999, -0.99999, 1.4 / 32767, -1.6 / 32767, 0.5], np.float32)
    assert quantize(values).tolist() == [0, 32767, -32767, 32767, -32767, 32766, -32766, 1, -1, 16383]
    assert quantize(values.astype(np.float64)).tolist() == quantize(values).tolist()


# --- what prepared audio carries ---------------------------------------------------------------------------------


def test_detail_weights_and_flags() -> None:
    found = prepare(audio(SAMPLES + 120_000, flags=("clipped",), source_rate=44100, codec="pcm"))
    assert found.weights.tolist() == [10.0, 2.5]
    assert found.detail == {"seconds": 12.5, "windows": 2, "source_rate": 44100}
    assert found.flags == ("clipped",)
    assert found.bucket == "<i2(480000,)"


@pytest.mark.parametrize(
    ("rate", "flagged"), [(8000, True), (11025, True), (15999, True), (16000, False), (22050, False), (48000, False)]
)
def test_a_low_source_rate_is_flagged(rate: int, flagged: bool) -> None:
    assert ("band_limited" in prepare(audio(100, source_rate=rate)).flags) is flagged


def test_silence_is_flagged_once_whoever_notices() -> None:
    for level in (0.0, 1e-6, 0.9 / 32767):
        assert prepare(AudioMedia(np.full(9000, level, np.float32), RATE)).flags == ("silent",)
    assert prepare(AudioMedia(np.zeros(9000, np.float32), RATE, ("silent",))).flags == ("silent",)
    assert prepare(AudioMedia(np.full(9000, 1.1 / 32767, np.float32), RATE)).flags == ()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("view", [{}, {"level": "peak-1db"}])
def test_samples_that_are_no_numbers_are_refused(bad: float, view: dict[str, Any]) -> None:
    samples = np.zeros(1000, np.float32)
    samples[77] = bad
    with pytest.raises(GenmeterError) as caught:
        prepare(AudioMedia(samples, RATE), **view)
    assert caught.value.code == "non_finite"


@pytest.mark.parametrize(
    ("media", "code"),
    [
        (AudioMedia(np.zeros(0, np.float32), RATE), "empty_media"),
        (AudioMedia(np.zeros(16000, np.float32), 16000), "unsupported_media"),
        (AudioMedia(np.zeros(48000, np.float32), 44100), "unsupported_media"),
        (ImageMedia(np.zeros((4, 4, 3), np.uint8)), "unsupported_media"),
    ],
)
def test_what_cannot_be_heard_is_refused(media: Any, code: str) -> None:
    """Case B16: samples of another rate give a plausible wrong score everywhere else."""
    with pytest.raises(GenmeterError) as caught:
        prepare(media)
    assert caught.value.code == code


def test_level_puts_the_peak_at_minus_one_decibel() -> None:
    samples = 0.01 * np.sin(np.arange(9000) / 9).astype(np.float32)
    for gain in (1.0, 0.003, 900.0):
        found = prepare(AudioMedia((gain * samples).astype(np.float32), RATE), level="peak-1db").arrays[0]
        assert np.abs(found).max() == int(32767 * 10 ** (-1 / 20))
    assert np.abs(prepare(AudioMedia(samples, RATE)).arrays[0]).max() == int(32767 * 0.01)
    assert prepare(AudioMedia(np.zeros(9000, np.float32), RATE), level="peak-1db").flags == ("silent",)


def test_a_long_clip_is_handed_over_whole_for_fusion_alone() -> None:
    long, short = audio(SAMPLES + 1), audio(SAMPLES)
    assert prepare(long, FUSED).arrays[0].shape == (1, SAMPLES)
    found = prepare(long, FUSED, long="fusion")
    assert found.arrays[0].shape == (1, SAMPLES + 1)
    assert found.weights == pytest.approx([(SAMPLES + 1) / RATE])
    for media in (short, audio(400)):
        assert np.array_equal(prepare(media, FUSED, long="fusion").arrays[0], prepare(media, FUSED).arrays[0])
    with pytest.raises(GenmeterError, match="without feature fusion") as caught:
        prepare(short, HOW, long="fusion")
    assert caught.value.code == "unknown_metric"
    with pytest.raises(GenmeterError, match="no view"):
        prepare(short, HOW, long="random")


def test_thirty_seconds_are_equal_every_time_and_in_every_process() -> None:
    """Case B14 as far as prepared samples go; NumPy's global generator is neither read nor moved."""
    script = (
        "import numpy as np, hashlib\n"
        "from genmeter.contract import AudioMedia\n"
        "from genmeter.encoders.clap.windows import windows\n"
        "t = np.arange(1440000)\n"
        "x = np.where(t < 480000, (t % 109 - 54) / 60, np.where(t < 960000, (t * 7919 % 1000 - 500) / 600, 0))\n"
        "before = np.random.get_state()[1].sum()\n"
        "found = {hashlib.sha256(windows(AudioMedia(x.astype('f4'), 48000)).samples).hexdigest() for _ in range(5)}\n"
        "assert np.random.get_state()[1].sum() == before\n"
        "[one] = found\n"
        "print(one)\n"
    )
    runs = {
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60).stdout
        for _ in range(2)
    }
    assert len(runs) == 1
    assert len(runs.pop().strip()) == 64


# --- models.lock must say everything -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("sample_rate", 44100, "48000"),
        ("window_samples", None, "480000"),
        ("n_fft", "1024", "a number"),
        ("fmax", None, "a number"),
        ("mel_scale", "mel", "slaney or htk"),
        ("fusion", "no", "true or false"),
    ],
)
def test_an_entry_that_leaves_something_unsaid_is_refused(key: str, value: Any, said: str) -> None:
    with pytest.raises(GenmeterError, match=said) as caught:
        preprocessing.recipe(clap_nets.entry(preprocessing={key: value}))
    assert caught.value.code == "weights_mismatch"
    assert f"preprocessing.{key}" in caught.value.message


def test_decoding_is_asked_for_48_kilohertz() -> None:
    encoder = ClapEncoder(clap_nets.entry(), lambda: pytest.fail("nothing may be fetched"))
    assert encoder.decoding({"long": "windows"}) == {"rate": 48000}


# --- the front end -----------------------------------------------------------------------------------------------


def test_filters_follow_their_formulas() -> None:
    """Edges in closed form: HTK's evenly spaced in 2595*log10(1+f/700), Slaney's linear up to 1 kHz and unit area."""
    htk = filterbank(MelRecipe(scale="htk", n_fft=1 << 16))
    step = 48000 / (1 << 16)
    mel = np.linspace(2595 * np.log10(1 + 50 / 700), 2595 * np.log10(1 + 14000 / 700), 66)
    centres = 700 * (10 ** (mel[1:-1] / 2595) - 1)
    assert np.abs(htk.argmax(axis=0) * step - centres).max() <= step
    assert htk.max(axis=0) == pytest.approx(np.ones(64), abs=0.02)
    slaney = filterbank(MelRecipe(n_fft=1 << 16))
    assert slaney.sum(axis=0) * step == pytest.approx(np.ones(64), abs=1e-3)
    # 50 Hz is mel 0.75; 14 kHz is 15 + 27*log(14)/log(6.4); the first bands are evenly spaced in Hz.
    width = (15 + 27 * np.log(14) / np.log(6.4) - 0.75) / 65 * 200 / 3
    assert slaney.argmax(axis=0)[:10] * step == pytest.approx(50 + width * np.arange(1, 11), abs=step)


@pytest.mark.parametrize("how", [{"low": -1.0}, {"low": 14000.0}, {"high": 24001.0}, {"scale": "bark"}])
def test_filters_that_cannot_be_are_refused(how: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"band edges|mel scale"):
        filterbank(MelRecipe(**how))


def test_power_of_a_tone_is_what_theory_says() -> None:
    """A full-scale cosine on a bin: amplitude n_fft/4 under a Hann window, half of it in each neighbour."""
    torch = pytest.importorskip("torch")
    how = MelRecipe()
    at = torch.arange(SAMPLES, dtype=torch.float64)
    bin_ = 40  # 1875 Hz
    wave = torch.cos(2 * torch.pi * bin_ * at / how.n_fft).float()[None]
    found = LogMel(how)(wave)[0, 500].double().numpy()
    power = np.zeros(513)
    power[bin_ - 1 : bin_ + 2] = (how.n_fft / 4) ** 2 * np.array([0.25, 1.0, 0.25])
    expected = 10 * np.log10(np.maximum(power @ filterbank(how), 1e-10))
    loud = expected > -50
    assert loud.sum() >= 2
    assert np.abs(found - expected)[loud].max() < 1e-4


def test_silence_is_minus_100_decibels_and_rows_do_not_matter_to_each_other() -> None:
    torch = pytest.importorskip("torch")
    front = LogMel()
    noise = torch.from_numpy(np.random.default_rng(0).normal(0, 0.1, (5, SAMPLES)).astype(np.float32))
    noise[2] = 0
    together = front(noise)
    assert (together[2] == -100).all()
    assert together.shape == (5, 1001, 64)
    assert together.dtype == torch.float32
    for row in range(5):
        assert torch.equal(front(noise[row : row + 1])[0], together[row])
    longer = LogMel(MelRecipe(hop=480))(torch.nn.functional.pad(noise, (0, 4800 * 480)))
    assert torch.equal(longer[:, :900], together[:, :900])


def test_importing_the_front_end_and_the_windows_needs_no_torch() -> None:
    code = (
        "import sys; from genmeter.encoders.clap import ClapEncoder; import genmeter.encoders.clap.mel, "
        "genmeter.encoders.clap.fusion; from genmeter.weights.lock import load_lock\n"
        "for e in load_lock().values():\n"
        "    if e.loader == 'clap': ClapEncoder(e, None)\n"
        "bad = {'torch', 'transformers', 'librosa', 'laion_clap'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
