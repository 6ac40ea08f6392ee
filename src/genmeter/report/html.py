"""report.html: one file that opens anywhere, asks no host for anything and runs one script, which sorts the gallery."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genmeter.analysis.columns import mapping
from genmeter.engine.store import write_atomic
from genmeter.errors import CODES, FLAGS
from genmeter.report.gallery import gallery, media
from genmeter.report.text import (
    advice,
    applicable,
    clean,
    direction,
    format_frames,
    format_mean,
    format_range,
    format_sets,
    format_value,
    metric_title,
    scored_of,
)

if TYPE_CHECKING:
    from genmeter.report.gather import Gathered, Shown
    from genmeter.report.thumbs import Thumbnails

_MAX_GROUPS = 12
_MAX_BUCKETS = 40
_MAX_METRICS = 24
_MAX_JSON = 100_000


def write_report(
    run_dir: str | Path, out: str | Path | None = None, *, media_roots: Sequence[Path] = (), thumbnails: bool = True
) -> Path:
    """Write the report of a run.

    Args:
        run_dir: The run directory.
        out: Where to; by default ``report.html`` in the run directory. Replaced as a whole, never left half written.
        media_roots: Further folders in which the files named by the samples may be found for thumbnails.
        thumbnails: Whether to show pictures at all.

    Returns:
        The path of the file.

    Raises:
        ValueError: There is no run to read.
    """
    from genmeter.report.gather import gather
    from genmeter.report.thumbs import Thumbnails
    from genmeter.report.thumbs import media_roots as recorded

    gathered = gather(run_dir)
    roots = recorded(gathered.run, media_roots) if thumbnails else []
    with Thumbnails(roots) as media:
        page = render_report(gathered, media if thumbnails else None)
    path = Path(out) if out is not None else Path(run_dir) / "report.html"
    if path.is_dir():
        path = path / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, page.encode("utf-8", "replace"))
    return path


def render_report(gathered: Gathered, thumbs: Thumbnails | None = None) -> str:
    """The page as a string. Whatever comes from samples is escaped by the template."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("genmeter.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    loader = environment.loader
    assert loader is not None
    css, script = (loader.get_source(environment, f"report.{end}")[0].replace("\r\n", "\n") for end in ("css", "js"))
    summary = gathered.summary
    names = list(summary["metrics"])
    return environment.get_template("report.html").render(
        css=Markup(css),
        script=Markup(script),
        policy=f"default-src 'none'; style-src {_pinned(css)}; script-src {_pinned(script)}; img-src data:; "
        "media-src data:; base-uri 'none'; form-action 'none'",
        name=clean(summary.get("name") or summary.get("run_id") or "run", 120),
        summary=summary,
        notes=[clean(note, 500) for note in summary.get("notes") or ()],
        metrics=[_metric(name, gathered, thumbs) for name in names[:_MAX_METRICS]],
        more_metrics=names[_MAX_METRICS:],
        gallery=gallery(gathered, thumbs, _MAX_METRICS),
        failures=_failures(summary),
        flags=_flags(summary),
        provenance=_provenance(gathered),
        run_json=_pretty(gathered.run),
    )


def _pinned(text: str) -> str:
    """The one inline style or script that the page's content policy lets through."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _metric(name: str, gathered: Gathered, thumbs: Thumbnails | None) -> dict[str, Any]:
    from genmeter.report import charts

    metric = gathered.summary["metrics"][name]
    values = gathered.values.get(name)
    is_set = metric["scope"] == "set"
    n = metric["n"]
    value = format_mean(metric.get("mean"), metric.get("interval95"))
    if is_set:
        value = format_value(metric.get("score")) or format_sets(metric)
    chart = None
    if values is not None and len(values):
        mean, interval = (None, None) if is_set else (metric["mean"], metric["interval95"])
        chart = charts.histogram(values, mean, interval, "influence on the set's value" if is_set else name)
    extremes = gathered.extremes.get(name)
    return {
        "name": clean(name, 80),
        "anchor": f"m{list(gathered.summary['metrics']).index(name)}",
        "title": metric_title(name, metric),
        "variant": clean(metric.get("variant") or "", 120),
        "better": direction(metric.get("higher_is_better")),
        "range": format_range(metric.get("range")),
        "is_set": is_set,
        "value": value,
        "n": n,
        "scored": scored_of(n),
        "coverage": metric["coverage"],
        "meter": charts.meter(metric["coverage"] or 0.0),
        "facts": _facts(metric),
        "signature": clean(metric["signature"], 2000),
        "chart": chart,
        "groups": _groups(metric, values),
        "worst": [_sample(shown, thumbs) for shown in extremes.worst] if extremes else [],
        "best": [_sample(shown, thumbs) for shown in extremes.best] if extremes else [],
    }


def _facts(metric: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the text beside the chart says, as (label, value)."""
    facts: list[tuple[str, str]] = []
    if frames := format_frames(metric.get("frames")):
        facts.append(("read", frames))
    if metric["scope"] == "set":
        for key, value in mapping(metric.get("detail")).items():
            if isinstance(value, float):
                facts.append((clean(key, 40), format_value(value)))
            elif isinstance(value, (int, str)):
                facts.append((clean(key, 40), clean(value, 60)))
            elif isinstance(value, (list, tuple)) and len(value) <= 4:
                facts.append((clean(key, 40), ", ".join(clean(v, 20) for v in value)))
        return facts[:14]
    interval = metric.get("interval95")
    if interval:
        facts.append(("95 % interval", f"{format_value(interval[0])} to {format_value(interval[1])}"))
        how = mapping(metric.get("interval"))
        if how.get("method") == "clustered_t":
            facts.append(("clusters", f"{how['clusters']:,} (by {clean(how.get('cluster_by'), 60)})"))
    facts.append(("median", format_value(metric.get("median"))))
    quantiles = metric["quantiles"]
    if quantiles["p05"] is not None:
        facts.append(("5 % to 95 %", f"{format_value(quantiles['p05'])} to {format_value(quantiles['p95'])}"))
    return [(label, value) for label, value in facts if value]


def _groups(metric: Mapping[str, Any], values: Any) -> list[dict[str, Any]]:
    from genmeter.report import charts

    shown: list[dict[str, Any]] = []
    # The scale is that of the scores: a bucket of two samples has an interval that would squeeze all others.
    low, high = (float(values.min()), float(values.max())) if values is not None and len(values) else (0.0, 1.0)
    for path, buckets in list((metric.get("groups") or {}).items()):
        if len(buckets) < 2 or len(shown) >= _MAX_GROUPS:
            continue
        buckets = {name: stats for name, stats in buckets.items() if applicable(stats["n"])}
        rows = list(buckets.items())[:_MAX_BUCKETS]
        shown.append(
            {
                "path": clean(path, 80),
                "more": len(buckets) - len(rows),
                "rows": [
                    {
                        "name": clean(bucket, 80) or "(empty)",
                        "value": format_mean(s["mean"], s["interval95"]) or format_value(s.get("score")),
                        "scored": scored_of(s["n"]),
                        "chart": None if s["mean"] is None else charts.whisker(s["mean"], s["interval95"], low, high),
                    }
                    for bucket, s in rows
                ],
            }
        )
    return shown


def _sample(shown: Shown, thumbs: Thumbnails | None) -> dict[str, Any]:
    pictures = [media(item, thumbs) for item in shown.inputs]
    return {**shown._asdict(), "score": format_value(shown.score), "pictures": pictures}


def _failures(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Failures by code, the most frequent first."""
    found: dict[str, dict[str, Any]] = {}
    for name, metric in summary["metrics"].items():
        for code, count in metric["n"]["failed"].items():
            entry = found.setdefault(code, {"counts": [], "top": 0, "examples": [], "hint": None})
            entry["counts"].append((clean(name, 60), count))
            entry["top"] = max(entry["top"], count)
            for example in mapping(mapping(metric.get("failures")).get(code)).get("examples") or ():
                entry["hint"] = entry["hint"] or example.get("hint")
                told = {
                    "line": example.get("line"),
                    "id": clean(example.get("id") or "", 80),
                    "message": clean(example.get("message") or "", 300),
                    "asset": clean(example.get("asset") or "", 160),
                }
                if told not in entry["examples"] and len(entry["examples"]) < 5:
                    entry["examples"].append(told)
    ranked = sorted(found.items(), key=lambda item: (-item[1]["top"], item[0]))
    return [
        {
            "code": clean(code, 60),
            "about": CODES.get(code, ""),
            "todo": advice(code, entry["hint"]).replace("`", ""),
            **entry,
        }
        for code, entry in ranked
    ]


def _flags(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: dict[str, list[tuple[str, int]]] = {}
    for name, metric in summary["metrics"].items():
        for flag, count in metric["flags"].items():
            found.setdefault(flag, []).append((clean(name, 60), count))
    return [{"flag": clean(f, 60), "about": FLAGS.get(f, ""), "counts": c} for f, c in sorted(found.items())]


def _provenance(gathered: Gathered) -> list[tuple[str, str]]:
    """What somebody needs to repeat the run, from run.json."""
    run = gathered.run
    rows: list[tuple[str, str]] = []
    for key in ("run_id", "snapshot", "version", "created", "command", "device", "precision", "profile"):
        value = run.get(key)
        if isinstance(value, (list, tuple)):
            value = " ".join(str(part) for part in value)
        if value is not None:
            text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)
            rows.append((key, clean(text, 1000)))
    for name, entry in mapping(run.get("metrics")).items():
        for need, encoder in mapping(mapping(entry).get("encoders")).items():
            parts = [f"{key} {value}" for key, value in mapping(encoder).items() if value]
            rows.append((f"{clean(name, 60)}: {clean(need, 40)}", clean(", ".join(parts), 600)))
    libraries = mapping(run.get("libraries"))
    if libraries:
        rows.append(("libraries", clean(", ".join(f"{k} {v}" for k, v in libraries.items()), 1000)))
    return rows


def _pretty(run: Mapping[str, Any]) -> str:
    text = json.dumps(run, indent=2, ensure_ascii=False, default=str)
    if len(text) > _MAX_JSON:
        text = text[:_MAX_JSON] + "\n... (cut; run.json has all of it)"
    return "\n".join(clean_line(line) for line in text.splitlines())


def clean_line(line: str) -> str:
    """One line of JSON with its indentation kept and its content made safe to show."""
    body = line.lstrip(" ")
    return " " * (len(line) - len(body)) + clean(body, 2000)
