"""Fixtures for tests that run the command as users do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

FAKES = Path(__file__).resolve().parent.parent / "fakes"


@pytest.fixture
def genmeter_command(command_env):
    """``genmeter_command("score", ...)``: the finished process; ``background=True`` returns it running."""
    env = {**command_env, "PYTHONPATH": str(FAKES), "GENMETER_CACHE": os.environ["GENMETER_CACHE"]}

    def run(*words, background=False, extra=None, **options):
        command = [sys.executable, "-m", "genmeter.cli.main", *map(str, words)]
        options = {"env": {**env, **(extra or {})}, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        if background:
            # A test run that was itself started in the background has Ctrl-C switched off, and would pass that on.
            return subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **options)
        return subprocess.run(command, text=True, timeout=120, **options)

    return run


@pytest.fixture
def grey_set(tmp_path):
    """``grey_set(levels)``: samples.jsonl of grey outputs against one grey reference."""

    def make(levels, folder="data"):
        root = tmp_path / folder
        (root / "out").mkdir(parents=True)
        Image.fromarray(np.full((16, 16, 3), 100, np.uint8)).save(root / "ref.png")
        lines = []
        for index, level in enumerate(levels):
            Image.fromarray(np.full((16, 16, 3), level, np.uint8)).save(root / f"out/{index}.png")
            lines.append({"id": f"s{index}", "prompt": "p", "output": f"out/{index}.png", "reference": "ref.png"})
        path = root / "samples.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return make


@pytest.fixture(scope="session")
def crash_server(command_env, tmp_path_factory):
    """Runs of the command at the price of a fork; see :mod:`crash_server`."""
    if not sys.platform.startswith("linux"):
        pytest.skip("forks, and looks into /proc")
    from crash_server import CrashServer

    folder = tmp_path_factory.mktemp("crashes")
    with CrashServer({**command_env, "GENMETER_CACHE": str(folder / "cache")}, folder) as server:
        yield server


@pytest.fixture(scope="session")
def crash_data(tmp_path_factory):
    """``crash_data(count)``: samples.jsonl of so many grey outputs (at most 150), no two alike, and two references."""

    def make(count):
        root = tmp_path_factory.mktemp("crash-data")
        (root / "out").mkdir()
        for name, level in (("a", 100), ("b", 10)):
            Image.fromarray(np.full((16, 16, 3), level, np.uint8)).save(root / f"{name}.png")
        lines = []
        for index in range(count):
            Image.fromarray(np.full((16, 16, 3), 101 + index, np.uint8)).save(root / f"out/{index}.png")
            reference = "ab"[index % 2] + ".png"
            lines.append({"id": f"s{index}", "prompt": "p", "output": f"out/{index}.png", "reference": reference})
        path = root / "samples.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return make
