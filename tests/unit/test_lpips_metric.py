"""The LPIPS scorer: pure arithmetic over the encoder's distances."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import numpy as np
import pytest

from genmeter.contract import Feature, Score, Unscored
from genmeter.goldens import GENERATORS, pattern_pair, read_cases, solid_pair
from genmeter.registry import get_metric, make_scorer, parse_variant

FOLDER = get_metric("lpips").path


def feature(values: list[float], weights: list[float] | None = None, flags: tuple[str, ...] = ()) -> Feature:
    rows = np.array(values, np.float32)[:, None]
    return Feature(rows, np.array(weights or [1.0] * len(values), np.float32), {"size": "64x64"}, flags)


def score(*features: Feature) -> list[Score | Unscored]:
    variant = parse_variant("lpips")
    found: list[Score | Unscored] = make_scorer(variant).score([{"pair": f} for f in features], variant.params)
    return found


def test_one_pair_is_its_distance_with_its_facts() -> None:
    [result] = score(feature([0.25], flags=("alpha_composited",)))
    assert result == Score(0.25, {"size": "64x64"}, ("alpha_composited",))
    assert type(result.value) is float


def test_frames_are_averaged_by_weight() -> None:
    even, uneven = score(feature([0.1, 0.4]), feature([0.1, 0.4], [3.0, 1.0]))
    assert isinstance(even, Score)
    assert isinstance(uneven, Score)
    assert even.value == pytest.approx(0.25)
    assert uneven.value == pytest.approx(0.175)


def test_items_keep_their_order_and_do_not_touch_each_other() -> None:
    results = score(feature([0.3]), feature([math.nan]), feature([0.0]), feature([math.inf, 0.1]))
    assert [r.value if isinstance(r, Score) else r.code for r in results] == [
        pytest.approx(0.3),
        "non_finite",
        0.0,
        "non_finite",
    ]
    assert score() == []


def test_scorer_imports_nothing_but_the_contract_and_numpy() -> None:
    tree = ast.parse((FOLDER / "scorer.py").read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    allowed = {"__future__", "collections.abc", "numpy", "genmeter.contract", "genmeter.stats"}
    assert {m for m in modules if m} <= allowed


def test_goldens_are_generator_calls_with_a_source() -> None:
    cases = read_cases(FOLDER)
    assert len({case.name for case in cases}) == len(cases) >= 5
    for case in cases:
        roles = case.inputs()
        assert {"prediction", "reference"} == set(roles)
        assert all(a.dtype == np.uint8 and a.ndim == 3 for a in roles.values())
        assert case.source
        assert case.tolerance >= 0
        parse_variant(case.variant)


def test_generators_draw_what_they_say() -> None:
    roles = solid_pair(5, 4, [1, 2, 3], [255, 0, 9])
    assert roles["prediction"].shape == (4, 5, 3)
    assert (roles["reference"] == [255, 0, 9]).all()
    first, again = pattern_pair(9, 7), pattern_pair(9, 7)
    assert all(np.array_equal(first[role], again[role]) for role in first)
    assert first["prediction"][6, 8].tolist() == [48, 74, 231]
    assert first["reference"][6, 8].tolist() == [32, 24, 28]
    assert set(GENERATORS) >= {"solid_pair", "pattern_pair", "torch_noise"}


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ('{"name": "n", "inputs": {"generator": "fil"}}', "unknown generator 'fil'"),
        ('{"name": "n", "inputs": {"generator": "solid_pair"}, "expectd": 1}', "'n'"),
        ('{"name": "n"}', "unknown generator None"),
    ],
)
def test_a_broken_golden_is_named(tmp_path: Path, case: str, says: str) -> None:
    (tmp_path / "golden.json").write_text(f'{{"cases": [{case}]}}')
    with pytest.raises(ValueError, match=r"golden\.json") as caught:
        read_cases(tmp_path)
    assert says in str(caught.value)


def test_no_golden_file_means_no_cases(tmp_path: Path) -> None:
    assert read_cases(tmp_path) == []
