"""Hypothesis strategies for the whole Sample standard, as JSON values, and for what is nearly a sample."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

# Lone surrogates are no Unicode: the models refuse them, and a validator of JSON Schema has no way to say so. Whole
# numbers written with a fraction (1.0) are integers to JSON Schema and floats to JSON readers.
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
FLOATS = st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: not x.is_integer())
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(WORDS, ANY, max_size=3)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A value or null."""
    return st.none() | strategy


def shape(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object of known fields, at times with one that the standard does not name."""
    return st.fixed_dictionaries(required, optional={**optional, "x_other": ANY})


URL = WORDS | st.sampled_from(["a.png", "https://example.org/b.wav", "data:image/png;base64,AA=="])
MEDIA = st.sampled_from(["image_url", "audio_url", "video_url", "file_url"]).flatmap(
    lambda name: shape({"type": st.just(name)}, {name: maybe(URL | shape({}, {"url": maybe(URL)}))})
)
FRAGMENT = st.one_of(
    shape({"type": st.just("text"), "text": maybe(WORDS)}, {}),
    MEDIA,
    shape({"type": st.sampled_from(["image", "input_audio", "novel", 3, None])}, {"image": ANY, "input_audio": ANY}),
    shape({}, {"url": URL}),
    WORDS,
    st.none(),
)
CONTENT = st.lists(FRAGMENT, max_size=3) | FRAGMENT
FUNCTION = shape({"name": WORDS}, {"arguments": maybe(WORDS | OBJECT)})
CALL = shape({}, {"id": maybe(WORDS), "type": st.just("function"), "function": maybe(FUNCTION)})
MESSAGE = shape(
    {},
    {
        "role": st.sampled_from(["user", "assistant", "system", "tool"]),
        "content": CONTENT,
        "tool_calls": maybe(st.lists(CALL, max_size=2)),
        "tool_call_id": maybe(WORDS),
    },
)
MESSAGES = st.lists(MESSAGE, max_size=2)
OPTION = shape({"id": WORDS | st.integers()}, {"content": maybe(WORDS)}) | WORDS
PLAIN = WORDS | st.integers() | FLOATS | st.none()
REFERENCE = st.one_of(
    shape({"answer": ANY | st.lists(FRAGMENT, max_size=2)}, {"meta": maybe(OBJECT), "type": ANY}),
    FRAGMENT,
    st.lists(FRAGMENT, max_size=2),
    PLAIN,
)
TOOL = shape(
    {"type": st.sampled_from(["function", "web_search"])},
    {"function": maybe(shape({"name": WORDS}, {"description": maybe(WORDS), "parameters": maybe(OBJECT)}))},
)
CHOICE = maybe(st.sampled_from(["auto", "none", "required"]) | OBJECT)
FORBIDDEN = ("few_shot_examples", "predict_result", "eval_result", "raw_assets", "sandbox")
FEW_SHOT = shape(
    {"messages": MESSAGES, "references": st.lists(REFERENCE, max_size=2)},
    {
        "options": maybe(st.lists(OPTION, max_size=2)),
        "label": PLAIN,
        "tools": maybe(st.lists(TOOL, max_size=2)),
        "tool_choice": CHOICE,
        **dict.fromkeys(FORBIDDEN, st.none()),
    },
)
PREDICTION = shape(
    {},
    {
        "index": maybe(st.integers()),
        "message": maybe(MESSAGE),
        "raw_response": ANY,
        "usage": maybe(OBJECT),
        "latency_ms": maybe(FLOATS | st.integers()),
    },
)
SAMPLE = shape(
    {"schema_version": WORDS, "id": WORDS.filter(bool), "messages": MESSAGES},
    {
        "task_type": maybe(WORDS),
        "options": maybe(st.lists(OPTION, max_size=3)),
        "references": maybe(st.lists(REFERENCE, max_size=3) | WORDS | OBJECT),
        "label": PLAIN,
        "few_shot_examples": maybe(st.lists(FEW_SHOT, max_size=2)),
        "golden_trajectories": maybe(st.lists(MESSAGES, max_size=2)),
        "sandbox": maybe(
            shape({}, {"image": maybe(WORDS), "files": maybe(OBJECT), "setup": maybe(WORDS), "env": maybe(OBJECT)})
        ),
        "metadata": maybe(OBJECT),
        "data_tag": maybe(OBJECT),
        "raw_assets": maybe(OBJECT),
        "tools": maybe(st.lists(TOOL, max_size=2)),
        "tool_choice": CHOICE,
        "sampling_params": maybe(OBJECT),
        "generation_params": maybe(OBJECT),
        "eval_config": maybe(shape({}, {"metrics": maybe(st.lists(ANY, max_size=2)), "judge_prompt": maybe(WORDS)})),
        "unconditioned_input": maybe(st.lists(MESSAGE | WORDS, max_size=2) | WORDS),
        "predict_result": maybe(st.lists(PREDICTION, max_size=2)),
        "eval_result": maybe(shape({}, {"overall": ANY, "metrics": ANY, "judge": ANY})),
    },
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything inside a JSON value."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


@st.composite
def nearly(draw: st.DrawFn) -> dict[str, Any]:
    """A sample in which up to three places hold something else, or nothing."""
    sample = copy.deepcopy(draw(SAMPLE))
    for _ in range(draw(st.integers(1, 3))):
        found = places(sample)
        if not found:
            break
        *parents, last = draw(st.sampled_from(found))
        holder = sample
        for step in parents:
            holder = holder[step]
        kind = draw(st.integers(0, 3))
        if kind == 0:
            del holder[last]
        elif kind == 1 and isinstance(holder, dict):
            name = draw(st.sampled_from(["type", "answer", "meta", "url", "image_url", "function", *FORBIDDEN]))
            holder[name] = draw(ANY)
        else:
            holder[last] = draw(ANY)
    return sample
