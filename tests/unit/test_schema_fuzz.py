"""Whatever stands in a record, reading it ends in an answer or in a typed error."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genmeter.errors import GenmeterError
from genmeter.schema import roles
from genmeter.schema.forms import read_form
from genmeter.schema.jsonio import dumps, loads
from genmeter.schema.results import merge_eval_result
from genmeter.schema.snapshot import snapshot_record, snapshot_uris

_KEYS = st.sampled_from(
    """id schema_version messages role content type text image_url audio_url url image input_audio data format source
    references answer raw_assets predict_result message output prompt reference input sample metadata task_type
    label eval_config eval_result metrics previous variant overall judge error code lpips data_tag options""".split()  # noqa: SIM905
)
_TEXTS = st.one_of(
    st.sampled_from(
        ["", " ", "v1", "user", "text", "image_url", "image", "input_audio", "file", "a.png", "b.wav", "text-to-image"]
    ),
    st.text(max_size=4),
)
_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), _TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_KEYS, inner, max_size=5)),
    max_leaves=25,
)
_FRAGMENT = st.dictionaries(_KEYS, _JSON, max_size=4) | _TEXTS
_MESSAGE = st.fixed_dictionaries({}, optional={"role": _TEXTS, "content": st.lists(_FRAGMENT, max_size=3) | _JSON})
_SAMPLE = st.fixed_dictionaries(
    {"schema_version": st.just("v1"), "id": st.just("a"), "messages": st.lists(_MESSAGE, max_size=3)},
    optional={
        "task_type": _TEXTS,
        "references": st.lists(_FRAGMENT | _JSON, max_size=3),
        "raw_assets": st.dictionaries(st.sampled_from(["image", "images", "audio", "x"]), _JSON, max_size=3),
        "predict_result": st.lists(
            st.fixed_dictionaries({}, optional={"message": _MESSAGE, "answer": _JSON, "index": st.integers()}),
            max_size=3,
        ),
        "metadata": st.dictionaries(_KEYS, _JSON, max_size=3),
        "prompt": _JSON,
        "label": _TEXTS,
    },
)
_OBJECT = st.dictionaries(_KEYS, _JSON, max_size=8)
_ENTRY = st.dictionaries(_KEYS, _JSON, max_size=3)
_OLD = st.dictionaries(_KEYS, _JSON | st.dictionaries(_KEYS, _ENTRY | _JSON, max_size=3), max_size=5)
_NEW = st.fixed_dictionaries(
    {},
    optional={
        "metrics": st.dictionaries(_KEYS, _ENTRY, max_size=3),
        "overall": _ENTRY,
        "judge": _ENTRY,
        "error": _ENTRY,
    },
)
_QUIET = settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def attempt(call: Any, *args: Any) -> tuple[Any, str | None]:
    """The result, or the code of the typed error; any other exception is a failure of the test."""
    try:
        return call(*args), None
    except GenmeterError as error:
        return None, error.code


@_QUIET
@given(_OBJECT | _SAMPLE | st.fixed_dictionaries({"sample": _SAMPLE}))
def test_any_record_is_read_or_refused_and_never_changed(record: dict[str, Any]) -> None:
    before = copy.deepcopy(record)
    form, code = attempt(read_form, record)
    assert record == before
    if form is None:
        assert code == "bad_sample"
        return
    sample = form.sample
    roles.task_type(sample)
    roles.inputs(sample, "image")
    calls = {
        "no_prompt": [lambda: roles.prompt_texts(sample), lambda: roles.prompt_texts(sample, field="metadata.text")],
        "no_prediction": [lambda m=m: roles.predictions(sample, m) for m in ("image", "audio", "text")],
        "no_reference": [
            lambda m=m, s=s: roles.references(sample, m, source=s)
            for m in ("image", "audio", "text")
            for s in ("references", "raw_assets")
        ],
    }
    for expected, reads in calls.items():
        for read in reads:
            found, code = attempt(read)
            assert found or code == expected
            assert all(isinstance(item.path, str) and isinstance(item.value, str) for item in found or ())
    asked: list[str] = []
    data = snapshot_record(sample, lambda uri: asked.append(uri) or "digest")
    assert isinstance(json.loads(data), dict)
    assert asked == snapshot_uris(sample)
    assert record == before


@_QUIET
@given(_JSON | _OLD, _NEW)
def test_any_results_merge(old: Any, new: dict[str, Any]) -> None:
    before = copy.deepcopy((old, new))
    merged = merge_eval_result(old, new)
    assert (old, new) == before
    assert isinstance(merged, dict)
    assert loads(dumps(merged)) == merged


@_QUIET
@given(_JSON)
def test_json_round_trip(value: Any) -> None:
    assert loads(dumps(value)) == value == loads(json.dumps(value))
