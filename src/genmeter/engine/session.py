"""The engine in memory: samples in, results out in order, nothing written to disk."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from genmeter import __version__
from genmeter.config import RunConfig, load_config, read_config
from genmeter.contract import Json
from genmeter.engine.catalog import metric_of
from genmeter.engine.core import Tally, WindowRunner
from genmeter.engine.device import device_kind, resolve_device
from genmeter.engine.evaluation import Evaluation
from genmeter.engine.features import Features
from genmeter.engine.ledger import MemoryLedger
from genmeter.engine.microbatch import Busy, MicroBatcher
from genmeter.engine.offer import PlanOptions
from genmeter.engine.plan import plan
from genmeter.engine.pool import EncoderPool
from genmeter.engine.prepare import Preparer
from genmeter.engine.settings import catalog_of
from genmeter.errors import GenmeterError
from genmeter.inputs.source import InputLine
from genmeter.schema.forms import read_form, sample_path

_WINDOW = 64


@dataclass(frozen=True)
class Result:
    """What one sample came to.

    Attributes:
        id: The sample's id, or None when it could not be read.
        line: Its position in the input, from 0.
        sample: The sample as it was given.
        eval_result: What genmeter found, in the standard's shape.
    """

    id: str | None
    line: int
    sample: Mapping[str, Any]
    eval_result: dict[str, Json]

    @property
    def scores(self) -> dict[str, float | None]:
        """The score of each metric; None where ``errors`` says why."""
        return {name: entry["score"] for name, entry in self.eval_result.get("metrics", {}).items()}

    @property
    def errors(self) -> dict[str, dict[str, Json]]:
        """Code and message of each metric without a score; under ``""`` when the sample itself could not be read."""
        found = {n: e["error"] for n, e in self.eval_result.get("metrics", {}).items() if e.get("error")}
        if "error" in self.eval_result:
            found[""] = self.eval_result["error"]
        return found


class Engine:
    """Scores samples in memory. Safe to share between threads; use as a context manager or call :meth:`close`.

    Args:
        metrics: Names of metrics or variants; None leaves the choice to each sample's ``eval_config`` or task type.
        config: A :class:`~genmeter.config.RunConfig`, a mapping of the same keys, or the path of a YAML file.
        **settings: Single keys of the configuration (``device``, ``media_root``, ``precision`` ...); they win.

    Raises:
        ValueError: A setting is not one, or a device is not there.
        GenmeterError: ``unknown_metric``.

    Example:
        >>> with Engine(metrics=["lpips"]) as engine:
        ...     for result in engine.score([{"id": "a", "output": image, "reference": "ref/a.png"}]):
        ...         print(result.id, result.scores, result.errors)
    """

    def __init__(
        self,
        metrics: Iterable[str] | str | None = None,
        *,
        config: RunConfig | Mapping[str, Any] | str | Path | None = None,
        **settings: Any,
    ) -> None:
        self.config = merged_config(config, metrics, settings)
        place = resolve_device(self.config.device)
        self._catalog = catalog_of(self.config, device_kind(place))
        self._options = PlanOptions.of(self.config)
        self._pool = EncoderPool(
            self._catalog,
            place,
            self.config.precision,
            offline=self.config.offline,
            batch_size=self.config.batch_size,
        )
        self._preparer = Preparer.of(self.config, [Path.cwd()])
        self._features = Features(self._catalog, None, None)
        self._lock = threading.Lock()
        self._calls: MicroBatcher[tuple[int, Mapping[str, Any]], Result] = MicroBatcher(self._answer, limit=_WINDOW)
        self._count = itertools.count()
        self._closed = False

    def submit(self, sample: Mapping[str, Any], *, block: bool = True) -> Future[Result]:
        """Hand one sample over, from any thread; calls that come at the same time share batches.

        An idle engine starts within 5 ms; while it computes, further calls gather for the next batch. Whatever is wrong
        with the sample stands in its result, and touches no other.

        Args:
            sample: As for :meth:`score`. Arrays in it are copied, so the caller may use them again at once.
            block: Wait while 1,024 samples are waiting already.

        Returns:
            A future. ``future.result(seconds)`` waits no longer than that; ``future.cancel()`` takes a sample back
            whose batch has not begun.

        Raises:
            genmeter.engine.microbatch.Busy: Too many samples wait, and ``block`` is false.
            RuntimeError: The engine was closed.
        """
        return self._calls.submit((next(self._count), _own(sample)), block=block)

    async def score_async(self, sample: Mapping[str, Any]) -> Result:
        """As :meth:`submit`, awaited; other tasks of the event loop go on meanwhile, also while there is no room."""
        try:
            future = self.submit(sample, block=False)
        except Busy:
            future = await asyncio.to_thread(self.submit, sample)
        return await asyncio.wrap_future(future)

    def warmup(self) -> None:
        """Load the networks of the configured metrics, so that the first sample does not wait for them.

        Raises:
            GenmeterError: As loading does: ``weights_unavailable``, ``model_probe_failed``, ``out_of_memory`` ...
        """
        with self._lock:
            for name in self._catalog.explicit or ():
                variant = self._catalog.variant(name)
                for need in variant.needs:
                    if need.encoder is not None:
                        self._pool.ready(self._catalog.encoder(need.encoder, variant.models.get(need.name)))

    def stats(self) -> dict[str, float]:
        """What :meth:`submit` did: ``samples`` answered, in how many ``batches``, their ``mean_batch``, ``pending``."""
        calls = self._calls
        mean = calls.answered / calls.batches if calls.batches else 0.0
        return {"samples": calls.answered, "batches": calls.batches, "mean_batch": mean, "pending": calls.pending}

    def score(self, samples: Iterable[Mapping[str, Any]]) -> Iterator[Result]:
        """Score samples as they come; results follow in input order, and no sample raises.

        Args:
            samples: Samples of the standard, GAGE records or the short form (``id, prompt, output, reference``). An
                output, reference or input may be a path or URI, encoded bytes, a PIL image, or a uint8 array of
                shape (H, W, 3) or (H, W, 4).

        Yields:
            One result for each sample. At most 64 samples are held at a time.
        """
        if self._closed:
            raise RuntimeError("the engine is closed")
        stream = enumerate(samples)
        while batch := list(islice(stream, _WINDOW)):
            with self._lock:
                results = self._score_window([_line(index, sample) for index, sample in batch], batch)
            yield from results

    def _answer(self, given: list[tuple[int, Mapping[str, Any]]]) -> list[Result]:
        with self._lock:
            return self._score_window([_line(index, sample) for index, sample in given], given)

    def _score_window(self, lines: list[InputLine], given: list[tuple[int, Mapping[str, Any]]]) -> list[Result]:
        ledger = MemoryLedger()
        tally = Tally(scored=1)  # a session never stops early: its caller sees every result
        runner = WindowRunner(
            self._catalog,
            self._pool,
            self._preparer,
            self._features,
            ledger,
            tally,
            candidate=self.config.candidate,
            partial=self.config.partial_candidates,
        )
        window = plan(lines, self._catalog, self._options, noted=range(lines[0].index, lines[-1].index + 1))
        runner.run(window, lambda done: None)
        evaluation = Evaluation(
            self._catalog,
            {"genmeter": __version__},
            thresholds=self.config.thresholds,
            overall_metric=self.config.overall.metric,
        )
        results = []
        for line, (_, sample) in zip(lines, given, strict=True):
            if line.sample is not None:
                found = evaluation.build(line.index, ledger.entries.get(line.index, {}), line.sample)
            else:
                assert line.error is not None
                found = {"error": line.error.to_dict()}
            identity = line.sample["id"] if line.sample is not None else None
            results.append(Result(identity, line.index, sample, found))
        return results

    def close(self) -> None:
        """Stop the threads; samples that were submitted and not begun are cancelled. Results stay valid."""
        self._closed = True
        self._calls.close()
        self._preparer.__exit__(None, None, None)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _line(index: int, sample: Mapping[str, Any]) -> InputLine:
    record = dict(sample) if isinstance(sample, Mapping) else None
    try:
        if record is None:
            raise GenmeterError("bad_sample", f"expected a mapping, found {type(sample).__name__}")
        form = read_form(record)
    except GenmeterError as error:
        path = sample_path(record) if record is not None else ()
        return InputLine(index, "<memory>", index + 1, record, None, path, error)
    if form.sample["id"] is None:
        form.sample["id"] = f"line-{index + 1}"
    return InputLine(index, "<memory>", index + 1, record, form.sample, form.path, None)


def _own(value: Any) -> Any:
    """The same sample with arrays of its own: a caller may fill its buffers anew before the batch begins."""
    if type(value) is dict:
        return {key: _own(item) for key, item in value.items()}
    if type(value) is list or type(value) is tuple:
        return type(value)(map(_own, value))
    if isinstance(value, bytearray):
        return bytes(value)
    return value.copy() if isinstance(value, np.ndarray) else value


def merged_config(
    config: RunConfig | Mapping[str, Any] | str | Path | None,
    metrics: Iterable[str] | str | None,
    settings: Mapping[str, Any],
) -> RunConfig:
    """One validated configuration from a file, mapping or object, names of metrics and single settings, which win.

    Names given in ``metrics`` choose what runs; parameters that the configuration holds for them are kept.

    Raises:
        ValueError: Naming the key that is wrong.
    """
    where = "settings"
    if config is None:
        data: dict[str, Any] = {}
    elif isinstance(config, RunConfig):
        data = config.model_dump(exclude_unset=True)
    elif isinstance(config, Mapping):
        data = dict(config)
    else:
        data, where = read_config(Path(config)), str(config)
    data.update({key: value for key, value in settings.items() if value is not None})
    if metrics is not None:
        names = [name.strip() for name in metrics.split(",")] if isinstance(metrics, str) else list(metrics)
        known = data.get("metrics")
        known = known if isinstance(known, Mapping) else {}
        data["metrics"] = {name: known.get(name) or known.get(metric_of(name)) or {} for name in names if name}
    return load_config(data, where=where)
