"""Memory of an FVD run over 64 and over 512 videos: peak resident memory of the process that scores."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import workspace

_RUN = """
import sys
import genmeter
genmeter.score(sys.argv[1], ["fvd"], out=sys.argv[2], cache=False, report=False, device="cpu",
               config={"metrics": {"fvd": {"frames": 9}}})
# Not ru_maxrss, which a process takes over from the one that started it.
own = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(own / 1024)
"""


def run(rounds: int, quick: bool) -> list[dict[str, Any]]:
    """One row a size; ``ratio`` is over the smallest. ``rounds`` does not apply: a peak has no spread to speak of."""
    rows: list[dict[str, Any]] = []
    with workspace() as name:
        folder = Path(name)
        for videos in (8, 16) if quick else (64, 512):
            path = _write(folder, videos // 2)
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", _RUN, str(path), str(folder / f"run{videos}")],
                check=True,
                capture_output=True,
                text=True,
            )
            own = float(done.stdout.strip().splitlines()[-1])
            rows.append(
                {
                    "case": f"{videos} videos of 256x192, fvd with 9 frames",
                    "peak MB": own,
                    "ratio": own / (rows[0]["peak MB"] if rows else own),
                    "seconds": time.perf_counter() - began,
                }
            )
    return rows


def _write(folder: Path, count: int) -> Path:
    from genmeter.synth.film import write_video
    from genmeter.synth.motion import FPS, frames, make_clip

    lines = []
    for index in range(count):
        names = {}
        for role, seed in (("output", index), ("reference", 100_000 + index)):
            path = folder / f"{role}{index}.mp4"
            names[role] = (
                path.name if path.exists() else write_video(path, frames(make_clip(seed), 12, 256, 192), FPS).name
            )
        lines.append({"id": str(index), "prompt": "shapes", "task_type": "text-to-video", **names})
    path = folder / f"samples{count}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
