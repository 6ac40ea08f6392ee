"""The tiny CLAP that ships: its words, its backend, and what it must tell apart in sounds it never heard."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import soxr

from genmeter.contract import AudioMedia
from genmeter.encoders.clap import ClapEncoder, tiny_tokens
from genmeter.encoders.clap.tiny import TinyClapBackend
from genmeter.encoders.clip.tiny_tokens import BUCKETS, CONTEXT_LENGTH, END, START, pieces
from genmeter.errors import GenmeterError
from genmeter.synth.sound import render
from genmeter.synth.sound_scene import Event, SoundScene, make_sound
from genmeter.synth.wav import read_wav, write_wav
from genmeter.synth.words_sound import caption
from genmeter.weights.digest import tensors_digest
from genmeter.weights.load import load_tensors
from genmeter.weights.lock import get_entry

pytestmark = pytest.mark.usefixtures("one_torch_thread")

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = ROOT / "src/genmeter/encoders/clap/tiny-clap.safetensors"
UNSEEN = 12_000
GALLERY = 64


@pytest.fixture(scope="module")
def encoder() -> ClapEncoder:
    loaded = ClapEncoder(get_entry("tiny-clap"), lambda: WEIGHTS)
    loaded.load("cpu", "exact")
    return loaded


@pytest.fixture(scope="module")
def scenes() -> list[SoundScene]:
    """Sounds never trained on, no two of one description."""
    found: list[SoundScene] = []
    for seed in itertools.count(UNSEEN):
        scene = make_sound(seed)
        if all(scene.events != other.events for other in found):
            found.append(scene)
        if len(found) == GALLERY:
            return found
    raise AssertionError


@pytest.fixture(scope="module")
def heard(encoder: ClapEncoder, scenes: list[SoundScene], tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """Each through a 16-bit file of its own rate, length and level."""
    folder = tmp_path_factory.mktemp("sounds")
    prepared = []
    for i, scene in enumerate(scenes):
        rate = (48_000, 44_100, 32_000, 22_050, 16_000)[i % 5]
        write_wav(folder / "a.wav", render(scene, rate, 2.5 + i % 9 * 0.9) * (1.0, 0.3, 0.05)[i % 3], rate)
        prepared.append(encoder.prepare(read(folder / "a.wav"), {}))
    return rows(encoder, prepared)


def read(path: Path) -> AudioMedia:
    samples, rate = read_wav(path)
    return at_48k(samples.mean(axis=1), rate)


def at_48k(samples: np.ndarray, rate: int) -> AudioMedia:
    if rate != 48_000:
        samples = np.clip(soxr.resample(samples, rate, 48_000, quality="HQ"), -1, 1)
    return AudioMedia(samples.astype(np.float32), 48_000, (), {"source_rate": rate})


def sounds(encoder: ClapEncoder, made: list[SoundScene], seconds: float = 4.0) -> np.ndarray:
    return rows(encoder, [encoder.prepare(AudioMedia(render(s, 48_000, seconds), 48_000), {}) for s in made])


def texts(encoder: ClapEncoder, sentences: list[str]) -> np.ndarray:
    return rows(encoder, [encoder.prepare(s, {}) for s in sentences])


def rows(encoder: ClapEncoder, prepared: list) -> np.ndarray:
    features = [f for i in range(0, len(prepared), 16) for f in encoder.encode(prepared[i : i + 16])]
    return np.concatenate([f.values for f in features])


# --- texts to ids -----------------------------------------------------------------------------------------------------


def test_vocabulary_has_no_word_twice() -> None:
    assert len(set(tiny_tokens.VOCABULARY)) == len(tiny_tokens.VOCABULARY)
    assert all(pieces(word) == [word] for word in tiny_tokens.VOCABULARY)
    # Ids are part of the weights.
    assert tiny_tokens.tokenizer().piece_id(",") == 3
    assert load_tensors(WEIGHTS)["text.tokens.weight"].shape[0] == tiny_tokens.SIZE


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_word_of_the_captions_is_known(language: str) -> None:
    tokenizer = tiny_tokens.tokenizer()
    for seed in range(1500):
        tokens = tokenizer(caption(make_sound(seed), language, seed))
        assert (tokens.ids < tiny_tokens.SIZE - BUCKETS).all()
        assert not tokens.truncated


@pytest.mark.parametrize("text", ["", "\x00", "\ud800", "🦊🦊", "ελληνικά", "한국어", "x" * 100_000, "a tone " * 5000])
def test_any_text_has_ids(text: str) -> None:
    tokens = tiny_tokens.tokenizer()(text)
    assert tokens.ids.shape == (CONTEXT_LENGTH,)
    assert tokens.ids[0] == START
    assert (tokens.ids == END).sum() == 1
    assert tokens.ids.min() >= 0
    assert tokens.ids.max() < tiny_tokens.SIZE


# --- the weights and their backend ------------------------------------------------------------------------------------


def test_the_file_is_small_and_what_the_lock_says() -> None:
    assert WEIGHTS.stat().st_size <= 6_000_000
    tensors = load_tensors(WEIGHTS)
    assert {array.dtype for array in tensors.values()} == {np.dtype(np.float16)}
    assert all(np.isfinite(array).all() for array in tensors.values())
    assert tensors_digest(tensors) == get_entry("tiny-clap").digest


@pytest.mark.parametrize("change", ["missing", "left over", "misshapen"])
def test_other_tensors_are_refused_by_name(change: str) -> None:
    tensors = load_tensors(WEIGHTS)
    name = "audio.hidden.bias"
    if change == "missing":
        del tensors[name]
    elif change == "left over":
        name = "audio.more.bias"
        tensors[name] = np.zeros(3, np.float16)
    else:
        tensors[name] = tensors[name][:-1]
    with pytest.raises(GenmeterError, match=name) as error:
        TinyClapBackend(get_entry("tiny-clap")).load(tensors, "cpu", False)
    assert error.value.code == "weights_mismatch"


def test_another_architecture_or_spectrum_is_refused() -> None:
    entry = get_entry("tiny-clap")
    with pytest.raises(GenmeterError, match="tiny-clap-v9"):
        TinyClapBackend(replace(entry, architecture="tiny-clap-v9"))
    other = replace(entry, preprocessing={**entry.preprocessing, "hop": 480})
    with pytest.raises(GenmeterError, match="hop=480") as error:
        TinyClapBackend(other).load(load_tensors(WEIGHTS), "cpu", False)
    assert error.value.code == "weights_mismatch"


@pytest.mark.parametrize("tower", ["audio", "text"])
def test_zeroed_weights_do_not_pass_the_probe(tmp_path: Path, tower: str) -> None:
    from safetensors.numpy import save_file

    tensors = load_tensors(WEIGHTS)
    tensors[f"{tower}.projection.weight"] = tensors[f"{tower}.projection.weight"] * 0
    save_file(tensors, tmp_path / "broken.safetensors")
    with pytest.raises(GenmeterError) as error:
        ClapEncoder(get_entry("tiny-clap"), lambda: tmp_path / "broken.safetensors").load("cpu", "exact")
    assert error.value.code == "model_probe_failed"


def test_features(encoder: ClapEncoder) -> None:
    sound = encoder.encode([encoder.prepare(AudioMedia(render(make_sound(0), 48_000, 21.0), 48_000), {})])[0]
    text = encoder.encode([encoder.prepare("a low tone", {})])[0]
    width = get_entry("tiny-clap").extra["embed_dim"]
    assert sound.values.shape == (3, width)
    assert sound.weights.tolist() == [10, 10, 1]
    assert text.values.shape == (1, width)
    assert text.detail["text_tokens"] == 5
    for feature in (sound, text):
        assert feature.values.dtype == np.float32
        assert np.linalg.norm(feature.values, axis=1) == pytest.approx(1, abs=1e-6)
        assert "not_comparable" in feature.flags


def test_languages(encoder: ClapEncoder) -> None:
    assert "prompt_language" not in encoder.prepare("平稳的低音正弦波单音", {}).flags
    assert "prompt_language" not in encoder.prepare("a low tone", {}).flags
    assert "prompt_language" in encoder.prepare("низкий тон", {}).flags


def test_neither_batch_nor_order_moves_a_feature(encoder: ClapEncoder) -> None:
    made = [make_sound(seed) for seed in range(12)]
    sentences = [caption(scene, ("en", "zh")[i % 2]) for i, scene in enumerate(made)]
    together = sounds(encoder, made), texts(encoder, sentences)
    alone = (
        np.concatenate([sounds(encoder, [scene]) for scene in made]),
        np.concatenate([texts(encoder, [sentence]) for sentence in sentences]),
    )
    assert np.abs(together[0] - alone[0]).max() < 1e-6
    assert np.abs(together[1] - alone[1]).max() < 1e-6
    again = sounds(encoder, made), texts(encoder, sentences)
    assert np.array_equal(again[0], together[0])
    assert np.array_equal(again[1], together[1])


def test_half_precision_is_near(encoder: ClapEncoder, scenes: list[SoundScene]) -> None:
    half = TinyClapBackend(get_entry("tiny-clap"))
    half.load(load_tensors(WEIGHTS), "cpu", True)
    some = scenes[:6]
    windows = np.concatenate([encoder.prepare(AudioMedia(render(s, 48_000, 4.0), 48_000), {}).arrays[0] for s in some])
    ids = np.stack([half.tokenizer()(caption(s)).ids for s in some])
    for found, exact in (
        (half.encode_audio(windows), sounds(encoder, some)),
        (half.encode_texts(ids), texts(encoder, [caption(s) for s in some])),
    ):
        assert found.dtype == np.float32
        assert (found * exact).sum(axis=1) / np.linalg.norm(found, axis=1) == pytest.approx(np.ones(6), abs=5e-3)


def test_level_takes_no_part(encoder: ClapEncoder) -> None:
    # Square: a wave whose quietest harmonics stay above the rounding to 16 bit.
    tone = render(SoundScene((Event("tone", "square", "", "medium", "", "steady"),), 4), 48_000, 4.0)
    loud, soft = (rows(encoder, [encoder.prepare(AudioMedia(tone * g, 48_000), {})]) for g in (1.0, 0.1))
    assert float((loud * soft).sum()) > 0.99


@pytest.mark.parametrize(
    "samples", [np.zeros(48_000), np.zeros(48_000 * 12), np.full(48_000, 0.5), np.eye(1, 48_000)[0]]
)
def test_silence_and_the_like_are_finite(encoder: ClapEncoder, samples: np.ndarray) -> None:
    prepared = encoder.prepare(AudioMedia(samples.astype(np.float32), 48_000), {})
    assert np.isfinite(rows(encoder, [prepared])).all()
    assert ("silent" in prepared.flags) == (not samples.any())


# --- what it tells apart ----------------------------------------------------------------------------------------------


def separation(own: np.ndarray, other: np.ndarray) -> float:
    return float((own[:, None] > other[None]).mean())


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("wording", [0, 1])
def test_finds_the_caption_of_a_sound(
    encoder: ClapEncoder,
    heard: np.ndarray,
    scenes: list[SoundScene],
    claims: ModuleType,
    language: str,
    wording: int,
) -> None:
    found = texts(encoder, [caption(s, language, wording and s.seed) for s in scenes])
    cosine = heard @ found.T
    index = np.arange(len(cosine))
    assert (cosine.argmax(axis=1) == index).mean() >= 0.8
    assert (cosine.argmax(axis=0) == index).mean() >= 0.8
    tables = np.stack([claims.table_of(s) for s in scenes])
    assert separation(np.diagonal(cosine), cosine[~claims.holds(tables, tables)]) >= 0.99


def test_both_languages_mean_the_same(encoder: ClapEncoder, scenes: list[SoundScene]) -> None:
    english, chinese = (texts(encoder, [caption(s, language) for s in scenes]) for language in ("en", "zh"))
    assert ((english @ chinese.T).argmax(axis=1) == np.arange(len(scenes))).mean() >= 0.9


def test_two_takes_of_one_sound_are_alike(encoder: ClapEncoder, heard: np.ndarray, scenes: list[SoundScene]) -> None:
    other = sounds(encoder, [replace(scene, seed=scene.seed + 10**9) for scene in scenes])
    cosine = heard @ other.T
    assert separation(np.diagonal(cosine), cosine[~np.eye(len(cosine), dtype=bool)]) >= 0.98


TONE = SoundScene((Event("tone", "sine", "", "high", "", "steady"),), 5)
CHORD = SoundScene((Event("chord", "sawtooth", "major", "medium", "", "plucked"),), 6)
SWEEP_NOISE = SoundScene(
    (Event("sweep", "sine", "rising", "", "slow", "steady"), Event("noise", "white", "", "", "", "plucked")), 7
)
BEATS = SoundScene((Event("rhythm", "drum", "", "", "fast", "steady"),), 8)


@pytest.mark.parametrize(
    ("scene", "true", "false"),
    [
        (TONE, "a high tone", "a low tone"),
        (TONE, "a sine tone", "a square tone"),
        (TONE, "高音单音", "低音单音"),
        (CHORD, "a plucked chord", "a chord that fades in"),
        (CHORD, "弹拨的和弦", "渐强的和弦"),
        (SWEEP_NOISE, "a rising sweep", "a falling sweep"),
        (SWEEP_NOISE, "a rising sweep, then a burst of white noise", "a burst of white noise, then a rising sweep"),
        (SWEEP_NOISE, "a burst of noise after a rising sweep", "a rising sweep after a burst of noise"),
        (SWEEP_NOISE, "先是上升的扫频音，然后是一阵短促的白噪声", "先是一阵短促的白噪声，然后是上升的扫频音"),
        (SWEEP_NOISE, "a slow rising sine sweep", "fast rising sine sweeps"),
        (BEATS, "fast drum beats", "slow drum beats"),
        (BEATS, "drum beats", "clicks"),
        (BEATS, "快速的鼓点", "缓慢的鼓点"),
    ],
)
def test_captions_of_a_part(encoder: ClapEncoder, scene: SoundScene, true: str, false: str) -> None:
    takes = sounds(encoder, [replace(scene, seed=seed) for seed in range(3)])
    right, wrong = (takes @ texts(encoder, [true, false]).T).mean(axis=0)
    assert right > wrong + 0.05


# At least this share of sounds scores higher with its own caption than with one that gets one thing wrong.
LEAST_RIGHT = 0.9


@pytest.mark.parametrize("language", ["en", "zh"])
def test_one_wrong_field_mostly_loses(
    encoder: ClapEncoder, heard: np.ndarray, scenes: list[SoundScene], claims: ModuleType, language: str
) -> None:
    rng = np.random.default_rng(0)
    which, true, false, aspects = [], [], [], []
    for row, scene in enumerate(scenes):
        for aspect in claims.ASPECTS:
            wrong = claims.spoil(scene, scene, rng, aspect)
            if wrong is not None:
                which.append(row)
                true.append(caption(scene, language))
                false.append(caption(wrong, language))
                aspects.append(aspect)
    assert set(aspects) == set(claims.ASPECTS)
    right = (heard[which] * texts(encoder, true)).sum(axis=1) > (heard[which] * texts(encoder, false)).sum(axis=1)
    assert right.mean() >= LEAST_RIGHT
    assert right[np.array(aspects) == "order"].mean() >= LEAST_RIGHT


def test_text_outside_its_world_does_not_break_it(encoder: ClapEncoder) -> None:
    sentences = ["", "🦊", "a dog barks in the distance", "the stock market fell", "\ud800", "سلام", "tone " * 500]
    assert np.isfinite(texts(encoder, sentences)).all()
    # And words it does not know do not hide those that it knows.
    clean, noisy = "a low square tone that fades out", "zebra a low square frobnicated tone that fades out"
    a, b, c = texts(encoder, [clean, noisy, "fast falling sine sweeps"])
    assert a @ b > a @ c + 0.2


# --- the training script ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "scripts"))
    yield importlib.import_module("train_tiny_clap")
    sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture(scope="module")
def claims(script: ModuleType) -> ModuleType:
    return sys.modules["tiny_clap_captions"]


def test_a_sound_survives_its_table(claims: ModuleType) -> None:
    for seed in range(100):
        scene = make_sound(seed)
        assert claims.scene_of(claims.table_of(scene)) == replace(scene, seed=0)


def test_claims_hold_and_spoilt_ones_do_not(claims: ModuleType) -> None:
    rng = np.random.default_rng(0)
    spoilt = dict.fromkeys(claims.ASPECTS, 0)
    for seed in range(400):
        scene = make_sound(seed)
        table = claims.table_of(scene)[None]
        loose = claims.loosen(scene, rng)
        for claim in (scene, loose):
            assert claims.holds(claims.table_of(claim)[None], table)[0, 0]
            for aspect in claims.ASPECTS:
                wrong = claims.spoil(claim, scene, rng, aspect)
                if wrong is not None:
                    spoilt[aspect] += 1
                    assert not claims.holds(claims.table_of(wrong)[None], table)[0, 0]
                    assert caption(wrong, "zh", 5) != caption(claim, "zh", 5)
    assert min(spoilt.values()) > 30


def test_holds_knows_events_from_one_another(claims: ModuleType) -> None:
    sweep, noise = SWEEP_NOISE.events
    said = [
        SWEEP_NOISE,
        replace(SWEEP_NOISE, events=(noise, sweep)),
        replace(SWEEP_NOISE, events=(noise,)),
        replace(SWEEP_NOISE, events=(replace(sweep, voice=""),)),
        replace(SWEEP_NOISE, events=(replace(sweep, form="falling"),)),
        replace(SWEEP_NOISE, events=(sweep, replace(noise, envelope=""))),
        TONE,
    ]
    tables = np.stack([claims.table_of(claim) for claim in said])
    assert claims.holds(tables, tables[:1])[0].tolist() == [True, False, True, True, False, True, False]
    # Of a lone event, nothing is true that names two.
    assert claims.holds(tables, claims.table_of(TONE)[None])[0].tolist() == [False] * 6 + [True]


def test_training_words_are_known(claims: ModuleType) -> None:
    rng = np.random.default_rng(3)
    tokenizer = tiny_tokens.tokenizer()
    for seed in range(300):
        claim = claims.loosen(make_sound(seed), rng)
        for language in ("en", "zh"):
            for piece in pieces(claims.say(claim, language, rng)):
                assert tokenizer.piece_id(piece) < tiny_tokens.SIZE - BUCKETS, piece


def test_training_leaves_evaluation_sounds_alone(
    script: ModuleType, claims: ModuleType, scenes: list[SoundScene]
) -> None:
    assert max(s.seed for s in scenes) < script.HELD_OUT_SEEDS < script.TRAINING_SEEDS
    spectra, tables = script.pool_of(40)
    assert spectra.shape == (40, 201, 96)
    held_out = {claims.table_of(make_sound(seed)).tobytes() for seed in range(script.HELD_OUT_SEEDS)}
    pairs = [table for table in tables if table[claims.WIDTH] != claims.NO_EVENT]
    assert pairs
    assert not held_out & {table.tobytes() for table in pairs}


def test_augmented_spectra_keep_what_was_heard(script: ModuleType) -> None:
    decibels = np.full((4, 201, 96), 20, np.uint8)  # -70 dB
    decibels[:, :, 30] = 200  # 20 dB
    found = script.augment(decibels, np.random.default_rng(0))
    assert found.dtype == np.float32
    assert (found.argmax(axis=2) == 30).all()
    assert len({round(float(f[:, 30].mean()), 1) for f in found}) == 4
    assert found[:, :, 30].min() > 0
    assert -95 < found[:, :, 40].min() < found[:, :, 40].max() < -15


def train(script: ModuleType, monkeypatch: pytest.MonkeyPatch, file: Path, steps: int) -> None:
    import torch

    arguments = ["train", "--out", str(file), "--steps", str(steps), "--batch", "8", "--pool", "16"]
    monkeypatch.setattr(script, "HELD_OUT_SEEDS", 10)
    monkeypatch.setattr(sys, "argv", ["train_tiny_clap.py", *arguments])
    try:
        script.main()
    finally:
        torch.use_deterministic_algorithms(False)


def test_training_is_reproducible(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for file in files:
        train(script, monkeypatch, file, 2)
    assert files[0].read_bytes() == files[1].read_bytes()
    untrained = load_tensors(files[0])
    assert {k: v.shape for k, v in untrained.items()} == {k: v.shape for k, v in load_tensors(WEIGHTS).items()}
