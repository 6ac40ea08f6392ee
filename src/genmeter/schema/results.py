"""Merging new results into an ``eval_result`` that may already hold somebody else's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genmeter.errors import CODES

_OWN = ("overall", "judge", "provenance")


def merge_eval_result(old: Any, new: Mapping[str, Any]) -> dict[str, Any]:
    """Merge deeply for ``metrics``; nothing that somebody else wrote is lost. Neither argument is changed.

    A metric's entry of the same variant is replaced. One of another variant, or without a variant (not written by
    genmeter), is kept in the new entry's ``previous``, a list with the latest first. ``overall``, ``judge`` and
    ``provenance`` of genmeter itself are replaced; those of somebody else are kept in ``previous`` of the whole. All
    other keys stay, save an ``error`` of an earlier attempt of genmeter.

    Args:
        old: The sample's ``eval_result``, or None. What is no object is kept under ``previous``.
        new: What genmeter found, as written into ``eval_result``.
    """
    if not old:
        return dict(new)
    if not isinstance(old, Mapping):
        return {**new, "previous": _history([old], new.get("previous"))}
    error = old.get("error")
    ours = _is_ours(old)
    drop = {"metrics", "previous"}
    if isinstance(error, Mapping) and str(error.get("code")) in CODES:
        drop.add("error")
    merged: dict[str, Any] = {key: value for key, value in old.items() if key not in drop}
    foreign = {} if ours else {key: old[key] for key in _OWN if _conflicts(old, new, key)}
    metrics = old.get("metrics")
    if "metrics" in old and not isinstance(metrics, Mapping):
        if metrics is not None:
            foreign["metrics"] = metrics
        metrics = None
    merged.update((key, value) for key, value in new.items() if key != "metrics")
    if metrics is not None or "metrics" in new:
        merged["metrics"] = _merge_metrics(metrics or {}, new.get("metrics") or {})
    history = _history([foreign] if foreign else [], new.get("previous"), old.get("previous"))
    if history:
        merged["previous"] = history
    return merged


def _merge_metrics(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for name, entry in new.items():
        merged[name] = _merge_entry(old[name], entry) if name in old else entry
    return merged


def _merge_entry(old: Any, new: Any) -> Any:
    if old is None:
        return new
    if not isinstance(new, Mapping):
        return new
    if not isinstance(old, Mapping):
        return {**new, "previous": _history([old], new.get("previous"))}
    current = {key: value for key, value in old.items() if key != "previous"}
    same = "variant" in old and old.get("variant") == new.get("variant")
    history = _history([] if same or not current else [current], new.get("previous"), old.get("previous"))
    # An entry of this very variant that is already in the history would only be a stale copy of the new one.
    return {**new, "previous": history} if history else dict(new)


def _conflicts(old: Mapping[str, Any], new: Mapping[str, Any], key: str) -> bool:
    return key in new and old.get(key) is not None and old[key] != new[key]


def _is_ours(result: Mapping[str, Any]) -> bool:
    provenance = result.get("provenance")
    return isinstance(provenance, Mapping) and "genmeter" in provenance


def _history(*parts: Any) -> list[Any]:
    """Join histories, newest first, each entry once."""
    joined: list[Any] = []
    for part in parts:
        for item in part if isinstance(part, list) else [] if part is None else [part]:
            if item not in joined:
                joined.append(item)
    return joined
