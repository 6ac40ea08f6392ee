"""Planning: from input lines to the assets, units and cells of one window. Reads no media and imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from genmeter.contract import Modality, Need
from genmeter.engine.catalog import Catalog
from genmeter.engine.offer import Axes, Facts, PlanOptions, refuse_unfit, requested_metrics
from genmeter.errors import GenmeterError
from genmeter.inputs.source import InputLine
from genmeter.registry import Variant
from genmeter.schema import roles, snapshot
from genmeter.schema.answers import Answer

RAW = -1
# Codes of a sample that does not hold what a metric compares with.
LACKING = frozenset({"no_reference", "no_prompt"})


class AssetRef(NamedTuple):
    """An asset a sample names: a path or URI, or an object handed over in memory."""

    value: Any


class Unit(NamedTuple):
    """What is encoded and stored once.

    Attributes:
        encoder: Index into the catalog's encoders; ``RAW`` hands the text or field over as it is.
        view: Index into the catalog's views.
        sources: Indices into the window's assets, or its texts for a text view; two for a pair.
    """

    encoder: int
    view: int
    sources: tuple[int, ...]


class Used(NamedTuple):
    """A text or asset that a cell scores: its role, its field path and its index in the window."""

    role: str
    path: str
    source: int
    is_text: bool


class Cell(NamedTuple):
    """One row of the result: a line and a metric variant.

    Attributes:
        line: Global line index.
        metric: Name of the variant as asked for.
        grid: [candidate][reference x prompt] to one unit for each need. For a set metric two rows, the prediction
            units and the reference units, each as 1-tuples.
        prompts: How many prompts the second axis holds for each reference.
        used: Every text and asset that is scored.
        flags: What finding the inputs had to decide.
        fault: Why nothing can be scored, when that is known from the line alone.
    """

    line: int
    metric: str
    grid: tuple[tuple[tuple[int, ...], ...], ...] = ()
    prompts: int = 1
    used: tuple[Used, ...] = ()
    flags: tuple[str, ...] = ()
    fault: GenmeterError | None = None


class Task(NamedTuple):
    """The media work of one line.

    Attributes:
        line: Global line index.
        units: The units it is the first to ask for.
        snapshot: The assets that its part of the snapshot names; those of no unit are only hashed.
        outline: That part, with gaps for their digests; None where it is known.
    """

    line: int
    units: tuple[int, ...]
    snapshot: tuple[int, ...]
    outline: snapshot.Outline | None = None


class Window(NamedTuple):
    """A bounded piece of the input, planned."""

    lines: range
    assets: list[AssetRef]
    texts: list[Any]
    units: list[Unit]
    cells: list[Cell]
    tasks: list[Task]


def plan(
    lines: Iterable[InputLine],
    catalog: Catalog,
    options: PlanOptions,
    finished: Mapping[int, Collection[str]] | None = None,
    noted: Collection[int] = (),
    given_up: Collection[int] = (),
    whole: bool = False,
) -> Window:
    """Plan one window.

    Args:
        lines: Consecutive input lines. Nothing of them is kept but what they name.
        catalog: Variants, encoders and views of the run; names that samples ask for are added to it.
        options: What is scored.
        finished: Metrics that need not be planned again, by line.
        noted: Lines whose part of the snapshot is known.
        given_up: Lines whose media took the process down; they are not read again.
        whole: Plan the units of finished cells too, so that those which an interrupted process encoded keep their
            places in the batch plan; unless nothing is left to be done at all.

    Returns:
        A window whose cells stand in input order; lines that cannot be read have no cells.
    """
    builder = _Builder(catalog, options, whole)
    start = stop = 0
    for line in lines:
        start = start if stop else line.index
        stop = line.index + 1
        done = (finished or {}).get(line.index, ())
        if line.sample is None:
            continue
        if line.index in given_up:
            builder.give_up(line.index, line.sample, done, line.index in noted)
        else:
            builder.add(line.index, line.sample, done, line.index in noted)
    tasks = builder.tasks if builder.needed else []
    return Window(range(start, stop), builder.assets, builder.texts, builder.units, builder.cells, tasks)


class _Builder:
    def __init__(self, catalog: Catalog, options: PlanOptions, whole: bool = False) -> None:
        self.catalog, self.options, self.whole = catalog, options, whole
        self.assets: list[AssetRef] = []
        self.texts: list[Any] = []
        self.units: list[Unit] = []
        self.cells: list[Cell] = []
        self.tasks: list[Task] = []
        self.needed = False  # anything is left to be done
        self._asset_index: dict[Any, int] = {}
        self._text_index: dict[str, int] = {}
        self._unit_index: dict[Unit, int] = {}
        self._needs: dict[tuple[str, str, Modality], tuple[int, int]] = {}

    def add(self, line: int, sample: dict[str, Any], finished: Collection[str], noted: bool) -> None:
        first_unit = len(self.units)
        facts = Facts(sample, self.options)
        for name in requested_metrics(sample, self.catalog, self.options):
            self.catalog.know(name)
            if name not in finished:
                self.cells.append(self._cell(line, facts, name))
            elif self.whole:
                self._cell(line, facts, name)
        units = tuple(range(first_unit, len(self.units)))
        if not noted:
            uris, outline = _outline(sample)
            self.tasks.append(Task(line, units, tuple([self._asset(uri) for uri in uris]), outline))
        elif units:
            self.tasks.append(Task(line, units, ()))
        self.needed = self.needed or bool(self.cells) or not noted

    def give_up(self, line: int, sample: dict[str, Any], finished: Collection[str], noted: bool) -> None:
        """Cells with an error for a line whose media are not read again."""
        error = GenmeterError(
            "internal", "reading the media of this sample took the process down", "please report it with the file"
        )
        for name in requested_metrics(sample, self.catalog, self.options):
            self.catalog.know(name)
            if name not in finished:
                self.cells.append(Cell(line, name, fault=error))
        outline: snapshot.Outline | None = None
        if not noted:
            uris, gaps = _outline(sample)
            outline = (snapshot.fill(gaps, [f"uri:{uri}" for uri in uris]),)
        self.tasks.append(Task(line, (), (), outline))
        self.needed = True

    def _cell(self, line: int, facts: Facts, name: str) -> Cell:
        try:
            variant = self.catalog.variant(name)
            refuse_unfit(variant, facts.sample, self.options)
            if variant.spec.scope == "set":
                return self._set_cell(line, facts, variant)
            return self._sample_cell(line, facts, variant)
        except GenmeterError as error:
            return Cell(line, name, fault=self._milder(error, facts.sample, name))

    def _milder(self, error: GenmeterError, sample: dict[str, Any], name: str) -> GenmeterError:
        """What a sample lacks is no failure where its task is not one the metric was made for."""
        variant = self.catalog.variants.get(name)
        task = roles.task_type(sample)
        if error.code not in LACKING or variant is None or task is None or task in variant.spec.task_types:
            return error
        return GenmeterError("not_applicable", f"{name} is not made for {task}, and {error.message}")

    def _sample_cell(self, line: int, facts: Facts, variant: Variant) -> Cell:
        axes = Axes(facts, variant)
        used: dict[Used, None] = {}
        grid = tuple(
            [
                tuple(
                    [
                        tuple([self._unit(variant, need, axes.pick(need, c, r, p), used) for need in axes.needs])
                        for r in range(axes.references)
                        for p in range(axes.prompts)
                    ]
                )
                for c in range(axes.candidates)
            ]
        )
        return Cell(line, variant.name, grid, axes.prompts, tuple(used), axes.flags)

    def _set_cell(self, line: int, facts: Facts, variant: Variant) -> Cell:
        """Predictions and references apart: the reference set counts whether or not the prediction can be scored."""
        used: dict[Used, None] = {}
        sides: list[tuple[tuple[int, ...], ...]] = []
        flags: tuple[str, ...] = ()
        fault: GenmeterError | None = None
        for role in ("prediction", "reference"):
            need = next(n for n in variant.needs if n.roles == (role,))
            try:
                found = facts.find(need.modality, role)
            except GenmeterError as error:
                fault = fault or (error if role == "prediction" else None)
                found = []
            flags += tuple(flag for item in found for flag in item.flags)
            sides.append(tuple((self._unit(variant, need, (item,), used),) for item in found))
        return Cell(line, variant.name, tuple(sides), 1, tuple(used), tuple(dict.fromkeys(flags)), fault)

    def _unit(self, variant: Variant, need: Need, found: Sequence[roles.Found], used: dict[Used, None]) -> int:
        is_text = need.modality == "text"
        sources = []
        for role, item in zip(need.roles, found, strict=True):
            if isinstance(item.value, Answer):
                for piece in item.value.used:
                    used[Used(piece.role, piece.path, self._text(piece.text), True)] = None
                sources.append(self._text(item.value.values))
                continue
            source = self._text(item.value) if is_text else self._asset(item.value)
            used[Used(role, item.path, source, is_text)] = None
            sources.append(source)
        place = (variant.name, need.name, need.modality)
        known = self._needs.get(place)
        if known is None:
            encoder = RAW if need.encoder is None else self.catalog.encoder(need.encoder, variant.models.get(need.name))
            known = self._needs[place] = encoder, self.catalog.view(need.modality, need.view)
        unit = Unit(*known, tuple(sources))
        index = self._unit_index.setdefault(unit, len(self.units))
        if index == len(self.units):
            self.units.append(unit)
        return index

    def _asset(self, value: Any) -> int:
        # An object in memory is identified by itself; only strings can be equal without being the same.
        key = value if isinstance(value, str) else id(value)
        if key not in self._asset_index:
            self._asset_index[key] = len(self.assets)
            self.assets.append(AssetRef(value))
        return self._asset_index[key]

    def _text(self, value: Any) -> int:
        if not isinstance(value, str):
            self.texts.append(value)
            return len(self.texts) - 1
        if value not in self._text_index:
            self._text_index[value] = len(self.texts)
            self.texts.append(value)
        return self._text_index[value]


def _outline(sample: dict[str, Any]) -> tuple[list[Any], snapshot.Outline]:
    try:
        return snapshot.snapshot_outline(sample)
    except ValueError:
        return snapshot.snapshot_uris(sample), (repr(sorted(sample)).encode(),)
