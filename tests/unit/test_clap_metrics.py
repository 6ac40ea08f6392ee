"""clapscore and clap_a: their arithmetic on stub features, held to closed forms, and what their folders promise."""

from __future__ import annotations

import ast
import json
import math
from typing import Any

import numpy as np
import pytest

from genmeter.contract import Feature, Score, Unscored
from genmeter.goldens import GoldenCase, read_cases
from genmeter.registry import default_metrics, get_metric, make_scorer, parse_variant
from genmeter.weights.lock import load_lock

METRICS = ("clapscore", "clap_a")
CASES = [case for metric in METRICS for case in read_cases(get_metric(metric).path)]
FUSION = "630k-audioset-fusion-best"


def feature(*rows: Any, flags: tuple[str, ...] = (), weights: Any = None, **detail: Any) -> Feature:
    found = np.asarray(rows, np.float32)
    return Feature(found, np.ones(len(rows), np.float32) if weights is None else np.float32(weights), detail, flags)


def at(cosine: float) -> list[float]:
    """A unit vector at this cosine to the first axis."""
    return [cosine, math.sqrt(1 - cosine**2), 0.0]


X = feature([1.0, 0.0, 0.0])


def score(name: str, overrides: Any = None, **item: Feature) -> Score | Unscored:
    variant = parse_variant(name, overrides)
    [result] = make_scorer(variant).score([item], variant.params)
    return result  # type: ignore[no-any-return]


def scored(name: str, overrides: Any = None, **item: Feature) -> Score:
    result = score(name, overrides, **item)
    assert isinstance(result, Score), result
    assert type(result.value) is float
    json.dumps(dict(result.detail), allow_nan=False)
    return result


# --- clapscore ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cosine", [-1.0, -0.05, 0.0, 0.31, 1.0])
@pytest.mark.parametrize(
    "name", ["clapscore", "clapscore/fusion", "clapscore/stable-audio", "clapscore@music_audioset"]
)
def test_one_window_is_the_bare_cosine(name: str, cosine: float) -> None:
    result = scored(name, audio=X, text=feature(at(cosine)))
    assert result.value == pytest.approx(cosine, abs=1e-6)
    assert "per_window" not in result.detail


def test_windows_count_by_their_seconds() -> None:
    """Two windows of 10 s and one of 2.5 s: (10*0.8 + 10*0.2 - 2.5*0.4) / 22.5."""
    audio = feature(at(0.8), at(0.2), at(-0.4), weights=[10, 10, 2.5], seconds=22.5, windows=3, source_rate=16000)
    result = scored("clapscore", audio=audio, text=feature([1, 0, 0], text_tokens=9))
    assert result.value == pytest.approx((8 + 2 - 1) / 22.5, abs=1e-6)
    assert result.detail["per_window"] == pytest.approx([0.8, 0.2, -0.4], abs=1e-6)
    assert {key: result.detail[key] for key in ("seconds", "windows", "source_rate", "text_tokens")} == {
        "seconds": 22.5,
        "windows": 3,
        "source_rate": 16000,
        "text_tokens": 9,
    }


def test_lengths_of_features_do_not_matter_and_no_cosine_leaves_its_range() -> None:
    audio = feature([3.0, 4.0, 0.0], [30.0, 40.0, 0.0], weights=[10, 1])
    assert scored("clapscore", audio=audio, text=feature([0.6, 0.8, 0.0])).value == pytest.approx(1.0, abs=1e-7)
    half = np.random.default_rng(7).normal(size=512).astype(np.float16)
    own = Feature(half[None], np.ones(1, np.float32))
    assert scored("clapscore", audio=own, text=own).value <= 1.0


@pytest.mark.parametrize(
    ("name", "overrides", "flagged"),
    [
        ("clapscore", {}, False),
        ("clapscore@music_audioset", {}, False),
        ("clapscore/fusion", {}, False),
        ("clapscore/stable-audio", {}, False),
        (f"clapscore@{FUSION}/stable-audio", {}, False),
        ("clapscore@music_audioset/stable-audio", {}, True),
        ("clapscore/stable-audio", {"level": "asis"}, True),
        ("clapscore/stable-audio", {"long": "windows"}, True),
    ],
)
def test_what_is_not_stable_audios_way_is_flagged(name: str, overrides: Any, flagged: bool) -> None:
    result = scored(name, overrides, audio=X, text=X)
    assert ("nonstandard_convention" in result.flags) is flagged


def test_flags_pass_on_once_each() -> None:
    audio = feature([1, 0, 0], flags=("clipped", "band_limited", "not_comparable"))
    text = feature(at(0.3), flags=("text_truncated", "not_comparable"))
    result = scored("clapscore", audio=audio, text=text)
    assert result.flags == ("clipped", "band_limited", "not_comparable", "text_truncated")


@pytest.mark.parametrize(
    ("name", "overrides", "label", "view", "model"),
    [
        ("clapscore", {}, "630k-audioset-best/windows", ("windows", "asis"), "clap-630k-audioset-best"),
        ("clapscore/fusion", {}, f"{FUSION}/fusion", ("fusion", "asis"), f"clap-{FUSION}"),
        ("clapscore/stable-audio", {}, f"{FUSION}/stable-audio", ("fusion", "peak-1db"), f"clap-{FUSION}"),
        (
            "clapscore",
            {"level": "peak-1db"},
            "630k-audioset-best/windows,level=peak-1db",
            ("windows", "peak-1db"),
            None,
        ),
        (f"clapscore@{FUSION}", {"long": "fusion"}, f"{FUSION}/windows,long=fusion", ("fusion", "asis"), None),
        ("clapscore@larger_clap_general", {}, "larger_clap_general/windows", None, "clap-larger-general"),
        ("clapscore@tiny-clap", {}, "tiny-clap/windows", None, "tiny-clap"),
    ],
)
def test_variants_of_clapscore(name: str, overrides: Any, label: str, view: Any, model: str | None) -> None:
    variant = parse_variant(name, overrides)
    needs = {need.name: need for need in variant.needs}
    assert variant.label == label
    assert variant.range == (-1.0, 1.0)
    assert needs["text"].view == {}
    assert needs["audio"].roles == ("prediction",)
    assert view is None or (needs["audio"].view["long"], needs["audio"].view["level"]) == view
    assert model is None or set(variant.models.values()) == {model}


def test_it_is_the_default_of_text_to_audio() -> None:
    assert default_metrics("text-to-audio") == ["clapscore"]


# --- clap_a ---------------------------------------------------------------------------------------------------------


def test_clap_a_is_the_cosine_of_the_means() -> None:
    assert scored("clap_a", audio=X, other=feature(at(0.6))).value == pytest.approx(0.6, abs=1e-6)
    assert scored("clap_a", audio=X, other=feature([-1, 0, 0])).value == pytest.approx(-1.0)
    # Means (0.8, 0.2, 0) and (0.5, 0.5, 0) by seconds: dot 0.5, norms sqrt(0.68) and sqrt(0.5).
    one = feature([1, 0, 0], [0, 1, 0], weights=[8, 2], seconds=10.0, windows=2)
    other = feature([1, 0, 0], [0, 1, 0], weights=[5, 5], seconds=10.0, windows=2, source_rate=8000)
    expected = 0.5 / math.sqrt(0.68 * 0.5)
    there = scored("clap_a", audio=one, other=other)
    assert there.value == pytest.approx(expected, abs=1e-9)
    assert scored("clap_a", audio=other, other=one).value == pytest.approx(expected, abs=1e-12)
    assert there.detail == {"seconds": 10.0, "windows": 2, "reference_seconds": 10.0, "reference_windows": 2}


@pytest.mark.parametrize("windows", [1, 2, 7])
def test_a_sound_equals_itself_whatever_its_length(windows: int) -> None:
    rows = np.random.default_rng(windows).normal(size=(windows, 16))
    sound = feature(*rows, weights=np.linspace(10, 3, windows))
    assert scored("clap_a", audio=sound, other=sound).value == pytest.approx(1.0, abs=1e-12)


def test_several_references_are_averaged_and_the_input_is_a_convention() -> None:
    assert get_metric("clap_a").reduce_references == "mean"
    roles = [[n.roles for n in parse_variant(name).needs] for name in ("clap_a", "clap_a/input")]
    assert roles == [[("prediction",), ("reference",)], [("prediction",), ("input",)]]
    assert [parse_variant(name).label for name in ("clap_a", "clap_a/input")] == [
        "630k-audioset-best",
        "630k-audioset-best/input",
    ]


# --- both -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [[math.nan, 0, 0], [math.inf, 0, 0], [0, 0, 0]])
@pytest.mark.parametrize("metric", METRICS)
def test_a_feature_without_direction_is_a_typed_error(metric: str, bad: list[float]) -> None:
    variant = parse_variant(metric)
    for broken in variant.needs:
        good = {n.name: feature(at(0.1 * (i + 1))) for i, n in enumerate(variant.needs)}
        results = make_scorer(variant).score([good, {**good, broken.name: feature(bad)}, good], variant.params)
        assert [type(r) for r in results] == [Score, Unscored, Score], broken.name
        assert results[1].code == "non_finite"
        assert results[0] == results[2]


def test_windows_that_cancel_have_no_mean() -> None:
    result = score("clap_a", audio=feature([1, 0, 0], [-1, 0, 0]), other=X)
    assert isinstance(result, Unscored)
    assert result.code == "non_finite"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.variant} {case.name}")
def test_golden_arithmetic(case: GoldenCase) -> None:
    variant = parse_variant(case.variant, case.parameters)
    assert case.features, "goldens of real weights are measured where weights are"
    item = {k: Feature(np.asarray(rows), np.ones(len(rows), np.float32)) for k, rows in case.features.items()}
    assert set(item) == {need.name for need in variant.needs}
    [result] = make_scorer(variant).score([item], variant.params)
    assert isinstance(result, Score)
    assert abs(result.value - case.expected) <= case.tolerance


@pytest.mark.parametrize("metric", METRICS)
def test_folders_hold_what_a_reader_needs(metric: str) -> None:
    spec = get_metric(metric)
    tree = ast.parse((spec.path / "scorer.py").read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    allowed = {"__future__", "collections.abc", "typing", "numpy", "genmeter.contract", "genmeter.stats.cosine"}
    assert {m for m in modules if m} <= allowed
    assert spec.pitfalls
    for word in ("## Definition", "## Conventions", "## Failure modes", "## Comparability", "## Minimum number"):
        assert word in spec.card, word


def test_the_card_says_that_checkpoints_rank_models_differently() -> None:
    card = get_metric("clapscore").card
    for word in ("0.292", "0.129", "0.277", "0.312", "music_audioset", "stable-audio-metrics", "audiocraft"):
        assert word in card


@pytest.mark.parametrize("metric", METRICS)
def test_profile_tiny_chooses_the_tiny_network_unless_one_is_named(metric: str) -> None:
    tiny = parse_variant(metric, profile="tiny")
    assert tiny.label.startswith("tiny-clap")
    assert set(tiny.models.values()) == {"tiny-clap"}
    assert parse_variant(metric).label.startswith("630k-audioset-best")
    assert parse_variant(f"{metric}@music_audioset", profile="tiny").label.startswith("music_audioset")


@pytest.mark.parametrize("metric", METRICS)
def test_every_model_stands_in_models_lock_under_its_label(metric: str) -> None:
    lock = load_lock()
    for name, choice in get_metric(metric).models.items():
        assert set(choice.entries) == set(get_metric(metric).needs)
        [entry] = set(choice.entries.values())
        assert lock[entry].label == choice.label == name
        assert lock[entry].task == "audio-text"
