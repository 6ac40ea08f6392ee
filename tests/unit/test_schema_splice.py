"""One member of a JSON line changed in place: nothing else of the line is another byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genmeter.schema.splice import put_member, without_member

KEYS = st.sampled_from(["id", "a b", "é", "eval_result", "sample", '"', "\\", "{"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
RECORDS = st.dictionaries(KEYS, VALUES, max_size=5)
STYLES = st.sampled_from(
    [
        {},
        {"separators": (",", ":")},
        {"separators": (" , ", " : ")},
        {"ensure_ascii": False},
        {"indent": 1},
    ]
)


def written(record: Any, style: dict[str, Any]) -> bytes:
    text = json.dumps(record, **style)
    return text.replace("\n", "\r" if style.get("indent") else "").encode("utf-8", "backslashreplace")


@given(RECORDS, STYLES, VALUES, VALUES)
def test_put_sets_the_member_and_nothing_else(record: dict[str, Any], style: Any, one: Any, two: Any) -> None:
    line = written(record, style)
    new = put_member(line, (), "eval_result", json.dumps(one).encode())
    assert repr(json.loads(new)) == repr({**record, "eval_result": one})
    bare = without_member(line, (), "eval_result")
    assert repr(json.loads(bare)) == repr({k: v for k, v in record.items() if k != "eval_result"})
    # What identifies a line is the same before and after any number of results.
    assert without_member(new, (), "eval_result") == bare
    assert put_member(new, (), "eval_result", json.dumps(two).encode()) == put_member(
        line, (), "eval_result", json.dumps(two).encode()
    )


@given(RECORDS, RECORDS, STYLES)
def test_inside_another_object(outer: dict[str, Any], inner: dict[str, Any], style: Any) -> None:
    record = {**outer, "sample": inner}
    new = put_member(written(record, style), ("sample",), "eval_result", b"7")
    assert repr(json.loads(new)) == repr({**record, "sample": {**inner, "eval_result": 7}})


def test_forms_that_a_parser_would_change_stay() -> None:
    line = rb'{ "n":1.0, "big":123456789012345678901234567890,"e":1E+2, "u":"\u00e9\/", "x":NaN, "n" : 1.50 }'
    new = put_member(line, (), "eval_result", b"{}")
    assert new == line.replace(b" }", b', "eval_result": {} }')
    assert without_member(new, (), "eval_result") == line


def test_the_last_of_a_repeated_key_is_replaced() -> None:
    assert put_member(b'{"k": 1, "k": 2}', (), "k", b"3") == b'{"k": 1, "k": 3}'


@pytest.mark.parametrize("line", [b"", b"[]", b'{"a": 1', b'{"a" 1}', b'{"a": 1}}'[:7], b"\xff{}"])
def test_what_is_no_object_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        put_member(line, (), "k", b"1")
