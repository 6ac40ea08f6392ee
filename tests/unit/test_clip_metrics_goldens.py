"""Golden values of the CLIP metrics: arithmetic on every machine, published numbers where weights and files are.

Point ``GENMETER_GOLDENS`` to a folder with the files that the golden.json files name to run those that need them.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genmeter
from genmeter.contract import Feature, Score
from genmeter.errors import GenmeterError
from genmeter.goldens import FOLDER_VARIABLE, GoldenCase, golden_folder, read_cases
from genmeter.registry import get_metric, make_scorer, parse_variant
from genmeter.weights.lock import get_entry
from genmeter.weights.manager import state

METRICS = ("clipscore", "refclipscore", "clip_i", "clip_directional")
CASES = [case for metric in METRICS for case in read_cases(get_metric(metric).path)]


def ident(case: GoldenCase) -> str:
    return f"{case.variant} {case.name}"


@pytest.mark.parametrize("case", [c for c in CASES if c.features], ids=ident)
def test_arithmetic(case: GoldenCase) -> None:
    variant = parse_variant(case.variant, case.parameters)
    item = {k: Feature(np.asarray(rows), np.ones(len(rows), np.float32)) for k, rows in case.features.items()}
    assert set(item) == {need.name for need in variant.needs}
    [result] = make_scorer(variant).score([item], variant.params)
    assert isinstance(result, Score)
    assert abs(result.value - case.expected) <= case.tolerance


def measure(case: GoldenCase) -> float:
    """The case through the whole engine."""
    config: dict[str, Any] = {"metrics": {case.variant: dict(case.parameters)}}
    with genmeter.Engine(config=config, device="cpu", media_root=str(golden_folder()), offline=True) as engine:
        results = list(engine.score(case.records()))
    scores = [result.scores[case.variant] for result in results]
    assert None not in scores, [result.errors for result in results]
    return case.value([score for score in scores if score is not None])


@pytest.mark.parametrize("case", [c for c in CASES if not c.features], ids=ident)
def test_published_values(case: GoldenCase) -> None:
    if missing := case.missing():
        pytest.skip(missing[0])
    for model in sorted(set(parse_variant(case.variant).models.values())):
        try:
            there = state(get_entry(model)) == "ready"
        except GenmeterError as error:
            pytest.skip(error.message)
        if not there:
            pytest.skip(f"the weights of {model} are not on this machine; genmeter models fetch {model}")
    assert abs(measure(case) - case.expected) <= case.tolerance


def test_the_published_numbers_stand_in_the_folders() -> None:
    published = {(c.variant, c.expected) for c in CASES if c.published}
    assert published >= {
        ("clipscore", 0.8585),
        ("clipscore", 0.7153),
        ("clipscore/torchmetrics", 24.5701),
        ("clipscore/torchmetrics", 19.3049),
        ("clipscore@openai-vit-b-16/torchmetrics", 24.4260),
        ("refclipscore", 0.8450),
        ("refclipscore", 0.7253),
        ("clip_i@openai-vit-b-16", 0.994860),
    }
    png = [c for c in CASES if "CLIP.png" in c.files]
    assert len(png) == 2
    assert all(c.parameters == {"alpha": "drop"} for c in png)
    for case in CASES:
        assert case.source
        for file in case.files.values():
            assert len(file["sha256"]) in (0, 64)
            assert file["sha256"] or "no public source" in file["origin"]


def test_file_cases_run_where_the_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_image: Any) -> None:
    """With files and a network of a test's own: found by name, checked by hash, read into samples, and averaged."""
    from genmeter_fakes import clip as fake

    table = fake.install(monkeypatch)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    for name, level in (("one.png", 10), ("two.png", 20)):
        save_image(tmp_path / name, np.full((6, 6, 3), level, np.uint8))
    (tmp_path / "captions.json").write_text(json.dumps({"one": "a", "refs": ["b", "c"]}))
    digest = hashlib.sha256((tmp_path / "one.png").read_bytes()).hexdigest()
    samples = [
        {"prediction": "one.png", "prompt": {"file": "captions.json", "key": "one"}},
        {"prediction": "two.png", "prompt": "d", "references": {"file": "captions.json", "key": "refs"}},
    ]
    data = {
        "files": {
            "one.png": {"sha256": digest, "origin": "this test"},
            "two.png": {"origin": "this test"},
            "captions.json": {"origin": "this test"},
        },
        "cases": [
            {"name": "n", "variant": "clipscore/cosine", "inputs": {"samples": samples, "reduce": reduce},
             "expected": 0, "tolerance": 0, "source": "s", "published": False}
            for reduce in ("mean", "difference")
        ],
    }  # fmt: skip
    folder = tmp_path / "metric"
    folder.mkdir()
    (folder / "golden.json").write_text(json.dumps(data))
    mean, difference = read_cases(folder)
    table.images.update({10: [0.6, 0.8], 20: [0.2, 0.96**0.5]})
    table.texts.update({"a": [1.0, 0.0], "d": [1.0, 0.0]})
    assert mean.missing() == []
    assert measure(mean) == pytest.approx(0.4, abs=1e-6)
    assert measure(difference) == pytest.approx(0.4, abs=1e-6)
    assert [r["prompt"] for r in mean.records()] == ["a", "d"]
    assert mean.records()[1]["references"][1]["answer"] == [{"type": "text", "text": "c"}]

    (tmp_path / "one.png").write_bytes(b"another file")
    (tmp_path / "two.png").unlink()
    assert [m.split(" is ")[0] for m in mean.missing()] == ["one.png", "two.png"]


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"samples": [{"prediction": "x.png", "prompt": "a"}]}, "x.png does not stand under files"),
        ({"samples": [{"prediction": "y.png", "prompt": {"file": "z.json", "key": "k"}}]}, "z.json does not stand"),
        ({"generator": "solid_pair", "txts": {}}, "txts"),
    ],
)
def test_a_broken_case_is_named(tmp_path: Path, inputs: dict[str, Any], says: str) -> None:
    case = {"name": "broken", "variant": "clipscore", "inputs": inputs, "expected": 0, "tolerance": 0, "source": "s",
            "published": False}  # fmt: skip
    (tmp_path / "golden.json").write_text(json.dumps({"files": {"y.png": {"origin": "o"}}, "cases": [case]}))
    with pytest.raises(ValueError, match="broken") as caught:
        read_cases(tmp_path)
    assert says in str(caught.value)


def test_noise_is_that_of_the_seed() -> None:
    torch = pytest.importorskip("torch")
    [case] = [c for c in CASES if c.generator == "torch_noise" and c.variant.startswith("clipscore")]
    drawn = torch.randint(255, (3, 224, 224), generator=torch.Generator().manual_seed(42))
    assert np.array_equal(case.inputs()["prediction"], drawn.permute(1, 2, 0).numpy())
    assert case.inputs()["prediction"].dtype == np.uint8
    [record] = case.records()
    assert record["prompt"] == "a photo of a cat"
