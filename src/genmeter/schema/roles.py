"""What is scored in a sample: the prompt, the predictions, the references and the inputs.

Each answer names the field it was read from, so that a result can say what it is about.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

from genmeter.contract import Modality
from genmeter.errors import GenmeterError
from genmeter.schema.fragments import Part, json_name, read_content
from genmeter.schema.media import names_media
from genmeter.schema.paths import lookup, origin_path

_PROMPT_KEYS = ("prompt", "text", "question", "query")
TARGET_FIELD = "metadata.target_prompt"
_MADE: dict[str, Modality] = {"image": "image", "audio": "audio", "video": "video"}
_TASK_ALIASES = {
    "t2i": "text-to-image",
    "i2i": "image-to-image",
    "t2a": "text-to-audio",
    "t2v": "text-to-video",
    "image-editing": "image-to-image",
    "image-edit": "image-to-image",
}


class Found(NamedTuple):
    """One text or asset that takes a role in a sample.

    Attributes:
        value: The text; or the path or URI as written; or an in-memory object.
        path: The field it stands in, as ``predict_result[0].message.content[1].image_url.url``; in the short form
            the record's own field (``output[1]``).
        flags: Words of :data:`genmeter.errors.FLAGS`.
        index: The position of the candidate in ``predict_result``, of the reference in ``references``, or of the
            text among several prompts. Several assets of one entry share it.
    """

    value: Any
    path: str
    flags: tuple[str, ...] = ()
    index: int = 0  # type: ignore[assignment]


def task_type(sample: dict[str, Any]) -> str | None:
    """The sample's task: ``task_type``, else ``metadata.task_type``, else ``question_type``.

    Case, spaces and underscores are evened out (``Text_to_Image`` is ``text-to-image``), short names spelled out.
    """
    value = sample.get("task_type")
    if isinstance(value, str) and value.strip():
        return _task_name(value)
    metadata = sample.get("metadata")
    nested = metadata.get("task_type") if isinstance(metadata, dict) else None
    for value in (nested, sample.get("question_type")):
        if isinstance(value, str) and value.strip():
            return _task_name(value)
    return None


def _task_name(written: str) -> str:
    return _known_task_name(written) if len(written) < 64 else _even_out(written)


def _even_out(written: str) -> str:
    name = written.strip().lower().replace("_", "-").replace(" ", "-")
    return _TASK_ALIASES.get(name, name)


_known_task_name = lru_cache(maxsize=256)(_even_out)


def output_modality(sample: dict[str, Any]) -> Modality | None:
    """The modality that the sample's task makes (``text-to-image``: image); ``None`` for tasks that answer in text."""
    name = task_type(sample) or ""
    return _MADE.get(name.rpartition("-to-")[2]) if "-to-" in name else None


def prompt_texts(sample: dict[str, Any], *, field: str | None = None) -> list[Found]:
    """The text that the model was given.

    That is the text fragments of the last user message, joined by newlines; or what stands at ``field`` (a path
    such as ``metadata.caption``); or several texts, where the field or the sample's ``prompt`` is a list.

    Raises:
        GenmeterError: ``no_prompt``, naming the field that was looked at.
    """
    if field is not None:
        value = lookup(sample, field)
        texts = _texts_at(sample, value, field)
        if not texts:
            found = "nothing" if value is None else "an empty text" if value == "" else json_name(value)
            raise GenmeterError("no_prompt", f"expected a text at {field}, found {found}")
        return texts
    if isinstance(sample.get("prompt"), list):
        texts = _texts_at(sample, sample["prompt"], "prompt")
        if texts:
            return texts
    messages = sample.get("messages")
    if isinstance(messages, list) and messages:
        return [_last_user_text(sample, messages)]
    for key in _PROMPT_KEYS:
        texts = _texts_at(sample, sample.get(key), key)
        if texts:
            return texts
    raise GenmeterError("no_prompt", "messages is empty; expected a user message with a text")


def captions(sample: dict[str, Any], *, field: str | None = None, from_references: bool = True) -> list[Found]:
    """Texts that describe the output: the prompt of a task that starts from text, the target caption of an edit.

    Args:
        sample: A sample in the standard's shape.
        field: As for :func:`prompt_texts`.
        from_references: Whether the text of a reference may be the target caption. Not for a metric that compares
            the caption with the references: it would compare them with themselves.

    Raises:
        GenmeterError: ``not_applicable`` for an edit without a target caption, whose prompt says what to do and not
            what is to be seen; ``no_prompt`` as for :func:`prompt_texts`.
    """
    if not starts_from_media(sample):
        return prompt_texts(sample, field=field)
    found = target_captions(sample, from_references=from_references)
    if not found:
        where = f"{TARGET_FIELD} or references[*].answer" if from_references else TARGET_FIELD
        task = f"text-to-{output_modality(sample) or 'image'}"
        raise GenmeterError(
            "not_applicable",
            "an editing instruction is no caption, and the sample holds no text that describes the output",
            f"put one into {where}; if the prompt describes the output, state the task_type {task}",
        )
    return found


def target_captions(sample: dict[str, Any], *, from_references: bool = True) -> list[Found]:
    """Texts that describe what an edit should lead to: ``metadata.target_prompt``, else the texts of the references."""
    found = _texts_at(sample, lookup(sample, TARGET_FIELD), TARGET_FIELD)
    if found or not from_references:
        return found
    trouble: list[str] = []
    return [
        Found(value, origin_path(sample, path), (), index)
        for index, value, path in _in_references(sample, "text", trouble)
    ]


def starts_from_media(sample: dict[str, Any]) -> bool:
    """Whether the model was given media to change: by the task (``image-to-image``), or by the messages without one."""
    name = task_type(sample)
    if name is None:
        return any(inputs(sample, modality) for modality in _MADE.values())
    return "-to-" in name and not name.startswith("text-to-")


def predictions(sample: dict[str, Any], modality: Modality) -> list[Found]:
    """The model's outputs of one modality, in order: one for each candidate.

    In each ``predict_result`` entry the media fragments of the message count; without one, ``answer`` as a path or
    URI of the modality; without that, a lone text fragment that is one (flag ``prediction_from_text``). Entries
    with none of these are passed over if another entry has one.

    Raises:
        GenmeterError: ``no_prediction``, naming the field that was looked at.
    """
    entries = sample.get("predict_result")
    found: list[Found] = []
    trouble: list[str] = []
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        base = f"predict_result[{index}]"
        for value, path, flags in _in_entry(entry, base, modality, trouble):
            found.append(Found(value, origin_path(sample, path), flags, index))
    if found:
        return found
    if not entries:
        raise GenmeterError("no_prediction", "predict_result holds no entry", "run the model first")
    raise GenmeterError("no_prediction", _nothing(f"predict_result holds no {modality}", trouble))


def references(
    sample: dict[str, Any], modality: Modality, *, source: Literal["references", "raw_assets"] = "references"
) -> list[Found]:
    """The references of one modality, in order.

    Args:
        sample: A sample in the standard's shape.
        modality: What to look for.
        source: ``references``: the ``references`` field, else ``raw_assets`` (flag ``reference_from_raw_assets``)
            less whatever is also an input of the sample, so that an edit is never scored against its own source.
            ``raw_assets``: that field alone, inputs included, for those who keep their targets there.

    Raises:
        GenmeterError: ``no_reference``, naming the fields that were looked at.
    """
    trouble: list[str] = []
    if source == "references":
        found = [
            Found(value, origin_path(sample, path), (), index)
            for index, value, path in _in_references(sample, modality, trouble)
        ]
        if found:
            return found
    assets = list(_in_raw_assets(sample, modality))
    if source == "references" and assets:
        taken = {asset_key(item.value) for item in inputs(sample, modality)}
        kept = [(value, path) for value, path in assets if asset_key(value) not in taken]
        if not kept:
            raise GenmeterError(
                "no_reference",
                f"references holds no {modality}, and raw_assets.{modality} only what is an input of the sample",
                "set references_from: raw_assets to score against it nevertheless",
            )
        assets = kept
    if assets:
        flags = ("reference_from_raw_assets",)
        return [Found(value, origin_path(sample, path), flags, i) for i, (value, path) in enumerate(assets)]
    where = "references and raw_assets hold" if source == "references" else "raw_assets holds"
    raise GenmeterError("no_reference", _nothing(f"{where} no {modality}", trouble))


def inputs(sample: dict[str, Any], modality: Modality) -> list[Found]:
    """The assets of one modality that the model was given, from all messages, in order; empty if there are none."""
    found: list[Found] = []
    messages = sample.get("messages")
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        base = f"messages[{number}].content"
        for part, below in read_content(content):
            if part.kind == modality:
                found.append(Found(part.value, origin_path(sample, part.path(base + below)), (), len(found)))
    return found


def asset_key(value: Any) -> Any:
    """What two spellings of one path have in common (``./a.png``, ``a.png``, ``file:`` with escapes)."""
    if not isinstance(value, str):
        return id(value)
    if value[:5].lower() == "file:":
        value = unquote(value[7:] if value[5:7] == "//" else value[5:])
    elif "://" in value or value[:5].lower() == "data:":
        return value
    return posixpath.normpath(value)


def _last_user_text(sample: dict[str, Any], messages: list[Any]) -> Found:
    users = [
        (number, message)
        for number, message in enumerate(messages)
        if isinstance(message, dict) and str(message.get("role") or "user").lower() == "user"
    ]
    if not users:
        raise GenmeterError("no_prompt", "messages holds no message of the role user")
    number, message = users[-1]
    base = f"messages[{number}].content"
    trouble: list[str] = []
    texts = []
    for part, below in read_content(message.get("content")):
        if part.kind == "text" and part.value.strip():
            texts.append((part.value, part.path(base + below)))
        elif part.kind == "bad":
            trouble.append(f"{part.path(base + below)}: {part.value}")
    if not texts:
        raise GenmeterError("no_prompt", _nothing(f"{base} holds no text", trouble))
    path = texts[0][1] if len(texts) == 1 else base
    flags = ("multi_turn_prompt",) if len(users) > 1 else ()
    return Found("\n".join(text for text, _ in texts), origin_path(sample, path), flags)


def _texts_at(sample: dict[str, Any], value: Any, path: str) -> list[Found]:
    """The texts at a field: a text, a list of texts, or a message's list of fragments (joined)."""
    if isinstance(value, str):
        return [Found(value, origin_path(sample, path))] if value.strip() else []
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return [
                Found(item, origin_path(sample, f"{path}[{i}]"), (), i) for i, item in enumerate(value) if item.strip()
            ]
        texts = [part.value for part, _ in read_content(value) if part.kind == "text"]
        return [Found("\n".join(texts), origin_path(sample, path))] if any(t.strip() for t in texts) else []
    return []


def _in_entry(
    entry: Any, base: str, modality: Modality, trouble: list[str]
) -> Iterator[tuple[Any, str, tuple[str, ...]]]:
    if not isinstance(entry, dict):
        trouble.append(f"{base}: expected an object, found {json_name(entry)}")
        return
    message = entry.get("message")
    where = f"{base}.message.content"
    parts = read_content(message.get("content")) if isinstance(message, dict) else []
    if modality == "text":
        texts = [part.value for part, _ in parts if part.kind == "text"]
        if any(text.strip() for text in texts):
            yield "\n".join(texts), where, ()
        elif isinstance(entry.get("answer"), str) and entry["answer"].strip():
            yield entry["answer"], f"{base}.answer", ()
        return
    media = [(part, below) for part, below in parts if part.kind == modality]
    if media:
        for part, below in media:
            yield part.value, part.path(where + below), ()
        return
    answers = list(_media_values(entry.get("answer"), f"{base}.answer", modality, trouble))
    if answers:
        for value, path in answers:
            yield value, path, ()
        return
    if len(parts) == 1 and parts[0][0].kind == "text" and names_media(parts[0][0].value, modality):
        part, below = parts[0]
        yield part.value.strip(), part.path(where + below), ("prediction_from_text",)
        return
    trouble.extend(_describe(part, part.path(where + below)) for part, below in parts if part.kind != "text")


def _in_references(sample: dict[str, Any], modality: Modality, trouble: list[str]) -> Iterator[tuple[int, Any, str]]:
    value = sample.get("references")
    made = output_modality(sample)
    items = value if isinstance(value, list) else [] if value is None else [value]
    for index, item in enumerate(items):
        path = f"references[{index}]" if isinstance(value, list) else "references"
        if isinstance(item, dict) and "answer" in item:
            item, path = item["answer"], f"{path}.answer"
        if modality == "text":
            texts = [part.value for part, _ in read_content(item) if part.kind == "text"]
            # The path of a reference image, written as a plain string, is no caption.
            texts = [text for text in texts if text.strip() and not (made and names_media(text, made))]
            if texts:
                yield index, "\n".join(texts), path
            continue
        for found, where in _media_values(item, path, modality, trouble):
            yield index, found, where


def _media_values(value: Any, path: str, modality: Modality, trouble: list[str]) -> Iterator[tuple[Any, str]]:
    """Assets of the modality in a value that may be a path, a fragment, an object, or a list of these."""
    for part, below in read_content(value):
        where = part.path(path + below)
        if part.kind == modality:
            yield part.value, where
        elif part.kind == "text":
            if names_media(part.value, modality):
                yield part.value.strip(), where
        else:
            trouble.append(_describe(part, where))


def _in_raw_assets(sample: dict[str, Any], modality: Modality) -> Iterator[tuple[Any, str]]:
    assets = sample.get("raw_assets")
    if not isinstance(assets, dict) or modality == "text":
        return
    for key in (modality, f"{modality}s", f"{modality}_url", f"{modality}_urls"):
        value = assets.get(key)
        for part, below in read_content(value):
            # Under its modality's key a plain string is a path, whatever its suffix.
            if part.kind in (modality, "file") or (part.kind == "text" and part.value.strip()):
                yield part.value, part.path(f"raw_assets.{key}{below}")


def _describe(part: Part, path: str) -> str:
    return f"{path}: {part.value}" if part.kind == "bad" else f"{path} is {_article(part.kind)}"


def _article(kind: str) -> str:
    return {"image": "an image", "audio": "audio", "video": "a video"}.get(kind, "a file of another kind")


def _nothing(what: str, trouble: list[str]) -> str:
    return what + (f" ({'; '.join(trouble[:3])})" if trouble else "")
