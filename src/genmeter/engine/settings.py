"""What of a configuration can change a score: the part that a run directory refuses to mix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genmeter.config import RunConfig
from genmeter.contract import Json
from genmeter.engine.catalog import Catalog
from genmeter.registry import Variant


def catalog_of(config: RunConfig, device_kind: str) -> Catalog:
    """The catalog that a configuration asks for.

    Raises:
        ValueError: As :class:`~genmeter.engine.catalog.Catalog`.
    """
    metrics = config.metrics
    overrides: Mapping[str, Mapping[str, Any]] = metrics if isinstance(metrics, dict) else {}
    names = list(metrics) if metrics is not None else None
    return Catalog(names, overrides, config.precision, device_kind, config.profile)


def run_settings(
    config: RunConfig, catalog: Catalog, input_digest: str, reference_set: str | None = None
) -> dict[str, Json]:
    """Everything that two processes on one run directory must agree on.

    Args:
        config: All settings.
        catalog: Variants of the run.
        input_digest: Digest of the input's lines.
        reference_set: Digest of the stored reference set, where there is one.
    """
    return {
        "input": input_digest,
        "precision": config.precision,
        "candidate": config.candidate,
        "partial_candidates": config.partial_candidates,
        "prompt_field": config.prompt_field,
        "references_from": config.references_from,
        "metrics_from": config.metrics_from,
        "reference_set": reference_set,
        "metrics": {name: _variant_settings(variant, catalog) for name, variant in catalog.variants.items()},
    }


def _variant_settings(variant: Variant, catalog: Catalog) -> dict[str, Json]:
    encoders = {}
    for need in variant.needs:
        if need.encoder is not None:
            spec = catalog.encoders[catalog.encoder(need.encoder, variant.models.get(need.name))].spec
            encoders[need.name] = [spec.model, spec.digest, spec.preprocessing, spec.version, dict(need.view)]
    return {"variant": variant.label, "parameters": dict(variant.affecting), "encoders": encoders}


def settings_changed(old: Mapping[str, Json] | None, new: Mapping[str, Json]) -> list[str]:
    """What differs, in words. A metric may be added or left out; one that both runs name must be the same."""
    if old is None:
        return []
    changed = []
    for key, value in new.items():
        before = old.get(key)
        if key == "metrics":
            metrics = before or {}
            for name in sorted(set(metrics) & set(value)):
                if metrics[name] != value[name]:
                    changed.append(f"{name} was {_say(metrics[name])}, now {_say(value[name])}")
        elif before != value:
            words = "the input's content" if key == "input" else f"{key} was {before!r}, now {value!r}"
            changed.append(words)
    return changed


def _say(settings: Mapping[str, Json]) -> str:
    return f"{settings['variant']} {settings['parameters'] or ''}".strip()
