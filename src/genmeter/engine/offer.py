"""What one sample offers to a metric: its candidates, references and prompts, and whether the metric fits it at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from genmeter.config import RunConfig
from genmeter.contract import Modality, Need
from genmeter.engine.catalog import Catalog
from genmeter.errors import GenmeterError
from genmeter.registry import Variant
from genmeter.schema import answers, roles, selection

_OUTPUT: Mapping[str, Modality] = {
    "text-to-image": "image",
    "image-to-image": "image",
    "text-to-audio": "audio",
    "text-to-video": "video",
}
# Tasks whose answer is text, whatever media they read; a media metric does not apply to them.
_TEXT_TASKS = frozenset(
    {
        "multiple-choice",
        "short-answer",
        "dialogue",
        "audio-translation",
        "image-qa",
        "video-qa",
        "doc-qa",
        "code-generation",
        "agent",
    }
)


class PlanOptions(NamedTuple):
    """Settings that decide what is scored; see :class:`genmeter.config.RunConfig` for each."""

    candidate: str | int = "all"
    prompt_field: str | None = None
    references_from: Literal["references", "raw_assets"] = "references"
    metrics_from: str = "config"

    @classmethod
    def of(cls, config: RunConfig) -> PlanOptions:
        """The options among a run's settings."""
        return cls(config.candidate, config.prompt_field, config.references_from, config.metrics_from)


class Facts:
    """What one sample offers, looked up once for all of its metrics."""

    def __init__(self, sample: dict[str, Any], options: PlanOptions) -> None:
        self.sample, self.options = sample, options
        self.made = roles.output_modality(sample)
        self._found: dict[tuple[Modality, str], list[roles.Found] | GenmeterError] = {}

    def find(self, modality: Modality, role: str) -> list[roles.Found]:
        """As :func:`find`; the same list, or the same error, each time."""
        found = self._found.get((modality, role))
        if found is None:
            try:
                found = find(self.sample, modality, role, self.options)
            except GenmeterError as error:
                found = error
            self._found[modality, role] = found
        if isinstance(found, GenmeterError):
            raise found
        return found

    def answers(self, fields: tuple[str, ...]) -> list[roles.Found]:
        """One :class:`genmeter.schema.answers.Answer` for each candidate, with these fields of the sample beside it."""
        if "predict_result" in fields:
            entries = selection.select_candidates(answers.entries(self.sample), self.options.candidate)
        elif answers.are_steps(self.sample):
            entries = roles.predictions(self.sample, "text")[-1:]  # the answer that the steps of a run led to
        else:
            entries = self.find("text", "prediction")
        shared = answers.truth(self.sample, fields)
        return [answers.answer(self.sample, entry, fields, shared) for entry in entries]


class Axes:
    """The candidates, references and prompts that one sample offers one metric."""

    def __init__(self, facts: Facts, variant: Variant) -> None:
        made = facts.made
        self.needs = [n._replace(modality=made, view=n.also_view) if made in n.also else n for n in variant.needs]
        self._found: dict[tuple[str, str], list[roles.Found]] = {}
        most = {"prediction": 1, "reference": 1, "input": 1, "prompt": 1}
        flags: dict[str, None] = {}
        for need in self.needs:
            for role in need.roles:
                place = (role, _kind(need))
                if place not in self._found:
                    if role == "prompt":
                        found = find_texts(facts.sample, need, variant, facts.options)
                    elif need.fields:
                        found = facts.answers(need.fields)
                    else:
                        found = facts.find(need.modality, role)
                    self._found[place] = found
                    if len(found) > most[role]:
                        most[role] = len(found)
                    for item in found:
                        if item.flags:
                            flags.update(dict.fromkeys(item.flags))
        self.candidates, self.prompts = most["prediction"], most["prompt"]
        self.references = max(most["reference"], most["input"])
        if self.prompts > 1:
            self._refuse_unequal()
        self.flags = tuple(flags)

    def _refuse_unequal(self) -> None:
        """Texts of several kinds belong together by position, or one of them goes with all of the others."""
        texts = [items for (role, _), items in self._found.items() if role == "prompt" and len(items) > 1]
        if len({len(items) for items in texts}) > 1:
            counts = ", ".join(f"{len(items)} at {items[0].path.partition('[')[0]}" for items in texts)
            raise GenmeterError("bad_sample", f"expected equal numbers of texts that belong together, found {counts}")

    def pick(self, need: Need, candidate: int, reference: int, prompt: int) -> list[roles.Found]:
        """What stands at one place of the grid, for each role of a need."""
        items = []
        for role in need.roles:
            found = self._found[role, _kind(need)]
            place = candidate if role == "prediction" else prompt if role == "prompt" else reference
            items.append(found[min(place, len(found) - 1)])
        return items


def _kind(need: Need) -> str:
    """What tells the texts or assets of one role apart."""
    if need.fields:
        return ",".join(need.fields)
    return need.text_of if need.modality == "text" and need.roles == ("prompt",) else need.modality


def find_texts(sample: dict[str, Any], need: Need, variant: Variant, options: PlanOptions) -> list[roles.Found]:
    """The texts that stand for the prompt of a need.

    Raises ``no_prompt``, naming the field that was looked at, or ``not_applicable`` for an edit without a caption.
    """
    if need.text_of == "prompt":
        return roles.prompt_texts(sample, field=options.prompt_field)
    # A caption that is itself one of the references says nothing when it is compared with them.
    own = any(n.modality == "text" and "reference" in n.roles for n in variant.needs)
    if need.text_of == "caption":
        return roles.captions(sample, field=options.prompt_field, from_references=not own)
    if need.text_of != "target":
        return roles.prompt_texts(sample, field=need.text_of)
    found = roles.target_captions(sample, from_references=not own)
    if not found:
        message = f"expected a text that describes the output, at {roles.TARGET_FIELD}"
        raise GenmeterError("no_prompt", message + ("" if own else " or references[*].answer") + "; found none")
    return found


def find(sample: dict[str, Any], modality: Modality, role: str, options: PlanOptions) -> list[roles.Found]:
    """The texts or assets of one role. Raises ``no_prediction``, ``no_reference`` or ``no_prompt``."""
    if role == "prediction":
        return selection.select_candidates(roles.predictions(sample, modality), options.candidate)
    if role == "reference":
        return roles.references(sample, modality, source=options.references_from)
    if role == "input":
        found = roles.inputs(sample, modality)
        if not found:
            raise GenmeterError(
                "no_reference", f"the messages hold no {modality} to compare the output with", "add the source image"
            )
        return found
    return roles.prompt_texts(sample, field=options.prompt_field)


def requested_metrics(sample: dict[str, Any], catalog: Catalog, options: PlanOptions) -> list[str]:
    """Names of the metrics that a sample is scored with, in order and without repetition."""
    if catalog.explicit is not None and options.metrics_from != "sample":
        return catalog.explicit
    own = (sample.get("eval_config") or {}).get("metrics")
    own = [name for name in own if isinstance(name, str)] if isinstance(own, list) else None
    if catalog.explicit is not None:
        return catalog.explicit if own is None else [name for name in catalog.explicit if name in own]
    if own is not None:
        return list(dict.fromkeys(own))
    return catalog.defaults(roles.task_type(sample))


def refuse_unfit(variant: Variant, sample: dict[str, Any], options: PlanOptions) -> None:
    """Raise ``not_applicable`` when the sample's task makes something else than the metric reads, or has no caption."""
    for need in variant.needs:
        if need.text_of == "caption" and roles.starts_from_media(sample):
            find_texts(sample, need, variant, options)
    task = roles.task_type(sample)
    if task is None or task in variant.spec.task_types:
        return
    reads = {m for need in variant.needs if "prediction" in need.roles for m in (need.modality, *need.also)}
    writes = "text" if task in _TEXT_TASKS else _OUTPUT.get(task)
    if writes is not None and reads and writes not in reads:
        raise GenmeterError(
            "not_applicable", f"{variant.spec.id} reads {' or '.join(sorted(reads))}; a {task} sample produces {writes}"
        )
