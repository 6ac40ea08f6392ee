"""Metrics by name: what is installed, what a variant name means, what a third party may add."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from genmeter import registry
from genmeter.contract import Need
from genmeter.errors import GenmeterError
from genmeter.metricspec import ParameterSpec, read_spec
from genmeter.registry import (
    default_metrics,
    get_metric,
    list_metrics,
    make_scorer,
    missing_defaults,
    parse_variant,
)

# --- lpips as installed ------------------------------------------------------------------------------------------


def test_lpips_is_found_by_its_folder() -> None:
    spec = get_metric("lpips")
    assert spec in list_metrics()
    assert (spec.scope, spec.modality, spec.higher_is_better, spec.range) == ("sample", "image", False, (0.0, None))
    assert spec.reduce_references == "min"
    assert spec.task_types == ("image-to-image",)
    assert spec.card.startswith("# LPIPS")
    assert spec.pitfalls


def test_default_variant() -> None:
    variant = parse_variant("lpips")
    assert (variant.name, variant.label, variant.convention) == ("lpips", "alex-v0.1", "zhang2018")
    view = {"resize": "none", "alpha": "white"}
    roles = ("prediction", "reference")
    assert variant.needs == (Need("pair", "lpips", "image", roles, view, also=("video",), also_view=view),)
    assert variant.models == {"pair": "lpips-alex"}
    assert variant.affecting == {"net": "alex", "convention": "zhang2018", "resize": "none", "alpha": "white"}
    assert variant.params.net == "alex"
    assert variant.params.convention.name == "zhang2018"
    assert (variant.scope, variant.higher_is_better, variant.range) == ("sample", False, (0.0, None))


@pytest.mark.parametrize(
    ("name", "overrides", "label", "model", "roles"),
    [
        ("lpips@alex", {}, "alex-v0.1", "lpips-alex", ("prediction", "reference")),
        ("lpips@vgg", {}, "vgg-v0.1", "lpips-vgg", ("prediction", "reference")),
        ("lpips@squeeze", {}, "squeeze-v0.1", "lpips-squeeze", ("prediction", "reference")),
        ("lpips@vgg-v0.1", {}, "vgg-v0.1", "lpips-vgg", ("prediction", "reference")),
        ("lpips", {"net": "vgg"}, "vgg-v0.1", "lpips-vgg", ("prediction", "reference")),
        ("lpips/zhang2018", {}, "alex-v0.1", "lpips-alex", ("prediction", "reference")),
        ("lpips/input", {}, "alex-v0.1/input", "lpips-alex", ("prediction", "input")),
        ("lpips@vgg/input", {}, "vgg-v0.1/input", "lpips-vgg", ("prediction", "input")),
        ("lpips", {"convention": "input"}, "alex-v0.1/input", "lpips-alex", ("prediction", "input")),
        ("lpips", {"resize": "none"}, "alex-v0.1", "lpips-alex", ("prediction", "reference")),
        ("lpips", {"resize": "reference"}, "alex-v0.1,resize=reference", "lpips-alex", ("prediction", "reference")),
        ("lpips", {"resize": 64}, "alex-v0.1,resize=64", "lpips-alex", ("prediction", "reference")),
        ("lpips", {"resize": "64"}, "alex-v0.1,resize=64", "lpips-alex", ("prediction", "reference")),
        ("lpips", {"alpha": "drop", "resize": 256}, "alex-v0.1,resize=256,alpha=drop", "lpips-alex", None),
        ("lpips@vgg/input", {"resize": 256}, "vgg-v0.1/input,resize=256", "lpips-vgg", ("prediction", "input")),
        (" lpips@vgg ", {}, "vgg-v0.1", "lpips-vgg", None),
    ],
)
def test_variants(name: str, overrides: dict[str, Any], label: str, model: str, roles: Any) -> None:
    variant = parse_variant(name, overrides)
    assert variant.name == name.strip()
    assert variant.label == label
    assert variant.models == {"pair": model}
    assert roles is None or variant.needs[0].roles == roles


def test_the_view_carries_what_the_encoder_must_know() -> None:
    assert parse_variant("lpips", {"resize": "128", "alpha": "drop"}).needs[0].view == {"resize": 128, "alpha": "drop"}


def test_the_name_wins_over_parameters_stated_for_the_whole_metric() -> None:
    variant = parse_variant("lpips@vgg/input", {"net": "alex", "convention": "zhang2018", "resize": 64})
    assert variant.label == "vgg-v0.1/input,resize=64"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("lpisp", "did you mean 'lpips'"),
        ("LPIPS@alex", "no metric 'LPIPS'"),
        ("clipscroe", "no metric 'clipscroe'"),
        ("lpips@vg", "did you mean 'vgg'"),
        ("lpips@resnet", "no model 'resnet'"),
        ("lpips/inputs", "did you mean 'input'"),
        ("lpips@vgg/nope", "no convention 'nope'"),
        ("", "no metric name"),
        ("   ", "no metric name"),
        ("lpips@", "no metric name"),
        ("lpips/", "no metric name"),
        ("@vgg", "no metric name"),
        ("lpips@vgg@alex", "no metric name"),
        ("lpips/input/x", "no metric name"),
        ("lpips/input@vgg", "no metric name"),
        ("../lpips", "no metric '..'"),
    ],
)
def test_names_that_are_not_installed(name: str, says: str) -> None:
    with pytest.raises(GenmeterError) as caught:
        parse_variant(name)
    assert caught.value.code == "unknown_metric"
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"resiz": 64}, "unknown parameter 'resiz'; did you mean 'resize'"),
        ({"model": "vgg"}, "unknown parameter 'model'"),
        ({"net": "vggg"}, "lpips.net: expected one of alex, vgg, squeeze, found 'vggg'; did you mean 'vgg'?"),
        ({"net": 3}, "lpips.net: expected one of"),
        ({"net": None}, "found None"),
        ({"resize": "refernce"}, "did you mean 'reference'"),
        ({"resize": 15}, "at least 16"),
        ({"resize": 0}, "at least 16"),
        ({"resize": -64}, "at least 16"),
        ({"resize": 10**9}, "at most"),
        ({"resize": 64.5}, "whole number"),
        ({"resize": True}, "whole number"),
        ({"resize": None}, "whole number"),
        ({"resize": [64, 64]}, "whole number"),
        ({"alpha": "black"}, "one of white, drop"),
        ({"convention": "inpt"}, "did you mean 'input'"),
    ],
)
def test_parameters_that_do_not_fit(overrides: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_variant("lpips", overrides)
    assert says in str(caught.value)


def test_defaults_of_a_task_type(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {spec.id for spec in list_metrics()}
    for task_type, names in registry.DEFAULTS.items():
        assert default_metrics(task_type) == [n for n in names if n in installed]
        assert missing_defaults(task_type) == [n for n in names if n not in installed]
    assert "lpips" in default_metrics("image-to-image")
    assert "lpips" in default_metrics(" Image_to_Image ")
    assert default_metrics("translation") == []
    assert default_metrics(None) == []
    monkeypatch.setattr(registry, "_discover", lambda: {"fvd": None, "clipscore": None})
    assert default_metrics("text-to-video") == ["fvd", "clipscore"]
    assert missing_defaults("image-to-image") == ["lpips", "clip_i"]


# --- metrics of others -------------------------------------------------------------------------------------------

TOML = """
id = "sharpness"
title = "Sharpness"
scope = "sample"
higher_is_better = true

[needs.image]
modality = "image"
roles = ["prediction"]
encoder = "edges"
view = { size = 32 }
view_parameters = ["window"]

[parameters.window]
type = "int"
default = 8
min = 1

[parameters.gamma]
type = "float"
default = 1.0

[parameters.strict]
type = "bool"
default = false

[parameters.verbose]
type = "bool"
default = false
affects_score = false

[parameters.note]
type = "str"
default = ""
"""
SCORER = """
from helper import Base

class Sharpness(Base):
    def score(self, items, params):
        return []

class _Hidden:
    def score(self, items, params):
        return []
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """``install(toml, scorer=..., package=...)``: a package of somebody else with one metric."""
    points: list[EntryPoint] = []
    monkeypatch.setattr(registry, "_entry_points", lambda: points)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    (tmp_path / "helper.py").write_text("class Base:\n    def score(self, items, params): ...\n")

    def add(toml: str | None = TOML, scorer: str = SCORER, package: str = "their_metric", value: str = "") -> None:
        folder = tmp_path / package
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        (folder / "scorer.py").write_text(scorer)
        if toml is not None:
            (folder / "metric.toml").write_text(toml)
        points.append(EntryPoint(package, value or package, registry.GROUP))
        registry._discover.cache_clear()

    registry._discover.cache_clear()
    yield add
    registry._discover.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith(("their_", "helper")):
            del sys.modules[name]


def test_a_package_of_somebody_else_adds_a_metric_without_being_imported(install: Any) -> None:
    install()
    assert {"lpips", "sharpness"} <= {spec.id for spec in list_metrics()}
    variant = parse_variant("sharpness", {"window": "16", "gamma": 2, "strict": "true", "verbose": True})
    assert "their_metric.scorer" not in sys.modules
    assert variant.label == "sharpness,window=16,gamma=2.0,strict=true"
    assert variant.needs == (Need("image", "edges", "image", ("prediction",), {"size": 32, "window": 16}),)
    assert (variant.convention, variant.models) == (None, {})
    assert "verbose" not in variant.affecting
    assert variant.params.verbose is True
    assert type(make_scorer(variant)).__name__ == "Sharpness"
    for name in ("sharpness@x", "sharpness/x"):
        with pytest.raises(GenmeterError, match=r"no (model|convention) 'x'"):
            parse_variant(name)


def test_a_plain_module_is_a_scorer_beside_its_metric_toml(install: Any) -> None:
    install(value="their_metric.scorer")
    assert get_metric("sharpness").module == "their_metric.scorer"
    assert type(make_scorer(parse_variant("sharpness"))).__name__ == "Sharpness"


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        (None, "cannot be read"),
        ("id = ", "metric.toml"),
        (TOML.replace('"sample"', '"smaple"'), "scope: expected one of sample, set"),
        (TOML.replace('scope = "sample"\n', ""), "'scope' is missing"),
        (TOML.replace('"sharpness"', '"lpips"'), "already installed"),
        (TOML.replace("title", "titel"), "did you mean 'title'"),
        (TOML.replace("default = 8", 'default = "big"'), "parameters.window.default"),
        (TOML.replace('["window"]', '["windw"]'), "view_parameters"),
        (TOML.replace('["prediction"]', '["output"]'), "roles"),
        (TOML.replace('modality = "image"', 'modality = "picture"'), "modality"),
        (TOML.replace("= true", '= "yes"'), "higher_is_better"),
    ],
)
def test_a_broken_package_is_left_out_with_a_warning(install: Any, toml: str | None, says: str) -> None:
    install(toml)
    with pytest.warns(RuntimeWarning, match="their_metric") as caught:
        assert "lpips" in {spec.id for spec in list_metrics()}
    assert says in str(caught[0].message)


def test_a_missing_package_is_left_out_with_a_warning(install: Any) -> None:
    install(value="their_metric.nowhere")
    with pytest.warns(RuntimeWarning, match="cannot be found"):
        list_metrics()


@pytest.mark.parametrize("scorer", ["", "class A:\n    def score(self): ...\n\nclass B:\n    def score(self): ...\n"])
def test_the_scorer_class_must_be_clear(install: Any, scorer: str) -> None:
    install(scorer=scorer)
    with pytest.raises(ValueError, match="expected one public class with a method 'score'"):
        make_scorer(parse_variant("sharpness"))


def test_the_scorer_class_may_be_named(install: Any) -> None:
    two = "class A:\n    def score(self): ...\n\nclass B:\n    def score(self): ...\n"
    install(TOML.replace("scope", 'scorer = "B"\nscope', 1), scorer=two)
    assert type(make_scorer(parse_variant("sharpness"))).__name__ == "B"


# --- conventions and types ---------------------------------------------------------------------------------------

CONVENTIONS = """
id = "fit"
title = "Fit"
scope = "sample"
higher_is_better = true
range = [-1.0, 1.0]

[needs.image]
encoder = "clip"
modality = "image"
roles = ["prediction"]
view_parameters = ["frames"]

[needs.text]
encoder = "clip"
modality = "text"
roles = ["prompt"]

[parameters.model]
type = "choice"
choices = ["b32", "l14"]
default = "b32"

[parameters.convention]
type = "choice"
choices = ["scaled", "raw"]
default = "scaled"

[parameters.frames]
type = "choice-or-int"
choices = ["all"]
default = 8
min = 1

[models.b32]
label = "openai-b32"
entries = { image = "clip-b32", text = "clip-b32" }

[models.l14]
label = "openai-l14"
entries = { image = "clip-l14", text = "clip-l14" }

[conventions.scaled]
scale = 2.5
range = [0.0, 2.5]

[conventions.raw]
scale = 1.0
defaults = { frames = "all" }
"""


def test_conventions_carry_values_range_and_defaults(install: Any) -> None:
    install(CONVENTIONS)
    plain = parse_variant("fit")
    assert (plain.label, plain.range) == ("openai-b32/scaled", (0.0, 2.5))
    assert plain.params.convention.scale == 2.5
    assert plain.needs[0].view == {"frames": 8}
    raw = parse_variant("fit@l14/raw")
    assert (raw.label, raw.range) == ("openai-l14/raw", (-1.0, 1.0))
    assert raw.needs[0].view == {"frames": "all"}
    assert raw.models == {"image": "clip-l14", "text": "clip-l14"}
    assert parse_variant("fit/raw", {"frames": 8}).label == "openai-b32/raw,frames=8"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('choices = ["b32", "l14"]', 'choices = ["b32"]'),
        ('choices = ["scaled", "raw"]', 'choices = ["scaled", "raw", "x"]'),
        ('defaults = { frames = "all" }', 'defaults = { frames = "some" }'),
        ('defaults = { frames = "all" }', 'defaults = { fames = "all" }'),
        ('text = "clip-b32"', 'txt = "clip-b32"'),
        ("range = [0.0, 2.5]", "range = [0.0]"),
    ],
)
def test_tables_that_contradict_each_other_are_refused(tmp_path: Path, old: str, new: str) -> None:
    assert old in CONVENTIONS
    path = tmp_path / "metric.toml"
    path.write_text(CONVENTIONS.replace(old, new, 1))
    with pytest.raises(ValueError, match=r"metric\.toml: "):
        read_spec(path, module="x")


@pytest.mark.parametrize(
    ("kind", "given", "read"),
    [
        ("int", "7", 7),
        ("int", 7, 7),
        ("int", 7.0, None),
        ("int", "7.5", None),
        ("int", True, None),
        ("float", "0.5", 0.5),
        ("float", 3, 3.0),
        ("float", "nan", None),
        ("float", float("inf"), None),
        ("float", False, None),
        ("bool", "True", True),
        ("bool", False, False),
        ("bool", 1, None),
        ("bool", "yes", None),
        ("str", "x", "x"),
        ("str", 3, None),
    ],
)
def test_typed_values(kind: Any, given: Any, read: Any) -> None:
    parameter = ParameterSpec("p", kind, default=None)
    if read is None:
        with pytest.raises(ValueError, match=r"m\.p: expected .*, found "):
            parameter.read(given, "m.p")
    else:
        value = parameter.read(given, "m.p")
        assert value == read
        assert type(value) is type(read)


# --- claims ------------------------------------------------------------------------------------------------------

PAIR = """
id = "gap"
title = "Gap"
scope = "sample"
higher_is_better = false
range = [0.0, 9.0]

[needs.pair]
encoder = "lpips"
modality = "image"
roles = ["prediction", "reference"]
"""


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ("identity = 0", (0, False)),
        ("identity = 9.0\nsymmetric = true", (9.0, True)),
        ("", (None, False)),
        ("identity = 10.0", "outside the metric's range"),
        ("identity = nan", "expected a number"),
        ("identity = true", "expected a number"),
        ("identity = '0'", "expected a number"),
        ("symmetric = 1", "expected true or false"),
        ("symetric = true", "did you mean 'symmetric'"),
    ],
)
def test_claims(tmp_path: Path, claims: str, says: Any) -> None:
    path = tmp_path / "metric.toml"
    path.write_text(f"{PAIR}\n[claims]\n{claims}\n")
    if isinstance(says, str):
        with pytest.raises(ValueError, match=says):
            read_spec(path, module="x")
    else:
        found = read_spec(path, module="x").claims
        assert (found.identity, found.symmetric) == says


@pytest.mark.parametrize("roles", ['["prediction"]', '["prediction", "input"]'])
def test_claims_need_something_to_compare_with(tmp_path: Path, roles: str) -> None:
    path = tmp_path / "metric.toml"
    path.write_text(PAIR.replace('["prediction", "reference"]', roles) + "\n[claims]\nsymmetric = true\n")
    with pytest.raises(ValueError, match="compares predictions with references"):
        read_spec(path, module="x")
