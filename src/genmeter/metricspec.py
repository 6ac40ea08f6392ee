"""What a metric's ``metric.toml`` says, read and checked without importing anything of the metric."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from genmeter.config import nearest
from genmeter.contract import Modality, Role, Scalar

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Scope = Literal["sample", "set"]
Reduction = Literal["min", "max", "mean"]
ParameterType = Literal["choice", "choice-or-int", "int", "float", "bool", "str"]
Range = tuple[float | None, float | None]
# Beside the reference profile, which is each metric's own default.
PROFILES = ("tiny",)
_TEXTS = ("prompt", "caption", "target")
# Fields of a sample that a text need may ask for; genmeter.schema.answers reads them.
_FIELDS = ("references", "choice", "golden_trajectories", "predict_result")


@dataclass(frozen=True)
class ParameterSpec:
    """One setting of a metric.

    Attributes:
        name: As written in a configuration.
        type: What it may hold; ``choice-or-int`` is one of ``choices`` or a whole number.
        default: Its value when nobody says otherwise.
        choices: The words a choice may be.
        affects_score: Whether another value makes another variant (and shows in the variant label).
        min: Smallest number allowed, or None.
        max: Largest number allowed, or None.
        help: One sentence.
    """

    name: str
    type: ParameterType
    default: Any
    choices: tuple[str, ...] = ()
    affects_score: bool = True
    min: float | None = None
    max: float | None = None
    help: str = ""

    def read(self, value: Any, where: str) -> Any:
        """The value in this parameter's type. Raises ``ValueError`` that starts with ``where``."""
        if self.type == "choice" or self.type == "choice-or-int":
            if isinstance(value, str) and value.strip() in self.choices:
                return value.strip()
            if self.type == "choice-or-int" and (number := _whole(value)) is not None:
                return self._bounded(number, value, where)
            close = nearest(value, list(self.choices)) if isinstance(value, str) else ""
            self._refuse(value, where, close)
        if self.type == "bool":
            word = value.strip().lower() if isinstance(value, str) else value
            if isinstance(word, bool) or word in ("true", "false"):
                return word is True or word == "true"
            self._refuse(value, where)
        if self.type == "int":
            number = _whole(value)
            return self._bounded(number, value, where) if number is not None else self._refuse(value, where)
        if self.type == "float":
            real = _real(value)
            return self._bounded(real, value, where) if real is not None else self._refuse(value, where)
        return value if isinstance(value, str) else self._refuse(value, where)

    def _bounded(self, number: float, value: Any, where: str) -> float:
        low, high = self.min, self.max
        if (low is not None and number < low) or (high is not None and number > high):
            self._refuse(value, where)
        return number

    def _refuse(self, value: Any, where: str, close: str = "") -> NoReturn:
        raise ValueError(f"{where}: expected {self.expected}, found {value!r}{close}")

    @property
    def expected(self) -> str:
        """What the parameter may hold, in words."""
        bounds = [f"at least {self.min:g}"] if self.min is not None else []
        bounds += [f"at most {self.max:g}"] if self.max is not None else []
        limit = f" ({', '.join(bounds)})" if bounds else ""
        words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}
        if self.type == "choice":
            return f"one of {', '.join(self.choices)}"
        if self.type == "choice-or-int":
            return f"one of {', '.join(self.choices)}, or a whole number{limit}"
        return words[self.type] + limit


@dataclass(frozen=True)
class NeedSpec:
    """A need as metric.toml states it: its view holds constants and the names of the parameters that go into it.

    ``text_of`` and ``also`` are those of :class:`genmeter.contract.Need`; ``also_view`` and ``also_view_parameters``
    are what the view holds besides where a modality of ``also`` is read; ``fields`` are those of the contract too.
    """

    name: str
    encoder: str | None
    modality: Modality
    roles: tuple[Role, ...]
    view: Mapping[str, Scalar] = field(default_factory=dict)
    view_parameters: tuple[str, ...] = ()
    text_of: str = "prompt"
    also: tuple[Modality, ...] = ()
    also_view: Mapping[str, Scalar] = field(default_factory=dict)
    also_view_parameters: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelChoice:
    """One network a metric can run on: the label it gives a variant, and the models.lock entry of each need."""

    name: str
    label: str
    entries: Mapping[str, str]


@dataclass(frozen=True)
class ConventionSpec:
    """A published way to turn the same features into a number, and what it changes of the metric.

    Attributes:
        name: As written behind the slash of a variant name.
        label: What the variant label shows for it; empty for a convention that goes without saying.
        values: What the scorer sees as ``params.convention``, besides ``name``.
        roles: Need name -> roles that replace those of the metric.
        range: Replaces the metric's range.
        defaults: Parameter values that the convention sets unless the caller does.
    """

    name: str
    label: str
    values: Mapping[str, Any] = field(default_factory=dict)
    roles: Mapping[str, tuple[Role, ...]] = field(default_factory=dict)
    range: Range | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Claims:
    """What must hold of a metric's numbers whatever the network; the contract tests hold it to them.

    Attributes:
        identity: Its value of what is compared with itself (an asset, or a set); None where nothing is claimed.
        symmetric: Whether prediction and reference may change places.
    """

    identity: float | None = None
    symmetric: bool = False


@dataclass(frozen=True)
class MetricSpec:
    """A metric as its folder describes it.

    Attributes:
        id: The name it is asked for by.
        title: What a table calls it.
        summary: One sentence.
        scope: ``sample`` or ``set``.
        modality: What it measures, or None for several.
        higher_is_better: Its direction.
        range: Lowest and highest value; None where there is no bound.
        citation: BibTeX key.
        task_types: Task types it was made for.
        needs: What it asks of a sample, by name.
        parameters: Its settings, by name (``convention`` among them when it has conventions).
        conventions: Its conventions, by name.
        models: Its networks, by the value of ``model_parameter``.
        model_parameter: The parameter that ``@`` in a variant name sets.
        profiles: The network that a profile other than ``reference`` runs on, where the metric has one.
        reduce_references: How the values against several references become one.
        label: Variant label of a metric that has neither models nor conventions.
        pitfalls: Sentences a reader must know.
        scorer: Name of the scorer class, when the module holds several.
        claims: What must hold of its numbers.
        module: Import name of the scorer's module.
        path: The metric's folder.
    """

    id: str
    title: str
    scope: Scope
    higher_is_better: bool
    needs: Mapping[str, NeedSpec]
    path: Path
    module: str
    summary: str = ""
    modality: Modality | None = None
    range: Range = (None, None)
    citation: str = ""
    task_types: tuple[str, ...] = ()
    parameters: Mapping[str, ParameterSpec] = field(default_factory=dict)
    conventions: Mapping[str, ConventionSpec] = field(default_factory=dict)
    models: Mapping[str, ModelChoice] = field(default_factory=dict)
    model_parameter: str = "model"
    profiles: Mapping[str, str] = field(default_factory=dict)
    reduce_references: Reduction = "mean"
    label: str = ""
    pitfalls: tuple[str, ...] = ()
    scorer: str | None = None
    claims: Claims = Claims()

    @property
    def card(self) -> str:
        """The text of the metric's card, or an empty string."""
        path = self.path / "card.md"
        return path.read_text(encoding="utf-8") if path.is_file() else ""


def read_spec(path: Path, *, module: str) -> MetricSpec:
    """Read and check a ``metric.toml``.

    Args:
        path: The file.
        module: Import name of the scorer's module.

    Raises:
        ValueError: Naming the file, the key and what it should hold.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        return _spec(data, path, module)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path}: {reason}") from None


def _spec(data: dict[str, Any], path: Path, module: str) -> MetricSpec:
    tables = ("needs", "parameters", "conventions", "models", "profiles", "claims")
    others = ("range", "modality", "task_types", "pitfalls", "model_parameter")
    plain = ("id", "title", "summary", "scope", "higher_is_better", "citation", "reduce_references", "label", "scorer")
    _known(data, (*tables, *others, *plain), "metric")
    _one_of(data["scope"], get_args(Scope), "scope")
    _one_of(data.get("reduce_references", "mean"), get_args(Reduction), "reduce_references")
    if "modality" in data:
        _one_of(data["modality"], get_args(Modality), "modality")
    if not isinstance(data["higher_is_better"], bool):
        raise ValueError("higher_is_better: expected true or false")
    parameters = {name: _parameter(name, item) for name, item in data.get("parameters", {}).items()}
    needs = {name: _need(name, item, parameters) for name, item in data["needs"].items()}
    conventions = {
        name: _convention(name, item, needs, parameters) for name, item in data.get("conventions", {}).items()
    }
    models = {name: _model(name, item, needs) for name, item in data.get("models", {}).items()}
    for profile, model in data.get("profiles", {}).items():
        _one_of(profile, PROFILES, "profiles")
        _one_of(model, tuple(models), f"profiles.{profile}")
    bounds = _range(data.get("range", [-math.inf, math.inf]))
    spec = MetricSpec(
        **{key: data[key] for key in (*plain, "modality", "model_parameter") if key in data},
        range=bounds,
        task_types=tuple(data.get("task_types", ())),
        pitfalls=tuple(data.get("pitfalls", ())),
        needs=needs,
        parameters=parameters,
        conventions=conventions,
        models=models,
        profiles=dict(data.get("profiles", {})),
        claims=_claims(data.get("claims", {}), needs, bounds),
        path=path.parent,
        module=module,
    )
    for name, known in ((spec.model_parameter, models), ("convention", conventions)):
        if known and (name not in parameters or set(parameters[name].choices) != set(known)):
            raise ValueError(f"parameters.{name}.choices: expected {', '.join(known)}, as in the tables of that name")
    return spec


def _parameter(name: str, data: dict[str, Any]) -> ParameterSpec:
    where = f"parameters.{name}"
    _known(data, ("type", "default", "choices", "affects_score", "min", "max", "help"), where)
    _one_of(data["type"], get_args(ParameterType), f"{where}.type")
    parameter = ParameterSpec(name=name, **{**data, "choices": tuple(data.get("choices", ()))})
    parameter.read(parameter.default, f"{where}.default")
    return parameter


def _need(name: str, data: dict[str, Any], parameters: Mapping[str, ParameterSpec]) -> NeedSpec:
    where = f"needs.{name}"
    named = ("view_parameters", "also_view_parameters")
    _known(data, ("encoder", "modality", "roles", "view", "text_of", "also", "also_view", "fields", *named), where)
    for modality in data.get("also", ()):
        _one_of(modality, get_args(Modality), f"{where}.also")
    _one_of(data["modality"], get_args(Modality), f"{where}.modality")
    for key in named:
        for parameter in data.get(key, ()):
            _one_of(parameter, tuple(parameters), f"{where}.{key}")
    text_of = data.get("text_of", "prompt")
    if "text_of" in data and (data["modality"] != "text" or data["roles"] != ["prompt"]):
        raise ValueError(f"{where}.text_of: only a text of the role prompt has it")
    if text_of not in _TEXTS and "." not in text_of:
        raise ValueError(f"{where}.text_of: expected {', '.join(_TEXTS)} or a field path, found {text_of!r}")
    for field_name in data.get("fields", ()):
        _one_of(field_name, _FIELDS, f"{where}.fields")
    raw = data["modality"] == "text" and data["roles"] == ["prediction"] and "encoder" not in data
    if data.get("fields") and not raw:
        raise ValueError(f"{where}.fields: only a text of the role prediction without an encoder has them")
    return NeedSpec(
        name=name,
        encoder=data.get("encoder"),
        modality=data["modality"],
        roles=_roles(data["roles"], where),
        view=data.get("view", {}),
        view_parameters=tuple(data.get("view_parameters", ())),
        text_of=text_of,
        also=tuple(data.get("also", ())),
        also_view=data.get("also_view", {}),
        also_view_parameters=tuple(data.get("also_view_parameters", ())),
        fields=tuple(data.get("fields", ())),
    )


def _claims(data: dict[str, Any], needs: Mapping[str, NeedSpec], bounds: Range) -> Claims:
    _known(data, ("identity", "symmetric"), "claims")
    claims = Claims(**data)
    value, (low, high) = claims.identity, bounds
    if value is not None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(f"claims.identity: expected a number, found {value!r}")
        if (low is not None and value < low) or (high is not None and value > high):
            raise ValueError(f"claims.identity: {value!r} is outside the metric's range")
    if not isinstance(claims.symmetric, bool):
        raise ValueError(f"claims.symmetric: expected true or false, found {claims.symmetric!r}")
    found = {(role, need.modality) for need in needs.values() for role in need.roles}
    found |= {("reference", need.modality) for need in needs.values() if "references" in need.fields}
    if data and not any(("prediction", m) in found and ("reference", m) in found for m in get_args(Modality)):
        raise ValueError("claims: only a metric that compares predictions with references of their kind has any")
    return claims


def _roles(roles: list[Any], where: str) -> tuple[Role, ...]:
    for role in roles:
        _one_of(role, get_args(Role), f"{where}.roles")
    if not 1 <= len(roles) <= 2:
        raise ValueError(f"{where}.roles: expected one role, or two for a pair")
    return tuple(roles)


def _convention(
    name: str, data: dict[str, Any], needs: Mapping[str, NeedSpec], parameters: Mapping[str, ParameterSpec]
) -> ConventionSpec:
    where = f"conventions.{name}"
    special = ("label", "roles", "range", "defaults")
    for key in data.get("roles", {}):
        _one_of(key, tuple(needs), f"{where}.roles")
    defaults = {}
    for key, value in data.get("defaults", {}).items():
        _one_of(key, tuple(parameters), f"{where}.defaults")
        defaults[key] = parameters[key].read(value, f"{where}.defaults.{key}")
    return ConventionSpec(
        name=name,
        label=data.get("label", name),
        values={key: value for key, value in data.items() if key not in special},
        roles={key: _roles(roles, where) for key, roles in data.get("roles", {}).items()},
        range=_range(data["range"]) if "range" in data else None,
        defaults=defaults,
    )


def _model(name: str, data: dict[str, Any], needs: Mapping[str, NeedSpec]) -> ModelChoice:
    where = f"models.{name}"
    _known(data, ("label", "entries"), where)
    for key in data["entries"]:
        _one_of(key, tuple(needs), f"{where}.entries")
    return ModelChoice(name=name, label=data["label"], entries=dict(data["entries"]))


def _range(bounds: list[Any]) -> Range:
    low, high = bounds
    return (float(low) if math.isfinite(low) else None, float(high) if math.isfinite(high) else None)


def _known(data: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in data:
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r}{nearest(key, list(known))}")


def _one_of(value: Any, known: tuple[str, ...], where: str) -> None:
    if value not in known:
        raise ValueError(f"{where}: expected one of {', '.join(known)}, found {value!r}")


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    try:
        return int(value.strip()) if isinstance(value, str) else None
    except ValueError:
        return None


def _real(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
