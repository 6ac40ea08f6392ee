"""LPIPS end to end (files on disk to samples.jsonl) against the bare network, decoding, and the loops users write."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
from common import Row, bound, interleaved, make_pairs, workspace
from PIL import Image

CASES = (("alex", 256, 128), ("alex", 512, 24), ("vgg", 256, 8))


def run(rounds: int, quick: bool) -> list[dict[str, Any]]:
    """One row a network and size."""
    cases = CASES[:1] if quick else CASES
    return [_case(net, side, count // (4 if quick else 1), rounds) for net, side, count in cases]


def _case(net: str, side: int, count: int, rounds: int) -> dict[str, Any]:
    with workspace() as folder:
        path = make_pairs(Path(folder) / "data", count, side)
        one = path.with_name("one.jsonl")
        one.write_text(path.read_text().splitlines()[0] + "\n")
        tasks = {
            "end to end": _end_to_end(path, Path(folder), f"lpips@{net}"),
            "one pair": _end_to_end(one, Path(folder), f"lpips@{net}"),
            "bare forward": _bare(path, net, count),
            "decode, 1 core": _decode(path, count),
            "user loop": _user_loop(path, _lpips_package(net), count),
            "torchmetrics": _user_loop(path, _torchmetrics(net), count),
        }
        rows = interleaved(f"lpips {net} {side}", count, tasks, rounds)
    return _ratios(f"lpips {net} {side}x{side} png", rows)


def _ratios(name: str, rows: dict[str, Row]) -> dict[str, Any]:
    whole, forward, decode = rows["end to end"], rows["bare forward"], rows["decode, 1 core"]
    best = bound(forward, decode, os.cpu_count() or 1)
    share = forward.median_s / whole.median_s
    # Opening a run, loading the network and closing the run cost the same for a pair as for a million.
    start = rows["one pair"].median_s - whole.median_s / whole.items
    return {
        "case": name,
        "pairs/s": whole.rate,
        "ms/pair": 1e3 / whole.rate,
        "of bare": share,
        "bound": best,
        "of bound": share / best,
        "net of start": forward.median_s / (whole.median_s - start) / best,
        "vs user loop": rows["user loop"].median_s / whole.median_s,
        "vs torchmetrics": rows["torchmetrics"].median_s / whole.median_s,
        "spread": (whole.max_s - whole.min_s) / whole.median_s,
    }


def _end_to_end(path: Path, folder: Path, metric: str) -> Any:
    import genmeter

    turn = itertools.count()

    def score() -> None:
        genmeter.score(path, [metric], out=folder / f"{path.stem}{next(turn)}", cache=False, report=False, device="cpu")

    return score


def _bare(path: Path, net: str, count: int) -> Any:
    """The encoder alone, on arrays in memory, in the engine's own batches."""
    from genmeter.contract import ImageMedia
    from genmeter.encoders.lpips import LpipsEncoder
    from genmeter.engine import batching, device
    from genmeter.weights.lock import get_entry
    from genmeter.weights.manager import ensure

    entry = get_entry(f"lpips-{net}")
    encoder = LpipsEncoder(entry, lambda: ensure(entry))
    view = {"alpha": "white", "resize": "none"}

    def half(name: str) -> Any:
        return encoder.prepare(ImageMedia(np.asarray(Image.open(path.parent / name).convert("RGB"))), view)

    items = [encoder.join([half(f"o{i}.png"), half(f"r{i}.png")], view) for i in range(count)]
    size = batching.batch_limit(encoder, items[0].shape, device.memory_budget("cpu"), None)
    with device.torch_settings("exact"):
        encoder.load("cpu", "exact")

    def forward() -> None:
        with device.torch_settings("exact"):
            for start in range(0, count, size):
                encoder.encode(items[start : start + size])

    return forward


def _decode(path: Path, count: int) -> Any:
    from genmeter.assets.decode import decode
    from genmeter.assets.load import load
    from genmeter.assets.resolve import Resolver
    from genmeter.config import Policy

    policy = Policy()
    resolver = Resolver(policy, [path.parent])

    def read() -> None:
        for index in range(count):
            for role in "or":
                decode(load(resolver.resolve(f"{role}{index}.png"), policy), "image", policy)

    return read


def _lpips_package(net: str) -> Any:
    import lpips

    return lpips.LPIPS(net=net, pnet_rand=True, verbose=False).eval()


def _torchmetrics(net: str) -> Any:
    """Its network; with random weights below the linear layers, since its own way to the others is a download."""
    from torchmetrics.functional.image.lpips import _LPIPS

    return _LPIPS(net=net, pnet_rand=True)


def _user_loop(path: Path, model: Any, count: int) -> Any:
    """What people write: PIL, one pair a call, since each pair shall have its number."""
    import torch

    folder = path.parent

    def image(name: str) -> Any:
        pixels = np.asarray(Image.open(folder / name).convert("RGB"))
        return torch.from_numpy(pixels.astype(np.float32) / 127.5 - 1).permute(2, 0, 1)[None]

    def loop() -> None:
        with torch.no_grad():
            for index in range(count):
                float(model(image(f"o{index}.png"), image(f"r{index}.png")))

    return loop
