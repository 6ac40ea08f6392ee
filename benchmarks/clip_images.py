"""CLIPScore on ViT-B/32 end to end (files on disk to samples.jsonl) against the bare towers, decoding, and two loops.

The network is OpenAI's architecture with random weights. The figures leave out what a run of one image costs: hashing
and loading 600 MB, and the probe. The user's loop opens, transforms and scores one image a call. torchmetrics' class
needs a model hub, so the batched loop stands for it: open_clip's transform and model, eight images a call.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from common import Row, bound, interleaved, make_pairs, workspace
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "fakes"))

import clip_nets

MODEL, ARCHITECTURE = "clip-openai-vit-b-32", "ViT-B-32-quickgelu"
CASES = (("png", 512, 24), ("jpg", 512, 24), ("png", 1024, 12))


def run(rounds: int, quick: bool) -> list[dict[str, Any]]:
    """One row a kind of file."""
    cases = CASES[:1] if quick else CASES
    with workspace() as name:
        network = clip_nets.build(ARCHITECTURE)
        entry = _entry(network, Path(name))
        return [
            _case(network, entry, Path(name) / f"{suffix}{side}", suffix, side, count // (4 if quick else 1), rounds)
            for suffix, side, count in cases
        ]


def _entry(network: Any, folder: Path) -> Any:
    """The published entry with weights of a file that is written here."""
    from genmeter.weights.load import file_digest
    from genmeter.weights.lock import PartSpec, SourceSpec, get_entry

    path = clip_nets.save(network, folder / "weights.safetensors")
    part = PartSpec("weights", "file", path.name, where={"path": str(path)})
    sources = (SourceSpec("safetensors", (part,)),)
    return replace(get_entry(MODEL), digest=file_digest(path), sources=sources)


def _case(network: Any, entry: Any, folder: Path, suffix: str, side: int, count: int, rounds: int) -> dict[str, Any]:
    path = _captioned(make_pairs(folder / "data", count, side, suffix))
    one = path.with_name("one.jsonl")
    one.write_text(path.read_text().splitlines()[0] + "\n")
    with (
        mock.patch("genmeter.engine.catalog.get_entry", return_value=entry),
        mock.patch.dict(os.environ, {"GENMETER_HOME": str(folder / "home")}),
    ):
        tasks = {
            "end to end": _end_to_end(path, folder / "all"),
            "one image": _end_to_end(one, folder / "one"),
            "bare forward": _bare(entry, path),
            "decode, 1 core": _decode(path),
            "loop of one": _loop(network, path, 1),
            "loop of eight": _loop(network, path, 8),
        }
        rows = interleaved(f"clip {suffix} {side}", count, tasks, rounds)
    return _ratios(f"clip vit-b-32, {side}x{side} {suffix}", rows)


def _ratios(name: str, rows: dict[str, Row]) -> dict[str, Any]:
    whole, one, forward, decode = (rows[key] for key in ("end to end", "one image", "bare forward", "decode, 1 core"))
    best = bound(forward, decode, os.cpu_count() or 1)
    others = (whole.items - 1) / whole.items
    net = whole.median_s - one.median_s
    share = forward.median_s * others / net
    return {
        "case": name,
        "images/s": (whole.items - 1) / net,
        "ms/image": 1e3 * net / (whole.items - 1),
        "start s": one.median_s,
        "of bare": share,
        "bound": best,
        "of bound": share / best,
        "vs loop of 1": rows["loop of one"].median_s * others / net,
        "vs loop of 8": rows["loop of eight"].median_s * others / net,
        "spread": (whole.max_s - whole.min_s) / whole.median_s,
    }


def _captioned(path: Path) -> Path:
    """The samples with a caption of their own each, and no reference."""
    lines = []
    for index, line in enumerate(_lines(path)):
        prompt = f"a soft picture of {index} clouds of colour over a quiet field"
        lines.append({"id": line["id"], "task_type": "text-to-image", "prompt": prompt, "output": line["output"]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _end_to_end(path: Path, folder: Path) -> Any:
    import genmeter

    turn = itertools.count()

    def score() -> None:
        out = folder / f"run{next(turn)}"
        genmeter.score(path, ["clipscore/cosine"], out=out, cache=False, report=False, device="cpu")

    return score


def _decoded(path: Path) -> list[np.ndarray]:
    return [np.asarray(Image.open(path.parent / line["output"]).convert("RGB")) for line in _lines(path)]


def _decode(path: Path) -> Any:
    return lambda: _decoded(path)


def _bare(entry: Any, path: Path) -> Any:
    """The encoder alone, on arrays in memory, in the engine's own batches."""
    from genmeter.contract import ImageMedia
    from genmeter.encoders.clip import ClipEncoder
    from genmeter.engine import batching, device
    from genmeter.weights.manager import ensure

    encoder = ClipEncoder(entry, lambda: ensure(entry))
    groups = [
        [encoder.prepare(ImageMedia(pixels), {"alpha": "white"}) for pixels in _decoded(path)],
        [encoder.prepare(line["prompt"], {}) for line in _lines(path)],
    ]
    with device.torch_settings("exact"):
        encoder.load("cpu", "exact")
    budget = device.memory_budget("cpu")

    def forward() -> None:
        with device.torch_settings("exact"):
            for items in groups:
                size = batching.batch_limit(encoder, items[0].shape, budget, None)
                for start in range(0, len(items), size):
                    encoder.encode(items[start : start + size])

    return forward


def _loop(network: Any, path: Path, size: int) -> Any:
    """open_clip's own transform, tokenizer and model, ``size`` images a call."""
    import open_clip
    import torch

    transform = open_clip.image_transform(224, is_train=False)
    tokenizer = open_clip.get_tokenizer(ARCHITECTURE)
    lines = _lines(path)

    def loop() -> None:
        with torch.inference_mode():
            for start in range(0, len(lines), size):
                some = lines[start : start + size]
                pixels = torch.stack([transform(Image.open(path.parent / line["output"])) for line in some])
                images = network.encode_image(pixels, normalize=True)
                texts = network.encode_text(tokenizer([line["prompt"] for line in some]), normalize=True)
                (images * texts).sum(dim=1).tolist()

    return loop
