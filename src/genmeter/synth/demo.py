"""A small run on disk: samples of a pretended model, good, degraded and broken, as one JSONL file with its media.

Each task type is one function in :data:`TASKS`: it writes its media under the folder and yields the lines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from genmeter.synth import edits, pictures, sounds, videos

Line = dict[str, Any] | str
"""A sample, or the text of a line that is not one."""

TASKS: dict[str, Callable[[Path, int, int], Iterator[Line]]] = {
    "image-to-image": edits.write,
    "text-to-image": pictures.write,
    "text-to-audio": sounds.write,
    "text-to-video": videos.write,
}


def write_demo(folder: Path, n: int = 24, seed: int = 0, tasks: Sequence[str] = tuple(TASKS)) -> Path:
    """Write a demo run; equal arguments write equal media and equal lines.

    Args:
        folder: Where ``samples.jsonl``, ``inputs/``, ``outputs/`` and ``references/`` go; made if missing. Files of
            the same names are replaced.
        n: Lines of each task type. The cases repeat, on new media, after the last one.
        seed: Which pictures and sounds.
        tasks: Keys of :data:`TASKS`.

    Returns:
        The path of ``samples.jsonl``; URIs in it are relative to ``folder``.

    Raises:
        ValueError: For an unknown task type, or ``n`` below 1.
    """
    unknown = [task for task in tasks if task not in TASKS]
    if unknown:
        raise ValueError(f"no demo data for task type {unknown[0]!r}; there is: {', '.join(TASKS)}")
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "samples.jsonl"
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for task in tasks:
            for line in TASKS[task](folder, n, seed):
                file.write((line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)) + "\n")
    return path
