"""The variants, encoders and views of one run, numbered in the order in which they are first asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from genmeter.contract import EncoderSpec, Modality, Precision, View
from genmeter.encoders.registry import encoder_spec
from genmeter.engine.keys import Fingerprint, fingerprint, view_id
from genmeter.errors import GenmeterError
from genmeter.registry import Variant, default_metrics, parse_variant
from genmeter.weights.lock import ModelEntry, get_entry


class EncoderUse(NamedTuple):
    """An encoder with one set of weights."""

    name: str
    entry: ModelEntry
    spec: EncoderSpec


class ViewUse(NamedTuple):
    """A view of one modality, and the text of it that enters keys."""

    modality: Modality
    view: View
    id: str


class Catalog:
    """What the names in a run stand for.

    Args:
        metrics: Names asked for on the command line or in code; None leaves the choice to each sample.
        overrides: Parameters by metric name or id.
        precision: Precision of every network.
        device_kind: ``cpu`` or ``cuda``.
        profile: Which networks metrics run on unless a model is named.

    Raises:
        GenmeterError: ``unknown_metric`` for a name in ``metrics`` that is not installed.
        ValueError: For a parameter that the metric does not have or a value it does not take.
    """

    def __init__(
        self,
        metrics: Sequence[str] | None,
        overrides: Mapping[str, Mapping[str, Any]],
        precision: Precision = "exact",
        device_kind: str = "cpu",
        profile: str = "reference",
    ) -> None:
        self.explicit = list(dict.fromkeys(metrics)) if metrics is not None else None
        self.precision, self.device_kind = precision, device_kind
        self.encoders: list[EncoderUse] = []
        self.views: list[ViewUse] = []
        self._overrides, self._profile = overrides, profile
        self._variants: dict[str, Variant | GenmeterError] = {}
        self._encoder_index: dict[tuple[str, str | None], int] = {}
        self._view_index: dict[tuple[Modality, str], int] = {}
        self._defaults: dict[str | None, list[str]] = {}
        self._fingerprints: dict[tuple[int, Modality], Fingerprint] = {}
        for name in self.explicit or ():
            self.variant(name)

    def know(self, name: str) -> None:
        """Give a name its place among the variants; one that is unknown is kept as such."""
        if name not in self._variants:
            try:
                self._variants[name] = parse_variant(name, self._overrides_of(name), self._profile)
            except GenmeterError as error:
                self._variants[name] = error

    def variant(self, name: str) -> Variant:
        """The variant of a name. Raises ``unknown_metric``, the same each time."""
        self.know(name)
        found = self._variants[name]
        if isinstance(found, GenmeterError):
            raise found
        return found

    def _overrides_of(self, name: str) -> Mapping[str, Any]:
        return self._overrides.get(name) or self._overrides.get(metric_of(name)) or {}

    @property
    def variants(self) -> dict[str, Variant]:
        """Every known variant by the name it was asked for."""
        return {name: found for name, found in self._variants.items() if not isinstance(found, GenmeterError)}

    @property
    def default_names(self) -> set[str]:
        """Metrics that stand in the run because a task type defaults to them."""
        return {name for names in self._defaults.values() for name in names}

    def defaults(self, task_type: str | None) -> list[str]:
        """Installed default metrics of a task type."""
        if task_type not in self._defaults:
            self._defaults[task_type] = default_metrics(task_type)
        return self._defaults[task_type]

    def encoder(self, name: str, model: str | None) -> int:
        """Index of an encoder with one set of weights; ``None`` for an encoder that has none."""
        if (name, model) not in self._encoder_index:
            entry = weightless(name) if model is None else get_entry(model)
            use = EncoderUse(name, entry, encoder_spec(name, entry))
            self._encoder_index[name, model] = len(self.encoders)
            self.encoders.append(use)
        return self._encoder_index[name, model]

    def view(self, modality: Modality, view: View) -> int:
        """Index of a view."""
        key = (modality, view_id(view))
        if key not in self._view_index:
            self._view_index[key] = len(self.views)
            self.views.append(ViewUse(modality, view, key[1]))
        return self._view_index[key]

    def fingerprint(self, encoder: int, view: int) -> Fingerprint:
        """Fingerprint of an encoder as it reads one modality."""
        key = (encoder, self.views[view].modality)
        if key not in self._fingerprints:
            spec = self.encoders[encoder].spec
            self._fingerprints[key] = fingerprint(spec, self.precision, self.device_kind, key[1])
        return self._fingerprints[key]


def metric_of(name: str) -> str:
    """The metric's id in a variant name: ``clipscore`` of ``clipscore@tiny-clip/cosine``."""
    return name.partition("@")[0].partition("/")[0]


def weightless(name: str) -> ModelEntry:
    """The entry of an encoder that needs no weights, such as one that only counts or measures."""
    return ModelEntry(
        id=name,
        task="",
        loader=name,
        architecture=name,
        preprocessing={},
        licence="",
        citation="",
        digest="",
        unverified=False,
        sources=(),
        label="",
    )
