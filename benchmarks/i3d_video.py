"""I3D end to end (video files on disk to samples.jsonl, FVD on) against the bare network, decoding, and a port's loop.

A run starts by hashing and loading the weights and by asking the probe; so that a small count says something, a run of
two files is timed too, and ``net`` figures are of the other files.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from common import Row, bound, interleaved, workspace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "fakes"))

FRAMES = 16
VIEW = {"frames": FRAMES, "start": "first", "stride": 1, "sampling": "index", "grid": "tf1", "pre_resize": "none"}
# Name, width, height, frames of a file, samples: each has a prediction and a reference.
CASES = (
    ("h264 256x256, 16 frames", 256, 256, 16, 3),
    ("h264 512x512, 48 frames", 512, 512, 48, 3),
    ("h264 1280x720, 121 frames", 1280, 720, 121, 2),
)


def run(rounds: int, quick: bool) -> list[dict[str, Any]]:
    """One row a kind of file."""
    rows = []
    for name, width, height, frames, count in CASES[:1] if quick else CASES:
        with workspace() as folder:
            rows.append(_case(Path(folder), name, width, height, frames, 2 if quick else count, rounds))
    return rows


def _case(folder: Path, name: str, width: int, height: int, frames: int, count: int, rounds: int) -> dict[str, Any]:
    path = _write(folder, width, height, frames, count)
    files = 2 * count
    tasks = {
        "end to end": _end_to_end(path, folder / "whole"),
        "one sample": _end_to_end(_first(path), folder / "one"),
        "bare forward": _bare(path),
        "decode, 1 core": _decode(path),
        "bare PyAV": _bare_pyav(path),
        "port": _port(path),
    }
    rows = interleaved(f"i3d {name}", files, tasks, rounds)
    return _ratios(f"i3d {name}", rows, files)


def _ratios(name: str, rows: dict[str, Row], files: int) -> dict[str, Any]:
    whole, forward, decode = rows["end to end"], rows["bare forward"], rows["decode, 1 core"]
    best = bound(forward, decode, os.cpu_count() or 1)
    net = (whole.median_s - rows["one sample"].median_s) / (files - 2) * files
    return {
        "case": name,
        "clips/s": files / net,
        "ms/clip": 1000 * net / files,
        "forward ms": 1000 * forward.median_s / files,
        "decode ms": 1000 * decode.median_s / files,
        "of bare, net": forward.median_s / net,
        "bound": best,
        "of bound, net": forward.median_s / net / best,
        "of bound": forward.median_s / whole.median_s / best,
        "decode vs PyAV": rows["bare PyAV"].median_s / decode.median_s,
        "vs port": rows["port"].median_s / net,
        "spread": (whole.max_s - whole.min_s) / whole.median_s,
    }


def _write(folder: Path, width: int, height: int, frames: int, count: int) -> Path:
    """Smooth noise that drifts, with grain, as H.264."""
    from PIL import Image

    from genmeter.synth.film import write_video

    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for index in range(count):
        rng = np.random.default_rng(index)
        small = rng.integers(0, 256, (height // 16 + 8, width // 16 + 8, 3), dtype=np.uint8)
        large = Image.fromarray(small).resize((width + 128, height + 128), Image.Resampling.BICUBIC)
        still = np.asarray(large).astype(np.int16)
        names = {}
        for role in ("output", "reference"):
            clip = np.empty((frames, height, width, 3), np.uint8)
            for t in range(frames):
                part = still[t % 128 : t % 128 + height, 64 : 64 + width]
                clip[t] = np.clip(part + rng.integers(-6, 7, part.shape, dtype=np.int16), 0, 255)
            names[role] = write_video(folder / f"{role}{index}.mp4", clip, 24).name
        lines.append({"id": str(index), "prompt": "noise", "task_type": "text-to-video", **names})
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _first(path: Path) -> Path:
    one = path.with_name("one.jsonl")
    one.write_text(path.read_text().splitlines(keepends=True)[0])
    return one


def _files(path: Path) -> list[Path]:
    return sorted(path.parent.glob("*.mp4"))


def _end_to_end(path: Path, folder: Path) -> Any:
    import genmeter

    turn = itertools.count()

    def score() -> None:
        genmeter.score(path, ["fvd"], out=folder / f"run{next(turn)}", cache=False, report=False, device="cpu")

    return score


def _pool(path: Path) -> Any:
    from genmeter.assets.load import load
    from genmeter.assets.resolve import Resolver
    from genmeter.assets.workers import DecodePool
    from genmeter.config import Policy

    policy = Policy()
    resolver, pool = Resolver(policy, [path.parent]), DecodePool(policy, 1)
    request = {key: VIEW[key] for key in ("frames", "start", "stride", "sampling")}

    def decode(file: Path) -> Any:
        [media] = pool.decode(load(resolver.resolve(str(file)), policy), "video", [request])
        assert not isinstance(media, Exception), media
        return media

    return decode


def _decode(path: Path) -> Any:
    decode, files = _pool(path), _files(path)
    return lambda: [decode(file) for file in files]


def _bare(path: Path) -> Any:
    """The encoder alone, on arrays in memory, in the engine's own batches."""
    from genmeter.encoders.i3d import I3dEncoder
    from genmeter.engine import batching, device
    from genmeter.weights.lock import get_entry
    from genmeter.weights.manager import ensure

    entry = get_entry("i3d-k400")
    encoder = I3dEncoder(entry, lambda: ensure(entry))
    decode = _pool(path)
    items = [encoder.prepare(decode(file), VIEW) for file in _files(path)]
    size = batching.batch_limit(encoder, items[0].shape, device.memory_budget("cpu"), None)
    with device.torch_settings("exact"):
        encoder.load("cpu", "exact")

    def forward() -> None:
        with device.torch_settings("exact"):
            for start in range(0, len(items), size):
                encoder.encode(items[start : start + size])

    return forward


def _bare_pyav(path: Path) -> Any:
    """What a script does: open, decode the first frames, convert each to RGB."""
    files = [file.read_bytes() for file in _files(path)]
    return lambda: [_frames(data) for data in files]


def _frames(data: bytes) -> np.ndarray:
    import av

    with av.open(io.BytesIO(data)) as container:
        found = itertools.islice(container.decode(video=0), FRAMES)
        return np.stack([frame.to_ndarray(format="rgb24") for frame in found])


def _port(path: Path) -> Any:
    """What PyTorch scripts do: decode, F.interpolate, and the network as its modules are written down, 8 a batch."""
    import torch
    from i3d_plain import Plain

    from genmeter.weights.load import load_tensors
    from genmeter.weights.lock import get_entry
    from genmeter.weights.manager import ensure

    network, files = Plain(load_tensors(ensure(get_entry("i3d-k400")))), _files(path)

    def resized(file: Path) -> Any:
        x = torch.from_numpy(_frames(file.read_bytes())).permute(0, 3, 1, 2).float()
        x = torch.nn.functional.interpolate(x, (224, 224), mode="bilinear", align_corners=False)
        return (2 * x / 255 - 1).permute(0, 2, 3, 1)

    def loop() -> None:
        with torch.no_grad():
            for start in range(0, len(files), 8):
                network(torch.stack([resized(file) for file in files[start : start + 8]])).numpy()

    return loop
