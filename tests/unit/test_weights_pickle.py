"""The restricted pickle reader: plain arrays come through, nothing else does, nothing ever runs."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import pickletools
import struct
import tracemalloc
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genmeter.errors import GenmeterError
from genmeter.weights.pickle_reader import read_arrays

DTYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1", "c8", "c16"]


def read(data: bytes) -> Any:
    return read_arrays(io.BytesIO(data))


def refused(data: bytes) -> GenmeterError:
    with pytest.raises(GenmeterError) as caught:
        read(data)
    assert caught.value.code == "weights_mismatch"
    return caught.value


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_come_back_as_they_were(protocol: int, dtype: str) -> None:
    rng = np.random.default_rng(3)
    array = (rng.random((3, 4, 2)) * 100).astype(dtype)
    tree = {
        "a": array,
        "fortran": np.asfortranarray(array),
        "swapped": array.astype(array.dtype.newbyteorder(">")),
        "empty": array[:0],
        "zero-d": np.array(array[0, 0, 0]),
        "scalar": array[0, 0, 0],
        "plain": {"n": 7, "x": -1.5, "big": 2**70, "s": "Füße", "none": None, "yes": True, "l": [1, (2, 3), ()]},
    }
    found = read(pickle.dumps(tree, protocol=protocol))
    assert found["plain"] == tree["plain"]
    for name in ("a", "fortran", "swapped", "empty", "zero-d"):
        assert found[name].dtype == np.dtype(dtype)
        assert found[name].dtype.isnative
        np.testing.assert_array_equal(found[name], tree[name])
    assert found["scalar"] == tree["scalar"]
    assert found["scalar"].dtype == np.dtype(dtype)


def test_names_of_old_and_new_numpy_are_both_known() -> None:
    data = pickle.dumps({"x": np.arange(3.0)}, protocol=2)
    for old, new in (
        (b"numpy._core.multiarray", b"numpy.core.multiarray"),
        (b"numpy.core.multiarray", b"numpy._core.multiarray"),
    ):
        np.testing.assert_array_equal(read(data.replace(old, new))["x"], np.arange(3.0))


class Runs:
    """What a hostile file does: its unpickling touches a file."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", ["system", "open", "exec", "eval", "mkdir", "getattr"])
def test_nothing_ever_runs(tmp_path: Path, protocol: int, kind: str) -> None:
    marker = tmp_path / "marker"
    call = {
        "system": Runs(os.system, f"touch {marker}"),
        "open": Runs(open, str(marker), "w"),
        "exec": Runs(exec, f"open({str(marker)!r}, 'w')"),
        "eval": Runs(eval, f"open({str(marker)!r}, 'w')"),
        "mkdir": Runs(os.mkdir, str(marker)),
        "getattr": Runs(getattr, "text", "upper"),
    }[kind]
    data = pickle.dumps({"weights": np.zeros(3), "more": [call]}, protocol=protocol)
    error = refused(data)
    assert not marker.exists()
    assert "safetensors" in (error.hint or "")  # It says how to convert.
    if kind != "getattr":
        pickle.loads(data)
        assert marker.exists()  # The same file does run where pickle is let loose: the test can fail.


@pytest.mark.parametrize(
    "value",
    [
        np.array([{"a": 1}], dtype=object),
        np.zeros(2, dtype=[("x", "f4"), ("y", "i4")]),
        np.array(["text"]),
        np.array([b"bytes"]),
        np.array(["2020-01-01"], dtype="M8[D]"),
        np.ma.masked_array([1.0], [True]),
        {1.5: 2},
        {(1, 2): 2},
        {1, 2},
        OrderedDict(a=1),
        complex(1, 2),
        Path("x"),
        np.float64,
        np.zeros,
        np.dtype("f4"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_everything_but_plain_arrays_is_refused(value: Any, protocol: int) -> None:
    refused(pickle.dumps({"x": value}, protocol=protocol))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_truncation_and_many_damages_are_typed_errors() -> None:
    data = pickle.dumps({"a": np.arange(6.0).reshape(2, 3), "b": [1, "x", np.float32(2)]}, protocol=3)
    for cut in range(len(data)):
        refused(data[:cut])
    rng = np.random.default_rng(0)
    for _ in range(3000):
        damaged = bytearray(data)
        for position in rng.integers(0, len(data), rng.integers(1, 4)):
            damaged[position] = rng.integers(0, 256)
        with contextlib.suppress(GenmeterError):
            read(bytes(damaged))


@pytest.mark.parametrize("text", [b"", b"<!DOCTYPE html><html></html>", b"{}", b"PK\x03\x04", b"\x00" * 64])
def test_other_files_are_typed_errors(text: bytes) -> None:
    refused(text)


def _array_program(count: int) -> bytes:
    """A pickle of ``count`` arrays over one memoized megabyte."""
    single = pickle.dumps(np.zeros(1 << 20, "u1"), protocol=3)
    ops = list(pickletools.genops(single))
    body = single[ops[1][2] : ops[-1][2]]
    start = next(pos for op, arg, pos in ops if op.name == "BINBYTES" and len(arg) == 1 << 20)
    stop = next(pos for op, _, pos in ops if pos > start and op.name in ("BINPUT", "LONG_BINPUT"))
    memo = single[stop + 1]
    first = body
    again = single[ops[1][2] : start] + b"h" + bytes([memo]) + single[stop + 2 : ops[-1][2]]
    return b"\x80\x03]" + b"(" + first + again * (count - 1) + b"e."


BOMBS = {
    "bytes that are not there": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.",
    "text that is not there": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x.",
    "bytearray that is not there": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.",
    "number without end": b"L" + b"9" * 5_000_000 + b"L\n.",
    "shape": pickle.dumps(np.zeros(2, "u1"), protocol=2).replace(b"K\x02\x85", b"\x8a\x06\x00\x00\x00\x00\x00\x01\x85"),
    "one megabyte a thousand times": _array_program(1000),
    "shared lists": b"\x80\x02]"
    + b"".join(b"q" + bytes([i]) + b"]h" + bytes([i]) + b"ah" + bytes([i]) + b"a" for i in range(30))
    + b".",
    "a list that holds itself": b"\x80\x02]q\x00h\x00a.",
    "depth": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "steps": b"\x80\x02" + b"}" * 3_000_000 + b".",
}


@pytest.mark.parametrize("name", BOMBS)
def test_memory_stays_in_proportion_to_the_file(name: str) -> None:
    data = BOMBS[name]
    tracemalloc.start()
    try:
        refused(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(data) + 50e6 * (name == "steps") + 16e6


def test_an_index_far_away_costs_nothing() -> None:
    """Python's own machine makes room for four thousand million entries here."""
    tracemalloc.start()
    try:
        assert read(b"\x80\x02Kxr" + struct.pack("<I", 0xFFFFFFF0) + b"}.") == {}
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


def test_two_arrays_may_share_little() -> None:
    """The bomb of one megabyte is refused for its size, not for its form."""
    refused(_array_program(2))
    small = np.zeros(8)
    found = read(pickle.dumps([small, small, np.float32(1)], protocol=4))
    np.testing.assert_array_equal(found[1], small)
