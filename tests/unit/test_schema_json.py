"""Strict JSON: what other tools write is read, what is written is valid everywhere."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from genmeter.schema.jsonio import MAX_DEPTH, all_finite, canonical, dumps, loads


@pytest.mark.parametrize(
    "text",
    [
        '{"a":123456789012345678901234567890}',
        '{"a":-9223372036854775809,"b":18446744073709551616}',
        '{"a":"\\ud800 lone","b":"\\udfff"}',
        '{"a":"\\ud83d\\ude00"}',
        '{"b":1,"a":[0.1,1.0,-0.0,1e-7,2e300,true,false,null,""]}',
        '{"z":"\\u2028\\u0085\\u0000é😀"}',
        "[]",
        '"text"',
    ],
)
def test_round_trip_loses_nothing(text: str) -> None:
    value = json.loads(text)
    assert loads(text) == value == loads(text.encode())
    again = dumps(loads(text.encode()))
    again.decode("utf-8")
    assert json.loads(again) == value
    assert type(json.loads(again)) is type(value)


def test_long_integers_stay_integers() -> None:
    number = 10**30 + 1
    assert loads(b'{"n":%d}' % number) == {"n": number}
    assert dumps({"n": number}) == b'{"n":%d}' % number


def test_keys_keep_their_order_and_non_ascii_its_form() -> None:
    assert dumps({"z": 1, "a": "\u00e9\u6c99"}) == '{"z":1,"a":"é沙"}'.encode()
    assert canonical({"z": 1, "a": {"y": 2, "b": 3}}) == b'{"a":{"b":3,"y":2},"z":1}'


def test_the_last_of_equal_keys_wins() -> None:
    assert loads(b'{"a":1,"a":2}') == {"a": 2}


def test_bare_nan_is_read_and_never_written() -> None:
    value = loads(b'{"a":NaN,"b":[Infinity,-Infinity]}')
    assert math.isnan(value["a"])
    assert value["b"] == [math.inf, -math.inf]
    assert loads(b'{"a":NaN,"b":[1e999,-Infinity,2.5]}', nan_as_null=True) == {"a": None, "b": [None, None, 2.5]}
    assert not all_finite(value)
    for bad in (value, {"a": [1, {"b": math.nan}]}, (1.0, -math.inf), np.float32("nan"), {"n": 10**40, "x": math.nan}):
        with pytest.raises(ValueError):
            dumps(bad)
        with pytest.raises(ValueError):
            canonical({"v": bad})


def test_null_is_no_nan() -> None:
    assert dumps({"score": None, "b": 1.5}) == b'{"score":null,"b":1.5}'


def test_numpy_scalars_are_written_plain() -> None:
    assert dumps({"a": np.float64(0.25), "b": np.int64(3), "c": np.float32(0.5)}) == b'{"a":0.25,"b":3,"c":0.5}'


def test_what_has_no_form_is_named() -> None:
    with pytest.raises(ValueError, match="ndarray"):
        dumps({"a": np.zeros(3)})
    with pytest.raises(ValueError, match="bytes"):
        dumps({"a": b"secret"})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"id": "a", "x": "cut of', "ends in the middle"),
        (b'{"id": "a", "x": ', "ends in the middle"),
        (b'{"id": "a", "x": {', "ends in the middle"),
        (b'{"id": "caf\xe9"}', "UTF-8"),
        (b'{"id": "\xe6\xb2', "UTF-8"),
        (b"{'id': 1}", "JSON"),
        (b'{"id": 1} {"id": 2}', "JSON"),
        (b"", "ends in the middle"),
        (b"nonsense", "JSON"),
        (b'{"a":' + b"9" * 5000 + b"}", "digits"),
    ],
)
def test_bad_json_says_why_and_never_what(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        loads(data)
    assert "nonsense" not in str(caught.value)
    assert "cut of" not in str(caught.value)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 1100, 100_000])
def test_deep_nesting_is_refused_at_any_depth(depth: int) -> None:
    with pytest.raises(ValueError, match=f"deeper than {MAX_DEPTH}|JSON"):
        loads(b'{"a":' * (depth - 1) + b"[]" + b"}" * (depth - 1))
    with pytest.raises(ValueError):
        loads(b"[" * depth + b"]" * depth)


def test_nesting_that_is_read_can_be_written() -> None:
    data = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert dumps(loads(data)) == data
    with_long = b"[" * (MAX_DEPTH - 1) + b"[%d]" % 10**30 + b"]" * (MAX_DEPTH - 1)
    assert dumps(loads(with_long)) == with_long


def test_many_brackets_in_breadth_are_no_depth() -> None:
    value = {"list": [[i, {"b": "[[[["}] for i in range(5000)]}
    assert loads(json.dumps(value)) == value
