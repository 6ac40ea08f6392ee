"""A metric with its network, convention and parameters fixed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from genmeter.config import nearest
from genmeter.contract import Need, Params, Scalar
from genmeter.errors import GenmeterError
from genmeter.metricspec import MetricSpec, NeedSpec, Range


@dataclass(frozen=True)
class Variant:
    """A metric as one run scores it; two variants never share a mean.

    Attributes:
        name: As asked for (``lpips@vgg/input``): the key in eval_result, summary, thresholds and gates.
        spec: The metric.
        label: What tells this variant from the metric's others: ``vgg-v0.1``, ``alex-v0.1,resize=reference``.
        params: Every parameter; ``convention`` holds the convention's values and its ``name``.
        needs: What is asked of a sample, with roles and views of this variant.
        models: Need name -> id of its models.lock entry.
        affecting: The parameters that move the score, defaults included.
        range: Lowest and highest value; None where there is no bound.
        convention: Name of the convention; None for a metric without conventions.
    """

    name: str
    spec: MetricSpec
    label: str
    params: Params
    needs: tuple[Need, ...]
    models: Mapping[str, str]
    affecting: Mapping[str, Any]
    range: Range
    convention: str | None

    @property
    def scope(self) -> str:
        """``sample`` or ``set``."""
        return self.spec.scope

    @property
    def higher_is_better(self) -> bool:
        """The metric's direction."""
        return self.spec.higher_is_better


def split_name(name: str) -> tuple[str, str | None, str | None]:
    """``id[@model][/convention]`` in its parts. Raises ``GenmeterError('unknown_metric')`` for any other form."""
    head, slash, convention = name.strip().partition("/")
    metric_id, at, model = head.partition("@")
    stray = "@" in model or "/" in convention or "@" in convention
    if not metric_id or stray or (at and not model) or (slash and not convention):
        raise GenmeterError(
            "unknown_metric", f"{name!r} is no metric name", "write id, id@model, id/convention or id@model/convention"
        )
    return metric_id, model or None, convention or None


def build_variant(
    name: str,
    spec: MetricSpec,
    model: str | None,
    convention: str | None,
    overrides: Mapping[str, Any],
    profile: str = "reference",
) -> Variant:
    """Fix a metric's parameters. Arguments and errors as for :func:`genmeter.registry.parse_variant`."""
    asked = _read_overrides(name, spec, overrides)
    for key, word, known in (
        (spec.model_parameter, _model_key(spec, model), list(spec.models)),
        ("convention", convention, list(spec.conventions)),
    ):
        if word is None:
            continue
        if word not in known:
            kind = "convention" if key == "convention" else "model"
            raise GenmeterError(
                "unknown_metric",
                f"{spec.id} has no {kind} {word!r}{nearest(word, known)}",
                f"known: {', '.join(known) or 'none'}",
            )
        asked[key] = word  # the name wins: parameters of a configuration file are stated for the metric as a whole

    defaults = {key: parameter.default for key, parameter in spec.parameters.items()}
    chosen = asked.get("convention", defaults.get("convention"))
    rules = spec.conventions.get(chosen) if chosen else None
    if rules is not None:
        defaults.update(rules.defaults)
    if profile in spec.profiles:
        defaults[spec.model_parameter] = spec.profiles[profile]
    values = {**defaults, **asked}
    choice = spec.models.get(values.get(spec.model_parameter, ""))

    parts = [choice.label if choice else "", rules.label if rules else ""]
    label = "/".join(part for part in parts if part) or spec.label or spec.id
    for key, parameter in spec.parameters.items():
        named = (choice and key == spec.model_parameter) or (rules and key == "convention")
        if parameter.affects_score and not named and values[key] != defaults[key]:
            label += f",{key}={_show(values[key])}"

    params = {**values, "convention": {"name": chosen, **rules.values}} if rules else values
    return Variant(
        name=name,
        spec=spec,
        label=label,
        params=Params(params),
        needs=tuple(
            Need(
                name=need.name,
                encoder=need.encoder,
                modality=need.modality,
                roles=rules.roles.get(need.name, need.roles) if rules else need.roles,
                view=_view(need.view, need.view_parameters, values),
                text_of=need.text_of,
                also=need.also,
                also_view=_also_view(need, values),
                fields=need.fields,
            )
            for need in spec.needs.values()
        ),
        models=dict(choice.entries) if choice else {},
        affecting={key: values[key] for key, parameter in spec.parameters.items() if parameter.affects_score},
        range=rules.range if rules and rules.range else spec.range,
        convention=chosen if rules else None,
    )


def _view(constants: Mapping[str, Scalar], parameters: Iterable[str], values: Mapping[str, Any]) -> dict[str, Scalar]:
    return {**constants, **{key: values[key] for key in parameters}}


def _also_view(need: NeedSpec, values: Mapping[str, Any]) -> dict[str, Scalar]:
    if not need.also:
        return {}
    added = _view(need.also_view, need.also_view_parameters, values)
    return {**_view(need.view, need.view_parameters, values), **added}


def _read_overrides(name: str, spec: MetricSpec, overrides: Mapping[str, Any]) -> dict[str, Any]:
    asked = {}
    for key, value in overrides.items():
        if key not in spec.parameters:
            known = list(spec.parameters)
            raise ValueError(
                f"{name}: unknown parameter {key!r}{nearest(str(key), known)} (known: {', '.join(known) or 'none'})"
            )
        asked[key] = spec.parameters[key].read(value, f"{name}.{key}")
    return asked


def _model_key(spec: MetricSpec, model: str | None) -> str | None:
    """The model's key; its label, as tables print it, is understood too."""
    labels = {choice.label: key for key, choice in spec.models.items()}
    return labels.get(model, model) if model is not None else None


def _show(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
