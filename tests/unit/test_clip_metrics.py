"""The four CLIP metrics: their arithmetic on stub features, held to the published formulas."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genmeter.contract import Feature, Score, Unscored
from genmeter.metricspec import read_spec
from genmeter.registry import get_metric, make_scorer, parse_variant
from genmeter.stats.cosine import cosines, weighted_mean

METRICS = ("clipscore", "refclipscore", "clip_i", "clip_directional")


def feature(*rows: Any, flags: tuple[str, ...] = (), weights: Any = None, **detail: Any) -> Feature:
    values = np.asarray(rows, np.float32)
    return Feature(values, np.ones(len(rows), np.float32) if weights is None else np.float32(weights), detail, flags)


def at(cosine: float) -> list[float]:
    """A unit vector at this cosine to the first axis."""
    return [cosine, math.sqrt(1 - cosine**2), 0.0]


X = feature([1.0, 0.0, 0.0])


def score(name: str, overrides: Any = None, **item: Feature) -> Score | Unscored:
    variant = parse_variant(name, overrides)
    [result] = make_scorer(variant).score([item], variant.params)
    return result  # type: ignore[no-any-return]


def value(name: str, overrides: Any = None, **item: Feature) -> float:
    result = score(name, overrides, **item)
    assert isinstance(result, Score), result
    assert type(result.value) is float
    json.dumps(dict(result.detail), allow_nan=False)
    return result.value


def clipscore(name: str, cosine: float, plain: float | None = None, **more: Any) -> Score:
    text, bare = feature(at(cosine)), feature(at(cosine if plain is None else plain))
    result = score(name, image=X, text=text, plain=bare, **more)
    assert isinstance(result, Score)
    return result


# --- clipscore ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "scores"),
    [
        ("clipscore", [0.775, 0.0]),
        ("clipscore/torchmetrics", [31.0, -5.0]),
        ("clipscore/cosine", [0.31, -0.05]),
    ],
)
def test_b04_one_pair_of_cosines_under_each_convention(name: str, scores: list[float]) -> None:
    """Case B04: -0.05 stays visible whatever the convention makes of it, and so does the text without the prefix."""
    for cosine, expected in zip((0.31, -0.05), scores, strict=True):
        result = clipscore(name, cosine, plain=0.2)
        assert result.value == pytest.approx(expected, abs=1e-5)
        assert result.detail["cosine"] == pytest.approx(cosine, abs=1e-6)
        assert result.detail["cosine_noprefix"] == pytest.approx(0.2, abs=1e-6)


def test_conventions_differ_in_label_range_and_prefix() -> None:
    found = {c: parse_variant(f"clipscore/{c}") for c in ("hessel2021", "torchmetrics", "cosine")}
    assert {v.label for v in found.values()} == {f"openai-vit-b-32/{c}" for c in found}
    assert [v.range for v in found.values()] == [(0.0, 2.5), (-100.0, 100.0), (-1.0, 1.0)]
    prefixes = [{n.name: n.view for n in v.needs}["text"]["prefix"] for v in found.values()]
    assert prefixes == ["A photo depicts ", "", ""]
    for variant in found.values():
        assert {n.name: n.view for n in variant.needs}["plain"] == {"prefix": ""}


def test_the_means_are_those_of_torchmetrics_and_of_jmhessel_on_the_same_features() -> None:
    """On a batch with negative cosines the two clip in another order, so their means differ by more than the scale."""
    rng = np.random.default_rng(0)
    images, texts = (rng.normal(size=(64, 32)).astype(np.float32) for _ in range(2))
    images, texts = (f / np.linalg.norm(f, axis=1, keepdims=True) for f in (images, texts))
    items = [{"image": feature(i), "text": feature(t), "plain": feature(t)} for i, t in zip(images, texts, strict=True)]

    def scores(name: str) -> np.ndarray:
        variant = parse_variant(name)
        return np.array([s.value for s in make_scorer(variant).score(items, variant.params)])

    logits = 100 * (images * texts).sum(axis=1)  # functional/multimodal/clip_score.py
    assert scores("clipscore/torchmetrics") == pytest.approx(logits, abs=1e-4)
    hessel = 2.5 * np.clip((images * texts).sum(axis=1), 0, None)  # clipscore.py
    assert scores("clipscore") == pytest.approx(hessel, abs=1e-6)
    assert abs(hessel.mean() - 0.025 * max(logits.mean(), 0.0)) > 0.05


@pytest.mark.parametrize("sign", [1, -1])
def test_the_torchmetrics_package_agrees(sign: int) -> None:
    """Its own function over stub features, once with a mean above 0 and once below, which it clips."""
    torch = pytest.importorskip("torch")
    clip_score = pytest.importorskip("torchmetrics.functional.multimodal.clip_score").clip_score
    rng = np.random.default_rng(1)
    images = rng.normal(size=(8, 16)).astype(np.float32)
    texts = (sign * (images + rng.normal(scale=3.0, size=(8, 16)))).astype(np.float32)

    class Model:
        config = None

        def to(self, device: Any) -> Any:
            return self

        def get_image_features(self, pixels: Any) -> Any:
            return torch.from_numpy(images)

        def get_text_features(self, ids: Any, mask: Any) -> Any:
            return torch.from_numpy(texts)

    def processor(**given: Any) -> dict[str, Any]:
        return dict.fromkeys(("pixel_values", "input_ids", "attention_mask"), torch.zeros(8, 4))

    pixels = list(torch.zeros(8, 3, 4, 4, dtype=torch.uint8))
    found = clip_score(pixels, ["a"] * 8, model_name_or_path=lambda: (Model(), processor))
    ours = [
        value("clipscore/torchmetrics", image=feature(i), text=feature(t), plain=feature(t))
        for i, t in zip(images, texts, strict=True)
    ]
    assert max(float(np.mean(ours)), 0.0) == pytest.approx(float(found), abs=1e-3)
    assert min(ours) < 0 < max(ours)
    assert bool(np.mean(ours) > 0) is (sign > 0)


def test_frames_are_averaged_by_weight_and_clipped_one_by_one() -> None:
    image = feature(at(0.6), at(-0.6), weights=[3.0, 1.0])
    result = score("clipscore", image=image, text=X, plain=X)
    assert isinstance(result, Score)
    assert result.value == pytest.approx(2.5 * 0.6 * 0.75, abs=1e-6)
    assert result.detail["cosine"] == pytest.approx(0.3, abs=1e-6)
    assert value("clipscore/cosine", image=image, text=X, plain=X) == pytest.approx(0.3, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "overrides", "flagged"),
    [
        ("clipscore", {}, False),
        ("clipscore@openai-vit-b-32/hessel2021", {}, False),
        ("clipscore@openai-vit-l-14", {}, True),
        ("clipscore@tiny-clip", {}, True),
        ("clipscore", {"prefix": "An image of "}, True),
        ("clipscore", {"alpha": "drop"}, False),
        ("clipscore@openai-vit-l-14/torchmetrics", {}, False),
        ("clipscore@laion2b-vit-h-14/cosine", {}, False),
    ],
)
def test_another_model_or_prefix_is_not_the_published_convention(name: str, overrides: Any, flagged: bool) -> None:
    result = score(name, overrides, image=X, text=X, plain=X)
    assert isinstance(result, Score)
    assert ("nonstandard_convention" in result.flags) is flagged


def test_flags_and_facts_pass_on_once_each() -> None:
    image = feature([1.0, 0.0, 0.0], flags=("alpha_composited", "not_comparable"))
    text = feature(at(0.3), flags=("text_truncated", "not_comparable"), text_tokens=91)
    plain = feature(at(0.3), flags=("prompt_language", "text_truncated"), text_tokens=88)
    result = score("clipscore", image=image, text=text, plain=plain)
    assert isinstance(result, Score)
    assert result.flags == ("alpha_composited", "not_comparable", "text_truncated", "prompt_language")
    assert result.detail["text_tokens"] == 91


# --- refclipscore ---------------------------------------------------------------------------------------------------


def published_ref(clip: float, refs: list[float]) -> float:
    """As the paper writes it, over all references at once."""
    a, b = 2.5 * max(clip, 0.0), max(max(refs), 0.0)
    return 2 * a * b / (a + b) if a + b else 0.0


@pytest.mark.parametrize("clip", [-0.2, 0.0, 0.1, 0.31, 1.0])
@pytest.mark.parametrize("refs", [[0.8, 0.6], [-0.1, 0.4], [-0.3], [0.0], [1.0]])
def test_the_greatest_over_references_is_the_published_value(clip: float, refs: list[float]) -> None:
    assert get_metric("refclipscore").reduce_references == "max"
    image, text = [1.0, 0.0, 0.0], at(clip)
    found = []
    for cosine in refs:
        # A vector at this cosine to the text, wherever the image is.
        other = np.cross(text, [0.3, 0.5, 0.8])
        reference = cosine * np.array(text) + math.sqrt(1 - cosine**2) * other / np.linalg.norm(other)
        result = score(
            "refclipscore", image=feature(image), text=feature(text), plain=feature(text), reference=feature(reference)
        )
        assert isinstance(result, Score)
        assert result.detail["cosine_reference"] == pytest.approx(cosine, abs=1e-6)
        assert result.detail["clipscore"] == pytest.approx(2.5 * max(clip, 0.0), abs=1e-6)
        found.append(result.value)
    assert max(found) == pytest.approx(published_ref(clip, refs), abs=1e-5)


def test_both_halves_zero_is_zero_and_not_nan() -> None:
    assert value("refclipscore", image=X, text=feature(at(-0.5)), plain=X, reference=feature(at(0.99))) == 0.0
    assert value("refclipscore", image=X, text=feature([0, 1, 0]), plain=X, reference=feature([0, -1, 0])) == 0.0


def test_the_ways_to_miss_the_published_number_are_told_apart() -> None:
    """Scaling the second half too, or leaving the first unscaled."""
    text = feature(at(0.31))
    reference = feature(0.8 * np.array(at(0.31)) + 0.6 * np.array([0, 0, 1]))
    found = value("refclipscore", image=X, text=text, plain=text, reference=reference)
    assert found == pytest.approx(0.78730, abs=1e-5)
    assert abs(found - 2 * 0.775 * 2.0 / 2.775) > 0.1
    assert abs(found - 2 * 0.31 * 0.8 / 1.11) > 0.1


# --- clip_i and clip_directional ------------------------------------------------------------------------------------


def test_clip_i_is_the_cosine_and_reduces_to_the_mean() -> None:
    assert value("clip_i", image=X, other=feature(at(0.6))) == pytest.approx(0.6, abs=1e-7)
    assert value("clip_i", image=X, other=X) == 1.0
    assert value("clip_i", image=X, other=feature([-1.0, 0.0, 0.0])) == -1.0
    assert get_metric("clip_i").reduce_references == "mean"
    roles = [[n.roles for n in parse_variant(name).needs] for name in ("clip_i", "clip_i/input")]
    assert roles == [[("prediction",), ("reference",)], [("prediction",), ("input",)]]
    assert [parse_variant(name).label for name in ("clip_i", "clip_i/input")] == [
        "openai-vit-b-32",
        "openai-vit-b-32/input",
    ]


def edit(before: Any, after: Any, source: Any, target: Any) -> Score | Unscored:
    return score(
        "clip_directional",
        source=feature(before),
        image=feature(after),
        source_text=feature(source),
        target_text=feature(target, text_tokens=5),
    )


def test_directional_similarity_is_that_of_unit_features() -> None:
    """As InstructPix2Pix computes it: features of length 1 first, then the difference."""
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(4, 8)) * rng.uniform(0.5, 20, size=(4, 1))
    before, after, source, target = (v / np.linalg.norm(v) for v in vectors)
    images, texts = after - before, target - source
    expected = images @ texts / np.linalg.norm(images) / np.linalg.norm(texts)
    for scaled in ((before, after, source, target), tuple(vectors)):
        result = edit(*scaled)
        assert isinstance(result, Score)
        assert result.value == pytest.approx(expected, abs=1e-6)
        assert result.detail["image_change"] == pytest.approx(np.linalg.norm(images), abs=1e-6)
        assert result.detail["text_tokens"] == 5


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_no_change_has_no_direction(noise: float) -> None:
    a, b, still = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, noise, 0.0]
    unchanged, untold = edit(a, still, a, b), edit(a, b, a, still)
    assert isinstance(unchanged, Unscored)
    assert unchanged.code == "non_finite"
    assert "input image" in unchanged.message
    assert isinstance(untold, Unscored)
    assert untold.code == "not_applicable"


# --- never NaN ------------------------------------------------------------------------------------------------------


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


def test_b03_a_cosine_above_one_cannot_come_out() -> None:
    """Features rounded to half precision are no longer of length 1; they must not reach 2.527 where 0.8585 is meant."""
    rng = np.random.default_rng(7)
    vector = rng.normal(size=512)
    half = (vector / np.linalg.norm(vector)).astype(np.float16)
    for factor in (1.0, 1.01, 30.0):
        scaled = Feature(half[None] * np.float16(factor), np.ones(1, np.float32))
        assert value("clipscore/cosine", image=scaled, text=scaled, plain=scaled) == pytest.approx(1.0, abs=1e-9)
        assert value("clipscore/cosine", image=scaled, text=scaled, plain=scaled) <= 1.0


def test_cosines_and_weighted_mean_refuse_what_does_not_fit() -> None:
    assert cosines([[1, 0], [0, 2]], [[3, 0]]).tolist() == [1.0, 0.0]
    for x, y in (([[1, 0]], [[1, 0, 0]]), ([[1, 0]] * 2, [[1, 0]] * 3), ([1, 0], [1, 0])):
        with pytest.raises(ValueError, match="rows and columns"):
            cosines(x, y)
    assert weighted_mean(np.array([1.0, 4.0]), np.float32([1, 2])) == pytest.approx(3.0)
    for weights in ([0.0, 0.0], [1.0], [math.nan, 1.0], [-1.0, 2.0]):
        with pytest.raises(ValueError, match="weights"):
            weighted_mean(np.array([1.0, 4.0]), np.array(weights))


# --- the folders ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", METRICS)
def test_folders_hold_what_a_reader_needs(metric: str) -> None:
    spec = get_metric(metric)
    tree = ast.parse((spec.path / "scorer.py").read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    allowed = {"__future__", "collections.abc", "math", "numpy", "genmeter.contract", "genmeter.stats.cosine"}
    assert {m for m in modules if m} <= allowed
    assert spec.pitfalls
    for word in ("## Definition", "## Conventions", "## Failure modes", "## Comparability", "## Minimum number"):
        assert word in spec.card, word


@pytest.mark.parametrize("metric", METRICS)
def test_profile_tiny_chooses_the_tiny_network_unless_one_is_named(metric: str) -> None:
    tiny = parse_variant(metric, profile="tiny")
    assert tiny.label.startswith("tiny-clip")
    assert set(tiny.models.values()) == {"tiny-clip"}
    assert parse_variant(metric).label.startswith("openai-vit-b-32")
    named = parse_variant(f"{metric}@openai-vit-l-14", profile="tiny")
    assert named.label.startswith("openai-vit-l-14")
    asked = parse_variant(metric, {"model": "openai-vit-b-16"}, profile="tiny")
    assert asked.label.startswith("openai-vit-b-16")


def test_a_metric_without_a_tiny_network_keeps_its_own() -> None:
    assert parse_variant("lpips", profile="tiny").label == "alex-v0.1"


@pytest.mark.parametrize("metric", METRICS)
def test_every_model_is_pinned(metric: str) -> None:
    from genmeter.weights.lock import load_lock

    known = load_lock()
    named = {entry for choice in get_metric(metric).models.values() for entry in choice.entries.values()}
    assert named - set(known) == set()


NEED = '[needs.text]\nencoder = "clip"\nmodality = "text"\nroles = ["prompt"]\n'
HEAD = 'id = "x"\ntitle = "X"\nscope = "sample"\nhigher_is_better = true\n'
MODEL = (
    '[parameters.model]\ntype = "choice"\nchoices = ["a", "b"]\ndefault = "a"\n'
    '[models.a]\nlabel = "a"\nentries = { text = "m-a" }\n[models.b]\nlabel = "b"\nentries = { text = "m-b" }\n'
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD + NEED + 'text_of = "captoin"\n', "needs.text.text_of: expected prompt, caption, target or a field path"),
        (HEAD + NEED.replace('"prompt"', '"reference"') + 'text_of = "caption"\n', "only a text of the role prompt"),
        (HEAD + NEED + 'also = ["vidoe"]\n', "needs.text.also: expected one of"),
        (HEAD + NEED + MODEL + '[profiles]\ntiny = "c"\n', "profiles.tiny: expected one of a, b"),
        (HEAD + NEED + MODEL + '[profiles]\nsmall = "a"\n', "profiles: expected one of tiny"),
    ],
)
def test_metric_toml_says_what_is_wrong(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "metric.toml").write_text(text)
    with pytest.raises(ValueError) as caught:
        read_spec(tmp_path / "metric.toml", module="m")
    assert says in str(caught.value)


def test_texts_and_profiles_of_a_metric_toml(tmp_path: Path) -> None:
    text = HEAD + NEED + 'text_of = "metadata.caption"\n' + MODEL + '[profiles]\ntiny = "b"\n'
    (tmp_path / "metric.toml").write_text(text)
    spec = read_spec(tmp_path / "metric.toml", module="m")
    assert spec.needs["text"].text_of == "metadata.caption"
    assert spec.profiles == {"tiny": "b"}
