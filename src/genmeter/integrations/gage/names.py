"""What the manifests list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

REGISTERED = "genmeter.integrations.gage.registered"
JUDGE = "genmeter"
SUMMARY = "genmeter_sets"
# The framework has metrics of these names, which a manifest of ours would replace for everybody.
_TAKEN = frozenset({"exact_match", "bleu"})


def metric_names() -> list[str]:
    """Ids of the metrics that ship with genmeter and whose names are free in the framework."""
    import genmeter.metrics
    from genmeter.registry import list_metrics

    own = {path.name for path in Path(genmeter.metrics.__path__[0]).iterdir()}
    return [spec.id for spec in list_metrics() if spec.id in own and spec.id not in _TAKEN]


def manifest() -> dict[str, Any]:
    """The content of the manifest file."""
    kinds = [("metrics", name) for name in metric_names()]
    kinds += [("judge_impls", JUDGE), ("summary_generators", SUMMARY)]
    return {
        "manifest_version": 1,
        "entries": [{"kind": kind, "name": name, "module": REGISTERED} for kind, name in kinds],
    }


def manifest_root() -> Path:
    """The folder for ``GAGE_EVAL_DISCOVERY_MANIFEST_ROOTS``."""
    return Path(__file__).resolve().parent / "manifests"


def write_manifest() -> None:
    """Write the manifest file again, after a metric was added."""
    text = json.dumps(manifest(), indent=2)
    (manifest_root() / "plugins" / "genmeter.json").write_text(text + "\n", encoding="utf-8")
