"""Another process gives the same bytes, also one that takes up the run of a process that was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import contract_media as media
import numpy as np
import pytest
from contract_runs import SETTINGS, available, parametrize, rows_of
from PIL import Image

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
KILLED = -signal.SIGKILL


def run_jobs(jobs, folder):
    """The exit status of each job; see contract_process.py.

    The number of BLAS threads is the caller's: like batch size and device it is part of what makes bytes equal.
    """
    file = folder / "jobs.json"
    file.write_text(json.dumps(jobs), encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    script = Path(__file__).with_name("contract_process.py")
    done = subprocess.run([sys.executable, script, file], env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def rows_in(folder):
    return rows_of((Path(folder) / "samples.jsonl").read_bytes())


@pytest.fixture(scope="session")
def processes(tmp_path_factory, labs):
    """``processes(modality)``: all its metrics in one run that is killed, resumed; and in one over a few samples.

    Returns the three exit statuses, and the rows of the resumed and of the short run.
    """
    folder, made = tmp_path_factory.mktemp("processes"), {}

    def of(modality):
        if modality not in made:
            cases = available(modality)
            shared = list({id(lab): lab for lab in map(labs, cases)}.values())
            path = shared[0].path
            few = shared[0].lines()[media.FEW.start : media.FEW.stop]
            few_path = media.write_lines(path.with_name("process-few.jsonl"), few)
            common = {
                "metrics": sorted(case.metric for case in cases),
                "settings": {**SETTINGS, "media_root": str(path.parent), "cache": False},
                "store": str(folder / "store"),
            }
            broken, short = (str(folder / f"{modality}-{name}") for name in ("broken", "short"))
            half = sum(lab.base().encoded for lab in shared) // 2
            jobs = [
                {**common, "path": str(path), "out": broken, "die_after": half or None},
                {**common, "path": str(path), "out": broken, "die_after": None},
                {**common, "path": str(few_path), "out": short, "die_after": None},
            ]
            made[modality] = (run_jobs(jobs, folder), rows_in(broken), rows_in(short))
        return made[modality]

    return of


@parametrize()
def test_killed_in_the_middle_and_taken_up_again(case, lab, processes):
    """SIGKILL after half of the items; another process goes on; every entry is what an unbroken run says."""
    statuses, broken, _ = processes(case.modality)
    assert statuses[:2] == [0 if case.modality == "text" else KILLED, 0]
    assert {key: entries[case.metric] for key, entries in broken.items()} == lab.base().of(case.metric)


@parametrize()
def test_another_process(case, lab, processes):
    statuses, _, short = processes(case.modality)
    assert statuses[2] == 0
    few = lab.run("few", lab.lines()[media.FEW.start : media.FEW.stop], store="half").of(case.metric)
    assert {key: entries[case.metric] for key, entries in short.items()} == few


def test_the_batch_plan_survives_kills(tmp_path):
    """With networks whose numbers betray the batch: killed at nine points, each run equals an unbroken one."""
    lines = []
    for index in range(40):
        side = (8, 12)[index % 3 == 1]
        for role, level in (("o", 5 * index % 200), ("r", index)):
            Image.fromarray(np.full((side, side, 3), level, np.uint8)).save(tmp_path / f"{role}{index}.png")
        output = f"o{index - index % 8 if index % 5 == 0 else index}.png"  # some come twice
        lines.append(
            {"id": f"s{index}", "prompt": "ab" * (index % 4 + 1), "output": output, "reference": f"r{index}.png"}
        )
    (tmp_path / "o7.png").write_bytes(b"\x89PNG")
    (tmp_path / "r9.png").unlink()
    path = media.write_lines(tmp_path / "samples.jsonl", lines)
    common = {
        "path": str(path),
        "metrics": ["fake_gap", "fake_level", "fake_match", "fake_pair"],
        "settings": {**SETTINGS, "cache": False, "workers": 2, "batch_size": 5},
        "store": str(tmp_path / "store"),
        "env": {"GENMETER_FAKE_COMPANY": "1"},
    }
    jobs = [{**common, "out": str(tmp_path / "whole"), "die_after": None}]
    points = range(5, 140, 16)
    for point in points:
        for die_after in (point, None):
            jobs.append({**common, "out": str(tmp_path / f"at{point}"), "die_after": die_after})
    assert run_jobs(jobs, tmp_path) == [0] + [KILLED, 0] * len(points)
    whole = rows_in(tmp_path / "whole")
    assert len({rows["fake_level"]["score"] for rows in whole.values()}) > 20
    for point in points:
        assert rows_in(tmp_path / f"at{point}") == whole, point
