"""Reading a run directory back: run.json, summary.json and samples.jsonl, one line at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from genmeter.analysis.columns import mapping


class Record(NamedTuple):
    """One scored line.

    Attributes:
        line: Its 1-based number in samples.jsonl.
        record: The line as it was written; empty when it is no object.
        sample: The sample in the standard's shape (for a GAGE record the one inside, for the short form the full one).
        eval_result: The scores; empty when there are none.
    """

    line: int
    record: dict[str, Any]
    sample: dict[str, Any]
    eval_result: dict[str, Any]


def read_run(path: str | Path) -> dict[str, Any]:
    """The content of run.json of a run directory; empty when there is none, or for a lone .jsonl."""
    file = Path(path) / "run.json"
    return _read_json(file) if file.is_file() else {}


def read_summary(path: str | Path) -> dict[str, Any]:
    """summary.json of a run directory, or the summary computed from its samples where there is none.

    Args:
        path: A run directory, a summary.json, or a file of scored samples.

    Raises:
        ValueError: Nothing of the three is there, or the file is no summary.
    """
    path = Path(path)
    file = path / "summary.json" if path.is_dir() else path
    if file.suffix == ".json" and file.is_file():
        summary = _read_json(file)
        if not str(summary.get("schema", "")).startswith("genmeter.summary/"):
            raise ValueError(f"{file}: expected a genmeter summary, found schema {summary.get('schema')!r}")
        return summary
    from genmeter.analysis.summary import summarize_run

    return summarize_run(path)


def tell_apart(names: Sequence[Any], paths: Sequence[str | Path]) -> list[str]:
    """A name for each run: its own, or its path where others have that name too or it has none.

    A run is named after its input, which the runs of several models share.
    """
    counts = Counter(names)
    return [str(name) if name and counts[name] == 1 else str(path) for name, path in zip(names, paths, strict=True)]


def samples_file(path: str | Path) -> Path:
    """Where the scored samples of a run are. Raises ``ValueError`` saying what was looked for."""
    path = Path(path)
    if path.is_file():
        return path
    if not path.exists():
        raise ValueError(f"{path}: no such run directory")
    file = path / "samples.jsonl"
    if not file.is_file():
        raise ValueError(
            f"{path}: holds neither summary.json nor samples.jsonl; if its run was interrupted, give the same "
            "`genmeter score` command again to finish it"
        )
    return file


def iter_records(path: str | Path) -> Iterator[Record]:
    """The scored lines of a run, in input order; memory does not grow with their number.

    Raises:
        ValueError: There is no samples.jsonl, or one of its lines is no JSON object.
    """
    from genmeter.inputs.lines import iter_lines
    from genmeter.schema.jsonio import loads

    file = samples_file(path)
    for number, raw in enumerate(iter_lines(file), 1):
        try:
            record = loads(raw)
        except ValueError:
            raise ValueError(f"{file}: line {number} is no JSON; is this a file that genmeter wrote?") from None
        if not isinstance(record, dict):
            raise ValueError(f"{file}: line {number} is no JSON object; is this a file that genmeter wrote?")
        yield _locate(number, record)


def _locate(number: int, record: dict[str, Any]) -> Record:
    from genmeter.schema.forms import sample_path

    path = sample_path(record)
    sample = record[path[0]] if path else record
    result = dict(mapping(sample.get("eval_result")) or mapping(record.get("eval_result")))
    if "error" not in result and "messages" not in sample and "predict_result" not in sample:
        sample = _full(record, sample)
    return Record(number, record, sample, result)


def _full(record: dict[str, Any], sample: dict[str, Any]) -> dict[str, Any]:
    """The short form as a sample, so that task_type and field paths are those the engine saw."""
    from genmeter.errors import GenmeterError
    from genmeter.schema.forms import read_form

    try:
        return read_form(record, check=False).sample
    except GenmeterError:
        return sample


def _read_json(file: Path) -> dict[str, Any]:
    from genmeter.schema.jsonio import loads

    try:
        data: Any = loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: cannot be read as JSON ({type(error).__name__})") from None
    if not isinstance(data, dict):
        raise ValueError(f"{file}: expected a JSON object, found {type(data).__name__}")
    return data
