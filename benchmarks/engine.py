"""The engine around the network: an identity encoder, a second run on a warm store, a second metric, start-up."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from common import interleaved, make_pairs, workspace
from PIL import Image


def run(rounds: int, quick: bool) -> list[dict[str, Any]]:
    """One row a question; ``ratio`` is what the target speaks of."""
    return [*_alone(rounds, 1000 if quick else 8000), *_warm(rounds, 24 if quick else 96), _start_up(rounds)]


def _alone(rounds: int, count: int) -> list[dict[str, Any]]:
    """One metric on the mean colour of 32x32 PNG, against a straight loop that does the same."""
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
            genmeter.score(folder / "samples.jsonl", ["fake_level"], out=out, cache=False, report=False, device="cpu")

        def loop() -> None:
            with open(folder / "samples.jsonl", "rb") as lines, open(folder / "out.jsonl", "w") as out:
                for line in lines:
                    sample = json.loads(line)
                    pixels = np.asarray(Image.open(folder / sample["output"]).convert("RGB"))
                    sample["eval_result"] = {"metrics": {"level": {"score": float(pixels.mean())}}}
                    out.write(json.dumps(sample) + "\n")

        rows = interleaved("engine alone", count, {"engine": engine, "loop": loop}, rounds)
    engine_row, loop_row = rows["engine"], rows["loop"]
    return [
        {"case": "engine alone, 32x32 png", "samples/s": engine_row.rate, "ratio": 0.0, "of what": "target 4000"},
        {
            "case": "engine against a straight loop",
            "samples/s": loop_row.rate,
            "ratio": loop_row.median_s / engine_row.median_s,
            "of what": "target 0.5 of the loop",
        },
    ]


def _warm(rounds: int, count: int) -> list[dict[str, Any]]:
    """LPIPS again on a warm store, and a second metric of the same pairs beside the first."""
    import os

    import genmeter

    with workspace() as name:
        folder = Path(name)
        path = make_pairs(folder / "data", count, 256)
        turn = itertools.count()
        before = os.environ.get("GENMETER_CACHE")

        def score(metrics: list[str], cache: bool) -> Any:
            def task() -> None:
                genmeter.score(path, metrics, out=folder / f"run{next(turn)}", cache=cache, report=False, device="cpu")

            return task

        os.environ["GENMETER_CACHE"] = str(folder / "cache")
        try:
            tasks = {
                "cold": score(["lpips"], False),
                "warm": score(["lpips"], True),
                "two": score(["lpips", "lpips@alex"], False),
            }
            rows = interleaved("warm store", count, tasks, rounds)
        finally:
            if before is None:
                del os.environ["GENMETER_CACHE"]
            else:
                os.environ["GENMETER_CACHE"] = before
    cold, warm, two = (rows[key] for key in ("cold", "warm", "two"))
    return [
        {
            "case": "lpips alex 256, warm store",
            "samples/s": warm.rate,
            "ratio": cold.median_s / warm.median_s,
            "of what": "times faster than cold; target 50",
        },
        {
            "case": "second metric, same encoder",
            "samples/s": two.rate,
            "ratio": two.median_s / cold.median_s - 1,
            "of what": "added; target below 0.05",
        },
    ]


def _start_up(rounds: int) -> dict[str, Any]:
    def python(*words: str) -> Any:
        return lambda: subprocess.run([sys.executable, *words], check=True, capture_output=True)

    tasks = {"help": python("-m", "genmeter.cli.main", "--help"), "python": python("-c", "pass")}
    rows = interleaved("start-up", 1, tasks, rounds)
    return {
        "case": "genmeter --help",
        "samples/s": 0.0,
        "ratio": rows["help"].median_s,
        "of what": f"seconds, of which bare python {rows['python'].median_s:.2f}; target below 0.5",
    }
