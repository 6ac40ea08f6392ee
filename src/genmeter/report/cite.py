"""What to cite for the numbers of a run: a methods sentence a metric, and the BibTeX of all that they rest on."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from genmeter.analysis.columns import mapping
from genmeter.analysis.reader import read_run, read_summary, tell_apart
from genmeter.analysis.signature import metric_id, run_version, split_variant
from genmeter.errors import GenmeterError
from genmeter.report.text import applicable, clean, format_mean, format_sets, format_value
from genmeter.schema.jsonio import dumps

FORMATS = ("text", "bibtex", "json")

_ENTRY = re.compile(r"^@\w+\{(\w+),\n.*?^\}\n", re.MULTILINE | re.DOTALL)
# What an interval, or the statistic of a set metric, rests on beside the metric's own paper.
_INTERVALS = {"clustered_t": "liang1986", "delete_a_group_jackknife": "kott2001"}
_STATISTICS = {"fvd": "heusel2017", "fad": "heusel2017", "kvd": "binkowski2018", "bleu": "papineni2002"}


def cite(runs: Sequence[Path], fmt: str = "text") -> str:
    """Sentences and BibTeX for any number of runs, ending in a newline.

    Args:
        runs: Run directories.
        fmt: ``text`` has the sentences, then the entries; ``bibtex`` the entries alone, each key once; ``json`` both
            as data.

    Raises:
        ValueError: There is no run, or the format is not known.
    """
    if fmt not in FORMATS:
        raise ValueError(f"unknown format {fmt!r}; expected one of {', '.join(FORMATS)}")
    said: list[dict[str, Any]] = []
    read = [(read_run(path), read_summary(path)) for path in runs]
    names = tell_apart([summary.get("name") for _, summary in read], runs)
    for (run, summary), who in zip(read, names, strict=True):
        for name, metric in summary["metrics"].items():
            entry = {**metric, **mapping(mapping(run.get("metrics")).get(name))}
            sentence = methods_sentence(name, metric, entry, run)
            keys = [*citation_keys(name, metric, entry), "genmeter"]
            said.append({"run": clean(who), "metric": name, "sentence": sentence, "cite": list(dict.fromkeys(keys))})
    cited = dict.fromkeys(key for item in said for key in item["cite"])
    known = bibtex_entries()
    if fmt == "json":
        return dumps({"metrics": said, "bibtex": {key: known.get(key) for key in cited}}).decode() + "\n"
    lacking = "no entry is known; see the card of the metric"
    entries = "\n".join(known.get(key, f"% {clean(key)}: {lacking}\n") for key in cited)
    if fmt == "bibtex":
        return entries
    parts = []
    for item in said:
        lead = f"{item['run']}: " if len(runs) > 1 else ""
        parts.append(f"{lead}{item['sentence']}\nCite: {', '.join(item['cite'])}")
    return "\n\n".join([*parts, entries])


@functools.cache
def bibtex_entries() -> Mapping[str, str]:
    """The entries that ship with the package, by key."""
    text = (Path(__file__).parent / "citations.bib").read_text(encoding="utf-8")
    return {match[1]: match[0] for match in _ENTRY.finditer(text)}


def citation_keys(name: str, metric: Mapping[str, Any], entry: Mapping[str, Any]) -> list[str]:
    """Keys of the papers behind a metric's value: of the metric, its networks, its statistic and its interval.

    Args:
        name: The metric as asked for.
        metric: Its entry in summary.json.
        entry: Its entry in run.json.
    """
    return list(dict.fromkeys(key for key in _keys(name, metric, entry) if key))


def methods_sentence(name: str, metric: Mapping[str, Any], entry: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """One sentence that says what was measured, with what, over what, and what is missing.

    Args:
        name: The metric as asked for.
        metric: Its entry in summary.json.
        entry: Its entry in run.json.
        run: The content of run.json.
    """
    model, convention = split_variant(entry)
    settings = [f"model {model}" if model else "", f"convention {convention}" if convention else ""]
    settings.append(f"{run.get('precision') or 'exact'} precision")
    n, failed = metric["n"], mapping(metric["n"].get("failed"))
    over = f"{n['scored']:,} of {applicable(n):,} {'sample' if applicable(n) == 1 else 'samples'}"
    if metric.get("coverage") is not None:
        over += f" (coverage {100 * metric['coverage']:.4g} %)"
    reasons = ", ".join(f"{clean(code)} {count:,}" for code, count in failed.items())
    missing = f"{n['n_failed']:,} could not be scored ({reasons})" if n["n_failed"] else "none failed"
    title = clean(entry.get("title") or name, 120)
    return (
        f"{title} ({', '.join(part for part in settings if part)}) {_value(metric)} over {over}; {missing}. "
        f"It was computed with genmeter {run_version(run)}, signature {clean(metric['signature'], 2000)}."
    )


def _value(metric: Mapping[str, Any]) -> str:
    if metric.get("scope") != "set":
        if metric.get("mean") is None:
            return "has no mean"
        interval = " (95 % interval)" if metric.get("interval95") else ""
        return f"has a mean of {format_mean(metric['mean'], metric.get('interval95'))}{interval}"
    if metric.get("score") is None:
        sets = format_sets(metric, most=100)
        return f"is, set by set, {sets}" if sets else "has no value"
    detail = mapping(metric.get("detail"))
    said = f"is {format_value(metric['score'])}"
    if detail.get("bias_corrected") is not None:
        said += f", corrected for bias {format_value(detail['bias_corrected'])}"
        bounds = metric.get("interval95")
        if bounds:
            said += f" (95 % interval {format_value(bounds[0])} to {format_value(bounds[1])})"
    if detail.get("n_prediction") is not None and detail.get("n_reference") is not None:
        said += f", with {detail['n_prediction']:,} outputs and {detail['n_reference']:,} references,"
    return said


def _keys(name: str, metric: Mapping[str, Any], entry: Mapping[str, Any]) -> Iterator[str]:
    from genmeter.registry import get_metric
    from genmeter.weights.lock import get_entry

    identity = metric_id(name, entry)
    models = [str(mapping(need).get("model")) for need in mapping(entry.get("encoders")).values()]
    yield _citation(get_metric, identity)
    for model in models:
        yield _citation(get_entry, model)
    yield _STATISTICS.get(identity, "")
    found = mapping(metric.get("detail")) if metric.get("scope") == "set" else metric
    yield _INTERVALS.get(str(mapping(found.get("interval")).get("method")), "")


def _citation(find: Callable[[str], Any], identity: str) -> str:
    """The key of a metric or model; none where it is not installed, as in a run of another machine."""
    try:
        return str(find(identity).citation)
    except (GenmeterError, ValueError):
        return ""
