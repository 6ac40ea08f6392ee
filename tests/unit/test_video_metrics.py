"""Scorers of the video metrics: arithmetic over features, and what their folders say."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from genmeter.contract import Feature, Rows, Score, SetScore, Unscored, VideoMedia
from genmeter.encoders.registry import create_encoder
from genmeter.goldens import GoldenCase, read_cases
from genmeter.registry import default_metrics, get_metric, make_scorer, parse_variant

SETS = ("fvd", "kvd")
SAMPLES = ("clip_temporal", "temporal_flicker")
CASES = [case for metric in (*SETS, *SAMPLES) for case in read_cases(get_metric(metric).path)]


def ident(case: GoldenCase) -> str:
    return f"{case.variant} {case.name}"


def rows(values: Any, name: str = "a") -> Rows:
    values = np.asarray(values, np.float32)
    digests = np.array([f"{name}{i}".encode() for i in range(len(values))], dtype="S32")
    return Rows(values, digests, np.arange(len(values)))


def feature(values: Any, flags: tuple[str, ...] = (), **detail: Any) -> Feature:
    values = np.asarray(values, np.float64)
    return Feature(values, np.ones(len(values), np.float32), detail, flags)


def scored(name: str, sides: Mapping[str, Rows], **parameters: Any) -> Any:
    variant = parse_variant(name, parameters)
    return make_scorer(variant).score_set(sides["prediction"], sides["reference"], variant.params)


def item(name: str, features: Mapping[str, Feature], **parameters: Any) -> Score | Unscored:
    variant = parse_variant(name, parameters)
    [result] = make_scorer(variant).score([features], variant.params)
    return result  # type: ignore[no-any-return]


# --- golden values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [c for c in CASES if c.features], ids=ident)
def test_arithmetic(case: GoldenCase) -> None:
    variant = parse_variant(case.variant, case.parameters)
    assert set(case.features) == {need.name for need in variant.needs}
    if variant.scope == "set":
        result = scored(case.variant, {side: rows(values, side) for side, values in case.features.items()})
        assert isinstance(result, SetScore)
    else:
        result = item(case.variant, {name: feature(values) for name, values in case.features.items()})
        assert isinstance(result, Score)
    assert abs(result.value - case.expected) <= case.tolerance


@pytest.mark.parametrize("case", [c for c in CASES if c.generator and not c.variant.startswith(SETS)], ids=ident)
def test_drawn_videos(case: GoldenCase) -> None:
    from genmeter.engine.catalog import weightless

    encoder = create_encoder("motion", weightless("motion"), lambda: pytest.fail("no weights"))
    frames = case.inputs()["prediction"]
    [changes] = encoder.encode([encoder.prepare(VideoMedia(frames, np.arange(len(frames)) / 8), {"frames": "all"})])
    result = item(case.variant, {"motion": changes})
    assert isinstance(result, Score)
    assert abs(result.value - case.expected) <= case.tolerance


@pytest.fixture(scope="module")
def i3d() -> Any:
    from genmeter.weights.lock import get_entry
    from genmeter.weights.manager import ensure

    entry = get_entry("i3d-k400")
    path = ensure(entry)
    encoder = create_encoder("i3d", entry, lambda: path)
    encoder.load("cpu", "exact")
    return encoder


@pytest.mark.weights
@pytest.mark.parametrize("case", [c for c in CASES if c.generator and c.variant.startswith(SETS)], ids=ident)
def test_drawn_sets(i3d: Any, case: GoldenCase) -> None:
    view = parse_variant(case.variant, case.parameters).needs[0].view
    sides = {}
    for role, frames in case.inputs().items():
        [logits] = i3d.encode([i3d.prepare(VideoMedia(frames, np.arange(len(frames)) / 8), view)])
        sides[role] = rows(np.repeat(logits.values, case.count, axis=0), role)
    result = scored(case.variant, sides, **case.parameters)
    assert isinstance(result, SetScore)
    assert abs(result.value - case.expected) <= case.tolerance


def test_goldens_hold_what_was_published() -> None:
    published = {(case.variant, case.expected) for case in CASES if case.published}
    assert published >= {("fvd", 151.39244), ("fvd", 152.91750309134142)}
    assert all(case.source for case in CASES)


# --- sets ----------------------------------------------------------------------------------------------------------


def draw(count: int, shift: float = 0.0, seed: int = 0, width: int = 400) -> np.ndarray:
    return np.random.default_rng(seed).normal(shift, 1, (count, width))


@pytest.mark.parametrize("metric", SETS)
@pytest.mark.parametrize(("ours", "theirs"), [(0, 8), (1, 1), (1, 8), (8, 1)])
def test_below_two_there_is_no_number(metric: str, ours: int, theirs: int) -> None:
    result = scored(metric, {"prediction": rows(draw(ours)), "reference": rows(draw(theirs, seed=1), "r")})
    assert isinstance(result, Unscored)
    assert result.code == "too_few_samples"
    assert "at least 2" in result.message


@pytest.mark.parametrize("metric", SETS)
def test_two_against_two_is_a_number_that_warns(metric: str) -> None:
    result = scored(metric, {"prediction": rows(draw(2)), "reference": rows(draw(2, 1.0, 1), "r")})
    assert isinstance(result, SetScore)
    assert result.value > 0
    assert "low_sample_count" in result.flags
    assert (result.detail["n_prediction"], result.detail["n_reference"]) == (2, 2)


@pytest.mark.parametrize("metric", SETS)
def test_different_sets_are_apart_and_closer_ones_closer(metric: str) -> None:
    reference = rows(draw(64), "r")
    near, far = (scored(metric, {"prediction": rows(draw(64, s, 1)), "reference": reference}) for s in (0.05, 0.5))
    assert near.value < far.value
    assert len(near.rows) == 64
    assert {"influence"} <= set(near.rows[0])


def test_fvd_of_a_set_with_itself_is_nothing() -> None:
    both = draw(16)
    result = scored("fvd", {"prediction": rows(both), "reference": rows(both, "r")})
    assert isinstance(result, SetScore)
    assert 0 <= result.value <= 1e-9 * 400 * 2


def test_the_covariance_is_the_conventions() -> None:
    sides = {"prediction": rows(draw(16)), "reference": rows(draw(16, seed=1), "r")}
    google, stylegan = (scored(name, sides).value for name in ("fvd", "fvd/stylegan-v"))
    means = np.square(
        sides["prediction"].values.mean(0, np.float64) - sides["reference"].values.mean(0, np.float64)
    ).sum()
    assert (stylegan - means) / (google - means) == pytest.approx(15 / 16, rel=1e-9), "all but the means' part scales"


# --- one video -----------------------------------------------------------------------------------------------------


def moving(count: int, size: float = 0.5) -> Feature:
    return feature(np.full((count - 1, 2), size), size="64x48", frames_used=count)


@pytest.mark.parametrize("convention", ["consecutive", "all_pairs", "vbench_background"])
def test_consistency_is_in_range_and_1_for_equal_frames(convention: str) -> None:
    rng = np.random.default_rng(3)
    name = f"clip_temporal/{convention}"
    low, high = parse_variant(name).range
    for count in (2, 3, 17):
        values = rng.normal(size=(count, 32))
        result = item(name, {"frames": feature(values), "motion": moving(count)})
        assert isinstance(result, Score)
        assert low is not None
        assert high is not None
        assert low <= result.value <= high
        same = item(name, {"frames": feature(np.repeat(values[:1], count, 0)), "motion": moving(count)})
        assert isinstance(same, Score)
        assert same.value == pytest.approx(1.0, abs=1e-12)


def test_all_pairs_is_the_mean_over_a_loop() -> None:
    values = np.random.default_rng(5).normal(size=(9, 20)) + 0.3
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    expected = np.mean([unit[i] @ unit[j] for i in range(9) for j in range(9) if i != j])
    result = item("clip_temporal/all_pairs", {"frames": feature(values), "motion": moving(9)})
    assert isinstance(result, Score)
    assert result.value == pytest.approx(expected, abs=1e-12)


def test_a_frozen_video_is_flagged_with_its_motion() -> None:
    frames = feature([[1.0, 0.0]] * 5, ("partial_video",), frames_used=5)
    still = item("clip_temporal", {"frames": frames, "motion": moving(5, 0.001)})
    live = item("clip_temporal", {"frames": frames, "motion": moving(5, 0.2)})
    assert isinstance(still, Score)
    assert isinstance(live, Score)
    assert still.flags == ("partial_video", "static_video")
    assert live.flags == ("partial_video",)
    assert still.detail["motion"] == pytest.approx(0.001)
    assert live.detail == {"motion": pytest.approx(0.2), "frames_used": 5}
    flicker = item("temporal_flicker", {"motion": moving(5, 0.001)})
    assert isinstance(flicker, Score)
    assert flicker.flags == ("static_video",)
    assert flicker.detail["size"] == "64x48"


def test_what_has_no_consistency() -> None:
    one = item("clip_temporal", {"frames": feature([[1.0, 0.0]]), "motion": moving(2)})
    assert isinstance(one, Unscored)
    assert one.code == "too_short"
    for convention in ("consecutive", "all_pairs", "vbench_background"):
        lost = item(f"clip_temporal/{convention}", {"frames": feature([[1.0, 0.0], [0.0, 0.0]]), "motion": moving(2)})
        assert isinstance(lost, Unscored)
        assert lost.code == "non_finite"
    nan = item("temporal_flicker", {"motion": feature([[np.nan, 0.1]])})
    assert isinstance(nan, Unscored)
    assert nan.code == "non_finite"


def test_vbench_flicker_by_its_own_words() -> None:
    """(255 - the mean over pairs of the mean absolute difference in float32) / 255."""
    from genmeter.engine.catalog import weightless

    frames = np.random.default_rng(2).integers(0, 256, (7, 36, 64, 3), dtype=np.uint8)
    wide = frames.astype(np.float32)
    expected = (255.0 - np.mean([np.mean(np.abs(a - b)) for a, b in itertools.pairwise(wide)])) / 255.0
    encoder = create_encoder("motion", weightless("motion"), lambda: pytest.fail("no weights"))
    [changes] = encoder.encode([encoder.prepare(VideoMedia(frames, np.arange(7) / 8), {"frames": "all"})])
    result = item("temporal_flicker", {"motion": changes})
    assert isinstance(result, Score)
    assert result.value == pytest.approx(float(expected), abs=1e-6)


# --- folders -------------------------------------------------------------------------------------------------------


def test_text_to_video_defaults_to_what_there_is() -> None:
    assert default_metrics("text-to-video") == ["fvd", "clipscore"]


@pytest.mark.parametrize("metric", [*SETS, *SAMPLES])
def test_scorers_import_nothing_but_the_contract_and_numpy(metric: str) -> None:
    tree = ast.parse((get_metric(metric).path / "scorer.py").read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    allowed = {"__future__", "collections.abc", "numpy", "genmeter.contract"}
    assert {m for m in modules if m and not m.startswith("genmeter.stats.")} <= allowed


def test_variants_say_what_they_change() -> None:
    labels = {
        name: parse_variant(name).label for name in ("fvd", "fvd/half-pixel", "fvd/stylegan-v", "fvd/videogpt", "kvd")
    }
    assert labels == {
        "fvd": "i3d-k400/unterthiner2018",
        "fvd/half-pixel": "i3d-k400/half-pixel",
        "fvd/stylegan-v": "i3d-k400/stylegan-v",
        "fvd/videogpt": "i3d-k400/videogpt",
        "kvd": "i3d-k400/unterthiner2018",
    }
    assert parse_variant("fvd", {"frames": 32, "pre_resize": 128}).label.endswith(",frames=32,pre_resize=128")
    grids = {name: parse_variant(name).needs[0].view["grid"] for name in labels}
    assert list(grids.values()) == ["tf1", "half-pixel", "half-pixel", "short-side", "tf1"]
    for wrong in ({"frames": 8}, {"frames": 16.5}, {"stride": 0}, {"pre_resize": 8}, {"start": "last"}):
        with pytest.raises(ValueError, match="fvd"):
            parse_variant("fvd", wrong)


@pytest.mark.parametrize("metric", ["fvd", "kvd"])
def test_both_sides_are_seen_alike(metric: str) -> None:
    for convention in get_metric(metric).conventions:
        prediction, reference = parse_variant(f"{metric}/{convention}", {"stride": 2}).needs
        assert prediction.view == reference.view
        assert (prediction.roles, reference.roles) == (("prediction",), ("reference",))


def test_frames_belong_to_the_view_of_a_video_alone() -> None:
    image, *_ = parse_variant("clipscore").needs
    assert "frames" not in image.view, "an image is one unit with what other CLIP metrics ask for"
    assert image.also_view == {**image.view, "frames": 8}
    clipsim, text, _ = parse_variant("clipscore/clipsim").needs
    assert clipsim.also_view["frames"] == "all"
    assert text.view == {"prefix": ""}
    assert parse_variant("clipscore/clipsim").range == (-1.0, 1.0)
    consistency, _ = parse_variant("clip_temporal").needs
    assert dict(consistency.view) == dict(clipsim.also_view), "one unit with the frames of clipsim"
