"""Set metrics (FVD, FAD ...) over the finished run, for GAGE's summary.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gage_eval.reporting.summary_generators import SummaryGenerator

from genmeter.integrations.gage.engines import forget_settings, settings_in_use
from genmeter.integrations.gage.settings import JudgeSettings
from genmeter.schema.jsonio import dumps

FOLDER = "genmeter"


class GenmeterSets(SummaryGenerator):  # type: ignore[misc]  # the framework has no types
    """Adds ``{"genmeter": {"metrics": ...}}``: value, interval, counts and signature of each set metric.

    The run itself lies in ``genmeter/`` of GAGE's run directory, with samples.jsonl, summary.json and, if asked for,
    report.html. Nothing is added where no judge or metric of the run named a set metric.
    """

    name = "genmeter_sets"

    def generate(self, cache: Any) -> dict[str, Any] | None:
        """The values; trouble comes back as data, since the framework would swallow an exception."""
        found: dict[str, Any] = {}
        runs = [settings for settings in settings_in_use() if settings.sets and set_metrics(settings)]
        forget_settings()
        for number, settings in enumerate(runs):
            folder = Path(cache.run_dir) / (FOLDER if not number else f"{FOLDER}-{number + 1}")
            try:
                found.update(score_sets(cache.iter_samples(), folder, settings))
            except Exception as error:  # whatever happens here, GAGE's own summary is to be written
                names = set_metrics(settings)
                found.update({name: {"score": None, "failure": f"{type(error).__name__}: {error}"} for name in names})
        return {"genmeter": {"metrics": found}} if found else None


def set_metrics(settings: JudgeSettings) -> list[str]:
    """Names of the set metrics among those configured."""
    from genmeter.registry import parse_variant

    return [name for name in settings.config.metrics or () if parse_variant(name).spec.scope == "set"]


def score_sets(records: Iterable[Mapping[str, Any]], folder: Path, settings: JudgeSettings) -> dict[str, Any]:
    """Score the set metrics over the records of a run, in the order of the dataset.

    Args:
        records: Records with a ``sample`` each; of several with one id the last counts, as in a run that was repeated.
        folder: A run directory of genmeter, made here.
        settings: What the judge or metric was made with.

    Returns:
        The entry of each set metric in genmeter's summary.
    """
    from genmeter.api import score

    samples: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for place, record in enumerate(records):
        sample = record.get("sample")
        if isinstance(sample, Mapping):
            order = sample.get("_gage_source_index")
            samples[str(sample.get("id", place))] = (order if isinstance(order, int) else place, sample)
    folder.mkdir(parents=True, exist_ok=True)
    lines = folder / "input.jsonl"
    with open(lines, "wb") as out:
        for _, sample in sorted(samples.values(), key=lambda item: item[0]):
            out.write(dumps({key: value for key, value in sample.items() if key != "eval_result"}) + b"\n")
    config = settings.config
    if not config.media_root:
        config = config.model_copy(update={"media_root": (str(Path.cwd()),)})
    names = set_metrics(settings)
    result = score(
        lines, names, out=folder, config=config, fresh=(folder / "run.json").exists(), report=settings.report
    )
    return {name: result.summary["metrics"][name] for name in names if name in result.summary["metrics"]}
