"""The gallery: a bounded choice of samples with what every metric says of them, to be sorted by any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from genmeter.report.text import clean, format_value

if TYPE_CHECKING:
    from genmeter.report.gather import Gathered, Shown
    from genmeter.report.thumbs import Thumbnails


def gallery(gathered: Gathered, thumbs: Thumbnails | None, most: int) -> dict[str, Any]:
    """What the template shows.

    Args:
        gathered: The run.
        thumbs: Makes pictures and players; None shows none.
        most: Metrics that are named; further ones are left out.

    Returns:
        ``keys``: what the samples can be sorted by. ``samples``: in input order, each with its media and scores.
    """
    metrics = dict(list(gathered.summary["metrics"].items())[:most])
    shown = gathered.gallery()
    return {
        "total": gathered.summary["samples"]["total"],
        "keys": [
            {"index": index, "name": _title(name, metric), "first": _first(metric)}
            for index, (name, metric) in enumerate(metrics.items())
        ],
        "samples": [_sample(item, metrics, thumbs) for item in shown],
    }


def _title(name: str, metric: Mapping[str, Any]) -> str:
    """A set has one value; what a sample has is its part in it."""
    return clean(name, 80) + (" (influence)" if metric["scope"] == "set" else "")


def _first(metric: Mapping[str, Any]) -> str:
    """Which end is the bad one, since that is what people look for first."""
    return "ascending" if metric.get("higher_is_better") and metric["scope"] != "set" else "descending"


def _sample(shown: Shown, metrics: Mapping[str, Mapping[str, Any]], thumbs: Thumbnails | None) -> dict[str, Any]:
    scores = []
    for index, (name, metric) in enumerate(metrics.items()):
        value = shown.scores.get(name)
        if value is None or value == "not_applicable":
            continue
        number = value if isinstance(value, float) else None
        scores.append(
            {
                "index": index,
                "name": _title(name, metric),
                "text": format_value(number) if number is not None else value,
                "number": None if number is None else repr(number),
            }
        )
    return {
        "line": shown.line,
        "id": shown.id,
        "prompt": shown.prompt,
        "scores": scores,
        "media": [media(item, thumbs) for item in shown.every],
    }


def media(item: Mapping[str, str], thumbs: Thumbnails | None) -> dict[str, str]:
    """One asset for the template: its role and label, and the fields of :class:`genmeter.report.thumbs.Asset`."""
    from genmeter.report.thumbs import Asset

    value = item["value"]
    label = clean(value[:40] + "..." if value.startswith("data:") else value, 160)
    found = thumbs.show(value, item["digest"]) if thumbs else Asset()
    return {"role": item["role"], "label": label, **found._asdict()}
