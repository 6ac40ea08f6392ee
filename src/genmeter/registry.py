"""Which metrics are installed, and what a name such as ``lpips@vgg/input`` means.

A metric is a folder with a ``metric.toml``. The folders of this package and those that other packages announce
under the entry-point group ``genmeter.metrics`` are listed by reading that file alone; a scorer is imported only
when it is made.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import warnings
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from genmeter.config import nearest
from genmeter.errors import GenmeterError
from genmeter.metricspec import ConventionSpec, MetricSpec, ModelChoice, NeedSpec, ParameterSpec, read_spec
from genmeter.variants import Variant, build_variant, split_name

GROUP = "genmeter.metrics"
_SCOPE_METHOD = {"sample": "score", "set": "score_set"}

# What a sample is scored with when neither the caller nor the sample says.
DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "text-to-image": ("clipscore",),
    "image-to-image": ("lpips", "clip_i"),
    "text-to-audio": ("clapscore",),
    "text-to-video": ("fvd", "clipscore"),
}


def list_metrics() -> list[MetricSpec]:
    """All installed metrics, by id. Reads ``metric.toml`` files and imports no scorer.

    A folder of another package that cannot be read, or whose id is taken, is left out with a warning.
    """
    return [spec for _, spec in sorted(_discover().items())]


def get_metric(metric_id: str) -> MetricSpec:
    """The metric of this id. Raises ``GenmeterError('unknown_metric')`` naming the nearest installed one."""
    found = _discover()
    if metric_id not in found:
        raise GenmeterError(
            "unknown_metric",
            f"no metric {metric_id!r} is installed{nearest(metric_id, sorted(found))}",
            f"installed: {', '.join(sorted(found)) or 'none'}",
        )
    return found[metric_id]


def parse_variant(name: str, overrides: Mapping[str, Any] | None = None, profile: str = "reference") -> Variant:
    """Read a variant name ``id[@model][/convention]`` and parameter overrides.

    Args:
        name: As the user wrote it; it stays the key of the metric everywhere.
        overrides: Parameter values, from a configuration file or keyword arguments. Strings are read by the
            parameter's type, so that values of a command line fit. Model and convention in the name win over them.
        profile: ``tiny`` makes the metric's tiny network its default, where it has one; a model that is named wins.

    Raises:
        GenmeterError: ``unknown_metric`` when the metric, model or convention in the name is not installed.
        ValueError: An override that names no parameter or does not fit its type.
    """
    metric_id, model, convention = split_name(name)
    return build_variant(name.strip(), get_metric(metric_id), model, convention, overrides or {}, profile)


def default_metrics(task_type: str | None) -> list[str]:
    """Names of the installed default metrics of a task type; empty for a task type without defaults."""
    return [name for name in _defaults(task_type) if name in _discover()]


def missing_defaults(task_type: str | None) -> list[str]:
    """Names of default metrics of a task type that are not installed, to be said rather than passed over."""
    return [name for name in _defaults(task_type) if name not in _discover()]


def make_scorer(variant: Variant) -> Any:
    """A new scorer object of the variant: a ``SampleMetric`` or, for scope ``set``, a ``SetMetric``.

    Imports ``scorer.py`` of the metric's folder. The scorer is the class that metric.toml names as ``scorer``,
    else the one public class there with a method ``score`` (``score_set`` for scope ``set``).

    Raises:
        ValueError: The module holds no such class, or several.
    """
    spec = variant.spec
    module = importlib.import_module(spec.module)
    method = _SCOPE_METHOD[spec.scope]
    if spec.scorer:
        named = getattr(module, spec.scorer, None)
        if named is None:
            raise ValueError(f"{spec.path / 'metric.toml'}: {spec.module} holds no {spec.scorer!r}")
        return named()
    classes = [
        value
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith("_")
        if callable(getattr(value, method, None))
    ]
    if len(classes) != 1:
        raise ValueError(
            f"{spec.module}: expected one public class with a method {method!r}, found {len(classes)}; "
            f"name it with scorer = '...' in metric.toml"
        )
    return classes[0]()


def _defaults(task_type: str | None) -> tuple[str, ...]:
    return DEFAULTS.get((task_type or "").strip().lower().replace("_", "-"), ())


@cache
def _discover() -> dict[str, MetricSpec]:
    found = {}
    folder = Path(__file__).parent / "metrics"
    for path in sorted(folder.glob("*/metric.toml")):
        spec = read_spec(path, module=f"genmeter.metrics.{path.parent.name}.scorer")
        found[spec.id] = spec
    for point in _entry_points():
        try:
            spec = _read_entry_point(point)
            if spec.id in found:
                raise ValueError(f"a metric {spec.id!r} is already installed from {found[spec.id].path}")
        except Exception as error:  # a broken package of somebody else must not take the listing down
            warnings.warn(f"metric {point.name!r} ({point.value}) is left out: {error}", RuntimeWarning, stacklevel=2)
            continue
        found[spec.id] = spec
    return found


def _entry_points() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value))


def _read_entry_point(point: EntryPoint) -> MetricSpec:
    name = point.value.split(":")[0].strip()
    where = importlib.util.find_spec(name)  # imports parent packages at most, never the scorer
    if where is None:
        raise ValueError(f"module {name!r} cannot be found")
    if where.submodule_search_locations:
        return read_spec(Path(next(iter(where.submodule_search_locations))) / "metric.toml", module=f"{name}.scorer")
    if not where.origin:
        raise ValueError(f"module {name!r} has no file")
    return read_spec(Path(where.origin).parent / "metric.toml", module=name)


__all__ = [
    "DEFAULTS",
    "ConventionSpec",
    "MetricSpec",
    "ModelChoice",
    "NeedSpec",
    "ParameterSpec",
    "Variant",
    "default_metrics",
    "get_metric",
    "list_metrics",
    "make_scorer",
    "missing_defaults",
    "parse_variant",
]
