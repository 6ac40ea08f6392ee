"""Fixtures for the contract tests: the fakes under control, small runs on disk, and the runs that are shared."""

from __future__ import annotations

import json

import contract_runs
import numpy as np
import pytest
from genmeter_fakes.encoders import control as fakes_control
from PIL import Image


@pytest.fixture
def control():
    """The fakes' switches, off before and after."""
    fakes_control.reset()
    yield fakes_control
    fakes_control.reset()


@pytest.fixture
def make_set(tmp_path):
    """``make_set(levels)``: a run of grey images against a fixed reference, one sample each; the level is the score."""

    def make(levels, *, size=(20, 20), name="set", reference=100):
        folder = tmp_path / name
        (folder / "out").mkdir(parents=True)
        Image.fromarray(np.full((*size, 3), reference, np.uint8)).save(folder / "ref.png")
        lines = []
        for index, level in enumerate(levels):
            Image.fromarray(np.full((*size, 3), level, np.uint8)).save(folder / f"out/{index}.png")
            lines.append({"id": f"s{index}", "prompt": "p", "output": f"out/{index}.png", "reference": "ref.png"})
        path = folder / "samples.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return make


@pytest.fixture
def scores():
    """``scores(run, metric)``: the score of each line of a finished run."""

    def read(run, metric):
        return [line["eval_result"]["metrics"][metric]["score"] for line in run.samples]

    return read


@pytest.fixture(scope="session")
def labs(tmp_path_factory):
    """``labs(case)``: the shared runs of a case and its company."""
    return contract_runs.Labs(tmp_path_factory.mktemp)


@pytest.fixture
def lab(case, labs):
    """The shared runs of the test's case, once its media can be decoded and its weights are there."""
    why = contract_runs.undecodable(case.modality)
    if why:
        pytest.skip(f"{case.modality}: {why}")
    contract_runs.have_weights(case)
    return labs(case)
