"""``genmeter cite``: an entry for every key there is, and sentences that say what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from reporting_runs import CLIP, FVD, LPIPS, failed, row, run_json, scored, write_run
from typer.testing import CliRunner

from genmeter.cli.main import app
from genmeter.registry import list_metrics
from genmeter.report.cite import _INTERVALS, _STATISTICS, bibtex_entries
from genmeter.weights.lock import load_lock, package_root


def call(*args: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["cite", *map(str, args)])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.output


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rows = [row(i, scored(0.1 * i)) for i in range(4)] + [row(4, failed("decode_failed"))]
    for each in rows:
        entry = {"score": 0.5, "variant": CLIP["variant"], "inputs": [{"role": "prompt", "digest": "sha256:1"}]}
        each["eval_result"]["metrics"]["clipscore"] = entry
        detail = {"n_prediction": 5, "n_reference": 6, "bias_corrected": 3.5, "interval95": [1.0, 6.0]}
        detail |= {"interval": {"method": "delete_a_group_jackknife", "groups": 5}}
        each["eval_result"]["metrics"]["fvd"] = {"score": 9.5, "set": "all", "detail": detail, **{"scope": "set"}}
    clip = {**CLIP, "encoders": {"image": {"model": "clip-openai-vit-b-32", "digest": "b" * 64}}}
    i3d = {**FVD, "encoders": {"clip": {"model": "i3d-k400", "digest": "c" * 64}}}
    return write_run(tmp_path / "run", rows, run_json(metrics={"lpips": dict(LPIPS), "clipscore": clip, "fvd": i3d}))


def test_every_key_has_an_entry() -> None:
    keys = {spec.citation for spec in list_metrics() if spec.path.is_relative_to(package_root())}
    keys |= {entry.citation for entry in load_lock().values()}
    keys |= set(_INTERVALS.values()) | set(_STATISTICS.values()) | {"genmeter"}
    assert keys - {""} <= set(bibtex_entries())


def test_entries_are_bibtex() -> None:
    entries = bibtex_entries()
    text = (Path(__file__).parents[2] / "src/genmeter/report/citations.bib").read_text(encoding="utf-8")
    assert len(entries) == len(re.findall(r"^@", text, re.MULTILINE)), "an entry is not read, or a key comes twice"
    for key, entry in entries.items():
        assert entry.isascii(), f"{key}: write accents as LaTeX commands"
        assert entry.count("{") == entry.count("}"), key
        fields = dict(re.findall(r"^  (\w+) = \{(.*)\},?$", entry, re.MULTILINE))
        assert {"author", "title"} <= set(fields), key
        assert len(fields) == entry.count("\n") - 2, f"{key}: a field is no line of its own"
        if key != "genmeter":
            assert fields["year"] == key[-4:], key
            assert fields["author"].lower().startswith(re.sub(r"\d", "", key)[:3]) or "{" in fields["author"], key
        if "eprint" in fields:
            assert re.fullmatch(r"\d{4}\.\d{4,5}", fields["eprint"])


def test_sentences_say_what_was_measured(run: Path) -> None:
    lpips, clipscore, fvd = json.loads(call(run, "--format", "json"))["metrics"]
    assert "model alex-v0.1" in lpips["sentence"]
    assert "exact precision" in lpips["sentence"]
    assert "4 of 5 samples (coverage 80 %); 1 could not be scored (decode_failed 1)" in lpips["sentence"]
    assert "genmeter:lpips|m:alex-v0.1" in lpips["sentence"]
    assert "genmeter 0.1.0" in lpips["sentence"]
    assert "convention hessel2021" in clipscore["sentence"]
    assert "none failed" in clipscore["sentence"]
    assert "is 9.500, corrected for bias 3.500 (95 % interval 1.000 to 6.000)" in fvd["sentence"]
    assert "5 outputs and 6 references" in fvd["sentence"]


def test_all_that_a_number_rests_on_is_cited(run: Path) -> None:
    lpips, clipscore, fvd = json.loads(call(run, "--format", "json"))["metrics"]
    assert {"zhang2018", "genmeter"} <= set(lpips["cite"])
    assert {"hessel2021", "radford2021"} <= set(clipscore["cite"])
    assert {"unterthiner2018", "carreira2017", "heusel2017", "kott2001"} <= set(fvd["cite"])


def test_bibtex_has_each_key_once(run: Path) -> None:
    keys = re.findall(r"^@\w+\{(\w+),", call(run, run, "--format", "bibtex"), re.MULTILINE)
    assert len(keys) == len(set(keys)) >= 7


def test_runs_are_told_apart(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "b", [row(0, scored(0.5))], run_json())
    text = call(run, other)
    assert f"{run}: LPIPS" in text
    assert f"{other}: LPIPS" in text


def test_a_metric_that_is_not_installed_is_said(tmp_path: Path) -> None:
    entry: dict[str, Any] = {**LPIPS, "title": "Odd"}
    run = write_run(tmp_path / "run", [row(0, scored(1.0), "odd")], run_json(metrics={"odd": entry}))
    assert "Odd (model alex-v0.1" in call(run)


def test_usage_errors(tmp_path: Path) -> None:
    assert "no such run" in call(tmp_path / "x", code=2)
    assert "expected one of" in call(tmp_path, "--format", "ris", code=2)
