"""What run.json says: every setting, version and hash that a score depends on."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata

from genmeter import __version__
from genmeter.config import RunConfig
from genmeter.contract import Json
from genmeter.engine.catalog import Catalog
from genmeter.engine.core import Tally
from genmeter.inputs.source import Source

_LIBRARIES = (
    *("numpy", "torch", "Pillow", "scipy", "safetensors", "av", "soxr"),
    *("open_clip_torch", "transformers", "laion-clap"),
)

_VERSION = re.compile(r"^Version: *(.+?) *$", re.MULTILINE)


def describe_run(
    source: Source,
    config: RunConfig,
    catalog: Catalog,
    place: str,
    settings: Mapping[str, Json],
    snapshot_parts: Iterable[bytes],
    tally: Tally,
) -> dict[str, Json]:
    """The content of run.json, but for command and times.

    Args:
        source: The input.
        config: All settings.
        catalog: Variants of the run.
        place: The device.
        settings: What can change a score; ``run_id`` is a hash over it and the snapshot, so equal runs share it.
        snapshot_parts: Each line's part of the snapshot, in ascending order.
        tally: Counts and seconds of this process.
    """
    digest = hashlib.sha256()
    for part in snapshot_parts:
        digest.update(part)
    snapshot = f"sha256:{digest.hexdigest()}"
    identity = json.dumps([settings, snapshot], sort_keys=True).encode()
    metrics = {name: _describe_metric(name, catalog) for name in catalog.variants}
    used = sorted({json.dumps(need) for entry in metrics.values() for need in entry["encoders"].values()})
    return {
        "schema": "genmeter.run/1",
        "version": __version__,
        "run_id": hashlib.sha256(identity).hexdigest()[:16],
        "name": config.name or source.name,
        "snapshot": snapshot,
        "models": "sha256:" + hashlib.sha256("\n".join(used).encode()).hexdigest(),
        "input": {"files": list(source.files), "digest": source.digest, "lines": source.count},
        "metrics": metrics,
        "config": config.model_dump(mode="json", exclude_defaults=True),
        "device": place,
        "precision": config.precision,
        "libraries": dict(_libraries()),
        "counts": {"lines": source.count, "encoded": tally.encoded},
        "seconds": {stage: round(seconds, 3) for stage, seconds in tally.seconds.items()},
    }


def row_constants(run: Mapping[str, Json]) -> dict[str, dict[str, Json]]:
    """What ``--rows full`` repeats in each row, by metric: all that is constant in a run."""
    return {
        name: {**{key: entry[key] for key in ("range", "rules", "encoders")}, "libraries": run["libraries"]}
        for name, entry in run["metrics"].items()
    }


def _describe_metric(name: str, catalog: Catalog) -> dict[str, Json]:
    variant = catalog.variant(name)
    encoders = {}
    for need in variant.needs:
        if need.encoder is None:
            continue
        use = catalog.encoders[catalog.encoder(need.encoder, variant.models.get(need.name))]
        encoders[need.name] = {
            "model": use.entry.id,
            "digest": use.spec.digest,
            "preprocessing": use.spec.preprocessing,
            "view": dict(need.view),
        }
    return {
        "title": variant.spec.title,
        "variant": variant.label,
        "scope": variant.spec.scope,
        "higher_is_better": variant.spec.higher_is_better,
        "range": list(variant.range),
        "convention": variant.convention,
        "rules": _plain(variant.params["convention"]) if variant.convention else {},
        "parameters": dict(variant.affecting),
        "encoders": encoders,
    }


def _plain(rules: Mapping[str, Json]) -> dict[str, Json]:
    """What a convention does to the features: scale, floor ..."""
    found = {key: _plain(value) if isinstance(value, Mapping) else value for key, value in rules.items()}
    found.pop("name", None)
    return found


@functools.cache
def _libraries() -> Mapping[str, str]:
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in _LIBRARIES:
        try:
            about = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        # Asked for the version, importlib reads the whole file as an e-mail, which takes milliseconds for long ones.
        stated = _VERSION.search(about.read_text("METADATA") or "")
        found[name] = stated[1] if stated else about.version
    return found
