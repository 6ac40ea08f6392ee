"""Train the tiny CLIP that ships with genmeter, and measure it. Everything comes from seeds; one process, one thread.

    python scripts/train_tiny_clip.py train [--out FILE]
    python scripts/train_tiny_clip.py evaluate [--weights FILE] [--json FILE]

Training scenes have seeds from 10**12 on; all others are free for demos, tests and evaluation. A scene that equals one
of the held-out seeds in every field is left out of the training too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tiny_clip_captions as captions
import torch
import torch.nn.functional as F
from PIL import Image
from tiny_training import contrast, deterministic, ids_of, optimizer_of, pace, save, text_features
from torch import nn

from genmeter.encoders.clip import tiny_tokens
from genmeter.encoders.clip.tiny import MEAN, STD
from genmeter.encoders.clip.tiny_network import IMAGE_SIZE, TinyClip
from genmeter.synth.draw import draw
from genmeter.synth.scene import make_scene

ROOT = Path(__file__).resolve().parent.parent
WEIGHTS = ROOT / "src/genmeter/encoders/clip/tiny-clip.safetensors"

TRAINING_SEEDS = 10**12
HELD_OUT_SEEDS = 16_384
"""Scenes of the seeds below this are never trained on, nor any scene that equals one of them in all fields."""
DRAWN = ((256, 256), (256, 192), (192, 256), (192, 192), (160, 120), (128, 128))
LANGUAGES = ("en", "zh")
TOKENIZER = tiny_tokens.TinyTokenizer()
FILLERS = (
    *(tiny_tokens.piece_id(p) for p in ("by", ";", ":", "pattern", "next", "depicting", "shows", "与")),
    *range(tiny_tokens.SIZE - tiny_tokens.BUCKETS, tiny_tokens.SIZE),
)


def render(scene: Any, width: int, height: int) -> np.ndarray:
    """(96, 96, 3) uint8, by the same resize as the encoder's."""
    image = Image.fromarray(draw(scene, width, height))
    return np.asarray(image.resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BICUBIC))


def pool_of(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures (size, 96, 96, 3) uint8 and tables (size, 14) int8 of training scenes."""
    held_out = {captions.table_of(make_scene(seed)).tobytes() for seed in range(HELD_OUT_SEEDS)}
    pixels = np.empty((size, IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
    tables = np.empty((size, 14), dtype=np.int8)
    seed, made = TRAINING_SEEDS, 0
    while made < size:
        scene = make_scene(seed)
        table = captions.table_of(scene)
        if table.tobytes() not in held_out:
            pixels[made] = render(scene, *DRAWN[seed % len(DRAWN)])
            tables[made] = table
            made += 1
        seed += 1
    print(f"pool: {size} scenes, {seed - TRAINING_SEEDS - size} left out as equal to held-out ones", flush=True)
    return pixels, tables


def augment(pixels: np.ndarray, tables: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Mirrored (words too), moved by up to 3 pixels, lighter or darker, noisy. Copies."""
    pixels, tables = pixels.copy(), tables.copy()
    mirrored = rng.random(len(pixels)) < 0.5
    pixels[mirrored] = pixels[mirrored, :, ::-1]
    left, right = captions.PLACES.index("left"), captions.PLACES.index("right")
    for column in (captions.PLACE, captions.WIDTH + captions.PLACE):
        places = tables[mirrored, column]
        tables[mirrored, column] = np.where(places == left, right, np.where(places == right, left, places))
    values = pixels.astype(np.float32)
    for i, (dx, dy) in enumerate(rng.integers(-3, 4, (len(pixels), 2))):
        values[i] = np.roll(values[i], (dy, dx), axis=(0, 1))
    values *= rng.uniform(0.92, 1.08, (len(pixels), 1, 1, 1)).astype(np.float32)
    noisy = np.flatnonzero(rng.random(len(pixels)) < 0.25)
    values[noisy] += rng.standard_normal((len(noisy), *values.shape[1:]), dtype=np.float32) * 8
    return np.clip(values, 0, 255), tables


def to_tensor(pixels: np.ndarray) -> torch.Tensor:
    """(n, H, W, 3) of 0 to 255 to the (n, 3, H, W) that the tower reads."""
    x = torch.from_numpy(np.ascontiguousarray(pixels, dtype=np.float32)) / 255
    return ((x - torch.tensor(MEAN)) / torch.tensor(STD)).permute(0, 3, 1, 2)


class Guides(nn.Module):
    """Linear readings of a scene's fields from either tower's hidden layer; they speed training up and are dropped."""

    SLOTS = (*(5 * [9, 13, 5, 3, 5]), 12, 4)

    def __init__(self, image: int, text: int) -> None:
        super().__init__()
        self.image = nn.Linear(image, sum(self.SLOTS))
        self.text = nn.Linear(text, sum(self.SLOTS))

    @classmethod
    def targets(cls, tables: np.ndarray) -> torch.Tensor:
        """(n, 27): for each place its group's fields (0 for none), then the background's."""
        out = np.zeros((len(tables), len(cls.SLOTS)), dtype=np.int64)
        for start in (0, captions.WIDTH):
            rows = np.flatnonzero(tables[:, start] >= 0)
            for row in rows:
                group = tables[row, start : start + captions.WIDTH]
                at = int(group[captions.PLACE]) * 5
                out[row, at : at + 4] = group[:4] + 1
                out[row, at + 4] = group[captions.COUNT]
        out[:, 25:] = tables[:, captions.BACKGROUND :]
        return torch.from_numpy(out)

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The summed cross entropies, a mean over the batch."""
        parts = logits.split(list(self.SLOTS), dim=1)
        losses = [F.cross_entropy(part, targets[:, i]) for i, part in enumerate(parts)]
        return torch.stack(losses).sum()


def batches(
    pixels: np.ndarray, tables: np.ndarray, size: int, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Endless augmented batches: each scene once before any comes again."""
    while True:
        order = rng.permutation(len(pixels))
        for start in range(0, len(order) - size + 1, size):
            index = np.sort(order[start : start + size])
            yield augment(pixels[index], tables[index], rng)


def texts_of(tables: np.ndarray, rng: np.random.Generator) -> tuple[list[str], np.ndarray, np.ndarray]:
    """For n scenes: n true captions, full ones and loose ones, then n false ones.

    Returns:
        The 2n texts, their (2n, 14) claims, and (n,) bool: which true ones are full.
    """
    full = rng.random(len(tables)) < 0.5
    true = [captions.Claim(t, True) if f else captions.loosen(t, rng) for t, f in zip(tables, full, strict=True)]
    false = [
        captions.spoil(claim, table, rng) or captions.spoil(captions.Claim(table, True), table, rng)
        for claim, table in zip(true, tables, strict=True)
    ]
    claims = [*true, *false]
    texts = [captions.say(c, LANGUAGES[int(rng.integers(2))], rng) for c in claims]
    return texts, np.stack([c.table for c in claims]), full


def train(args: argparse.Namespace) -> None:
    """Train and store the weights in float16."""
    deterministic(args.seed, args.threads)
    rng = np.random.default_rng([args.seed, 11])
    started = time.perf_counter(), time.process_time()
    pixels, tables = load_pool(args.pool, args.pool_file)
    model = TinyClip().to(memory_format=torch.channels_last)
    guides = Guides(model.image.hidden.out_features, model.text.hidden.out_features)
    scale = nn.Parameter(torch.tensor(np.log(14.0), dtype=torch.float32))
    optimizer, clipped = optimizer_of([model, guides], scale, args.rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: pace(step / args.steps))
    stream = batches(pixels, tables, args.batch, rng)
    model.train()
    for step in range(args.steps):
        batch, truth_tables = next(stream)
        texts, claims, full = texts_of(truth_tables, rng)
        ids = ids_of(TOKENIZER, texts, FILLERS, rng)
        truth = torch.from_numpy(captions.holds(claims, truth_tables))
        targets = Guides.targets(truth_tables)
        image_hidden = model.image.features(to_tensor(batch).contiguous(memory_format=torch.channels_last))
        text_hidden = text_features(model.text, ids)
        images = F.normalize(model.image.projection(image_hidden), dim=1)
        sentences = F.normalize(model.text.projection(text_hidden), dim=1)
        loss = contrast(images @ sentences.T * scale.exp(), truth)
        guide_image = guides.loss(guides.image(image_hidden), targets)
        told = torch.from_numpy(np.flatnonzero(full))
        guide_text = guides.loss(guides.text(text_hidden[told]), targets[told])
        total = loss + args.guide * (guide_image + guide_text)
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
                f"step {step + 1} loss {loss.item():.4f} fields {guide_image.item():.3f} {guide_text.item():.3f} "
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
            return stored["pixels"], stored["tables"]
    pixels, tables = pool_of(size)
    if file is not None:
        np.savez(file, pixels=pixels, tables=tables)
    return pixels, tables


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train and write the weights")
    training.add_argument("--out", type=Path, default=WEIGHTS)
    training.add_argument("--steps", type=int, default=2000)
    training.add_argument("--batch", type=int, default=96)
    training.add_argument("--pool", type=int, default=24_000, help="scenes drawn")
    training.add_argument("--pool-file", type=Path, help="keep the drawn scenes here between trials")
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
        from tiny_clip_evaluation import evaluate

        torch.set_num_threads(args.threads)
        evaluate(args.weights, args.json)


if __name__ == "__main__":
    main()
