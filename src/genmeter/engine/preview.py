"""A look ahead: what would be scored and why, what a probe of the media finds, and what the run would cost."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from genmeter.config import RunConfig
from genmeter.contract import Json
from genmeter.engine.batching import Batcher
from genmeter.engine.catalog import Catalog
from genmeter.engine.device import device_kind, resolve_device
from genmeter.engine.offer import PlanOptions
from genmeter.engine.plan import Cell, Window, plan
from genmeter.engine.pool import EncoderPool
from genmeter.engine.prepare import Fresh, Preparer, decode_workers
from genmeter.engine.settings import catalog_of
from genmeter.errors import GenmeterError
from genmeter.inputs.source import InputLine, Source
from genmeter.schema.roles import task_type
from genmeter.weights.manager import state

_SHOWN, _PROBED, _TIMED = 3, 64, 8
# What one scored cell leaves in journal and samples.jsonl; measured on LPIPS runs.
_DISK_PER_CELL = 1_800


def preview(source: Source, config: RunConfig) -> dict[str, Json]:
    """Plan the first samples, decode a probe of up to 64 spread over the input, and estimate the whole.

    Nothing is scored and nothing is written. The network is timed on a few probed items where its weights are already
    on this machine; otherwise the estimate leaves it out and says so.

    Returns:
        ``samples`` (the first three: text, prediction, reference, metric, why), ``probe`` (failures by code),
        ``estimate`` (seconds, disk bytes) and ``weights`` (state and download size of each network).

    Raises:
        ValueError: A setting is not one.
        GenmeterError: An unknown metric was asked for by name.
    """
    place = resolve_device(config.device)
    catalog = catalog_of(config, device_kind(place))
    options = PlanOptions.of(config)
    step = max(1, source.count // _PROBED)
    first: list[InputLine] = []
    probed: list[InputLine] = []
    for line in source:
        if len(first) < _SHOWN:
            first.append(line)
        if line.index % step == 0 and len(probed) < _PROBED:
            probed.append(line)
    shown = [_show(line, catalog, options) for line in first]
    window = plan(probed, catalog, options)
    probe = _probe(window, catalog, config, source, place)
    bad = Counter(line.error.code for line in probed if line.error is not None)
    failures = bad + Counter(probe["failures"])
    scale = source.count / max(len(probed), 1)
    cells = len(window.cells) * scale
    return {
        "schema": "genmeter.plan/1",
        "lines": source.count,
        "notes": list(source.notes),
        "device": place,
        "samples": shown,
        "probe": {"lines": len(probed), "failures": dict(failures), "examples": probe["examples"]},
        "estimate": {
            "decode_seconds": round(probe["decode"] * scale / decode_workers(config), 1),
            "encode_seconds": None if probe["encode"] is None else round(probe["encode"] * scale, 1),
            "disk_bytes": int(cells * _DISK_PER_CELL),
        },
        "weights": [_weights(use) for use in catalog.encoders if use.entry.sources],
    }


def _show(line: InputLine, catalog: Catalog, options: PlanOptions) -> dict[str, Json]:
    if line.sample is None:
        assert line.error is not None
        return {"line": line.number, "id": None, "error": line.error.to_dict()}
    window = plan([line], catalog, options)
    why = _why(line.sample, catalog, options)
    return {
        "line": line.number,
        "id": line.sample["id"],
        "metrics": [_show_cell(cell, window, catalog, why) for cell in window.cells],
        "why": why,
    }


def _why(sample: dict[str, Any], catalog: Catalog, options: PlanOptions) -> str:
    if catalog.explicit is not None:
        return "asked for, and in the sample's eval_config" if options.metrics_from == "sample" else "asked for"
    if isinstance((sample.get("eval_config") or {}).get("metrics"), list):
        return "the sample's eval_config.metrics"
    task = task_type(sample)
    return f"default of {task}" if task else "no task_type, no eval_config.metrics and no --metrics: nothing to score"


def _show_cell(cell: Cell, window: Window, catalog: Catalog, why: str) -> dict[str, Json]:
    entry: dict[str, Json] = {"metric": cell.metric}
    variant = catalog.variants.get(cell.metric)
    if variant is not None:
        entry["variant"] = variant.label
    if cell.fault is not None:
        entry["error"] = cell.fault.to_dict()
    for used in cell.used:
        value = window.texts[used.source] if used.is_text else window.assets[used.source].value
        entry.setdefault(used.role, []).append({"path": used.path, "value": str(value)[:200]})
    return entry


def _probe(window: Window, catalog: Catalog, config: RunConfig, source: Source, place: str) -> dict[str, Any]:
    """Read and decode the probe, and time the network on a few items where its weights are here."""
    pool = EncoderPool(catalog, place, config.precision, offline=True, batch_size=config.batch_size)
    failures: Counter[str] = Counter(cell.fault.code for cell in window.cells if cell.fault is not None)
    examples: dict[str, dict[str, Json]] = {}
    for cell in window.cells:
        if cell.fault is not None:
            examples.setdefault(cell.fault.code, cell.fault.to_dict())
    decode = 0.0
    fresh: dict[int, list[tuple[int, Fresh]]] = {}
    count: Counter[int] = Counter()
    with Preparer.of(config, source.roots, source.folders) as preparer:
        for done in preparer.run(window, catalog, pool.encoders(window), lambda encoder, view, key: None):
            decode += done.seconds
            for unit, outcome in done.units.items():
                if isinstance(outcome, GenmeterError):
                    failures[outcome.code] += 1
                    examples.setdefault(outcome.code, outcome.to_dict())
                elif isinstance(outcome, Fresh):
                    encoder = window.units[unit].encoder
                    count[encoder] += 1
                    if len(fresh.setdefault(encoder, [])) < _TIMED:
                        fresh[encoder].append((unit, outcome))
    encode: float | None = 0.0
    for encoder, items in fresh.items():
        seconds = _time_encoder(pool, catalog, encoder, items)
        encode = None if seconds is None or encode is None else encode + seconds * count[encoder]
    return {"failures": failures, "examples": list(examples.values()), "decode": decode, "encode": encode}


def _time_encoder(pool: EncoderPool, catalog: Catalog, encoder: int, items: list[tuple[int, Fresh]]) -> float | None:
    """Seconds per item, or None when the weights are not here."""
    entry = catalog.encoders[encoder].entry
    try:
        if entry.sources and state(entry) != "ready":
            return None
        pool.load(encoder)
        batcher = Batcher(pool.batch_limit)
        batches = [batch for unit, item in items for batch in batcher.add(encoder, unit, item)] + batcher.rest()
        for warm in (True, False):
            began = time.perf_counter()
            for batch in batches:
                pool.encode(encoder, [item.prepared for item in batch.items if item.prepared is not None])
            if not warm:
                return (time.perf_counter() - began) / len(items)
    except GenmeterError:
        return None
    return None


def _weights(use: Any) -> dict[str, Json]:
    entry = use.entry
    parts = entry.sources[0].parts if entry.sources else ()
    return {"model": entry.id, "state": state(entry), "download_bytes": sum(part.bytes for part in parts)}
