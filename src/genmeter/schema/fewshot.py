"""Few-shot examples, rendered as turns in front of a sample's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genmeter.errors import GenmeterError
from genmeter.schema.fragments import json_name
from genmeter.schema.normalize import canonical_message, copied, references_to_fragments

FORBIDDEN = ("few_shot_examples", "predict_result", "eval_result", "raw_assets", "sandbox")


def render_few_shot(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A copy whose messages begin with its examples: the turns of each, then its answer as a turn of the assistant.

    The answer is ``references[0]``, else ``label``. Leading system turns of the sample stay first. The copy holds no
    ``few_shot_examples`` any more, so rendering again changes nothing. The sample is not changed.

    Raises:
        GenmeterError: ``bad_sample`` where an example holds examples of its own, or what a run writes or large objects
            (``predict_result``, ``eval_result``, ``raw_assets``, ``sandbox``), or has no turns or no answer.
    """
    result: dict[str, Any] = copied(sample)
    examples = result.pop("few_shot_examples", None)
    if not examples:
        return result
    if not isinstance(examples, list):
        raise GenmeterError("bad_sample", f"few_shot_examples: expected a list, found {json_name(examples)}")
    turns = [
        turn for number, example in enumerate(examples) for turn in _turns(example, f"few_shot_examples[{number}]")
    ]
    messages = result.get("messages") or []
    if not isinstance(messages, list):
        raise GenmeterError("bad_sample", f"messages: expected a list, found {json_name(messages)}")
    first = next((i for i, turn in enumerate(messages) if not _is_system(turn)), len(messages))
    result["messages"] = [*messages[:first], *turns, *messages[first:]]
    return result


def _turns(example: Any, place: str) -> list[Any]:
    if not isinstance(example, dict):
        raise GenmeterError("bad_sample", f"{place}: expected an object, found {json_name(example)}")
    for name in FORBIDDEN:
        if example.get(name) is not None:
            raise GenmeterError("bad_sample", f"{place}.{name}: expected nothing, an example may not hold this field")
    messages = example.get("messages")
    if not isinstance(messages, list) or not messages:
        found = "an empty list" if messages == [] else json_name(messages)
        raise GenmeterError("bad_sample", f"{place}.messages: expected a list of messages, found {found}")
    return [*(canonical_message(message) for message in messages), _answer(example, place)]


def _answer(example: dict[str, Any], place: str) -> dict[str, Any]:
    references = references_to_fragments(example).get("references")
    first = references[0] if references else None
    if isinstance(first, dict) and first.get("answer"):
        return {"role": "assistant", "content": first["answer"]}
    label = example.get("label")
    if label is None or label == "":
        raise GenmeterError("bad_sample", f"{place}.references: expected an answer, found neither one nor a label")
    return {"role": "assistant", "content": [{"type": "text", "text": str(label)}]}


def _is_system(turn: Any) -> bool:
    return isinstance(turn, dict) and str(turn.get("role")).lower() in ("system", "developer")
