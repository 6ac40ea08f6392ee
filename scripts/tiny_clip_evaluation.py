"""Measures the tiny CLIP on scenes it never saw, through the backend that genmeter uses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tiny_clip_captions as captions
from PIL import Image

from genmeter.encoders.clip.tiny import ARCHITECTURE, MEAN, STD, TinyClipBackend
from genmeter.encoders.clip.tiny_network import IMAGE_SIZE
from genmeter.synth.draw import draw
from genmeter.synth.scene import make_scene
from genmeter.weights.load import load_tensors
from genmeter.weights.lock import ModelEntry

LANGUAGES = ("en", "zh")
GALLERY = 256
GALLERIES = 8
FIRST_SEED = 8_192
"""Neither trained on nor looked at while the network was designed, for which seeds below 2,048 were used."""


def entry() -> ModelEntry:
    """A models.lock entry as far as the backend reads one."""
    return ModelEntry(
        id="tiny-clip",
        task="image-text",
        loader="tiny_clip",
        architecture=ARCHITECTURE,
        preprocessing={"size": IMAGE_SIZE, "mean": list(MEAN), "std": list(STD)},
        licence="Apache-2.0",
        citation="",
        digest="",
        unverified=True,
        sources=(),
        label="tiny-clip",
    )


def backend_of(weights: Path) -> TinyClipBackend:
    """The backend with these weights on the CPU."""
    backend = TinyClipBackend(entry())
    backend.load(load_tensors(weights), "cpu", False)
    return backend


def images(backend: TinyClipBackend, seeds: range, width: int, height: int) -> np.ndarray:
    """(n, d) unit vectors of scenes drawn at a size and squashed to the tower's."""
    pixels = np.stack(
        [
            np.asarray(
                Image.fromarray(draw(make_scene(seed), width, height)).resize(
                    (IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BICUBIC
                )
            )
            for seed in seeds
        ]
    )
    return np.concatenate([_unit(backend.encode_images(pixels[i : i + 64])) for i in range(0, len(pixels), 64)])


def sentences(backend: TinyClipBackend, texts: list[str]) -> np.ndarray:
    """(n, d) unit vectors of texts."""
    tokenizer = backend.tokenizer()
    ids = np.stack([tokenizer(text).ids for text in texts])
    return np.concatenate([_unit(backend.encode_texts(ids[i : i + 64])) for i in range(0, len(ids), 64)])


def _unit(rows: np.ndarray) -> np.ndarray:
    unit: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def auc(positive: np.ndarray, negative: np.ndarray) -> float:
    """How often a matched pair scores above a mismatched one; ties count half."""
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, "left") + np.searchsorted(ordered, positive, "right")
    return float(below.mean() / 2 / len(negative))


def galleries(found: np.ndarray, texts: np.ndarray) -> dict[str, float]:
    """Retrieval among captions in galleries of 256, and the separation of matched from mismatched pairs."""
    tops, backs, areas, matched, mismatched = [], [], [], [], []
    for start in range(0, len(found), GALLERY):
        cosine = found[start : start + GALLERY] @ texts[start : start + GALLERY].T
        n = len(cosine)
        own, other = np.diagonal(cosine), cosine[~np.eye(n, dtype=bool)]
        tops.append((cosine.argmax(axis=1) == np.arange(n)).mean())
        backs.append((cosine.argmax(axis=0) == np.arange(n)).mean())
        areas.append(auc(own, other))
        matched.append(own.mean())
        mismatched.append(other.mean())
    return {
        "image_to_text_top1": float(np.mean(tops)),
        "image_to_text_top1_least": float(np.min(tops)),
        "text_to_image_top1": float(np.mean(backs)),
        "auc": float(np.mean(areas)),
        "auc_least": float(np.min(areas)),
        "cosine_matched": float(np.mean(matched)),
        "cosine_mismatched": float(np.mean(mismatched)),
    }


def pairwise(
    backend: TinyClipBackend, found: np.ndarray, tables: np.ndarray, language: str, *, full: bool
) -> dict[str, float]:
    """For each field: how often the true caption scores above the one that gets only this field wrong.

    Both are worded by the same draws; a loose caption is only asked for the fields that it states.
    """
    accuracy = {}
    for number, field in enumerate(captions.FIELDS):
        rng = np.random.default_rng([number, full, 21])
        rows, true, false = [], [], []
        for row, table in enumerate(tables):
            claim = captions.Claim(table, True) if full else captions.loosen(table, rng)
            wrong = captions.spoil(claim, table, rng, field)
            if wrong is None:
                continue
            words = int(rng.integers(1 << 30))
            rows.append(row)
            true.append(captions.say(claim, language, np.random.default_rng(words)))
            false.append(captions.say(wrong, language, np.random.default_rng(words)))
        right = (found[rows] * sentences(backend, true)).sum(axis=1)
        spoilt = (found[rows] * sentences(backend, false)).sum(axis=1)
        accuracy[field] = float((right > spoilt).mean())
    return accuracy


def loose_auc(backend: TinyClipBackend, found: np.ndarray, tables: np.ndarray, language: str) -> dict[str, float]:
    """Loose captions: true pairs against pairs of which the caption is false."""
    rng = np.random.default_rng(22)
    claims = [captions.loosen(table, rng) for table in tables]
    texts = sentences(backend, [captions.say(claim, language, rng) for claim in claims])
    truth = captions.holds(np.stack([c.table for c in claims]), tables)
    cosine = found @ texts.T
    own = np.diagonal(cosine)
    return {
        "auc": auc(own, cosine[~truth]),
        "cosine_matched": float(own.mean()),
        "cosine_mismatched": float(cosine[~truth].mean()),
    }


def evaluate(weights: Path, out: Path | None = None) -> dict[str, Any]:
    """Print, return and maybe write all figures of the card."""
    from genmeter.synth.words import caption

    backend = backend_of(weights)
    seeds = range(FIRST_SEED, FIRST_SEED + GALLERY * GALLERIES)
    scenes = [make_scene(seed) for seed in seeds]
    tables = np.stack([captions.table_of(scene) for scene in scenes])
    found = images(backend, seeds, 256, 256)
    report: dict[str, Any] = {"scenes": len(scenes)}
    for language in LANGUAGES:
        texts = sentences(backend, [caption(scene, language) for scene in scenes])
        report[language] = {
            "full": galleries(found, texts),
            "loose": loose_auc(backend, found[:1024], tables[:1024], language),
            "pairwise_full": pairwise(backend, found[:1024], tables[:1024], language, full=True),
            "pairwise_loose": pairwise(backend, found[:1024], tables[:1024], language, full=False),
        }
        for width, height in ((256, 192), (512, 512), (96, 96)):
            other = images(backend, seeds[:GALLERY], width, height)
            report[language][f"drawn_{width}x{height}"] = galleries(other, texts[:GALLERY])
    text = json.dumps(report, indent=2, ensure_ascii=False)
    print(text, flush=True)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")
    return report
