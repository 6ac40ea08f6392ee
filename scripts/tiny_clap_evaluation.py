"""Measures the tiny CLAP on sounds it never heard, through WAV files and the encoder that genmeter uses."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import soxr
import tiny_clap_captions as captions
from tiny_clip_evaluation import auc

from genmeter.contract import AudioMedia
from genmeter.encoders.clap.preprocessing import VERSION
from genmeter.encoders.clap.tiny import ARCHITECTURE, TinyClapBackend
from genmeter.encoders.clap.tiny_network import MEL
from genmeter.encoders.clap.windows import RATE, SAMPLES, windows
from genmeter.synth.degrade_sound import DEGRADATIONS, degrade_sound
from genmeter.synth.sound import render
from genmeter.synth.sound_scene import SoundScene, make_sound
from genmeter.synth.wav import read_wav, write_wav
from genmeter.synth.words_sound import caption
from genmeter.weights.load import load_tensors
from genmeter.weights.lock import ModelEntry

LANGUAGES = ("en", "zh")
GALLERY = 64
GALLERIES = 16
FIRST_SEED = 8_192
"""Neither trained on nor looked at while the network was designed, for which seeds below 4,096 were used."""
RATES = (48_000, 44_100, 32_000, 24_000, 22_050, 16_000)


def entry() -> ModelEntry:
    """A models.lock entry as far as the backend reads one."""
    return ModelEntry(
        id="tiny-clap",
        task="audio-text",
        loader="tiny_clap",
        architecture=ARCHITECTURE,
        preprocessing={
            "sample_rate": RATE,
            "window_samples": SAMPLES,
            "n_fft": MEL.n_fft,
            "hop": MEL.hop,
            "mel_bands": MEL.bands,
            "fmin": MEL.low,
            "fmax": MEL.high,
            "mel_scale": MEL.scale,
            "fusion": False,
        },
        licence="Apache-2.0",
        citation="",
        digest="",
        unverified=True,
        sources=(),
        label="tiny-clap",
    )


def backend_of(weights: Path) -> TinyClapBackend:
    """The backend with these weights on the CPU."""
    backend = TinyClapBackend(entry())
    backend.load(load_tensors(weights), "cpu", False)
    return backend


def take(seed: int) -> tuple[int, float, float]:
    """Rate, seconds and gain of the file that the sound of a seed is written to."""
    rng = np.random.default_rng([seed, 41])
    return RATES[int(rng.integers(len(RATES)))], float(rng.uniform(2.5, 10)), float(10 ** rng.uniform(-1.5, 0))


def listen(backend: TinyClapBackend, samples: np.ndarray, rate: int, folder: Path) -> np.ndarray:
    """(d,) unit vector of samples that went through a 16-bit file and a resampler."""
    write_wav(folder / "sound.wav", samples, rate)
    stored, rate = read_wav(folder / "sound.wav")
    mono = stored.mean(axis=1)
    if rate != RATE:
        mono = np.clip(soxr.resample(mono, rate, RATE, quality="HQ"), -1, 1)
    found = windows(AudioMedia(mono, RATE))
    rows = _unit(backend.encode_audio(found.samples))
    mean: np.ndarray = _unit((rows * found.seconds[:, None]).sum(axis=0, keepdims=True))[0]
    return mean


def sounds(backend: TinyClapBackend, scenes: Sequence[SoundScene]) -> np.ndarray:
    """(n, d) unit vectors of sounds, each in a file of its seed's rate, length and level."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for scene in scenes:
            rate, seconds, gain = take(scene.seed)
            rows.append(listen(backend, render(scene, rate, seconds) * gain, rate, Path(folder)))
    return np.stack(rows)


def sentences(backend: TinyClapBackend, texts: list[str]) -> np.ndarray:
    """(n, d) unit vectors of texts."""
    tokenizer = backend.tokenizer()
    ids = np.stack([tokenizer(text).ids for text in texts])
    return np.concatenate([_unit(backend.encode_texts(ids[i : i + 64])) for i in range(0, len(ids), 64)])


def _unit(rows: np.ndarray) -> np.ndarray:
    unit: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def unlike(first: int, count: int, gallery: int = GALLERY) -> list[SoundScene]:
    """Sounds from a seed on of which no two of one gallery have the same caption, as single events often would."""
    scenes: list[SoundScene] = []
    seed = first
    while len(scenes) < count:
        scene = make_sound(seed)
        at = len(scenes) - len(scenes) % gallery
        if all(scene.events != other.events for other in scenes[at:]):
            scenes.append(scene)
        seed += 1
    return scenes


def galleries(found: np.ndarray, texts: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Retrieval among captions in galleries of 64, and the separation of true from false pairs.

    Args:
        found: (n, d) sounds.
        texts: (n, d) their captions, in the same order.
        truth: (n, n) bool: which caption is true of which sound.
    """
    tops, backs, areas, matched, mismatched = [], [], [], [], []
    for start in range(0, len(found), GALLERY):
        part = slice(start, start + GALLERY)
        cosine = found[part] @ texts[part].T
        own, other = np.diagonal(cosine), cosine[~truth[part, part]]
        tops.append((cosine.argmax(axis=1) == np.arange(len(cosine))).mean())
        backs.append((cosine.argmax(axis=0) == np.arange(len(cosine))).mean())
        areas.append(auc(own, other))
        matched.append(own.mean())
        mismatched.append(other.mean())
    return {
        "audio_to_text_top1": float(np.mean(tops)),
        "audio_to_text_top1_least": float(np.min(tops)),
        "text_to_audio_top1": float(np.mean(backs)),
        "text_to_audio_top1_least": float(np.min(backs)),
        "auc": float(np.mean(areas)),
        "auc_least": float(np.min(areas)),
        "cosine_matched": float(np.mean(matched)),
        "cosine_mismatched": float(np.mean(mismatched)),
    }


def pairwise(
    backend: TinyClapBackend, found: np.ndarray, scenes: Sequence[SoundScene], language: str
) -> dict[str, Any]:
    """For each aspect: how often the true caption scores above the one that gets only this wrong, and of how many.

    Both captions are full and in the plainest words.
    """
    accuracy = {}
    for number, aspect in enumerate(captions.ASPECTS):
        rng = np.random.default_rng([number, 42])
        rows, true, false = [], [], []
        for row, scene in enumerate(scenes):
            wrong = captions.spoil(scene, scene, rng, aspect)
            if wrong is not None:
                rows.append(row)
                true.append(caption(scene, language))
                false.append(caption(wrong, language))
        right = (found[rows] * sentences(backend, true)).sum(axis=1)
        spoilt = (found[rows] * sentences(backend, false)).sum(axis=1)
        accuracy[aspect] = {"right": float((right > spoilt).mean()), "of": len(rows)}
    return accuracy


def loose(backend: TinyClapBackend, found: np.ndarray, scenes: Sequence[SoundScene], language: str) -> dict[str, float]:
    """Partial captions in any words: true pairs against pairs of which the caption is false."""
    rng = np.random.default_rng(43)
    claims = [captions.loosen(scene, rng) for scene in scenes]
    texts = sentences(backend, [captions.say(claim, language, rng) for claim in claims])
    truth = truth_of(claims, scenes)
    cosine = found @ texts.T
    own = np.diagonal(cosine)
    return {
        "auc": auc(own, cosine[~truth]),
        "cosine_matched": float(own.mean()),
        "cosine_mismatched": float(cosine[~truth].mean()),
    }


def truth_of(claims: Sequence[SoundScene], scenes: Sequence[SoundScene]) -> np.ndarray:
    """(scenes, claims) bool: which claims are true of which sounds."""
    return captions.holds(*(np.stack([captions.table_of(s) for s in group]) for group in (claims, scenes)))


def conditions(backend: TinyClapBackend, scenes: Sequence[SoundScene]) -> dict[str, dict[str, float]]:
    """One gallery at every rate, at several lengths and levels, and damaged: top-1 and cosine, English."""
    texts = sentences(backend, [caption(scene) for scene in scenes])
    cases: dict[str, tuple[int, float, float, str]] = {
        **{f"rate {rate}": (rate, 5.0, 1.0, "") for rate in (*RATES, 11_025, 8_000)},
        **{f"seconds {seconds:g}": (44_100, seconds, 1.0, "") for seconds in (2.5, 10.0, 15.0, 30.0)},
        **{f"gain {gain:g}": (44_100, 5.0, gain, "") for gain in (0.1, 0.01)},
        **{kind: (44_100, 5.0, 1.0, kind) for kind in DEGRADATIONS},
    }
    report = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (rate, seconds, gain, damage) in cases.items():
            rows = []
            for scene in scenes:
                samples = render(scene, rate, seconds) * np.float32(gain)
                if damage:
                    samples = degrade_sound(samples, rate, damage, 1.0, seed=scene.seed)
                rows.append(listen(backend, samples, rate, Path(folder)))
            cosine = np.stack(rows) @ texts.T
            top = float((cosine.argmax(axis=1) == np.arange(len(scenes))).mean())
            report[name] = {"top1": top, "cosine": float(np.diagonal(cosine).mean())}
    return report


def takes(backend: TinyClapBackend, found: np.ndarray, scenes: Sequence[SoundScene]) -> dict[str, float]:
    """Two sounds of one description against sounds of two: what a score of audio against audio rests on."""
    other = sounds(backend, [replace(scene, seed=scene.seed + 10**9) for scene in scenes])
    cosine = found @ other.T
    own, apart = np.diagonal(cosine), cosine[~np.eye(len(cosine), dtype=bool)]
    return {"auc": auc(own, apart), "cosine_same": float(own.mean()), "cosine_other": float(apart.mean())}


def evaluate(weights: Path, out: Path | None = None, first: int = FIRST_SEED, count: int = GALLERIES) -> dict[str, Any]:
    """Print, return and maybe write all figures of the card."""
    backend = backend_of(weights)
    scenes = unlike(first, GALLERY * count)
    found = sounds(backend, scenes)
    truth = truth_of(scenes, scenes)
    report: dict[str, Any] = {"sounds": len(scenes), "preprocessing": VERSION}
    for language in LANGUAGES:
        texts = sentences(backend, [caption(scene, language) for scene in scenes])
        other = sentences(backend, [caption(scene, language, wording=scene.seed + 1) for scene in scenes])
        report[language] = {
            "plain": galleries(found, texts, truth),
            "other words": galleries(found, other, truth),
            "partial": loose(backend, found, scenes, language),
            "pairwise": pairwise(backend, found, scenes, language),
        }
    report["conditions"] = conditions(backend, scenes[:GALLERY])
    report["audio to audio"] = takes(backend, found[:GALLERY], scenes[:GALLERY])
    text = json.dumps(report, indent=2, ensure_ascii=False)
    print(text, flush=True)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")
    return report
