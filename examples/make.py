"""Writes the example runs beside this file. Equal to what is in the repository as long as genmeter.synth is."""

from __future__ import annotations

from pathlib import Path

from genmeter.synth.demo import TASKS, write_demo

SAMPLES = 4


def main(folder: Path) -> None:
    """Write one run for each task type under ``folder``."""
    for task in TASKS:
        print(write_demo(folder / task, n=SAMPLES, tasks=[task]))


if __name__ == "__main__":
    main(Path(__file__).resolve().parent)
