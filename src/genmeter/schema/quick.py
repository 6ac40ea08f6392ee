"""A short way to see that a sample follows the standard, for the common ones.

:func:`surely_valid` says yes only where the models of :mod:`genmeter.schema.models` would find nothing; for everything
else it gives no answer, and they are asked. It is several times faster than they are, and a run reads every line twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_REQUIRED = ("schema_version", "id", "messages")
_URLS = frozenset({"image_url", "audio_url", "video_url", "file_url"})


def surely_valid(sample: dict[str, Any]) -> bool:
    """Whether a sample obviously follows the standard; ``False`` only means that the models have to be asked."""
    for key in _REQUIRED:
        if key not in sample:
            return False
    return _fields(sample, _SAMPLE)


def _fields(record: dict[str, Any], known: Mapping[str, Callable[[Any], bool]]) -> bool:
    for key, value in record.items():
        check = known.get(key)
        if check is not None:
            if not check(value):
                return False
        elif type(key) is not str or not key.isascii():
            return False
    return True


def is_text(value: Any) -> bool:
    """Whether a value is surely a string to the models: no subclass and no lone surrogates, which they refuse."""
    return type(value) is str and (value.isascii() or _whole(value))


def _whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text_or_none(value: Any) -> bool:
    return value is None or is_text(value)


def _none(value: Any) -> bool:
    return value is None


def _anything(value: Any) -> bool:
    return True


def _number(value: Any) -> bool:
    return value is None or type(value) is int or type(value) is float


def _label(value: Any) -> bool:
    return _number(value) or is_text(value)


def _index(value: Any) -> bool:
    return value is None or type(value) is int


def _object(value: Any) -> bool:
    return value is None or (type(value) is dict and _fields(value, {}))


def _list_or_none(value: Any) -> bool:
    return value is None or type(value) is list


def _fragment(value: Any) -> bool:
    if type(value) is not dict:
        return _text_or_none(value)
    name = value.get("type")
    if type(name) is str:
        if name == "text":
            return "text" in value and _text_or_none(value["text"]) and _fields(value, {})
        if name in _URLS:
            payload = value.get(name)
            return (is_text(payload) or _object(payload)) and _fields(value, {})
    return _fields(value, {})


def _content(value: Any) -> bool:
    return all(map(_fragment, value)) if type(value) is list else _fragment(value)


def _function(value: Any) -> bool:
    return value is None or (type(value) is dict and "name" in value and _fields(value, _FUNCTION))


def _tool_calls(value: Any) -> bool:
    return value is None or (type(value) is list and all(type(c) is dict and _fields(c, _TOOL_CALL) for c in value))


def _message(value: Any) -> bool:
    return type(value) is dict and _fields(value, _MESSAGE)


def _messages(value: Any) -> bool:
    return type(value) is list and all(map(_message, value))


def _trajectories(value: Any) -> bool:
    return value is None or (type(value) is list and all(map(_messages, value)))


def _reference(value: Any) -> bool:
    if type(value) is dict and "answer" in value:
        return _fields(value, _REFERENCE)
    return _fragment(value)


def _references(value: Any) -> bool:
    return all(map(_reference, value)) if type(value) is list else _text_or_none(value)


def _prediction(value: Any) -> bool:
    return type(value) is dict and _fields(value, _PREDICTION)


def _predictions(value: Any) -> bool:
    return value is None or (type(value) is list and all(map(_prediction, value)))


def _eval_config(value: Any) -> bool:
    return value is None or (type(value) is dict and _fields(value, _EVAL_CONFIG))


_FUNCTION: Mapping[str, Callable[[Any], bool]] = {"name": is_text, "arguments": lambda v: is_text(v) or _object(v)}
_TOOL_CALL: Mapping[str, Callable[[Any], bool]] = {"id": _text_or_none, "type": _text_or_none, "function": _function}
_MESSAGE: Mapping[str, Callable[[Any], bool]] = {
    "role": is_text,
    "content": _content,
    "tool_calls": _tool_calls,
    "tool_call_id": _text_or_none,
}
_REFERENCE: Mapping[str, Callable[[Any], bool]] = {"answer": _anything, "meta": _object}
_EVAL_CONFIG: Mapping[str, Callable[[Any], bool]] = {"metrics": _list_or_none, "judge_prompt": _text_or_none}
_PREDICTION: Mapping[str, Callable[[Any], bool]] = {
    "index": _index,
    "message": lambda value: value is None or _message(value),
    "raw_response": _anything,
    "usage": _object,
    "latency_ms": _number,
}
# Fields that few samples of generated media have are left to the models.
_SAMPLE: Mapping[str, Callable[[Any], bool]] = {
    "schema_version": is_text,
    "id": is_text,
    "messages": _messages,
    "task_type": _text_or_none,
    "options": _none,
    "references": _references,
    "label": _label,
    "few_shot_examples": _none,
    "golden_trajectories": _trajectories,
    "sandbox": _none,
    "metadata": _object,
    "data_tag": _object,
    "raw_assets": _object,
    "tools": _none,
    "tool_choice": _text_or_none,
    "sampling_params": _object,
    "generation_params": _object,
    "eval_config": _eval_config,
    "unconditioned_input": _text_or_none,
    "predict_result": _predictions,
    "eval_result": _object,
}
