"""CLAP end to end (files on disk to samples.jsonl) against the bare networks, decoding, and laion_clap's own loop.

The networks are those of 630k-audioset-best (HTSAT-tiny, RoBERTa) with random weights. A run starts by hashing and
loading half a gigabyte and by asking the probe; so that a small count says something, a run of one file is timed too,
and ``net`` figures are of the other files.
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
from common import Row, bound, interleaved, workspace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "fakes"))

import clap_nets
import laion_reference

MODEL = "clap-630k-audioset-best"
CASES = (("wav 44.1 kHz stereo, 10 s", 44100, 2, 10.0, 16), ("wav 16 kHz mono, 10 s", 16000, 1, 10.0, 16))


def run(rounds: int, quick: bool) -> list[dict[str, Any]]:
    """One row a kind of file."""
    cases = CASES[:1] if quick else CASES
    with workspace() as folder:
        entry = _entry(Path(folder))
        return [
            _case(entry, Path(folder) / str(i), *case[:-1], case[-1] // (6 if quick else 1), rounds)
            for i, case in enumerate(cases)
        ]


def _entry(folder: Path) -> Any:
    """The published entry with weights of a file that is written here."""
    from genmeter.weights.load import file_digest
    from genmeter.weights.lock import PartSpec, SourceSpec

    made = clap_nets.entry("clap", small=False, id=MODEL, label="630k-audioset-best")
    path = clap_nets.save(clap_nets.random_tensors(made), folder / "weights.safetensors")
    part = PartSpec("weights", "file", path.name, where={"path": str(path)})
    return replace(made, digest=file_digest(path), sources=(SourceSpec("safetensors", (part,)),))


def _case(
    entry: Any, folder: Path, name: str, rate: int, channels: int, seconds: float, count: int, rounds: int
) -> dict[str, Any]:
    path = _write(folder, rate, channels, seconds, count)
    with (
        mock.patch("genmeter.engine.catalog.get_entry", return_value=entry),
        mock.patch.dict(os.environ, {"GENMETER_HOME": str(folder / "home")}),
    ):
        tasks = {
            "end to end": _end_to_end(path, folder / "all"),
            "one file": _end_to_end(_first_line(path), folder / "one"),
            "bare forward": _bare(entry, path),
            "decode, 1 core": _decode(path),
        }
        if laion_reference.folder() is not None:
            tasks["laion_clap loop"] = _laion_loop(entry, path)
        rows = interleaved(f"clap {name}", count, tasks, rounds)
    return _ratios(name, rows)


def _ratios(name: str, rows: dict[str, Row]) -> dict[str, Any]:
    whole, one, forward, decode = (rows[key] for key in ("end to end", "one file", "bare forward", "decode, 1 core"))
    best = bound(forward, decode, os.cpu_count() or 1)
    others = (whole.items - 1) / whole.items
    net = whole.median_s - one.median_s
    share = forward.median_s * others / net
    loop = rows.get("laion_clap loop")
    return {
        "case": name,
        "files/s": (whole.items - 1) / net,
        "ms/file": 1e3 * net / (whole.items - 1),
        "start s": one.median_s,
        "of bare": share,
        "bound": best,
        "of bound": share / best,
        "vs laion_clap": loop.median_s * others / net if loop else float("nan"),
        "spread": (whole.max_s - whole.min_s) / whole.median_s,
    }


def _write(folder: Path, rate: int, channels: int, seconds: float, count: int) -> Path:
    """Noise with a tone in it, as 16-bit WAV, with its samples.jsonl."""
    import wave

    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    lines = []
    for index in range(count):
        at = np.arange(round(rate * seconds)) / rate
        tone = 0.3 * np.sin(2 * np.pi * (200 + 50 * index) * at)
        samples = tone[:, None] + 0.1 * rng.standard_normal((len(at), channels))
        with wave.open(str(folder / f"{index}.wav"), "wb") as file:
            file.setparams((channels, 2, rate, 0, "NONE", ""))
            file.writeframes((samples.clip(-1, 1) * 32767).astype("<i2").tobytes())
        prompt = f"a tone of {200 + 50 * index} hertz in the noise of rain"
        lines.append({"id": str(index), "task_type": "text-to-audio", "prompt": prompt, "output": f"{index}.wav"})
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _first_line(path: Path) -> Path:
    one = path.with_name("one.jsonl")
    one.write_text(path.read_text().splitlines()[0] + "\n")
    return one


def _lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _end_to_end(path: Path, folder: Path) -> Any:
    import genmeter

    turn = itertools.count()

    def score() -> None:
        out = folder / f"run{next(turn)}"
        genmeter.score(path, ["clapscore"], out=out, cache=False, report=False, device="cpu")

    return score


def _decoded(path: Path) -> list[Any]:
    from genmeter.assets.audio import decode_audio
    from genmeter.assets.limits import Limits
    from genmeter.config import Policy

    limits = Limits.of(Policy())
    return [
        decode_audio(memoryview((path.parent / line["output"]).read_bytes()), [{"rate": 48000}], limits)[0]
        for line in _lines(path)
    ]


def _bare(entry: Any, path: Path) -> Any:
    """The encoder alone, on arrays in memory, in the engine's own batches."""
    from genmeter.encoders.clap import ClapEncoder
    from genmeter.engine import batching, device
    from genmeter.weights.manager import ensure

    encoder = ClapEncoder(entry, lambda: ensure(entry))
    sounds = [encoder.prepare(media, {}) for media in _decoded(path)]
    texts: dict[str, list[Any]] = {}
    for line in _lines(path):
        item = encoder.prepare(line["prompt"], {})
        texts.setdefault(item.bucket, []).append(item)
    with device.torch_settings("exact"):
        encoder.load("cpu", "exact")
    budget = device.memory_budget("cpu")

    def forward() -> None:
        with device.torch_settings("exact"):
            for items in (sounds, *texts.values()):
                size = batching.batch_limit(encoder, items[0].shape, budget, None)
                for start in range(0, len(items), size):
                    encoder.encode(items[start : start + size])

    return forward


def _decode(path: Path) -> Any:
    return lambda: _decoded(path)


def _laion_loop(entry: Any, path: Path) -> Any:
    """get_audio_embedding_from_filelist and get_text_embedding as laion_clap has them, eight files a call."""
    import librosa
    import torch

    from genmeter.encoders.clap.roberta_bpe import RobertaTokenizer

    laion = laion_reference.functions()
    model = laion_reference.model(entry, clap_nets.random_tensors(entry))
    tokenizer = RobertaTokenizer(*clap_nets.tokenizer_files(), 77, entry.id, step=0)
    config = laion_reference.audio_config(entry)
    lines = _lines(path)

    def audio(name: str) -> Any:
        samples, _ = librosa.load(path.parent / name, sr=48000)
        wave = torch.from_numpy(laion.int16_to_float32(laion.float32_to_int16(samples))).float()
        return laion.get_audio_features({}, wave, 480_000, "rand_trunc", "repeatpad", config)

    def loop() -> None:
        with torch.no_grad():
            for start in range(0, len(lines), 8):
                some = lines[start : start + 8]
                sounds = model.get_audio_embedding([audio(line["output"]) for line in some])
                ids = torch.from_numpy(np.stack([tokenizer(line["prompt"]).ids for line in some]))
                texts = model.get_text_embedding({"input_ids": ids, "attention_mask": (ids != 1).long()})
                (sounds * texts).sum(dim=1).tolist()

    return loop
