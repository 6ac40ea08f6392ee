"""The forms a record may have: a Sample, a record that holds one, or the short form."""

from __future__ import annotations

import os
import re
from typing import Any, Literal, NamedTuple

from genmeter.contract import Modality
from genmeter.errors import GenmeterError
from genmeter.schema.fragments import json_name, read_content, read_part
from genmeter.schema.media import is_sound, kind_of_uri, kind_of_value, names_media
from genmeter.schema.models import validate_sample
from genmeter.schema.paths import ShortForm
from genmeter.schema.quick import is_text, surely_valid

_SHORT_KEYS = ("output", "prompt", "reference", "input")
_PROMPT_KEYS = ("prompt", "text", "question", "query")
_NEARLY = {
    "outputs": "output",
    "prediction": "output",
    "predictions": "output",
    "generated": "output",
    "image": "output",
    "image_path": "output",
    "audio": "output",
    "video": "output",
    "path": "output",
    "target": "reference",
    "ground_truth": "reference",
    "caption": "prompt",
}
# A sample that is built from these alone holds nothing that somebody else wrote but texts and places of assets.
_BUILT_FROM = frozenset({"id", *_SHORT_KEYS})
_TAKEN = frozenset({"id", "output", "reference", "input", "references", "predict_result", "messages"})
_MOST_ISSUES = 3
# What scoring does not read, and what is not read of a turn or a candidate.
_NOT_SCORED = re.compile(
    r"(few_shot_examples|golden_trajectories|sandbox|tools|tool_choice|sampling_params|generation_params"
    r"|unconditioned_input|messages\[\d+\]\.(tool_calls|tool_call_id)"
    r"|predict_result\[\d+\]\.(usage|latency_ms|message\.tool_calls|message\.tool_call_id))\b"
)


class Form(NamedTuple):
    """A record, read.

    Attributes:
        sample: The standard's shape. For a Sample or a record that holds one it is that very dict (a shallow
            copy where the id was a number or a field had to be filled in); for the short form it is built.
            Without an id in the short form, ``sample["id"]`` is ``None``: the caller gives it one.
        path: Where ``eval_result`` goes in the record as it came: ``()``, or ``("sample",)`` for a record.
        kind: Which form it was.
    """

    sample: dict[str, Any]
    path: tuple[str, ...]
    kind: Literal["sample", "record", "short"]


def read_form(record: dict[str, Any], *, check: bool = True) -> Form:
    """Find the sample in a record and validate what scoring reads of it. The record is never changed.

    Scoring reads ``id``, ``schema_version``, ``task_type``, ``messages``, ``options``, ``references``, ``label``,
    ``metadata``, ``data_tag``, ``raw_assets``, ``eval_config``, ``predict_result`` and ``eval_result``: an issue in one
    of these is an error. What stands in ``few_shot_examples``, ``golden_trajectories``, ``sandbox``, ``tools``,
    ``tool_choice``, ``sampling_params``, ``generation_params`` and ``unconditioned_input``, in the tool calls of a
    turn, and in ``usage`` and ``latency_ms`` of a candidate keeps no sample from being scored:
    :func:`genmeter.schema.models.validate_sample` finds it, and a dataset file with ``mode: warn`` reports it.

    Args:
        record: A Sample; a record with a Sample under ``sample`` (the files GAGE writes); or the short form ``{"id",
            "prompt", "output", "reference", "input"}``, where each value is a string or a list (paths or URLs;
            in Python also images, arrays and encoded bytes), ``task_type`` follows from the kind of media and the
            presence of a reference unless it is given, and other keys are kept.
        check: Whether to validate; not needed for a record that was read before.

    Raises:
        GenmeterError: ``bad_sample``, naming the field.
    """
    path = sample_path(record)
    inner = record[path[0]] if path else record
    if "messages" in inner or "predict_result" in inner:
        filled = _filled(inner)
        return Form(_checked(filled) if check else filled, path, "record" if path else "sample")
    if inner.keys().isdisjoint(_SHORT_KEYS):
        raise GenmeterError("bad_sample", _not_a_sample(inner), _hint(inner))
    short = _from_short(inner)
    if check and not (inner.keys() <= _BUILT_FROM and _whole_texts(short)):
        short = _checked_short(short)
    return Form(short, path, "record" if path else "short")


def sample_path(record: dict[str, Any]) -> tuple[str, ...]:
    """Where the sample stands in a record: ``("sample",)`` if the record holds one, else ``()``."""
    inner = record.get("sample")
    if not isinstance(inner, dict) or "messages" in record or "output" in record:
        return ()
    known = any(key in inner for key in ("messages", "predict_result", "schema_version", "id", *_SHORT_KEYS))
    return ("sample",) if known else ()


def _filled(sample: dict[str, Any]) -> dict[str, Any]:
    """Make up for what older records lack: a version, messages (from a prompt), an id that is a string."""
    missing: dict[str, Any] = {}
    if "schema_version" not in sample:
        missing["schema_version"] = "v1"
    if "messages" not in sample:
        text = next((sample[key] for key in _PROMPT_KEYS if isinstance(sample.get(key), str)), None)
        if text is not None:
            missing["messages"] = [_user([{"type": "text", "text": text}])]
    identity = sample.get("id")
    if isinstance(identity, int) and not isinstance(identity, bool):
        missing["id"] = str(identity)
    return {**sample, **missing} if missing else sample


def _checked(sample: dict[str, Any]) -> dict[str, Any]:
    if sample.get("id") and surely_valid(sample):
        return sample
    issues = [issue for issue in validate_sample(sample) if not _NOT_SCORED.match(issue)]
    if sample.get("id") == "":
        issues.append("id: expected a string, found an empty one")
    if issues:
        more = f"; and {len(issues) - _MOST_ISSUES} more" if len(issues) > _MOST_ISSUES else ""
        raise GenmeterError("bad_sample", "; ".join(issues[:_MOST_ISSUES]) + more)
    return sample


def _whole_texts(sample: ShortForm) -> bool:
    """Whether its texts are texts to the models: all there is to be checked in a sample that was built here alone."""
    for message in sample["messages"]:
        for fragment in message["content"]:
            if "text" in fragment and not is_text(fragment["text"]):
                return False
    identity = sample["id"]
    return identity is None or (identity != "" and is_text(identity))


def _checked_short(sample: ShortForm) -> ShortForm:
    if sample["id"] is None:
        sample["id"] = "-"
        _checked(sample)
        sample["id"] = None
    else:
        _checked(sample)
    return sample


def _from_short(record: dict[str, Any]) -> ShortForm:
    origins: dict[str, str] = {}
    outputs = _items(record, "output")
    targets = _items(record, "reference")
    kind: Modality = "image"
    for value, _ in (*outputs, *targets):
        found = kind_of_value(_payload(value))
        if found:
            kind = found
            break
    given = _items(record, "input")
    content: list[dict[str, Any]] = []
    for value, name in given:
        origins[f"messages[0].content[{len(content)}]"] = name
        content.append(_fragment(value, kind, name))
    for value, name in _items(record, "prompt"):
        if not isinstance(value, str):
            raise GenmeterError("bad_sample", f"{name}: expected a string, found {json_name(value)}")
        origins[f"messages[0].content[{len(content)}]"] = name
        content.append({"type": "text", "text": value})
    origins["messages[0].content"] = "prompt"
    results = []
    for index, (value, name) in enumerate(outputs):
        origins[f"predict_result[{index}]"] = name
        message = {"role": "assistant", "content": [_fragment(value, kind, name)]}
        results.append({"index": index, "message": message})
    references = []
    for index, (value, name) in enumerate(targets):
        origins[f"references[{index}]"] = name
        references.append({"answer": [_fragment(value, kind, name)]})
    # Some write the standard's plural here; it is taken as it is.
    plural = record.get("references") if not targets else None
    built: dict[str, Any] = {
        "schema_version": "v1",
        "id": _identity(record.get("id")),
        "task_type": _task_of(kind, bool(targets or given or (plural and _hold_media(plural, kind)))),
        "messages": [_user(content)] if content else [],
        "references": plural or references,
        "predict_result": results,
    }
    # A list of prompts stays visible as one: its texts are scored one by one, not joined.
    listed = isinstance(record.get("prompt"), list)
    for key, value in record.items():
        if value is not None and key not in _TAKEN and (key != "prompt" or listed) and key != "task_type":
            built[key] = value
    for alias in ("question_type", "task_type"):
        if record.get(alias) is not None:
            built["task_type"] = record[alias]
    return ShortForm(built, origins)


def _identity(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise GenmeterError("bad_sample", f"id: expected a string or a whole number, found {json_name(value)}")


def _items(record: dict[str, Any], key: str) -> list[tuple[Any, str]]:
    value = record.get(key)
    if value is None:
        return []
    if type(value) is str:
        return [(value, key)]
    if isinstance(value, (list, tuple)) and not is_sound(value):
        return [(item, f"{key}[{i}]") for i, item in enumerate(value) if item is not None]
    return [(value, key)]


def _payload(value: Any) -> Any:
    return read_part(value).value if isinstance(value, dict) else value


def _fragment(value: Any, kind: str, name: str) -> dict[str, Any]:
    """One asset of the short form in the standard's shape; a fragment is taken as it is."""
    if type(value) is str:
        field = f"{kind_of_uri(value) or kind}_url"
        return {"type": field, field: {"url": value}}
    part = read_part(value) if isinstance(value, dict) else None
    if part is not None and part.kind not in ("bad", "text"):
        value = part.value
    elif isinstance(value, os.PathLike):
        value = os.fsdecode(value)
    elif value is None or isinstance(value, (dict, list, bool, int, float)):
        raise GenmeterError("bad_sample", f"{name}: expected a path or URL, found {json_name(value)}")
    field = f"{kind_of_value(value) or kind}_url"
    return {"type": field, field: {"url": value}}


def _user(content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _hold_media(references: Any, kind: Modality) -> bool:
    """Whether references in the standard's shape hold media: reference captions make no edit of a sample."""
    for item in references if isinstance(references, list) else [references]:
        answer = item["answer"] if isinstance(item, dict) and "answer" in item else item
        for part, _ in read_content(answer):
            if part.kind != "text" or names_media(part.value, kind):
                return True
    return False


def _task_of(kind: str, has_source: bool) -> str:
    return "image-to-image" if kind == "image" and has_source else f"text-to-{kind}"


def _not_a_sample(record: dict[str, Any]) -> str:
    if not record:
        return "the object is empty; expected a Sample (messages), a record (sample) or the short form (output)"
    if "id" in record and "schema_version" in record:
        return "messages: is missing"
    return "messages: is missing, and there is no sample, output, prompt or reference either"


def _hint(record: dict[str, Any]) -> str | None:
    for written, known in _NEARLY.items():
        if written in record:
            return f"the short form calls {written!r} {known!r}"
    return None
