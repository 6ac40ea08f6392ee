"""Fixtures for runs of set metrics on the fakes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from genmeter_fakes.encoders import control as fakes_control
from PIL import Image
from set_runs import METRIC

import genmeter
from genmeter.contract import AudioMedia
from genmeter.engine.reference_run import make_reference
from genmeter.engine.session import merged_config
from genmeter.inputs.source import open_source


@pytest.fixture(autouse=True)
def _calm():
    fakes_control.reset()
    yield
    fakes_control.reset()


@pytest.fixture
def pictures(tmp_path):
    """``pictures(name, colours)``: one-colour images in a folder; the colour is the feature. Returns paths."""

    def make(name, colours):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        paths = []
        for index, colour in enumerate(np.asarray(colours, dtype=np.uint8)):
            Image.fromarray(np.full((6, 6, 3), colour, np.uint8)).save(folder / f"{index}.png")
            paths.append(f"{name}/{index}.png")
        return paths

    return make


@pytest.fixture
def score(tmp_path):
    """``score(lines, metrics=..., **settings)``: the finished run."""
    count = iter(range(100))

    def run(lines, metrics=METRIC, out=None, **settings):
        path = tmp_path / f"samples-{next(count)}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        out = out or tmp_path / f"run-{path.stem}"
        return genmeter.score(path, metrics and [metrics], out=out, report=False, device="cpu", **settings)

    return run


@pytest.fixture
def sounds(tmp_path, monkeypatch):
    """``sounds(name, clips)``: clips of levels as files; each level is a window. Returns paths."""
    from genmeter.assets.workers import DecodePool

    def decode(self, blob, modality, requests):
        return [AudioMedia(np.frombuffer(blob.data, dtype="<f4"), 4)] * len(requests)

    monkeypatch.setattr(DecodePool, "decode", decode)

    def make(name, clips):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for index, clip in enumerate(clips):
            (folder / f"{index}.wav").write_bytes(np.asarray(clip, dtype="<f4").repeat(4).tobytes())
        return [f"{name}/{index}.wav" for index in range(len(clips))]

    return make


@pytest.fixture
def reference(tmp_path):
    """``reference(input, out, **how)``: make a reference set of a file of lines or a folder."""

    def make(given, out="ref.safetensors", metrics=METRIC, side="auto", moments=False, **settings):
        if isinstance(given, list):
            path = tmp_path / "given.jsonl"
            path.write_text("".join(json.dumps(line) + "\n" for line in given))
            given = path
        config = merged_config(None, metrics, {"device": "cpu", **settings})
        made = make_reference(open_source([str(given)]), tmp_path / out, config, side=side, moments=moments)
        return tmp_path / out, made

    return make
