"""docs/results.md: what it shows is what happens."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

import genmeter
from genmeter.report.rows_export import TABLES
from genmeter.synth.demo import write_demo

PAGE = Path(__file__).resolve().parents[2] / "docs/results.md"
TEXT = PAGE.read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```(bash|python)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    samples = write_demo(folder / "data", n=2, tasks=["text-to-image"])
    for name, metric in (("a", "clipscore"), ("b", "clipscore/cosine")):
        out = folder / "runs" / name
        genmeter.score(samples, metric, out=out, profile="tiny", offline=True, device="cpu", report=False)
    return folder


@pytest.mark.parametrize(("language", "snippet"), SNIPPETS, ids=[text.split("\n")[0][:40] for _, text in SNIPPETS])
def test_snippets_run(language: str, snippet: str, workspace: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path}
    command = [sys.executable, "-c", snippet]
    if language == "bash":
        command = ["bash", "-euo", "pipefail", "-c", snippet]
    done = subprocess.run(command, cwd=workspace, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_what_the_commands_left(workspace: Path) -> None:
    rows = pyarrow.parquet.read_table(workspace / "rows.parquet").to_pylist()
    assert {row["metric"] for row in rows} == {"clipscore", "clipscore/cosine"}
    assert "\\begin{tabular}" in (workspace / "table.tex").read_text()
    assert "@inproceedings{hessel2021" in (workspace / "genmeter.bib").read_text()
    for line in (workspace / "data/samples.jsonl").read_text().splitlines():
        assert "clipscore" in json.loads(line)["eval_result"]["metrics"]


def test_every_column_is_named() -> None:
    for columns in TABLES.values():
        for name in columns:
            assert f"`{name}`" in TEXT or name in ("group", "signature"), name
