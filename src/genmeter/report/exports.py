"""Summaries for papers and spreadsheets: Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from genmeter.analysis.notes import joint_notes
from genmeter.report.text import clean, direction, format_mean, format_sets, format_value, scored_of

COLUMNS = (
    "run",
    "metric",
    "variant",
    "better",
    "value",
    "interval95_low",
    "interval95_high",
    "sem",
    "median",
    "p05",
    "p95",
    "n_scored",
    "n_total",
    "n_failed",
    "n_skipped",
    "failed",
    "coverage",
    "group",
    "bucket",
    "signature",
)


def csv_text(summaries: Sequence[Mapping[str, Any]]) -> str:
    """One row a metric and one a bucket of each group; numbers at full precision, empty where there is none."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for summary, name, metric in _metrics(summaries):
        writer.writerow(_cells(summary, name, metric, metric, "", ""))
        for path, buckets in (metric.get("groups") or {}).items():
            for bucket, stats in buckets.items():
                writer.writerow(_cells(summary, name, metric, stats, path, bucket))
    return out.getvalue()


def json_text(summaries: Sequence[Mapping[str, Any]]) -> str:
    """The summary itself, or several under ``runs``; one strict JSON document."""
    from genmeter.schema.jsonio import dumps

    data: Any = summaries[0]
    if len(summaries) != 1:
        data = {"schema": "genmeter.summaries/1", "runs": list(summaries)}
    return dumps(data).decode("utf-8") + "\n"


def markdown(summaries: Sequence[Mapping[str, Any]]) -> str:
    """A pipe table with the notes above and the signatures below it."""
    many = len(summaries) > 1
    lines = [f"> {_md(note)}" for note in joint_notes(summaries)]
    if lines:
        lines.append("")
    head = ["Run"] * many + ["Metric", "Variant", "Better", "Mean ± 95 %", "Scored", "Failed"]
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for summary, name, metric in _metrics(summaries):
        n = metric["n"]
        cells = [_md(summary.get("name") or summary.get("run_id") or "")] * many
        cells += [_md(name), _md(metric.get("variant") or ""), direction(metric.get("higher_is_better"))]
        cells += [_value(metric) or "none", scored_of(n), _failed(n)]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    lines += [f"    {clean(metric['signature'], 2000)}" for _, _, metric in _metrics(summaries)]
    return "\n".join(lines) + "\n"


def latex(summaries: Sequence[Mapping[str, Any]]) -> str:
    """A booktabs ``tabular``, with the signatures as comments (they belong into the caption or an appendix)."""
    many = len(summaries) > 1
    lines = [f"% {clean(note, 500)}" for note in joint_notes(summaries)]
    lines += [f"% {clean(metric['signature'], 2000)}" for _, _, metric in _metrics(summaries)]
    head = ["Run"] * many + ["Metric", "Variant", r"Mean $\pm$ 95\,\%", "$n$"]
    lines += [rf"\begin{{tabular}}{{{'l' * many}llrr}}", r"\toprule", " & ".join(head) + r" \\", r"\midrule"]
    for summary, name, metric in _metrics(summaries):
        better = metric.get("higher_is_better")
        arrow = "" if better is None else r" $\uparrow$" if better else r" $\downarrow$"
        value = _value(metric).replace("±", r"$\pm$") or "--"
        cells = [_tex(summary.get("name") or summary.get("run_id") or "")] * many
        cells += [_tex(name) + arrow, _tex(metric.get("variant") or ""), value]
        cells += [scored_of(metric["n"])]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _value(metric: Mapping[str, Any]) -> str:
    if metric.get("scope") == "set":
        return format_value(metric.get("score")) or format_sets(metric)
    return format_mean(metric.get("mean"), metric.get("interval95"))


def _cells(
    summary: Mapping[str, Any],
    name: str,
    metric: Mapping[str, Any],
    stats: Mapping[str, Any],
    path: str,
    bucket: str,
) -> list[Any]:
    low, high = stats.get("interval95") or (None, None)
    quantiles = stats.get("quantiles") or {}
    n = stats["n"]
    value = stats.get("score") if metric.get("scope") == "set" else stats.get("mean")
    numbers = [value, low, high, stats.get("sem"), stats.get("median"), quantiles.get("p05"), quantiles.get("p95")]
    texts = [
        csv_cell(summary.get("name") or summary.get("run_id") or ""),
        csv_cell(name),
        csv_cell(metric.get("variant") or ""),
    ]
    return [
        *texts,
        direction(metric.get("higher_is_better"), arrows=False),
        *("" if x is None else repr(float(x)) for x in numbers),
        n["scored"],
        n["total"],
        n["n_failed"],
        n["skipped"],
        csv_cell(";".join(f"{code}={count}" for code, count in n["failed"].items())),
        "" if stats.get("coverage") is None else repr(float(stats["coverage"])),
        csv_cell(path),
        csv_cell(bucket),
        csv_cell(metric["signature"] if not path else ""),
    ]


def csv_cell(text: Any) -> str:
    """A text cell that no spreadsheet takes for a formula: names and tags come from samples."""
    cell = clean(text, 2000)
    return f"'{cell}" if cell[:1] in ("=", "+", "-", "@") else cell


def _failed(n: Mapping[str, Any]) -> str:
    return ", ".join(f"{_md(code)} {count}" for code, count in n["failed"].items()) or "0"


def _md(text: Any) -> str:
    cleaned = clean(text, 500)
    for char in "\\`*_[]<>|#":
        cleaned = cleaned.replace(char, "\\" + char)
    return cleaned


def _tex(text: Any) -> str:
    named = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(named.get(c) or (f"\\{c}" if c in "&%$#_{}" else c) for c in clean(text, 500))


def _metrics(summaries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], str, Mapping[str, Any]]]:
    for summary in summaries:
        for name, metric in summary["metrics"].items():
            yield summary, name, metric
