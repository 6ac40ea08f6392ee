"""Registers the plug-in's names. Only manifests may name this module: outside discovery the registry is closed."""

from __future__ import annotations

import json

from gage_eval.registry import registry

from genmeter.integrations.gage.judge import GenmeterJudge
from genmeter.integrations.gage.metrics import named
from genmeter.integrations.gage.names import JUDGE, SUMMARY, manifest_root
from genmeter.integrations.gage.summary import GenmeterSets

# From the file and not from the installed metrics: the framework checks the one against the other.
for _entry in json.loads((manifest_root() / "plugins" / "genmeter.json").read_text(encoding="utf-8"))["entries"]:
    if _entry["kind"] == "metrics":
        _name = _entry["name"]
        registry.register("metrics", _name, named(_name), desc=f"genmeter: {_name}", default_aggregation="mean")

registry.register("judge_impls", JUDGE, GenmeterJudge, desc="scores of generated media by genmeter")
registry.register(
    "summary_generators", SUMMARY, GenmeterSets, desc="set metrics of genmeter over the run", default_enabled=True
)
