"""CLAP against laion_clap itself, and its two network definitions against each other, on random weights.

The weights go the whole way: LAION's own model is saved as a training checkpoint, converted by the restricted reader,
and loaded by the encoder. The other side is that model with laion_clap's own functions on the same samples.
"""

from __future__ import annotations

import gc
import io
from pathlib import Path
from typing import Any

import clap_nets
import laion_reference
import numpy as np
import pytest

from genmeter.contract import AudioMedia
from genmeter.encoders.clap import ClapEncoder
from genmeter.encoders.clap.fusion import starts
from genmeter.encoders.clap.mel import LogMel, MelRecipe, filterbank, transform
from genmeter.encoders.clap.windows import SAMPLES, quantize, windows
from genmeter.weights.convert import convert
from genmeter.weights.lock import ModelEntry

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("one_torch_thread")
needs_laion = pytest.mark.skipif(laion_reference.folder() is None, reason="laion-clap is not installed")

TOLERANCE = 1e-5
# Of a clean synthetic tone most bands hold nothing but rounding. laion_clap takes its spectrum in float32, where that
# rounding is the Fourier library's; ours is taken in float64. So such sounds, and only they, differ by more.
CLEAN_TONES = ("tone of 440 Hz, 2 s", "tone of 1 kHz, 10 s", "sweep, 7 s")
TOLERANCE_CLEAN = 1e-3
CAPTIONS = (
    "a dog barks",
    "slow piano music, 12 bars of it, with café noise behind",
    "",
    "they're far away & it's late  ",
    "rain on a roof " * 40,
)


def sounds() -> dict[str, np.ndarray]:
    """Samples at 48 kHz up to 10 s, by what they are."""
    rng = np.random.default_rng(0)
    at = np.arange(SAMPLES) / 48000
    noise = rng.normal(0, 0.2, SAMPLES)
    found = {
        "noise, 10 s": noise,
        "noise, one sample less": noise[:-1],
        "noise, 3.3 s": noise[:158_400],
        "noise beyond full scale, 5 ms": 4 * noise[:240],
        "tone of 440 Hz, 2 s": 0.8 * np.sin(2 * np.pi * 440 * at[:96_000]),
        "tone of 1 kHz, 10 s": 0.5 * np.sin(2 * np.pi * 1000 * at),
        "sweep, 7 s": 0.3 * np.sin(2 * np.pi * (50 + 800 * at[:336_000]) * at[:336_000]),
        "chord in faint noise, 4 s": sum(0.2 * np.sin(2 * np.pi * f * at[:192_000]) for f in (220, 277, 330))
        + 1e-3 * noise[:192_000],
        "one sample": np.array([0.7]),
        "silence, 3 s": np.zeros(144_000),
    }
    return {name: value.astype(np.float32) for name, value in found.items()}


def agree(found: np.ndarray, expected: np.ndarray) -> None:
    """Row by row for the clips of :func:`sounds`."""
    for name, one, other in zip(sounds(), found, expected, strict=True):
        assert np.abs(one - other).max() <= (TOLERANCE_CLEAN if name in CLEAN_TONES else TOLERANCE), name


def media(samples: np.ndarray) -> AudioMedia:
    return AudioMedia(samples, 48000)


def theirs(made: Any, entry: ModelEntry, clips: list[np.ndarray]) -> np.ndarray:
    """Audio features of laion_clap, one clip at a time, as get_audio_embedding_from_data does with arrays."""
    laion = laion_reference.functions()
    mode = "fusion" if entry.preprocessing["fusion"] else "rand_trunc"
    found = []
    for clip in clips:
        wave = torch.from_numpy(laion.int16_to_float32(laion.float32_to_int16(clip))).float()
        config = laion_reference.audio_config(entry)
        features = laion.get_audio_features({}, wave, SAMPLES, mode, "repeatpad", config)
        with torch.inference_mode():
            found.append(made.get_audio_embedding([features]).numpy())
    return np.concatenate(found)


def through_a_checkpoint(made: Any, folder: Path) -> Path:
    """The model as LAION saved it, converted, as a weights file."""
    vocabulary, merges = clap_nets.tokenizer_files()
    path = laion_reference.checkpoint(made, folder / "weights.pt")
    with path.open("rb") as stream:
        parts = {"weights": stream, "vocab": io.BytesIO(vocabulary), "merges": io.BytesIO(merges)}
        tensors = convert("laion_clap", parts)
    return clap_nets.save(tensors, folder / "weights.safetensors", tokenizer=False)


def loaded(entry: ModelEntry, path: Path) -> ClapEncoder:
    encoder = ClapEncoder(entry, lambda: path)
    encoder.load("cpu", "exact")
    return encoder


def heard(encoder: ClapEncoder, clips: list[np.ndarray], view: Any = {}) -> np.ndarray:  # noqa: B006
    return np.concatenate([f.values for clip in clips for f in encoder.encode([encoder.prepare(media(clip), view)])])


def read(encoder: ClapEncoder, captions: tuple[str, ...]) -> np.ndarray:
    return np.concatenate([encoder.encode([encoder.prepare(c, {})])[0].values for c in captions])


def tokens_of_laion(captions: tuple[str, ...], tmp_path: Path) -> dict[str, Any]:
    """As laion_clap tokenizes: transformers' RobertaTokenizer, padded to 77."""
    found = roberta(tmp_path)(list(captions), padding="max_length", truncation=True, max_length=77, return_tensors="pt")
    return {key: found[key] for key in ("input_ids", "attention_mask")}


def roberta(folder: Path) -> Any:
    from transformers import RobertaTokenizer

    files = []
    for name, data in zip(("vocab.json", "merges.txt"), clap_nets.tokenizer_files(), strict=True):
        (folder / name).write_bytes(data)
        files.append(str(folder / name))
    try:
        return RobertaTokenizer(*files)  # up to transformers 4
    except TypeError:
        import json

        pairs = [tuple(line.split()) for line in Path(files[1]).read_text(encoding="utf-8").split("\n")[1:] if line]
        return RobertaTokenizer(vocab=json.loads(Path(files[0]).read_text(encoding="utf-8")), merges=pairs)


# --- the front end -----------------------------------------------------------------------------------------------


@needs_laion
@pytest.mark.parametrize("name", sounds())
def test_samples_are_quantized_and_filled_as_laion_clap_does(name: str) -> None:
    laion, samples = laion_reference.functions(), sounds()[name]
    rounded = laion.float32_to_int16(samples)
    assert np.array_equal(quantize(samples), rounded)
    wave = torch.from_numpy(laion.int16_to_float32(rounded)).float()
    config = laion_reference.audio_config(clap_nets.entry())
    expected = laion.get_audio_features({}, wave, SAMPLES, "rand_trunc", "repeatpad", config)
    found = windows(media(samples))
    assert found.samples.shape == (1, SAMPLES)
    assert found.seconds.tolist() == pytest.approx([len(samples) / 48000])
    ours = torch.from_numpy(found.samples).float().div_(32767.0)
    assert torch.equal(ours[0], expected["waveform"])


@needs_laion
def test_filters_and_transform_are_torchlibrosas() -> None:
    stft = pytest.importorskip("torchlibrosa.stft")
    real, imaginary, filters = transform(MelRecipe())
    layer = stft.STFT(n_fft=1024, hop_length=480, win_length=1024)
    mel = stft.LogmelFilterBank(sr=48000, n_fft=1024, n_mels=64, fmin=50, fmax=14000).melW
    assert np.abs(real - layer.conv_real.weight.numpy()).max() < 1e-6
    assert np.abs(imaginary - layer.conv_imag.weight.numpy()).max() < 1e-6
    assert np.abs(filters - mel.numpy()).max() < 1e-8


def test_htk_filters_are_torchaudios() -> None:
    torchaudio = pytest.importorskip("torchaudio")
    expected = torchaudio.functional.melscale_fbanks(513, 50.0, 14000.0, 64, 48000, norm=None, mel_scale="htk").numpy()
    found = filterbank(MelRecipe(scale="htk"))
    assert np.abs(found - expected).max() < 2e-5  # theirs are made in float32
    assert np.abs(filterbank(MelRecipe()) - expected).max() > 0.5


@needs_laion
@pytest.mark.parametrize("name", sounds())
def test_decibels_are_those_of_both_front_ends(name: str) -> None:
    """Equal to the rounding of float32; bands that hold rounding alone may differ by more."""
    stft = pytest.importorskip("torchlibrosa.stft")
    wave = torch.from_numpy(windows(media(sounds()[name])).samples).float().div_(32767.0)
    power = stft.Spectrogram(n_fft=1024, hop_length=480, win_length=1024)(wave)
    bands = stft.LogmelFilterBank(sr=48000, n_fft=1024, n_mels=64, fmin=50, fmax=14000, amin=1e-10, top_db=None)
    htk = laion_reference.functions().get_mel(wave[0], laion_reference.audio_config(clap_nets.entry()))
    for expected, recipe in ((bands(power)[0, 0], MelRecipe()), (htk, MelRecipe(scale="htk"))):
        found = LogMel(recipe)(wave)[0]
        assert found.shape == expected.shape == (1001, 64)
        difference = (found - expected).abs()
        clean = name in CLEAN_TONES
        assert difference[expected > expected.max() - 60].max() < (1e-2 if clean else 2e-3)
        assert difference.mean() < (0.1 if clean else 5e-4)
    if name == "silence, 3 s":
        assert (found == -100).all()


# --- the whole of it ---------------------------------------------------------------------------------------------


@needs_laion
@pytest.mark.parametrize("fusion", [False, True], ids=["unfused", "fusion"])
@pytest.mark.parametrize("loader", ["laion_clap", "transformers_clap"])
def test_features_are_laion_claps(loader: str, fusion: bool, tmp_path: Path) -> None:
    """Up to 10 s: their functions, their network, their front end, their tokenizer, by either loader."""
    entry = clap_nets.entry(loader, fusion=fusion)
    made = laion_reference.model(entry, clap_nets.random_tensors(entry))
    encoder = loaded(entry, through_a_checkpoint(made, tmp_path))
    clips = list(sounds().values())
    expected, found = theirs(made, entry, clips), heard(encoder, clips)
    agree(found, expected)
    with torch.inference_mode():
        texts = made.get_text_embedding(tokens_of_laion(CAPTIONS, tmp_path)).numpy()
    words = read(encoder, CAPTIONS)
    assert np.abs(words - texts).max() <= TOLERANCE
    agree(found @ words.T, expected @ texts.T)
    assert (words @ words.T).min() < 0.97, "the texts must differ for this to show anything"
    assert (found @ found.T).min() < 0.9, "the sounds too"


@needs_laion
@pytest.mark.parametrize("seconds", [10.005, 10.01, 10.02, 10.5, 12.0, 31.7])
def test_long_clips_are_fused_as_laion_clap_does_at_our_places(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """laion_clap's own function with its three draws pinned to the middle of each third, and the resize it had."""
    entry = clap_nets.entry("laion_clap", fusion=True)
    made = laion_reference.model(entry, clap_nets.random_tensors(entry))
    encoder = loaded(entry, through_a_checkpoint(made, tmp_path))
    rng = np.random.default_rng(3)
    clip = (rng.normal(0, 0.2, int(seconds * 48000)) * np.linspace(0.02, 1, int(seconds * 48000))).astype(np.float32)

    def pinned(choices: Any) -> int:
        return int(choices[len(choices) // 2])

    monkeypatch.setattr(np.random, "choice", pinned)
    transforms = laion_reference.functions().globals["torchvision"].transforms
    resize = transforms.Resize
    monkeypatch.setattr(transforms, "Resize", lambda size: resize(size, antialias=False))
    expected = theirs(made, entry, [clip])
    found = heard(encoder, [clip], {"long": "fusion"})
    assert found.shape == (1, 32)
    assert np.abs(found - expected).max() <= TOLERANCE
    again = heard(encoder, [clip], {"long": "fusion"})
    assert np.array_equal(found, again)
    if seconds > 12:
        assert np.abs(found - heard(encoder, [clip])[:1]).max() > 0.01, "fusing must matter for this to show anything"


def test_the_excerpts_stand_in_the_middle_of_their_thirds() -> None:
    assert starts(1002, 1001) == (0, 1, 0)  # possible places 0 and 1; the last third has none
    assert starts(1003, 1001) == (0, 1, 2)
    assert starts(1001 + 299, 1001) == (50, 150, 250)


@pytest.mark.parametrize("fusion", [False, True], ids=["unfused", "fusion"])
def test_both_loaders_agree(fusion: bool, tmp_path: Path) -> None:
    if laion_reference.folder() is None:
        pytest.skip("laion-clap is not installed")
    tensors = clap_nets.random_tensors(clap_nets.entry(fusion=fusion))
    path = clap_nets.save(tensors, tmp_path / "weights.safetensors")
    one, other = (
        loaded(clap_nets.entry(loader, fusion=fusion), path) for loader in ("laion_clap", "transformers_clap")
    )
    clips = [*sounds().values(), np.random.default_rng(5).normal(0, 0.3, 48000 * 25).astype(np.float32)]
    for view in ({}, {"long": "fusion"}) if fusion else ({},):
        assert np.abs(heard(one, clips, view) - heard(other, clips, view)).max() <= TOLERANCE
    assert np.abs(read(one, CAPTIONS) - read(other, CAPTIONS)).max() <= TOLERANCE
    assert one.spec.preprocessing != other.spec.preprocessing


@pytest.mark.slow
@needs_laion
@pytest.mark.parametrize(
    ("architecture", "fusion"), [("HTSAT-tiny", False), ("HTSAT-tiny", True), ("HTSAT-base", False)]
)
def test_the_published_sizes(architecture: str, fusion: bool, tmp_path: Path) -> None:
    """The real architectures, RoBERTa whole but for its vocabulary, by both loaders against laion_clap."""
    fields: dict[str, Any] = {"small": False, "fusion": fusion, "architecture": architecture}
    entry = clap_nets.entry("laion_clap", **fields)
    made = laion_reference.model(entry, clap_nets.random_tensors(entry))
    path = through_a_checkpoint(made, tmp_path)
    clips = [sounds()[name] for name in ("noise, 10 s", "one sample", "chord in faint noise, 4 s")]
    expected = theirs(made, entry, clips)
    with torch.inference_mode():
        texts = made.get_text_embedding(tokens_of_laion(CAPTIONS, tmp_path)).numpy()
    del made
    gc.collect()
    for loader in ("laion_clap", "transformers_clap"):
        encoder = loaded(clap_nets.entry(loader, **fields), path)
        assert np.abs(heard(encoder, clips) - expected).max() <= TOLERANCE
        assert np.abs(read(encoder, CAPTIONS) - texts).max() <= TOLERANCE
        del encoder
        gc.collect()
