"""The text-to-audio demo scored from end to end on the network that ships: every score moves the right way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import genmeter
from genmeter.synth.demo import write_demo
from genmeter.synth.sounds import CASES

Row = dict[str, Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Row], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("run")
    samples = write_demo(folder / "data", n=len(CASES), tasks=["text-to-audio"])
    result = genmeter.score(
        samples,
        out=folder / "run",
        profile="tiny",
        device="cpu",
        offline=True,
        group_by=("data_tag.strength",),
        report=False,
    )
    return list(result.samples), result.summary["metrics"]


def of(rows: list[Row], metric: str, *matches: str, strength: str | None = None) -> list[float]:
    return [
        row["eval_result"]["metrics"][metric]["score"]
        for row in rows
        if row["data_tag"]["match"] in matches and strength in (None, row["data_tag"]["strength"])
    ]


@pytest.mark.parametrize("metric", ["clapscore", "clap_a"])
def test_good_sounds_score_above_bad_ones(run: tuple[list[Row], dict[str, Any]], metric: str) -> None:
    rows, summary = run
    means = {name: group["mean"] for name, group in summary[metric]["groups"]["data_tag.strength"].items()}
    assert means["good"] > means["mild"] > means["strong"]
    assert means["mild"] > means["wrong"]
    good = of(rows, metric, "matching")
    assert min(good) > 0.6
    for worse in ("noise", "lowpass", "dropouts"):
        assert max(of(rows, metric, worse, strength="strong")) < min(good)
    for wrong in ("unrelated", "order", "silence"):
        assert max(of(rows, metric, wrong)) < min(good) - 0.05
    assert np.mean(of(rows, metric, "one_field")) < min(good)


def test_both_languages_score_alike(run: tuple[list[Row], dict[str, Any]]) -> None:
    rows, _ = run
    scores = {
        language: [
            row["eval_result"]["metrics"]["clapscore"]["score"]
            for row in rows
            if row["data_tag"] == {"match": "matching", "strength": "good", "language": language}
        ]
        for language in ("en", "zh")
    }
    assert abs(np.mean(scores["en"]) - np.mean(scores["zh"])) < 0.1
    flags = [flag for row in rows for flag in row["eval_result"]["metrics"]["clapscore"].get("flags", [])]
    assert "prompt_language" not in flags
    assert flags.count("not_comparable") == sum("clapscore" in row["eval_result"]["metrics"] for row in rows) - 4
    assert flags.count("silent") == 1


def test_what_cannot_be_scored_says_why(run: tuple[list[Row], dict[str, Any]]) -> None:
    rows, summary = run
    codes = {
        row["data_tag"]["match"]: {
            name: (entry.get("error") or {}).get("code") for name, entry in row["eval_result"]["metrics"].items()
        }
        for row in rows
        if row["data_tag"]["strength"] == "broken"
    }
    assert codes == {
        "truncated": {"clapscore": "decode_failed", "clap_a": "decode_failed"},
        "empty": {"clapscore": "empty_media", "clap_a": "empty_media"},
        "missing": {"clapscore": "not_found", "clap_a": "not_found"},
        "no_prompt": {"clapscore": "no_prompt", "clap_a": None},
    }
    for metric, failed in (("clapscore", 4), ("clap_a", 3)):
        assert summary[metric]["n"]["n_failed"] == failed
        assert summary[metric]["n"]["scored"] == len(CASES) - failed
