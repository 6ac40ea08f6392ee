"""Dataset files: YAML that names JSONL files, how many lines of each are read, and how strictly they are checked.

    datasets:
      - dataset_id: edits
        loader: jsonl
        params: {path: edits.jsonl, limit: 100}
        schema: {mode: warn}

Every line of a file counts as a sample whatever the mode is: none is dropped.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from genmeter.config import nearest, read_config
from genmeter.errors import GenmeterError
from genmeter.inputs.lines import numbered_lines
from genmeter.inputs.source import parse_line
from genmeter.schema.forms import read_form
from genmeter.schema.fragments import json_name
from genmeter.schema.models import validate_sample
from genmeter.schema.quick import surely_valid

Mode = Literal["off", "warn", "strict"]
_MODES: tuple[str, ...] = get_args(Mode)
_ENTRY = ("dataset_id", "hub", "loader", "params", "schema")
_MOST_LISTED = 5


@dataclass(frozen=True)
class DatasetSpec:
    """One entry of a dataset file.

    Attributes:
        dataset_id: Its name.
        path: The JSONL file (plain or gzip), absolute.
        limit: Read no more than this many lines, blank ones not counted; ``None`` reads all.
        mode: ``off``: lines are not checked ahead; ``warn``: issues are noted with their counts; ``strict``: the first
            issue is an error. In every mode a line that cannot be scored is one failed sample.
    """

    dataset_id: str
    path: Path
    limit: int | None = None
    mode: Mode = "warn"


class LineIssue(NamedTuple):
    """What is wrong with one line: its number in the file, from 1, and all issues, each with its field in front."""

    number: int
    issues: list[str]


@dataclass
class DatasetReport:
    """What checking a dataset found.

    Attributes:
        lines: How many lines were read, good and bad.
        odd: How many of them have an issue.
        unscored: How many of those are failed samples, since the issue stands in what scoring reads.
        counts: How many issues there are, by text; the indices of lists are left out, so that like ones are one.
        first: The first lines with an issue.
    """

    lines: int
    odd: int
    unscored: int
    counts: Counter[str]
    first: list[LineIssue]


def is_dataset_file(item: str | Path) -> bool:
    """Whether an input is a dataset file, by its suffix."""
    return Path(item).suffix.lower() in (".yaml", ".yml")


def read_dataset_file(path: Path) -> list[DatasetSpec]:
    """Read a dataset file.

    ``params.path`` is relative to the folder of the dataset file; what is not there is looked for in the current
    folder. ``~`` stands for the home. Without ``schema`` the mode is ``warn``. What stands beside ``datasets`` belongs
    to whoever runs the pipeline and is not read; within an entry every key is known or refused, since one that is
    passed over (a preprocessing, say) would change what is scored.

    Raises:
        ValueError: Naming the file and the field, and what it may hold.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file or folder")
    try:
        data = read_config(path)
    except RecursionError:
        raise ValueError(f"{path}: cannot be read as YAML: nested too deeply") from None
    entries = data.get("datasets")
    if not isinstance(entries, list) or not entries:
        found = f", found {_kind(entries)}" if "datasets" in data else ""
        raise ValueError(f"{path}: datasets: expected a list of datasets{found}")
    specs = []
    seen: dict[str, int] = {}
    for position, entry in enumerate(entries):
        spec = _spec(path, f"datasets[{position}]", entry)
        earlier = seen.setdefault(spec.dataset_id, position)
        if earlier != position:
            raise ValueError(
                f"{path}: datasets[{position}].dataset_id: {spec.dataset_id!r} is the name of datasets[{earlier}] too"
            )
        specs.append(spec)
    return specs


def check_dataset(spec: DatasetSpec, limit: int | None = None) -> DatasetReport:
    """Check every line of a dataset against the standard; in ``off`` mode lines are only counted.

    Args:
        spec: The dataset.
        limit: Check no more than this many lines, besides the limit that the dataset has.

    Raises:
        ValueError: The file cannot be read; in ``strict`` mode, the first issue, naming file, line and field.
    """
    report = DatasetReport(0, 0, 0, Counter(), [])
    most = min((bound for bound in (spec.limit, limit) if bound is not None), default=None)
    try:
        for number, raw in islice(numbered_lines(spec.path), most):
            report.lines += 1
            if spec.mode == "off":
                continue
            issues, scored = _line_issues(raw, number)
            if not issues:
                continue
            if spec.mode == "strict":
                place = "" if issues[0].startswith(f"line {number}") else f"line {number}: "
                more = f"; and {len(issues) - 1} more" if len(issues) > 1 else ""
                raise ValueError(f"{spec.path}: {place}{issues[0]}{more} (dataset {spec.dataset_id!r} is strict)")
            report.odd += 1
            report.unscored += not scored
            report.counts.update(set(map(_alike, issues)))
            if len(report.first) < _MOST_LISTED:
                report.first.append(LineIssue(number, issues))
    except OSError as error:
        raise ValueError(f"{spec.path}: cannot be read ({error.strerror})") from None
    return report


def report_note(spec: DatasetSpec, report: DatasetReport) -> str | None:
    """What a reader of the run should know about a dataset; ``None`` where there is nothing to say."""
    if not report.odd:
        return None
    common = report.counts.most_common(_MOST_LISTED)
    listed = "; ".join(f"{text} ({count})" for text, count in common)
    rest = len(report.counts) - len(common)
    listed += f"; and {rest} other kinds" if rest else ""
    lines = ", ".join(str(line.number) for line in report.first)
    lines += " ..." if report.odd > len(report.first) else ""
    return (
        f"dataset {spec.dataset_id}: {report.odd} of {report.lines} lines do not follow the Sample standard "
        f"(line {lines}); all {report.lines} are kept, and {report.unscored} of them cannot be scored: {listed}"
    )


def open_datasets(path: Path, limit: int | None = None) -> Iterator[tuple[DatasetSpec, str | None]]:
    """The datasets of a file, each checked as its mode says, with what is to be noted.

    Args:
        path: The dataset file.
        limit: How many lines are read over all of them; what lies beyond is not checked.

    Raises:
        ValueError: As :func:`read_dataset_file` and :func:`check_dataset` do.
    """
    left = limit
    for spec in read_dataset_file(path):
        if spec.mode == "off" and left is None:
            yield spec, None
            continue
        report = check_dataset(spec, left)
        if left is not None:
            left -= report.lines
        yield spec, report_note(spec, report)


def _line_issues(raw: bytes | GenmeterError, number: int) -> tuple[list[str], bool]:
    """All issues of a line, and whether it can be scored nevertheless."""
    try:
        record = parse_line(raw, number)
        form = read_form(record, check=False)
    except GenmeterError as error:
        return [error.message], False
    if form.kind == "short":
        # It is no Sample but stands for one: what is built from it is checked, less an id, which the reader gives.
        sample = {**form.sample, "id": "-" if form.sample["id"] is None else form.sample["id"]}
    else:
        sample = record[form.path[0]] if form.path else record
    issues = [] if surely_valid(sample) else validate_sample(sample)
    if sample.get("id") == "":
        issues.append("id: expected a string, found an empty one")
    if not issues:
        return [], True
    try:
        read_form(record)
    except GenmeterError:
        return issues, False
    return issues, True


def _alike(issue: str) -> str:
    """An issue without the indices of its field, and a line's trouble without the line's number."""
    field, colon, rest = issue.partition(":")
    if field.startswith("line "):
        return "not a readable line"
    while "[" in field and "]" in field:
        before, _, after = field.partition("[")
        field = f"{before}.*{after.partition(']')[2]}"
    return f"{field}{colon}{rest}"


def _spec(file: Path, where: str, entry: Any) -> DatasetSpec:
    def fail(field: str, expected: str, value: Any) -> ValueError:
        return ValueError(f"{file}: {where}{field}: expected {expected}, found {_kind(value)}")

    if not isinstance(entry, dict):
        raise fail("", "a mapping", entry)
    _known(file, where, entry, _ENTRY)
    name = entry.get("dataset_id")
    if not isinstance(name, str) or not name.strip():
        raise fail(".dataset_id", "a name", name)
    for key, only in (("loader", "jsonl"), ("hub", "inline")):
        if entry.get(key, only) != only:
            raise ValueError(f"{file}: {where}.{key}: expected {only}, the only one that is read; found {entry[key]!r}")
    params = entry.get("params")
    if not isinstance(params, dict):
        raise fail(".params", "a mapping with a path", params)
    _known(file, f"{where}.params", params, ("path", "limit"))
    written, limit = params.get("path"), params.get("limit")
    if not isinstance(written, str) or not written:
        raise fail(".params.path", "the path of a JSONL file", written)
    if limit is not None and (type(limit) is not int or limit < 0):
        raise ValueError(f"{file}: {where}.params.limit: expected a whole number, 0 or more; found {limit!r}")
    limit = None if limit is None else min(limit, sys.maxsize)
    rules = entry.get("schema")
    if rules is not None and not isinstance(rules, dict):
        raise fail(".schema", "a mapping with a mode", rules)
    _known(file, f"{where}.schema", rules or {}, ("mode",))
    return DatasetSpec(name, _found(file, where, written), limit, _mode(file, where, (rules or {}).get("mode", "warn")))


def _mode(file: Path, where: str, value: Any) -> Mode:
    if value is False:  # YAML reads a bare off as no
        value = "off"
    if value not in _MODES:
        near = nearest(value, list(_MODES)) if isinstance(value, str) else ""
        raise ValueError(f"{file}: {where}.schema.mode: expected {', '.join(_MODES)}; found {value!r}{near}")
    return value  # type: ignore[no-any-return]


def _found(file: Path, where: str, written: str) -> Path:
    try:
        path = Path(written).expanduser()
    except RuntimeError:
        path = Path(written)
    places = [path] if path.is_absolute() else [file.absolute().parent / path, Path.cwd() / path]
    for place in dict.fromkeys(places):
        if place.is_file():
            return Path(place.absolute())
    tried = " or ".join(map(str, dict.fromkeys(places)))
    raise ValueError(f"{file}: {where}.params.path: no such file: {tried}")


def _known(file: Path, where: str, mapping: dict[Any, Any], keys: tuple[str, ...]) -> None:
    for key in mapping:
        if key not in keys:
            near = nearest(str(key), list(keys))
            raise ValueError(f"{file}: {where}: unknown key {key!r}{near}; known: {', '.join(keys)}")


def _kind(value: Any) -> str:
    return "nothing" if value is None else json_name(value)
