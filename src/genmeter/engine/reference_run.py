"""Making a reference set: encode an input once, keep its features or their moments."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from genmeter.config import RunConfig
from genmeter.engine.gather import References, gather_references
from genmeter.engine.keys import view_id
from genmeter.engine.reference import Entry, provenance, reference_need, write_reference
from genmeter.engine.run import Encoded, Observer, Progress, encoded
from genmeter.errors import GenmeterError
from genmeter.inputs.source import Source
from genmeter.registry import parse_variant

Side = Literal["auto", "references", "outputs"]


class Made(NamedTuple):
    """One entry of a reference set that was made.

    Attributes:
        metrics: What it is for.
        files: How many different files are in it.
        rows: How many feature rows they gave.
        width: Columns of the features.
        side: Where the files were found.
        failed: How many files could not be encoded, by error code.
    """

    metrics: tuple[str, ...]
    files: int
    rows: int
    width: int
    side: str
    failed: dict[str, int]


def make_reference(
    source: Source,
    out: Path,
    config: RunConfig,
    *,
    side: Side = "auto",
    moments: bool = False,
    observer: Observer | None = None,
) -> list[Made]:
    """Encode the files of an input and write them as a reference set.

    What has been encoded is kept beside the file until it is written: after an interruption, the same call goes on.

    Args:
        source: Samples with references, or a folder of media.
        out: The file to write.
        config: All settings; ``metrics`` names one or more set metrics.
        side: Which files make the set: the references of the samples, their outputs, or (auto) the references where
            there are any, else the outputs.
        moments: Keep mean and covariance only.
        observer: Told about progress.

    Returns:
        What was written: an entry for each encoder and view.

    Raises:
        ValueError: No metric is named, one of them compares no sets, or ``side`` is not one.
        GenmeterError: ``unknown_metric``; ``too_few_samples`` when fewer than two files could be encoded.
        StoppedEarly: The first samples all failed for one reason.
    """
    if side not in get_args(Side):
        raise ValueError(f"--from {side!r}: expected one of {', '.join(get_args(Side))}")
    names = list(config.metrics or ())
    if not names:
        raise ValueError("--metrics: name the set metrics that the reference set is for, such as fvd,kvd")
    for name in names:
        reference_need(parse_variant(name, profile=config.profile))
    folder = out.with_name(f".{out.name}.run")
    with encoded(source, folder, config.model_copy(update={"reference_set": None}), observer=_Relay(observer)) as run:
        scratch = folder / "features" / "scratch"
        groups = _by_features(run, names)
        made = [_entry(run, group, side, scratch / str(number)) for number, group in enumerate(groups)]
        write_reference(out, [entry for entry, _ in made], moments=moments)
    shutil.rmtree(folder, ignore_errors=True)
    return [found for _, found in made]


class _Relay(Observer):
    """Hands on what concerns a reference set: that a sample has no output is no failure of it."""

    def __init__(self, observer: Observer | None) -> None:
        self._to = observer or Observer()

    def started(self, total: int, resumed: int) -> None:
        self._to.started(total, resumed)

    def progress(self, progress: Progress) -> None:
        self._to.progress(progress._replace(failed=0))

    def download(self) -> Any:
        return self._to.download()

    def note(self, message: str) -> None:
        self._to.note(message)


def _by_features(run: Encoded, names: list[str]) -> list[list[str]]:
    """Metrics that read the same features go together."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in dict.fromkeys(names):
        about = provenance(run.catalog.variant(name), run.catalog)
        groups.setdefault((about["fingerprint"], view_id(about["view"])), []).append(name)
    return list(groups.values())


def _entry(run: Encoded, names: list[str], side: Side, scratch: Path) -> tuple[Entry, Made]:
    found: References | None = None
    where = "references"
    if side != "outputs":
        found = gather_references(run.journal, run.store, names[0], scratch)
        if side == "auto" and not len(found.files.digests) and not found.failed:
            found = None
    failed: Counter[str] = Counter(found.failed) if found else Counter()
    if found is None:
        where = "outputs"
        found = gather_references(run.journal, run.store, names[0], scratch, side=0)
        codes = run.journal.codes().get(names[0], {})
        failed.update({code: count for code, count in codes.items() if code and code != "set_pending"})
    files = found.files
    if len(files.digests) < 2 or len(files.values) < 2:
        reasons = f" ({', '.join(f'{code} {count}' for code, count in sorted(failed.items()))})" if failed else ""
        raise GenmeterError(
            "too_few_samples",
            f"{', '.join(names)}: a reference set needs at least 2 files that can be encoded; found "
            f"{len(files.digests)} among the {where}{reasons}",
            "give more references, or --from outputs to take the samples' outputs",
        )
    about = provenance(run.catalog.variant(names[0]), run.catalog)
    made = Made(
        tuple(names),
        len(files.digests),
        len(files.values),
        int(files.values.shape[1]),
        where,
        dict(sorted(failed.items())),
    )
    return Entry(about, files, tuple(names)), made
