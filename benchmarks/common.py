"""What every benchmark shares: data on disk, interleaved timing, the machine, the table and the CSV."""

from __future__ import annotations

import csv
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

RESULTS = Path(__file__).resolve().parent / "results"


class Row(NamedTuple):
    """One line of a result: seconds (median and spread over the rounds) and what they are compared with."""

    benchmark: str
    what: str
    items: int
    median_s: float
    min_s: float
    max_s: float

    @property
    def rate(self) -> float:
        """Items a second, by the median."""
        return self.items / self.median_s


def interleaved(benchmark: str, items: int, tasks: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Row]:
    """Time tasks in turn, so that a slow minute of the machine hits all of them alike. One round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(rounds + 1):
        for name, task in tasks.items():
            began = time.perf_counter()
            task()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return {
        name: Row(benchmark, name, items, statistics.median(found), min(found), max(found))
        for name, found in seconds.items()
    }


def bound(forward: Row, decode_one_core: Row, cores: int) -> float:
    """The best share of the bare forward pass that an end-to-end run can reach where cores decode and compute."""
    return forward.median_s / (forward.median_s + decode_one_core.median_s / cores)


def make_pairs(folder: Path, count: int, side: int, suffix: str = "png", seed: int = 0) -> Path:
    """Smooth pictures and noisy copies of them, as files, with their samples.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    lines = []
    for index in range(count):
        small = rng.integers(0, 256, (side // 16, side // 16, 3), dtype=np.uint8)
        clean = np.asarray(Image.fromarray(small).resize((side, side), Image.Resampling.BICUBIC))
        noisy = np.clip(clean + rng.normal(0, 12, clean.shape), 0, 255).astype(np.uint8)
        for name, pixels in (("o", noisy), ("r", clean)):
            Image.fromarray(pixels).save(folder / f"{name}{index}.{suffix}")
        lines.append({"id": str(index), "output": f"o{index}.{suffix}", "reference": f"r{index}.{suffix}"})
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def workspace() -> tempfile.TemporaryDirectory[str]:
    """A folder that goes away; on the same disk as everything else."""
    return tempfile.TemporaryDirectory(prefix="genmeter-bench-")


def machine() -> dict[str, str]:
    """What a figure depends on beside the code."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), model)
    except OSError:
        pass
    import torch

    found = {
        "cpu": model,
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "python": platform.python_version(),
    }
    for name in ("genmeter", "torch", "numpy", "Pillow", "lpips", "torchmetrics"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def save(name: str, rows: list[dict[str, Any]]) -> Path:
    """Write rows with the machine beside them."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.csv"
    about = {"date": time.strftime("%Y-%m-%d"), **machine()}
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=[*rows[0], *about])
        writer.writeheader()
        writer.writerows({**row, **about} for row in rows)
    return path


def table(rows: list[dict[str, Any]]) -> None:
    """Print rows of equal keys as a plain table."""
    keys = list(rows[0])
    cells = [keys, *([_cell(row[key]) for key in keys] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(keys))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    sys.stdout.flush()


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
