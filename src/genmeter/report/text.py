"""Numbers and words for people: how values are rounded, what a failure asks of the reader, what is safe to print."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from typing import Any

ADVICE: Mapping[str, str] = {
    "bad_line": "Make the line one complete JSON object; check that the file was written to its end.",
    "bad_sample": "Correct the field that the message names; `genmeter schema sample` prints what is expected.",
    "no_prediction": "Put the output under predict_result (or `output` in the short form).",
    "no_reference": "Put the reference under references (or `reference` in the short form), or pass --references DIR.",
    "no_prompt": "Put the prompt into the last user message (or `prompt` in the short form).",
    "not_applicable": "Nothing to do: the metric is not meant for this kind of sample.",
    "not_found": "Check the path, or name the folder it is relative to with --media-root DIR.",
    "forbidden": "Name the folder with --media-root DIR, or the host with --allow-host HOST.",
    "fetch_failed": "Run the same command again; if it stays, fetch the file first and use a local path.",
    "too_large": "Make the file smaller, or raise policy.max_pixels or policy.max_bytes.",
    "unsupported_media": "Convert the file to a common format (PNG or JPEG for images).",
    "decode_failed": "The file is damaged: write it again, or generate the output again.",
    "empty_media": "The file has no content: generate the output again.",
    "non_finite": "Look for NaN or infinity in the output; the generator may have diverged.",
    "too_small": "The image is too small for the network; score it at a larger size.",
    "size_mismatch": "Write both images at one size, or let the metric resize (its `resize` parameter).",
    "too_short": "Generate a longer clip, or ask the metric for fewer frames.",
    "length_mismatch": "Cut both clips to one length.",
    "too_few_samples": "Score more samples: the statistic does not exist for so few.",
    "set_pending": "Join the shards with `genmeter merge`; set metrics are computed then.",
    "timed_out": "Run the same command again, or raise policy.decode_timeout_s.",
    "changed_during_run": "Wait until the generator has finished writing, then run the same command again.",
    "cancelled": "Run the same command again to go on.",
    "out_of_memory": "Use a smaller image or another device; run the same command again.",
    "extra_missing": "Install the extra that the message names.",
    "unknown_metric": "See `genmeter metrics` for the names that are installed.",
    "weights_unavailable": "Fetch them once with `genmeter models fetch`, then run the same command again.",
    "weights_mismatch": "The file is not what models.lock pins: `genmeter models verify` says more.",
    "model_probe_failed": "This machine computes something else than expected: run `genmeter verify`.",
    "internal": "Please report it, with the line that fails.",
}


def format_mean(mean: float | None, interval: Any, *, plus_minus: str = "±") -> str:
    """``0.2310 ± 0.0042``: as many decimals as the interval supports; an empty string when there is no mean."""
    if mean is None:
        return ""
    half = half_width(mean, interval)
    digits = decimals(mean, half)
    text = f"{mean:.{digits}f}"
    return text if half is None else f"{text} {plus_minus} {half:.{digits}f}"


def format_value(value: float | None) -> str:
    """One number with about four significant digits, never in scientific notation for ordinary sizes."""
    return "" if value is None else f"{value:.{decimals(value, None)}f}"


def format_sets(metric: Mapping[str, Any], separator: str = ", ", most: int = 4) -> str:
    """The value of each set of a metric that has several, which are never pooled: ``core 41.2, extra 68.0``."""
    found = list((metric.get("sets") or {}).items())
    parts = [f"{clean(name, 24)} {format_value(each.get('score'))}" for name, each in found[:most]]
    return separator.join(parts + ["..."] * (len(found) > most))


def half_width(mean: float, interval: Any) -> float | None:
    """Half of a symmetric interval; ``None`` where there is none."""
    if not isinstance(interval, (list, tuple)) or len(interval) != 2 or None in interval:
        return None
    return max(float(interval[1]) - mean, mean - float(interval[0]), 0.0)


def decimals(value: float, half: float | None) -> int:
    """Decimals to print: two significant digits of the half width, else four of the value; 0 to 6.

    Where the interval is wider than the value, up to two more, so that the value keeps two digits of its own.
    """
    if not half or not math.isfinite(half):
        return 4 if not value or not math.isfinite(value) else _clamp(3 - _magnitude(value))
    wanted = 1 - _magnitude(half)
    return _clamp(max(wanted, min(1 - _magnitude(value), wanted + 2)) if value else wanted)


def direction(higher_is_better: bool | None, *, arrows: bool = True) -> str:
    """``lower ↓``, ``higher ↑`` or, where the direction is not known, ``?``."""
    if higher_is_better is None:
        return "?"
    word, arrow = ("higher", "↑") if higher_is_better else ("lower", "↓")
    return f"{word} {arrow}" if arrows else word


def applicable(n: Mapping[str, Any]) -> int:
    """How many samples a metric applies to: all but the skipped ones."""
    return int(n["total"] - n["skipped"])


def scored_of(n: Mapping[str, Any]) -> str:
    """``4,987 of 5,000``: scored, of the samples that the metric applies to."""
    return f"{n['scored']:,} of {applicable(n):,}"


def format_frames(frames: Any) -> str:
    """``16 of 121 frames``, ``16 of 24 to 121 frames``; an empty string where all frames were read."""
    if not isinstance(frames, Mapping) or not frames.get("used") or not frames.get("total"):
        return ""
    spans = (frames["used"], frames["total"])
    used, total = (f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in spans)
    return f"{used} of {total} frames"


def format_range(bounds: Any) -> str:
    """``0 to 1``, ``0 and up``; an empty string when nothing is known."""
    if not isinstance(bounds, (list, tuple)) or len(bounds) != 2:
        return ""
    low, high = bounds
    if low is None:
        return f"up to {high:g}" if high is not None else ""
    return f"{low:g} and up" if high is None else f"{low:g} to {high:g}"


def clean(text: Any, limit: int = 300) -> str:
    """Text from samples made safe to print: no escape sequences, no invisible or direction-changing characters.

    Args:
        text: Anything; shown as a string on one line.
        limit: Longest result, in characters; what is cut ends in an ellipsis.
    """
    raw = str(text)[: limit * 4]
    if len(raw) <= limit and raw.isascii() and raw.isprintable():
        return " ".join(raw.split())
    kept = "".join(" " if c in "\n\r\t" else c for c in raw if c in "\n\r\t" or _visible(c))
    kept = " ".join(kept.split())
    return kept if len(kept) <= limit else f"{kept[: limit - 1]}…"


def advice(code: str, hint: Any = None) -> str:
    """What to do about a failure: the hint that came with it, else the general one of its code."""
    return clean(hint) if hint else ADVICE.get(code, "")


def metric_title(name: str, metric: Mapping[str, Any]) -> str:
    """The metric's title and, where it is installed, the sentence that says what it is; else what the run said."""
    from genmeter.errors import GenmeterError

    title = clean(metric.get("title") or "", 120)
    try:
        from genmeter.registry import get_metric

        spec = get_metric(name.split("@")[0].split("/")[0])
    except (GenmeterError, ImportError, ValueError):
        return title
    parts = (title or spec.title, spec.summary)
    return ". ".join(clean(part, 300).rstrip(".") for part in parts if part)


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value)))


def _clamp(digits: int) -> int:
    return max(0, min(6, digits))


def _visible(char: str) -> bool:
    """Neither control, format (zero width, direction override), surrogate nor unassigned."""
    return unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Cn", "Zl", "Zp"}
