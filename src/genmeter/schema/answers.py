"""What a metric of texts is handed for one candidate: the answer, and the fields of the sample that it is held against.

A need names these fields in its ``fields``:

- ``references``: the texts of ``references``, else of ``label``; all of them together.
- ``choice``: for a sample with ``options``, the option that the answer names (``predicted``, an id or None) and the
  ids of the right ones (``correct``); else None.
- ``golden_trajectories``: as written.
- ``predict_result``: the messages of the candidate's own entry as written; one that holds no text counts too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from genmeter.errors import GenmeterError
from genmeter.schema import choices, roles
from genmeter.schema.fragments import json_name, read_content
from genmeter.schema.paths import lookup, origin_path

# Where an entry keeps what was said; the rest (raw_response, usage) is no part of what is scored.
_RECORDS = ("message", "messages", "agent_trace", "answer")
_TRUTHS = ("metadata.correct_choice", "references", "label")


class Piece(NamedTuple):
    """Something that is scored: its role, the field it stands in, and its text (canonical JSON where it is no text)."""

    role: str
    path: str
    text: str


class Answer(NamedTuple):
    """What a need with fields hands over.

    Attributes:
        values: ``text``, the candidate's text ("" where it has none), and each field by name.
        used: What of it is scored.
    """

    values: Mapping[str, Any]
    used: tuple[Piece, ...]


def entries(sample: dict[str, Any]) -> list[roles.Found]:
    """The entries of ``predict_result`` that hold a message, whatever is in it: one for each candidate.

    Entries among which a tool answers are the steps of one candidate, and come as one with ``messages``.

    Raises:
        GenmeterError: ``no_prediction`` where there is none.
    """
    written = sample.get("predict_result")
    found = [
        roles.Found({key: entry[key] for key in _RECORDS if entry.get(key)}, f"predict_result[{index}]", (), index)
        for index, entry in enumerate(written if isinstance(written, list) else ())
        if isinstance(entry, dict) and any(entry.get(key) for key in _RECORDS)
    ]
    if are_steps(sample):
        return [roles.Found({"messages": [item.value.get("message") for item in found]}, "predict_result")]
    if not found:
        raise GenmeterError("no_prediction", "predict_result holds no entry with a message", "run the model first")
    return found


def are_steps(sample: dict[str, Any]) -> bool:
    """Whether the entries of ``predict_result`` are the steps of one candidate: a tool answers among them."""
    written = sample.get("predict_result")
    items = written if isinstance(written, list) else ()
    messages = [entry.get("message") for entry in items if isinstance(entry, dict)]
    return any(isinstance(message, dict) and message.get("role") == "tool" for message in messages)


def truth(sample: dict[str, Any], fields: tuple[str, ...]) -> Answer:
    """What all candidates are held against.

    Raises:
        GenmeterError: ``no_reference`` where a field that is asked for is not there; ``bad_sample`` where ``options``
            cannot be read, or what should name the right option names none or names different ones.
    """
    values: dict[str, Any] = {}
    used: list[Piece] = []
    if "choice" in fields:
        values["choice"] = None
        if sample.get("options"):
            right, pieces = _right_options(sample)
            values["choice"] = {"correct": right}
            used += [Piece("input", "options", canonical(sample["options"])), *pieces]
    if "references" in fields and values.get("choice") is None:
        texts = _reference_texts(sample)
        values["references"] = [piece.text for piece in texts]
        used += texts
    if "golden_trajectories" in fields:
        golden = sample.get("golden_trajectories")
        if not golden:
            raise GenmeterError("no_reference", "golden_trajectories holds no trajectory to compare the calls with")
        values["golden_trajectories"] = golden
        used.append(Piece("reference", origin_path(sample, "golden_trajectories"), canonical(golden)))
    return Answer(values, tuple(used))


def answer(sample: dict[str, Any], entry: roles.Found, fields: tuple[str, ...], shared: Answer) -> roles.Found:
    """A candidate with the fields beside it, as a ``Found`` whose value is an :class:`Answer`."""
    values = dict(shared.values)
    if "predict_result" in fields:
        values["predict_result"] = entry.value
    values["text"] = entry.value if isinstance(entry.value, str) else ""
    if values.get("choice") is not None:
        named = choices.resolve_choice(values["text"], sample["options"])
        values["choice"] = {**values["choice"], "predicted": named}
    written = entry.value if isinstance(entry.value, str) else canonical(entry.value)
    piece = Piece("prediction", entry.path, written)
    return entry._replace(value=Answer(values, (piece, *shared.used)))


def canonical(value: Any) -> str:
    """A text as it is, anything else as JSON with sorted keys. Raises ``bad_sample`` for what JSON cannot hold."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise GenmeterError("bad_sample", f"expected JSON, found something else ({error})") from None


def _reference_texts(sample: dict[str, Any]) -> list[Piece]:
    try:
        return [Piece("reference", item.path, item.value) for item in roles.references(sample, "text")]
    except GenmeterError:
        label = sample.get("label")
        if label is None or isinstance(label, bool):
            raise
    texts = [part.value for part, _ in read_content(label) if part.kind == "text" and part.value.strip()]
    if not texts:
        raise GenmeterError("no_reference", f"references holds no text, and label is {json_name(label)}")
    return [Piece("reference", origin_path(sample, "label"), "\n".join(texts))]


def _right_options(sample: dict[str, Any]) -> tuple[list[str], list[Piece]]:
    """The ids of the right options: every reference is right; the label and correct_choice must be one of them."""
    known = choices.read_options(sample["options"])
    named: dict[str, list[str]] = {}
    pieces: list[Piece] = []
    for field in _TRUTHS:
        written = lookup(sample, field)
        items = written if field == "references" and isinstance(written, list) else [written]
        for number, item in enumerate(items):
            if item is None:
                continue
            path = f"references[{number}]" if field == "references" and isinstance(written, list) else field
            identifier = _option(item, sample["options"], known)
            if identifier is None:
                listed = ", ".join(choice.id for choice in known)
                raise GenmeterError("bad_sample", f"{path}: expected the id or the text of an option ({listed})")
            named.setdefault(field, []).append(identifier)
            pieces.append(Piece("reference", origin_path(sample, path), canonical(item)))
    if not named:
        raise GenmeterError("no_reference", f"none of {', '.join(_TRUTHS)} says which option is right")
    right = list(dict.fromkeys(named.get("references") or next(iter(named.values()))))
    for field, ids in named.items():
        if not set(ids) <= set(right):
            fields = ", ".join(named)
            raise GenmeterError("bad_sample", f"{fields} name different options: {field} says {', '.join(ids)}")
    return right, pieces


def _option(value: Any, options: Any, known: list[choices.Choice]) -> str | None:
    found = choices.correct_choice({"options": options, "label": value})
    if found is None and isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(known):
        return known[value].id  # a place, counted from 0, where no option is called by this number
    return found
