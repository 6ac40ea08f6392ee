"""What a reader must know before using a number, in whole sentences; the first lines of every summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LANGUAGE_SHARE = 0.1
LOW_COVERAGE = 0.9


def build_notes(summary: Mapping[str, Any]) -> list[str]:
    """Sentences on a summary, the gravest first.

    Args:
        summary: A summary without its ``notes``.

    Returns:
        Zero or more sentences; each names the metric it concerns.
    """
    language: list[str] = []
    empty: list[str] = []
    other: list[str] = []
    for name, metric in summary["metrics"].items():
        n = metric["n"]
        flags = metric.get("flags", {})
        asked = n["total"] - n["skipped"]
        foreign = flags.get("prompt_language", 0)
        if asked and foreign > LANGUAGE_SHARE * asked:
            language.append(
                f"{name}: {foreign:,} of {asked:,} prompts are outside the languages its text encoder was trained on; "
                f"their scores say little. Choose a variant that reads them (genmeter metrics {name.split('@')[0]})."
            )
        if asked and not n["scored"]:
            reasons = ", ".join(f"{code} {count:,}" for code, count in n["failed"].items())
            empty.append(f"{name}: nothing could be scored ({reasons}), so there is no mean.")
        elif n["total"] and not asked:
            empty.append(f"{name}: does not apply to any sample of this run.")
        elif asked and n["scored"] < LOW_COVERAGE * asked:
            other.append(
                f"{name}: {n['n_failed']:,} of {asked:,} samples have no score; the mean is over the other "
                f"{n['scored']:,} and may flatter the model."
            )
        if flags.get("not_comparable"):
            other.append(
                f"{name}: scores of a tiny network, for trials only; not comparable with any published number."
            )
        if flags.get("bias_dominates"):
            other.append(f"{name}: the set is so small that bias is most of the value; compare only at equal N.")
    return language + empty + other + _pooled(summary)


def _pooled(summary: Mapping[str, Any]) -> list[str]:
    """Sets of metadata.set are never pooled in silence."""
    for metric in summary["metrics"].values():
        sets = metric.get("groups", {}).get("metadata.set", {})
        if len(sets) > 1:
            names = ", ".join(list(sets)[:5]) + (", ..." if len(sets) > 5 else "")
            return [f"The means pool {len(sets)} sets (metadata.set: {names}); each set alone is under groups."]
    return []
