"""The rows of runs as tables for spreadsheets and data frames: CSV and Parquet, written while the runs are read.

Three tables, since their rows stand for different things: ``samples``, a row a sample and metric; ``sets``, a row a set
that has one value (FVD ...); ``contributions``, a row a sample and set metric, with what the sample does to that value.
The value of a set never stands in a sample's row, where somebody would average it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

from genmeter.analysis.columns import mapping
from genmeter.analysis.reader import Record, iter_records, read_run, read_summary, tell_apart
from genmeter.schema.jsonio import dumps
from genmeter.schema.labels import labels
from genmeter.schema.roles import task_type

# What spreadsheets take for the beginning of a formula, in the widths that they know.
_FORMULA = tuple("=+-@＝＋－＠")

FORMATS = ("csv", "parquet")

_RUN = {"run": "text", "run_id": "text"}
_LINE = {"line": "count", "id": "text", "task_type": "text", "set": "text", "data_tag": "json"}
_METRIC = {"metric": "text", "variant": "text"}
_ERROR = {"error_code": "text", "error_message": "text"}
TABLES: Mapping[str, Mapping[str, str]] = {
    "samples": {
        **(_RUN | _LINE | _METRIC),
        **{"higher_is_better": "truth", "score": "number"},
        **_ERROR,
        **{"flags": "text", "detail": "json"},
    },
    "sets": {
        **(_RUN | _METRIC),
        **{"higher_is_better": "truth", "group": "text", "set": "text", "score": "number", "bias_corrected": "number"},
        **{"interval95_low": "number", "interval95_high": "number", "n_prediction": "count", "n_reference": "count"},
        **_ERROR,
        **{"flags": "text", "detail": "json", "signature": "text"},
    },
    "contributions": {
        **(_RUN | _LINE | _METRIC),
        **{"influence": "number", "feature_distance": "number"},
        **_ERROR,
        **{"flags": "text", "detail": "json"},
    },
}
"""Columns of each table, with their kinds: text, json (an object as text), count, number (float64) and truth."""

_GROUP_ROWS = 20_000
# In the rows of a set metric: the set's own facts, which the table of sets has once.
_OF_SAMPLE = frozenset({"per_candidate", "per_reference", "frames_used", "frames_total", "size", "fps"})


def table_rows(runs: Sequence[Path], table: str) -> Iterator[dict[str, Any]]:
    """The rows of one table, over any number of runs, in input order; memory does not grow with their number.

    Args:
        runs: Run directories or files of scored samples. Runs of one name go by their paths.
        table: One of :data:`TABLES`.

    Yields:
        A value for each column; None where there is none. A score is a finite float or None, never NaN.

    Raises:
        ValueError: There is nothing to read; the message says what was looked for.
    """
    about = [read_run(path) for path in runs]
    names = tell_apart([run.get("name") for run in about], runs)
    for path, run, name in zip(runs, about, names, strict=True):
        head = {"run": name, "run_id": run.get("run_id")}
        if table == "sets":
            yield from _set_rows(head, read_summary(path))
        else:
            for record in iter_records(path):
                for row in _record_rows(record, mapping(run.get("metrics")), table == "contributions"):
                    yield head | row


def write_csv(rows: Iterable[Mapping[str, Any]], table: str, file: IO[bytes]) -> int:
    """Write rows as CSV in UTF-8 and count them: numbers at full precision, an empty cell where there is nothing."""
    columns, count = TABLES[table], 0
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(_csv_value(row.get(name), kind) for name, kind in columns.items())
        count += 1
    text.flush()
    text.detach()
    return count


def write_parquet(rows: Iterable[Mapping[str, Any]], table: str, file: IO[bytes]) -> int:
    """Write rows as Parquet, in groups of 20,000, and count them.

    Raises:
        GenmeterError: ``extra_missing`` without pyarrow.
    """
    import_arrow()
    import pyarrow
    import pyarrow.parquet

    kinds = {"count": pyarrow.int64(), "number": pyarrow.float64(), "truth": pyarrow.bool_()}
    columns = TABLES[table]
    schema = pyarrow.schema([(name, kinds.get(kind, pyarrow.string())) for name, kind in columns.items()])
    left, count = iter(rows), 0
    with pyarrow.parquet.ParquetWriter(file, schema) as writer:
        while group := [_plain(row, columns) for row in islice(left, _GROUP_ROWS)]:
            writer.write_table(pyarrow.Table.from_pylist(group, schema=schema))
            count += len(group)
    return count


def import_arrow() -> None:
    """Raise ``GenmeterError('extra_missing')``, with the line that installs it, where pyarrow is not installed."""
    from genmeter.errors import GenmeterError

    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise GenmeterError(
            "extra_missing", "Parquet needs pyarrow, which is not installed", "pip install 'genmeter[tables]'"
        ) from None


def _record_rows(record: Record, known: Mapping[str, Any], sets: bool) -> Iterator[dict[str, Any]]:
    sample, result = record.sample, record.eval_result
    metadata = mapping(sample.get("metadata"))
    head: dict[str, Any] = {
        "line": record.line,
        "id": None if sample.get("id") is None else str(sample["id"]),
        "task_type": task_type(sample),
        "set": ";".join(labels(metadata.get("set"))) or None,
        "data_tag": sample.get("data_tag"),
    }
    metrics: Mapping[Any, Any] = mapping(result.get("metrics"))
    if isinstance(result.get("error"), Mapping):
        # A line that could not be read has no score of any metric, which each of them says in a row of its own.
        metrics = {name: {"error": result["error"]} for name in known} or {None: {"error": result["error"]}}
    for name, entry in metrics.items():
        if not isinstance(entry, Mapping) or (known and name not in known):
            continue  # somebody else's score, or none
        facts = {**mapping(known.get(name)), **entry}
        if (facts.get("scope") == "set") != sets:
            continue
        row = head | {"metric": name, "variant": facts.get("variant")} | _outcome(entry)
        detail = mapping(entry.get("detail"))
        if sets:
            row |= {key: _number(detail.get(key)) for key in ("influence", "feature_distance")}
            detail = {key: value for key, value in detail.items() if key in _OF_SAMPLE}
        else:
            row |= {"higher_is_better": facts.get("higher_is_better"), "score": _number(entry.get("score"))}
        yield row | {"detail": detail or None}


def _set_rows(head: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name, metric in summary["metrics"].items():
        if metric.get("scope") != "set":
            continue
        about = {
            **head,
            "metric": name,
            "variant": metric.get("variant"),
            "higher_is_better": metric.get("higher_is_better"),
        }
        found = metric.get("sets") or {"all": {**metric, "flags": list(metric.get("flags") or ())}}
        for which, value in found.items():
            reasons = "; ".join(metric["n"]["failed"]) if value.get("score") is None else None
            row = about | {"set": which, "signature": metric["signature"]} | _set_value(value)
            yield row if row.get("error_code") else row | {"error_code": reasons or None}
        for path, buckets in (metric.get("groups") or {}).items():
            for bucket, value in buckets.items() if path != "metadata.set" else ():
                if value.get("score") is not None or value.get("error"):
                    yield about | {"group": path, "set": bucket} | _set_value(value)


def _set_value(value: Mapping[str, Any]) -> dict[str, Any]:
    detail = mapping(value.get("detail"))
    low, high = detail.get("interval95") or (None, None)
    return {
        "score": _number(value.get("score")),
        "bias_corrected": _number(detail.get("bias_corrected")),
        "interval95_low": _number(low),
        "interval95_high": _number(high),
        "n_prediction": detail.get("n_prediction"),
        "n_reference": detail.get("n_reference"),
        "detail": detail or None,
        **_outcome({"error": value.get("error"), "flags": list(value.get("flags") or ())}),
    }


def _outcome(entry: Mapping[str, Any]) -> dict[str, Any]:
    error = mapping(entry.get("error"))
    return {
        "error_code": error.get("code"),
        "error_message": error.get("message"),
        "flags": ";".join(str(flag) for flag in entry.get("flags") or ()) or None,
    }


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _csv_value(value: Any, kind: str) -> str:
    if value is None:
        return ""
    if kind == "number":
        return repr(value)
    if kind == "truth":
        return "true" if value else "false"
    return dumps(value).decode() if kind == "json" else _text(str(value))


def _plain(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, kind in columns.items():
        value = row.get(name)
        if value is not None and kind in ("text", "json"):
            # Half of a surrogate pair, which JSON can hold, has no form in UTF-8; it is kept as its escape.
            text = dumps(value) if kind == "json" else str(value).encode("utf-8", "backslashreplace")
            value = text.decode()
        found[name] = value
    return found


def _text(text: str) -> str:
    """A text that no spreadsheet takes for a formula, else as it is: two ids that differ stay two."""
    text = text.replace("\0", "").encode("utf-8", "backslashreplace").decode()  # half a surrogate pair has no bytes
    return f"'{text}" if text.lstrip()[:1] in _FORMULA else text
