"""What a pipeline does with a sample on its way: append what a model said, merge what a judge said, read both back.

The rules are those of the sample standard's host, kept exactly where results depend on them; where the host loses
something (a judge's results overwrite earlier ones, media become text), nothing is lost here.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from genmeter.schema.fragments import read_content, read_part
from genmeter.schema.normalize import copied
from genmeter.schema.results import merge_eval_result

_ANSWERS = ("answer", "text", "content")
_URLS = {"image": "image_url", "audio": "audio_url", "video": "video_url", "file": "file_url"}


def append_predict_result(sample: dict[str, Any], model_output: Mapping[str, Any] | None) -> None:
    """Append what a model returned to ``predict_result``. Changes ``sample``, never ``model_output``.

    An output that is empty or no mapping changes nothing. Where ``_sample_n`` is above 1 and ``answer`` is a list, each
    of its items becomes an entry, numbered by ``candidate_index``; otherwise there is one entry. An entry keeps all of
    the output; ``index`` is its place unless it has one, and ``message`` is built from the last of ``messages``, or
    from ``answer``, ``text`` or ``content``, unless it has one.

    Args:
        sample: A sample; a ``predict_result`` that is no list is replaced.
        model_output: What a model backend returned.
    """
    if not isinstance(model_output, Mapping) or not model_output:
        return
    entries = sample.get("predict_result")
    if not isinstance(entries, list):
        entries = sample["predict_result"] = []
    answers = model_output.get("answer")
    if isinstance(answers, list) and _several(model_output.get("_sample_n")):
        for number, answer in enumerate(answers):
            entry = copy.deepcopy({key: value for key, value in model_output.items() if key != "message"})
            entry.update(answer=copy.deepcopy(answer), index=len(entries), candidate_index=number)
            entry["message"] = _message({"answer": entry["answer"]})
            entries.append(entry)
        return
    entry = copy.deepcopy(dict(model_output))
    entry.setdefault("index", len(entries))
    if "message" not in entry:
        entry["message"] = _message(entry)
    entries.append(entry)


def update_eval_result(sample: dict[str, Any], judge_output: Mapping[str, Any] | None) -> None:
    """Merge what a judge returned into ``eval_result``, deeply for ``metrics``. Changes ``sample`` only.

    What another judge or metric wrote is kept: see :func:`genmeter.schema.results.merge_eval_result`. An output that is
    empty or no mapping changes nothing.
    """
    if isinstance(judge_output, Mapping) and judge_output:
        sample["eval_result"] = merge_eval_result(sample.get("eval_result"), copy.deepcopy(dict(judge_output)))


def resolve_model_output(sample: Mapping[str, Any], model_output: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the model said: the output at hand, else the last entry of ``predict_result``, else ``{}``. A copy."""
    if isinstance(model_output, Mapping) and model_output:
        return dict(model_output)
    entries = sample.get("predict_result")
    last = entries[-1] if isinstance(entries, list) and entries else None
    for found in (last, sample.get("model_output")):
        if isinstance(found, Mapping) and found:
            return dict(found)
    return {}


def resolve_judge_output(sample: Mapping[str, Any], judge_output: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the judge said: the output at hand, else ``eval_result``, else ``{}``. A copy.

    Before ``{}`` come what a run put beside the model's last output (``runtime_judge_outcome.judge_output``) and the
    older field ``judge_output``.
    """
    outcome = resolve_model_output(sample).get("runtime_judge_outcome")
    beside = outcome.get("judge_output") if isinstance(outcome, Mapping) else None
    for found in (judge_output, sample.get("eval_result"), beside, sample.get("judge_output")):
        if isinstance(found, Mapping) and found:
            return dict(found)
    return {}


def merge_multimodal_inputs(sample: dict[str, Any]) -> None:
    """Gather the media that the model is given in ``inputs.multi_modal_data``, a list per kind. Changes ``sample``.

    ``inputs`` becomes an object: a list becomes ``messages`` if there are none, a string ``prompt``; the ``prompt`` is
    in it too. Each kind holds what was there, then ``visual`` or ``audio``, then what the messages refer to, each once.
    Where the messages refer to media of a kind, only those are left, as messages are the main input. ``references``,
    ``predict_result`` and ``raw_assets`` are never read, and neither is a file.

    Args:
        sample: A sample; its ``inputs`` are replaced by an object that shares nothing with the earlier one.
    """
    inputs = sample.get("inputs")
    if isinstance(inputs, list) and not sample.get("messages"):
        sample["messages"] = inputs
    elif isinstance(inputs, str) and inputs:
        sample.setdefault("prompt", inputs)
    gathered = copied(inputs) if isinstance(inputs, Mapping) else {}
    prompt = inputs if isinstance(inputs, str) and inputs else sample.get("prompt")
    if prompt:
        gathered.setdefault("prompt", copied(prompt))
    held = gathered.get("multi_modal_data")
    media = dict(held) if isinstance(held, Mapping) else {}
    messages = sample.get("messages")
    for kind in _URLS:
        given = [value for key in (kind, f"{kind}s") for value in _listed(media.pop(key, None))]
        given += _listed(sample.get({"image": "visual", "audio": "audio"}.get(kind, "")))
        referred = [
            part.value
            for message in (messages if isinstance(messages, list) else ())
            if isinstance(message, Mapping)
            for part, _ in read_content(message.get("content"))
            if part.kind == kind
        ]
        kept = _once(given + referred)
        if referred:
            taken = {_key(value) for value in referred}
            kept = [value for value in kept if _key(value) in taken]
        if kept:
            media[kind] = kept
    if media:
        gathered["multi_modal_data"] = media
    else:
        gathered.pop("multi_modal_data", None)
    sample["inputs"] = gathered


def _listed(value: Any) -> list[Any]:
    """The places in a string, a fragment, or a list of these."""
    items = value if isinstance(value, list) else [value]
    parts = [read_part(item) for item in items if item is not None]
    return [part.value for part in parts if part.kind != "bad"]


def _once(values: list[Any]) -> list[Any]:
    first: dict[Any, Any] = {}
    for value in values:
        first.setdefault(_key(value), value)
    return list(first.values())


def _key(value: Any) -> Any:
    return value if isinstance(value, str) else id(value)


def _several(count: Any) -> bool:
    if isinstance(count, str):
        return count.isdigit() and int(count) > 1
    return isinstance(count, int) and not isinstance(count, bool) and count > 1


def _message(output: Mapping[str, Any]) -> dict[str, Any]:
    messages = output.get("messages")
    if isinstance(messages, Sequence) and messages and isinstance(messages[-1], Mapping):
        message = copy.deepcopy(dict(messages[-1]))
        return {**message, "role": message.get("role") or "assistant", "content": _content(message.get("content"))}
    answer = next((output[key] for key in _ANSWERS if output.get(key)), "")
    if isinstance(answer, Mapping) and "content" in answer:
        answer = answer["content"]
    return {"role": "assistant", "content": _content(answer)}


def _content(value: Any) -> list[dict[str, Any]]:
    """Content as a list of fragments: texts, and media in the standard's form."""
    if value is None:
        return []
    if not isinstance(value, (str, list, Mapping)):
        return [{"type": "text", "text": str(value)}]
    content = []
    for part, _ in read_content(copy.deepcopy(value)):
        if part.kind in _URLS:
            content.append({"type": _URLS[part.kind], _URLS[part.kind]: {"url": part.value}})
        elif part.kind == "text":
            content.append({"type": "text", "text": part.value})
        else:
            content.append({"type": "text", "text": str(part.value)})
    return content
