"""Train the tiny CLAP that ships with genmeter, and measure it. Everything comes from seeds; one process, one thread.

    python scripts/train_tiny_clap.py train [--out FILE]
    python scripts/train_tiny_clap.py evaluate [--weights FILE] [--json FILE]

Training sounds have seeds from 10**12 on; all others are free for demos, tests and evaluation. A sound of two events
that equals one of the held-out seeds in every field is left out of the training too; of single events there are too
few kinds for that (276), so those differ in frequencies, timing, noise, length and rate alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soxr
import tiny_clap_captions as captions
import torch
import torch.nn.functional as F
from tiny_training import contrast, deterministic, ids_of, optimizer_of, pace, save, text_features
from torch import nn

from genmeter.contract import AudioMedia
from genmeter.encoders.clap import tiny_tokens
from genmeter.encoders.clap.mel import LogMel
from genmeter.encoders.clap.tiny_network import FRAMES, MEL, TinyClap
from genmeter.encoders.clap.windows import LARGEST, RATE, windows
from genmeter.encoders.clip.tiny_tokens import BUCKETS
from genmeter.synth.sound import render
from genmeter.synth.sound_scene import FIELDS, KINDS, NAMES, SoundScene, make_sound

ROOT = Path(__file__).resolve().parent.parent
WEIGHTS = ROOT / "src/genmeter/encoders/clap/tiny-clap.safetensors"

TRAINING_SEEDS = 10**12
HELD_OUT_SEEDS = 16_384
"""Sounds of the seeds below this are never trained on, nor any pair of events that equals one of them in all fields."""
RATES = (48_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000)
SHORTEST, LONGEST = 2.5, 10.0
LANGUAGES = ("en", "zh")
TOKENIZER = tiny_tokens.tokenizer()
FILLERS = (
    *(TOKENIZER.piece_id(piece) for piece in ("by", "in", "-", "。", "rhythm", "里", "声")),
    *range(tiny_tokens.SIZE - BUCKETS, tiny_tokens.SIZE),
)
# Decibels in bytes: half a decibel a step, from what rounding to 16 bit leaves up to a pure tone at full scale.
_STEP, _FLOOR = 0.5, -80.0


def window_of(scene: SoundScene, rate: int, seconds: float) -> np.ndarray:
    """(480000,) int16: the sound as the encoder sees a file of this rate and of at most 10 s."""
    samples = render(scene, rate, seconds)
    if rate != RATE:
        samples = np.clip(soxr.resample(samples, rate, RATE, quality="HQ"), -1, 1)
    window: np.ndarray = windows(AudioMedia(samples[: 10 * RATE], RATE)).samples[0]
    return window


def pool_of(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Spectra (size, FRAMES, bands) uint8 and tables (size, 12) int8 of training sounds."""
    held_out = {captions.table_of(make_sound(seed)).tobytes() for seed in range(HELD_OUT_SEEDS)}
    mel = LogMel(MEL)
    spectra = np.empty((size, FRAMES, MEL.bands), dtype=np.uint8)
    tables = np.empty((size, 2 * captions.WIDTH), dtype=np.int8)
    seed, made = TRAINING_SEEDS, 0
    while made < size:
        scene = make_sound(seed)
        table = captions.table_of(scene)
        if len(scene.events) == 1 or table.tobytes() not in held_out:
            rng = np.random.default_rng([seed, 31])
            window = window_of(scene, RATES[int(rng.integers(len(RATES)))], float(rng.uniform(SHORTEST, LONGEST)))
            decibels = mel(torch.from_numpy(window[None] / np.float32(LARGEST)))[0].numpy()
            spectra[made] = np.clip(np.rint((decibels - _FLOOR) / _STEP), 0, 255).astype(np.uint8)
            tables[made] = table
            made += 1
        seed += 1
    print(f"pool: {size} sounds, {seed - TRAINING_SEEDS - size} left out as equal to held-out ones", flush=True)
    return spectra, tables


def augment(spectra: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(n, FRAMES, bands) float32 decibels: louder or quieter, over faint noise, through another room or loudspeaker."""
    decibels = spectra.astype(np.float32) * _STEP + _FLOOR
    n, _, bands = decibels.shape
    decibels += rng.uniform(-15, 5, (n, 1, 1)).astype(np.float32)
    slope = np.linspace(-1, 1, bands, dtype=np.float32)
    decibels += rng.uniform(-3, 3, (n, 1, 1)).astype(np.float32) * slope
    floor = rng.uniform(-90, -25, (n, 1, 1)).astype(np.float32)
    noise = floor + rng.standard_normal(decibels.shape, dtype=np.float32)
    mixed: np.ndarray = 10 * np.logaddexp(decibels * (np.log(10) / 10), noise * (np.log(10) / 10)) / np.log(10)
    return mixed.astype(np.float32)


class Guides(nn.Module):
    """Linear readings of a sound's fields from either tower's hidden layer; they speed training up and are dropped."""

    SLOTS = 2 * (len(KINDS), *(max(len(f.get(name, ())) for f in FIELDS.values()) for name in NAMES))

    def __init__(self, audio: int, text: int) -> None:
        super().__init__()
        self.audio = nn.Linear(audio, sum(self.SLOTS) + 1)
        self.text = nn.Linear(text, sum(self.SLOTS) + 1)

    def loss(self, logits: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
        """The summed cross entropies over what each sound has; the last reading is whether there are two events."""
        losses = [F.binary_cross_entropy_with_logits(logits[:, -1], (tables[:, captions.WIDTH] >= 0).float())]
        for i, part in enumerate(logits[:, :-1].split(list(self.SLOTS), dim=1)):
            there = tables[:, i] >= 0
            if there.any():
                losses.append(F.cross_entropy(part[there], tables[there, i]) * there.float().mean())
        return torch.stack(losses).sum()


def batches(
    spectra: np.ndarray, tables: np.ndarray, size: int, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Endless augmented batches: each sound once before any comes again."""
    while True:
        order = rng.permutation(len(spectra))
        for start in range(0, len(order) - size + 1, size):
            index = np.sort(order[start : start + size])
            yield augment(spectra[index], rng), tables[index]


def texts_of(scenes: list[SoundScene], rng: np.random.Generator) -> tuple[list[str], np.ndarray, np.ndarray]:
    """For n sounds: n true captions, full ones and loose ones, then n false ones.

    Returns:
        The 2n texts, their (2n, 12) claims, and (n,) bool: which true ones are full.
    """
    full = rng.random(len(scenes)) < 0.5
    true = [scene if f else captions.loosen(scene, rng) for scene, f in zip(scenes, full, strict=True)]
    false = [
        captions.spoil(claim, scene, rng) or captions.spoil(scene, scene, rng)
        for claim, scene in zip(true, scenes, strict=True)
    ]
    claims = [*true, *false]
    texts = [captions.say(claim, LANGUAGES[int(rng.integers(2))], rng) for claim in claims]
    return texts, np.stack([captions.table_of(claim) for claim in claims]), full


def train(args: argparse.Namespace) -> None:
    """Train and store the weights in float16."""
    deterministic(args.seed, args.threads)
    rng = np.random.default_rng([args.seed, 11])
    started = time.perf_counter(), time.process_time()
    spectra, tables = load_pool(args.pool, args.pool_file)
    print(f"drawn after {time.process_time() - started[1]:.0f} s cpu", flush=True)
    model = TinyClap().to(memory_format=torch.channels_last)
    guides = Guides(model.audio.hidden.out_features, model.text.hidden.out_features)
    scale = nn.Parameter(torch.tensor(np.log(14.0), dtype=torch.float32))
    optimizer, clipped = optimizer_of([model, guides], scale, args.rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: pace(step / args.steps))
    stream = batches(spectra, tables, args.batch, rng)
    model.train()
    for step in range(args.steps):
        batch, truth_tables = next(stream)
        texts, claims, full = texts_of([captions.scene_of(table) for table in truth_tables], rng)
        ids = ids_of(TOKENIZER, texts, FILLERS, rng)
        truth = torch.from_numpy(captions.holds(claims, truth_tables))
        targets = torch.from_numpy(truth_tables.astype(np.int64))
        audio_hidden = model.audio.features(torch.from_numpy(batch))
        text_hidden = text_features(model.text, ids)
        sounds = F.normalize(model.audio.projection(audio_hidden), dim=1)
        sentences = F.normalize(model.text.projection(text_hidden), dim=1)
        loss = contrast(sounds @ sentences.T * scale.exp(), truth)
        guide_audio = guides.loss(guides.audio(audio_hidden), targets)
        told = torch.from_numpy(np.flatnonzero(full))
        guide_text = guides.loss(guides.text(text_hidden[told]), targets[told])
        total = loss + args.guide * (guide_audio + guide_text)
        optimizer.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_(clipped, 2.0)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            scale.clamp_(max=float(np.log(args.max_scale)))
        if step % args.every == args.every - 1 or step == args.steps - 1:
            wall, cpu = time.perf_counter() - started[0], time.process_time() - started[1]
            print(
                f"step {step + 1} loss {loss.item():.4f} fields {guide_audio.item():.3f} {guide_text.item():.3f} "
                f"scale {scale.exp().item():.1f} wall {wall:.0f} s cpu {cpu:.0f} s",
                flush=True,
            )
            if args.checkpoints:
                save(model, args.out)
    save(model, args.out)


def load_pool(size: int, file: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """The pool, kept in ``file`` between trials where one is given."""
    if file is not None and file.exists():
        with np.load(file) as stored:
            return stored["spectra"], stored["tables"]
    spectra, tables = pool_of(size)
    if file is not None:
        np.savez(file, spectra=spectra, tables=tables)
    return spectra, tables


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train and write the weights")
    training.add_argument("--out", type=Path, default=WEIGHTS)
    training.add_argument("--steps", type=int, default=1600)
    training.add_argument("--batch", type=int, default=64)
    training.add_argument("--pool", type=int, default=14_000, help="sounds rendered")
    training.add_argument("--pool-file", type=Path, help="keep the rendered sounds here between trials")
    training.add_argument("--rate", type=float, default=2e-3)
    training.add_argument("--guide", type=float, default=0.2, help="weight of the readings of single fields")
    training.add_argument("--max-scale", type=float, default=30.0)
    training.add_argument("--seed", type=int, default=0)
    training.add_argument("--threads", type=int, default=1)
    training.add_argument("--checkpoints", action="store_true", help="store the weights at every report")
    training.add_argument("--every", type=int, default=50)
    testing = commands.add_parser("evaluate", help="measure the stored weights")
    testing.add_argument("--weights", type=Path, default=WEIGHTS)
    testing.add_argument("--threads", type=int, default=1)
    testing.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.command == "train":
        train(args)
    else:
        from tiny_clap_evaluation import evaluate

        torch.set_num_threads(args.threads)
        evaluate(args.weights, args.json)


if __name__ == "__main__":
    main()
