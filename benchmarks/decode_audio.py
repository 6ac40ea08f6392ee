"""Decoding audio in worker processes, against PyAV and soxr in a loop in one process, on the same files."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import av
import numpy as np
import soxr
from common import interleaved, workspace

from genmeter.assets.load import load
from genmeter.assets.resolve import Resolver
from genmeter.assets.workers import DecodePool
from genmeter.config import Policy

_RATE = 48_000
_KINDS = {"wav": ("wav", "pcm_s16le"), "flac": ("flac", "flac"), "mp3": ("mp3", "libmp3lame"), "m4a": ("ipod", "aac")}


def run(rounds: int, quick: bool) -> list[dict[str, Any]]:
    """10 s of 44.1 kHz stereo to 48 kHz mono; ``ratio`` is bare PyAV's time over ours, with one worker and with two."""
    count = 6 if quick else 24
    rows = []
    for kind in _KINDS:
        with workspace() as name:
            paths = _write(Path(name), kind, count)
            rows += _compare(kind, paths, rounds)
    return rows


def _compare(kind: str, paths: list[Path], rounds: int) -> list[dict[str, Any]]:
    policy = Policy()
    resolver = Resolver(policy, [paths[0].parent])
    with DecodePool(policy, 1) as one, DecodePool(policy, 2) as two, ThreadPoolExecutor(2) as threads:

        def ours(pool: DecodePool, path: Path) -> None:
            [found] = pool.decode(load(resolver.resolve(path), policy), "audio", [{"rate": _RATE}])
            assert not isinstance(found, Exception), found

        found = interleaved(
            f"decode audio, {kind}",
            len(paths),
            {
                "bare PyAV": lambda: [_bare(path) for path in paths],
                "one worker": lambda: [ours(one, path) for path in paths],
                "two workers": lambda: list(threads.map(lambda path: ours(two, path), paths)),
            },
            rounds,
        )
    bare = found["bare PyAV"].median_s
    return [
        {
            "case": f"{kind}, 10 s, {what}",
            "files/s": row.rate,
            "ms/file": 1000 * row.median_s / row.items,
            "ratio": bare / row.median_s,
        }
        for what, row in found.items()
    ]


def _bare(path: Path) -> np.ndarray:
    """What a script does: decode, average the channels, resample in one call."""
    pieces = []
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        rate = stream.rate
        for frame in container.decode(stream):
            values = frame.to_ndarray()
            channels = len(frame.layout.channels)
            if not frame.format.is_planar:
                values = values.reshape(-1, channels).T
            if values.dtype.kind == "i":
                values = values.astype(np.float32) / -float(np.iinfo(values.dtype).min)
            pieces.append(values.mean(axis=0, dtype=np.float32))
    return np.asarray(soxr.resample(np.concatenate(pieces), rate, _RATE, "HQ"))


def _write(folder: Path, kind: str, count: int) -> list[Path]:
    container, codec = _KINDS[kind]
    paths = []
    for index in range(count):
        rng = np.random.default_rng(index)
        time = np.arange(441_000) / 44_100
        sound = 0.3 * np.sin(2 * np.pi * (200 + 20 * index) * time) + 0.05 * rng.standard_normal(len(time))
        buffer = io.BytesIO()
        with av.open(buffer, "w", format=container) as output:
            stream = output.add_stream(codec, rate=44_100)
            stream.layout = "stereo"
            context = stream.codec_context
            fit = av.AudioResampler(context.format, "stereo", 44_100, frame_size=context.frame_size or None)
            frame = av.AudioFrame.from_ndarray(np.tile(sound.astype("f4"), (2, 1)), format="fltp", layout="stereo")
            frame.sample_rate, frame.pts = 44_100, 0
            for piece in [*fit.resample(frame), *fit.resample(None)]:
                output.mux(stream.encode(piece))
            output.mux(stream.encode(None))
        path = folder / f"{index}.{kind}"
        path.write_bytes(buffer.getvalue())
        paths.append(path)
    return paths
