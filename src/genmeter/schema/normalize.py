"""The canonical form of a sample, and the mappings between the standard's fields and those that came before it.

Every function takes a sample and returns a new one; what it was given is never changed, and a field that a mapping
does not name is passed on as it is. In-memory media are shared with the copy, not copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genmeter.contract import Modality
from genmeter.errors import GenmeterError
from genmeter.schema.choices import read_options
from genmeter.schema.fragments import json_name, read_content, read_part
from genmeter.schema.media import names_media, scheme_of
from genmeter.schema.roles import output_modality

SCHEMA_VERSION = "v1"
_PROMPT_KEYS = ("prompt", "text", "question", "query")
_ID_KEYS = ("id", "sample_id", "uid", "_id")
_STANDARD_TYPES = frozenset({"image_url", "audio_url", "video_url", "file_url"})


def normalize_sample(sample: Mapping[str, Any], *, sample_id: str | None = None) -> dict[str, Any]:
    """The sample in the standard's canonical form. Applied again it changes nothing.

    - ``schema_version`` is ``v1`` unless one is given; ``id`` is a string, else that of ``sample_id``, ``uid``
      or ``_id``.
    - ``question_type`` becomes ``task_type``, ``prompt``, ``text``, ``question`` or ``query`` become ``messages``
      (:func:`map_task_type`, :func:`map_prompt`).
    - Each message has a role and a list of fragments, each fragment the object form (:func:`canonical_fragment`);
      likewise in ``few_shot_examples``, ``golden_trajectories``, ``predict_result`` and ``unconditioned_input``.
    - ``options`` are objects with ``id`` and ``content``; ``references`` are ``[{"answer": [fragments]}]``;
      ``label`` is a string, derived from ``references[0]`` if it was missing.

    What is a pipeline's business is left alone: ``choices``, ``inputs``, ``metadata.execution`` and the rendering of
    few-shot examples are made by functions of their own.

    Args:
        sample: A sample, or a record that only nearly is one.
        sample_id: The id of a sample that has none.

    Raises:
        GenmeterError: ``bad_sample`` where there is no id, or messages or options cannot be read.
    """
    result = map_prompt(map_task_type(sample))
    head: dict[str, Any] = {"schema_version": _version(result), "id": _identity(result, sample_id)}
    first: dict[str, Any] = {key: result[key] for key in ("task_type", "messages") if key in result}
    result = {**head, **first, **result, **head}
    if result.get("options") is not None:
        result["options"] = [_canonical_option(item, option) for item, option in _options(result["options"])]
    result = label_from_references(references_to_fragments(unconditioned_to_messages(result)))
    if isinstance(result.get("label"), (int, float)) and not isinstance(result["label"], bool):
        result["label"] = str(result["label"])
    if isinstance(result.get("few_shot_examples"), list):
        result["few_shot_examples"] = [_canonical_example(item) for item in result["few_shot_examples"]]
    if isinstance(result.get("golden_trajectories"), list):
        result["golden_trajectories"] = [
            [canonical_message(message) for message in item] if isinstance(item, list) else item
            for item in result["golden_trajectories"]
        ]
    if isinstance(result.get("predict_result"), list):
        result["predict_result"] = [
            {**entry, "message": canonical_message(entry["message"], "assistant")}
            if isinstance(entry, dict) and isinstance(entry.get("message"), dict)
            else entry
            for entry in result["predict_result"]
        ]
    return result


def map_task_type(sample: Mapping[str, Any]) -> dict[str, Any]:
    """``question_type`` becomes ``task_type``, as it is written; where there is a ``task_type``, both stay."""
    result: dict[str, Any] = copied(sample)
    if not result.get("task_type") and isinstance(result.get("question_type"), str):
        result["task_type"] = result.pop("question_type")
    return result


def map_prompt(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Messages in canonical form, made of the first of ``prompt``, ``text``, ``question``, ``query`` if there are none.

    A text becomes one message of the user and its field goes, as it would only say the same again. A list of turns
    becomes the messages, a list of fragments one message; a list of several texts stays beside its message, as each of
    them is a prompt of its own. Messages that are there win, and then these fields stay untouched.

    Raises:
        GenmeterError: ``bad_sample`` where messages are neither a list, an object nor a string.
    """
    result: dict[str, Any] = copied(sample)
    messages = result.get("messages")
    if isinstance(messages, (str, dict)) and messages:
        messages = [messages]
    elif messages is not None and not isinstance(messages, list) and messages != "" and messages != {}:
        raise GenmeterError("bad_sample", f"messages: expected a list, found {json_name(messages)}")
    if messages:
        result["messages"] = [canonical_message(message) for message in messages]
        return result
    result["messages"] = []
    for key in _PROMPT_KEYS:
        value = result.get(key)
        if isinstance(value, str) and value.strip():
            result["messages"] = [_user(result.pop(key))]
        elif isinstance(value, list) and value and all(isinstance(item, dict) and "role" in item for item in value):
            result["messages"] = [canonical_message(message) for message in result.pop(key)]
        elif isinstance(value, list) and any(part.kind != "bad" for part, _ in read_content(value)):
            result["messages"] = [canonical_message({"role": "user", "content": value})]
            if not all(isinstance(item, str) for item in value):
                del result[key]
        else:
            continue
        break
    return result


def references_to_fragments(sample: Mapping[str, Any]) -> dict[str, Any]:
    """``references`` as ``[{"answer": [fragments]}]``: from a string, a number, a fragment, fragments or an ``answer``.

    A plain string that is a path or URI of what the task makes becomes a fragment of that kind, any other a text. What
    else stands beside an ``answer`` (``meta``) is kept, and so is what cannot be read.
    """
    result: dict[str, Any] = copied(sample)
    value = result.get("references")
    if value is not None:
        made = output_modality(result)
        result["references"] = [_reference(item, made) for item in (value if isinstance(value, list) else [value])]
    return result


def references_to_strings(sample: Mapping[str, Any]) -> dict[str, Any]:
    """The way back from :func:`references_to_fragments`: an answer of one text and nothing else becomes a string."""
    result: dict[str, Any] = copied(sample)
    value = result.get("references")
    if isinstance(value, list):
        result["references"] = [_plain_reference(item) for item in value]
    return result


def label_from_references(sample: Mapping[str, Any]) -> dict[str, Any]:
    """``label``, if it is missing, from ``references[0]``: its text, else the path or URL of its first asset.

    Encoded data (``data:`` URIs, in-memory media) make no label.
    """
    result: dict[str, Any] = copied(sample)
    if result.get("label") is not None:
        return result
    value = result.get("references")
    first = (value[0] if value else None) if isinstance(value, list) else value
    if isinstance(first, dict) and "answer" in first:
        first = first["answer"]
    parts = [part for part, _ in read_content(first)]
    texts = [part.value for part in parts if part.kind == "text"]
    urls = [p.value for p in parts if p.kind not in ("text", "bad") and isinstance(p.value, str)]
    if texts:
        result["label"] = "\n".join(texts)
    elif urls and scheme_of(urls[0]) != "data":
        result["label"] = urls[0]
    return result


def references_from_label(sample: Mapping[str, Any]) -> dict[str, Any]:
    """The way back from :func:`label_from_references`: ``references`` of the ``label``, if there are none."""
    result: dict[str, Any] = copied(sample)
    if not result.get("references") and result.get("label") is not None:
        result["references"] = [result["label"]]
    return result


def raw_assets_to_inputs(sample: Mapping[str, Any]) -> dict[str, Any]:
    """``inputs`` with what ``raw_assets`` hold, for backends that read it; an input of that name wins.

    ``raw_assets`` stay, and are never made into messages.
    """
    return _sink(sample, "raw_assets", ("inputs",))


def sandbox_to_execution(sample: Mapping[str, Any]) -> dict[str, Any]:
    """``metadata.execution`` with what ``sandbox`` holds, for executors that read it; a setting there wins.

    ``sandbox`` stays.
    """
    return _sink(sample, "sandbox", ("metadata", "execution"))


def unconditioned_to_messages(sample: Mapping[str, Any]) -> dict[str, Any]:
    """``unconditioned_input`` as a list of messages; a string becomes one of the user."""
    result: dict[str, Any] = copied(sample)
    value = result.get("unconditioned_input")
    if isinstance(value, (str, dict)):
        value = [value]
    if isinstance(value, list):
        result["unconditioned_input"] = [canonical_message(message) for message in value]
    return result


def canonical_message(message: Any, role: str = "user") -> Any:
    """A message with a role and a list of fragments; a string is one of that role. What cannot be read stays as it is.

    Content that is missing or null (a turn of nothing but ``tool_calls``) stays so, unless there is a ``text``.
    """
    if isinstance(message, str):
        return {"role": role, "content": [canonical_fragment(message)]}
    if not isinstance(message, dict):
        return message
    result: dict[str, Any] = copied(message)
    if result.get("role") is None:
        result = {"role": role, **{key: value for key, value in result.items() if key != "role"}}
    if result.get("content") is None and isinstance(result.get("text"), str):
        result["content"] = result.pop("text")
    content = result.get("content")
    if isinstance(content, list):
        result["content"] = [canonical_fragment(item) for item in content if item is not None]
    elif content is not None:
        result["content"] = [canonical_fragment(content)]
    return result


def canonical_fragment(fragment: Any, made: Modality | None = None) -> Any:
    """A fragment in the standard's object form, ``{"type": "image_url", "image_url": {"url": ...}}``, or a text.

    Base64 with its format beside it becomes a ``data:`` URI. Further keys of the fragment and of its payload
    (``detail``) are kept. What cannot be read is returned as it came.

    Args:
        fragment: In any form that :func:`genmeter.schema.fragments.read_part` reads.
        made: If a plain string is a path or URI of this modality, it becomes such a fragment.
    """
    part = read_part(fragment)
    if part.kind == "bad":
        return copied(fragment)
    own = fragment if isinstance(fragment, dict) else {}
    rest = {key: copied(value) for key, value in own.items() if key != "type" and key not in part.keys[:1]}
    if part.kind == "text":
        if made and isinstance(fragment, str) and names_media(fragment, made):
            return {"type": f"{made}_url", f"{made}_url": {"url": fragment.strip()}}
        return {**rest, "type": "text", "text": part.value}
    name = own["type"] if own.get("type") in _STANDARD_TYPES else f"{part.kind}_url"
    payload = own.get(part.keys[0]) if len(part.keys) > 1 else None
    kept = {k: copied(v) for k, v in payload.items() if k not in ("type", part.keys[1])} if payload else {}
    return {**rest, "type": name, name: {**kept, "url": part.value}}


def copied(value: Any) -> Any:
    """A copy of all objects and lists in a value; texts, numbers and in-memory media are shared."""
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def _version(sample: Mapping[str, Any]) -> str:
    value = sample.get("schema_version")
    return SCHEMA_VERSION if value in (None, "") else str(value)


def _identity(sample: Mapping[str, Any], given: str | None) -> str:
    for key in _ID_KEYS:
        value = sample.get(key)
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
            return str(value)
    if given:
        return given
    raise GenmeterError("bad_sample", "id: expected a string, found nothing", f"give one of {', '.join(_ID_KEYS)}")


def _options(options: Any) -> list[tuple[Any, Any]]:
    read = read_options(options)
    items = options if isinstance(options, list) else [None] * len(read)
    return list(zip(items, read, strict=True))


def _canonical_option(item: Any, option: Any) -> dict[str, Any]:
    written = {"id": option.id, "content": option.content}
    return {**item, **written} if isinstance(item, dict) else written


def _reference(item: Any, made: Modality | None) -> Any:
    if item is None:
        return None
    if isinstance(item, dict) and "answer" in item:
        return {**item, "answer": _answer(item["answer"], made)}
    return {"answer": _answer(item, made)}


def _answer(value: Any, made: Modality | None) -> list[Any]:
    items = value if isinstance(value, list) else [value]
    return [canonical_fragment(item, made) for item in items if item is not None]


def _plain_reference(item: Any) -> Any:
    if isinstance(item, dict) and item.keys() == {"answer"}:
        answer = item["answer"]
        if isinstance(answer, list) and len(answer) == 1 and isinstance(answer[0], dict):
            fragment = answer[0]
            if fragment.keys() == {"type", "text"} and fragment["type"] == "text":
                return fragment["text"]
    return item


def _canonical_example(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    result = references_to_fragments(item)
    if isinstance(result.get("messages"), list):
        result["messages"] = [canonical_message(message) for message in result["messages"]]
    return result


def _sink(sample: Mapping[str, Any], source: str, target: tuple[str, ...]) -> dict[str, Any]:
    result: dict[str, Any] = copied(sample)
    held = result.get(source)
    if not isinstance(held, dict) or not held:
        return result
    holder = result
    for key in target:
        inner = holder.get(key)
        if inner is not None and not isinstance(inner, dict):
            place = ".".join(target[: target.index(key) + 1])
            raise GenmeterError("bad_sample", f"{place}: expected an object, found {json_name(inner)}")
        holder[key] = inner = inner or {}
        holder = inner
    for key, value in held.items():
        holder.setdefault(key, copied(value))
    return result
