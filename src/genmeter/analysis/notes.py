"""What a reader must know before using a number, in whole sentences; the first lines of every summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from genmeter.weights.lock import ModelEntry

LANGUAGE_SHARE = 0.1
MANY = "mul"  # ISO 639-2 for many languages
LOW_COVERAGE = 0.9


def joint_notes(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a table of these summaries has to say above it: the notes of each, and whether they can be compared.

    Args:
        summaries: Contents of summary.json; several are told apart by their names.
    """
    many = len(summaries) > 1
    notes = []
    for summary in summaries:
        prefix = f"{summary.get('name') or summary.get('run_id')}: " if many else ""
        notes += [f"{prefix}{note}" for note in summary.get("notes") or ()]
    if len({summary.get("snapshot") for summary in summaries}) > 1:
        notes.append("These runs are over different evaluation sets; their means cannot be compared.")
    return notes


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
        foreign, scored = flags.get("prompt_language", 0), n["scored"]
        if scored and foreign > LANGUAGE_SHARE * scored:
            language.append(
                f"{name}: {foreign:,} of {scored:,} prompts are outside the languages its text encoder was trained on; "
                f"their scores say little. {_better_variant(name)}"
            )
        if metric.get("mean_unclipped") is not None:
            other.append(
                f"{name}: the mean of {metric['mean_unclipped']:.4g} is clipped at {metric['mean']:g}, as its "
                "convention has it; the scores of the samples are not."
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
        sets = metric.get("sets") or {}
        if len(sets) > 1 and "all" not in sets:
            other.append(
                f"{name}: each of {len(sets)} sets (metadata.set) has a value of its own; --group-by all adds one over "
                "all of them."
            )
        if flags.get("bias_dominates"):
            other.append(f"{name}: the set is so small that bias is most of the value; compare only at equal N.")
    return language + empty + other + _pooled(summary)


def _better_variant(name: str) -> str:
    """Which variant of the metric reads more languages than English, in a sentence."""
    from genmeter.errors import GenmeterError
    from genmeter.registry import get_metric
    from genmeter.weights.lock import get_entry

    head, slash, convention = name.partition("/")
    metric, _, current = head.partition("@")
    try:
        spec = get_metric(metric)
        choices = [model for model in spec.models if model not in (current, *spec.profiles.values())]
        for model in choices:
            languages = {lang for entry in spec.models[model].entries.values() for lang in _languages(get_entry(entry))}
            if MANY in languages:
                return f"{metric}@{model}{slash}{convention} reads many languages; score with it instead."
    except (GenmeterError, ValueError):
        pass  # a run of another machine may hold a metric that is not installed here
    return f"Choose a variant that reads them (genmeter metrics {metric})."


def _languages(entry: ModelEntry) -> list[str]:
    found = entry.extra.get("languages")
    return [word for word in found if isinstance(word, str)] if isinstance(found, list) else []


def _pooled(summary: Mapping[str, Any]) -> list[str]:
    """Sets of metadata.set are never pooled in silence."""
    for metric in summary["metrics"].values():
        sets = metric.get("groups", {}).get("metadata.set", {}) if metric.get("scope") != "set" else {}
        if len(sets) > 1:
            names = ", ".join(list(sets)[:5]) + (", ..." if len(sets) > 5 else "")
            return [f"The means pool {len(sets)} sets (metadata.set: {names}); each set alone is under groups."]
    return []
