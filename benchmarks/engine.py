"""The engine around the network: an encoder that costs nothing, a warm feature store, a second metric, start-up."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import Row, interleaved, make_pairs, workspace
from PIL import Image

HERE = Path(__file__).resolve().parent


def run(rounds: int, quick: bool) -> list[dict[str, Any]]:
    """One row a question; ``value`` is what the target speaks of."""
    return [
        *_alone(rounds, 1000 if quick else 8000),
        *_warm(rounds, 64 if quick else 192),
        _second(rounds, 24 if quick else 96),
        *_start_up(rounds),
    ]


def _row(case: str, value: float, unit: str, target: str, **more: float) -> dict[str, Any]:
    about = ", ".join(f"{name.replace('_', ' ')} {number:.3g}" for name, number in more.items())
    return {"case": case, "value": value, "unit": unit, "target": target, "about": about}


def _alone(rounds: int, count: int) -> list[dict[str, Any]]:
    """The mean colour of 32x32 PNG: through the engine, by a bare loop, and by a loop that does the same job."""
    import genmeter

    rng = np.random.default_rng(0)
    with workspace() as name:
        folder = Path(name)
        with open(folder / "samples.jsonl", "w", encoding="utf-8") as file:
            for index in range(count):
                Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / f"{index}.png")
                file.write(json.dumps({"id": str(index), "prompt": "p", "output": f"{index}.png"}) + "\n")
        turn = itertools.count()

        def engine() -> None:
            out = folder / f"run{next(turn)}"
            genmeter.score(folder / "samples.jsonl", ["bench_level"], out=out, cache=False, report=False, device="cpu")

        tasks = {"engine": engine, "bare": lambda: _bare_loop(folder), "same": lambda: _same_job(folder)}
        rows = interleaved("engine alone", count, tasks, rounds)
    whole, bare, same = rows["engine"], rows["bare"], rows["same"]
    each = {"us": 1e6 / whole.rate}
    return [
        _row("engine alone, 32x32 png", whole.rate, "samples/s", "4000", **each, **_spread(whole)),
        _row("of a bare loop", bare.median_s / whole.median_s, "x", "0.5", loop_us=1e6 / bare.rate, **_spread(bare)),
        _row(
            "of a loop that does the same job",
            *(same.median_s / whole.median_s, "x", "0.5"),
            loop_us=1e6 / same.rate,
            **_spread(same),
        ),
    ]


def _spread(row: Row) -> dict[str, float]:
    return {"spread": (row.max_s - row.min_s) / row.median_s}


def _bare_loop(folder: Path) -> None:
    """What one writes to get a number: open, average, write a line."""
    with open(folder / "samples.jsonl", "rb") as lines, open(folder / "out.jsonl", "w", encoding="utf-8") as out:
        for line in lines:
            sample = json.loads(line)
            pixels = np.asarray(Image.open(folder / sample["output"]).convert("RGB"))
            sample["eval_result"] = {"metrics": {"level": {"score": float(pixels.mean())}}}
            out.write(json.dumps(sample) + "\n")


def _same_job(folder: Path) -> None:
    """The same by hand with what the engine promises: nothing outside the folder is read, the file is hashed and its
    checksum looked at, the line has its digest and where it comes from, and the input and the set get hashes of their
    own. Without the engine's journal: an interrupt loses everything."""
    root = os.path.realpath(folder)
    content = hashlib.sha256((folder / "samples.jsonl").read_bytes()).hexdigest()
    parts = []
    rows = []
    for line in open(folder / "samples.jsonl", "rb"):  # noqa: SIM115
        sample = json.loads(line)
        if not (isinstance(sample["id"], str) and isinstance(sample["output"], str)):
            raise ValueError(sample)
        path = os.path.realpath(os.path.join(root, sample["output"]))
        if not path.startswith(root + os.sep):
            raise ValueError(path)
        with open(path, "rb") as file:
            before = os.fstat(file.fileno())
            data = file.read()
            if os.fstat(file.fileno()).st_mtime_ns != before.st_mtime_ns or len(data) != before.st_size:
                raise ValueError(path)
        digest = hashlib.sha256(data).hexdigest()
        image = Image.open(io.BytesIO(data))
        image.load()
        score = float(np.asarray(image.convert("RGB")).mean())
        parts.append(hashlib.sha256(json.dumps([sample["id"], sample["prompt"]]).encode()).digest())
        rows.append((sample, digest, score))
    snapshot = hashlib.sha256(b"".join(sorted(parts))).hexdigest()
    origin = {"run_id": content[:16], "genmeter": "0", "models": content, "snapshot": snapshot}
    with open(folder / "out.jsonl", "w", encoding="utf-8") as out:
        for sample, digest, score in rows:
            used = [{"role": "prediction", "path": "output", "digest": f"sha256:{digest}"}]
            entry = {"score": score, "variant": "mean", "higher_is_better": True, "inputs": used}
            sample["eval_result"] = {
                "overall": {"score": None, "passed": None},
                "metrics": {"level": entry},
                "judge": {"model": "by hand", "verdict": "undecided", "reason": "no thresholds configured"},
                "provenance": origin,
            }
            out.write(json.dumps(sample) + "\n")
    scores = np.array([score for *_, score in rows])
    (folder / "summary.json").write_text(json.dumps({"mean": scores.mean(), "sd": scores.std(ddof=1)}))


def _command(folder: Path, *words: object) -> Callable[[], None]:
    """``genmeter score`` as a process of its own, each time into a new directory."""
    turn = itertools.count()
    env = {**os.environ, "GENMETER_CACHE": str(folder / "cache"), "PYTHONPATH": str(HERE)}
    first = [sys.executable, "-m", "genmeter.cli.main", "score"]

    def call() -> None:
        out = folder / f"{hash(words):x}-{next(turn)}"
        rest = map(str, (*words, "-o", out, "--device", "cpu", "--no-report"))
        subprocess.run([*first, *rest], check=True, capture_output=True, env=env)

    return call


def _warm(rounds: int, count: int) -> list[dict[str, Any]]:
    """LPIPS as a command, cold and on a warm store, less what the same command takes for a single pair."""
    with workspace() as name:
        folder = Path(name)
        path = make_pairs(folder / "data", count, 256)
        one = path.with_name("one.jsonl")
        one.write_text(path.read_text().splitlines()[0] + "\n")
        _command(folder, path, "--metrics", "lpips")()
        tasks = {
            "cold": _command(folder, path, "--metrics", "lpips", "--no-cache"),
            "cold, one": _command(folder, one, "--metrics", "lpips", "--no-cache"),
            "warm": _command(folder, path, "--metrics", "lpips"),
            "warm, one": _command(folder, one, "--metrics", "lpips"),
        }
        rows = interleaved("warm store", count, tasks, rounds)
    cold, cold_one, warm, warm_one = (rows[key].median_s for key in tasks)
    net = (cold - cold_one) / max(warm - warm_one, 1e-3)  # where others load the machine, noise can hide all of it
    return [
        _row(
            "lpips alex 256, warm store, net of start-up",
            *(net, "x faster", "50"),
            cold_ms=1e3 * (cold - cold_one) / (count - 1),
            warm_ms=1e3 * (warm - warm_one) / (count - 1),
        ),
        _row(
            f"the same with start-up, {count} pairs",
            *(cold / warm, "x faster", "-"),
            cold_start_s=cold_one,
            warm_start_s=warm_one,
        ),
    ]


def _second(rounds: int, count: int) -> dict[str, Any]:
    """A second metric of the same pairs beside the first."""
    import genmeter

    with workspace() as name:
        folder = Path(name)
        path = make_pairs(folder / "data", count, 256)
        turn = itertools.count()

        def score(*metrics: str) -> Callable[[], Any]:
            def task() -> None:
                genmeter.score(path, metrics, out=folder / f"{next(turn)}", cache=False, report=False, device="cpu")

            return task

        rows = interleaved("second metric", count, {"one": score("lpips"), "two": score("lpips", "lpips@alex")}, rounds)
    one, two = rows["one"].median_s, rows["two"].median_s
    return _row("a second metric on the same encoder", two / one - 1, "added", "0.05", pairs_a_second=count / one)


def _start_up(rounds: int) -> list[dict[str, Any]]:
    def python(*words: str) -> Callable[[], Any]:
        return lambda: subprocess.run([sys.executable, *words], check=True, capture_output=True)

    with workspace() as name:
        folder = Path(name)
        one = make_pairs(folder / "data", 1, 64)
        tasks = {
            "python": python("-c", "pass"),
            "help": python("-m", "genmeter.cli.main", "--help"),
            "torch": python("-c", "import torch"),
            "score": _command(folder, one, "--metrics", "lpips", "--no-cache"),
        }
        rows = interleaved("start-up", 1, tasks, rounds)
    bare, usage, torch, score = (rows[key].median_s for key in tasks)
    return [
        _row("genmeter --help", usage, "s", "0.5", bare_python=bare),
        _row(
            "genmeter score, one pair, above the bare import of torch", score - torch, "s", "1", torch=torch, all=score
        ),
    ]
