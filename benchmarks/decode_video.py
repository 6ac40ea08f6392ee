"""Decoding video in worker processes, against PyAV in a loop in one process, on the same files."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import av
import numpy as np
from common import interleaved, workspace

from genmeter.assets.load import load
from genmeter.assets.resolve import Resolver
from genmeter.assets.workers import DecodePool
from genmeter.config import Policy

_FRAMES = 49
_SIDE = 256


def run(rounds: int, quick: bool) -> list[dict[str, Any]]:
    """49 frames of 256x256 H.264; ``ratio`` is bare PyAV's time, on one thread, over the other's.

    Bare PyAV stops at the last frame that is wanted, and converts colours by swscale's fast path, which is up to four
    levels off.
    """
    count = 4 if quick else 24
    rows = []
    with workspace() as name:
        paths = [_write(Path(name) / f"{index}.mp4", index) for index in range(count)]
        for what, request in (("all frames", {}), ("the first 16", {"frames": 16}), ("8 spread evenly", {"spread": 8})):
            rows += _compare(what, request, paths, rounds)
    return rows


def _compare(what: str, request: Mapping[str, Any], paths: list[Path], rounds: int) -> list[dict[str, Any]]:
    policy = Policy()
    resolver = Resolver(policy, [paths[0].parent])
    wanted = range(_FRAMES) if not request else range(16) if "frames" in request else range(3, _FRAMES, 6)
    with DecodePool(policy, 1) as one, DecodePool(policy, 2) as two, ThreadPoolExecutor(2) as threads:

        def ours(pool: DecodePool, path: Path) -> None:
            [found] = pool.decode(load(resolver.resolve(path), policy), "video", [request])
            assert not isinstance(found, Exception), found

        found = interleaved(
            f"decode video, {what}",
            len(paths),
            {
                "bare PyAV": lambda: [_bare(path, wanted) for path in paths],
                "one worker": lambda: [ours(one, path) for path in paths],
                "two workers": lambda: list(threads.map(lambda path: ours(two, path), paths)),
            },
            rounds,
        )
    bare = found["bare PyAV"].median_s
    return [
        {
            "case": f"{what}, {who}",
            "files/s": row.rate,
            "ms/file": 1000 * row.median_s / row.items,
            "ratio": bare / row.median_s,
        }
        for who, row in found.items()
    ]


def _bare(path: Path, wanted: range) -> np.ndarray:
    """What a script does: decode up to the last frame that is wanted, convert those that are."""
    frames = []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        for index, frame in enumerate(container.decode(stream)):
            if index in wanted:
                frames.append(frame.to_ndarray(format="rgb24"))
            if index >= wanted[-1]:
                break
    return np.stack(frames)


def _write(path: Path, seed: int) -> Path:
    """Coarse noise that moves, with fine noise that does not."""
    rng = np.random.default_rng(seed)
    coarse = np.kron(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8), np.ones((16, 16, 1), np.uint8))
    fine = rng.integers(-6, 7, (_SIDE, _SIDE, 3))
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=24, options={"preset": "fast", "x264-params": "log-level=none"})
        stream.width = stream.height = _SIDE
        stream.pix_fmt = "yuv420p"
        for index in range(_FRAMES):
            picture = np.clip(np.roll(coarse, 2 * index, axis=1) + fine, 0, 255).astype(np.uint8)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        output.mux(stream.encode(None))
    return path
