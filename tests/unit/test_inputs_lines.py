"""Lines as files really hold them."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from pathlib import Path

import pytest

from genmeter.errors import GenmeterError
from genmeter.inputs import lines as module
from genmeter.inputs.lines import iter_lines, numbered_lines


def write(folder: Path, data: bytes, name: str = "a.jsonl") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n\n  \n\t\r\n", []),
        (b"a\nb\n", [(1, b"a"), (2, b"b")]),
        (b"a\nb", [(1, b"a"), (2, b"b")]),
        (b"a\r\nb\r\n", [(1, b"a"), (2, b"b")]),
        (b"a\r\r\n", [(1, b"a\r")]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", [(1, b"a"), (2, b"\xef\xbb\xbfb")]),
        (b"\xef\xbb\xbf\n\na\n", [(3, b"a")]),
        (b"\n\na\n\n b \n", [(3, b"a"), (5, b" b ")]),
        ("a\u2028b\u2029c\x85d\x0be\x0cf\rg\n".encode(), [(1, "a\u2028b\u2029c\x85d\x0be\x0cf\rg".encode())]),
        (b"a\xff\xfe\nb\n", [(1, b"a\xff\xfe"), (2, b"b")]),
        ("a\n\né\n".encode("utf-16"), [(1, b"a"), (3, "é".encode())]),
        (b"\xfe\xff" + "a\n😀".encode("utf-16-be"), [(1, b"a"), (2, "😀".encode())]),
    ],
)
def test_lines_plain_and_compressed(tmp_path: Path, data: bytes, expected: list[tuple[int, bytes]]) -> None:
    assert list(numbered_lines(write(tmp_path, data))) == expected
    assert list(iter_lines(write(tmp_path, data))) == [line for _, line in expected]
    assert list(numbered_lines(write(tmp_path, gzip.compress(data), "wrong.name"))) == expected


def test_long_lines_over_many_chunks(tmp_path: Path) -> None:
    rows = [b"x" * n for n in (1, 300_000, 5, 700_000, 262_144, 262_143)]
    data = b"\n".join(rows)
    assert list(iter_lines(write(tmp_path, data))) == rows
    assert list(iter_lines(write(tmp_path, gzip.compress(data)))) == rows


def test_several_gzip_members_and_padding(tmp_path: Path) -> None:
    data = gzip.compress(b"a\nb") + gzip.compress(b"c\nd\n") + b"\0" * 600
    assert list(iter_lines(write(tmp_path, data))) == [b"a", b"bc", b"d"]


def incompressible(count: int) -> list[bytes]:
    state, rows = 1, []
    for _ in range(count):
        state = zlib.crc32(state.to_bytes(4, "little"))
        rows.append(b"%08x" % state)
    return rows


@pytest.mark.parametrize("kept", [0.02, 0.3, 0.5, 0.95, 0.999])
def test_a_gzip_file_that_is_cut_keeps_what_came_before(tmp_path: Path, kept: float) -> None:
    rows = incompressible(40_000)
    packed = gzip.compress(b"\n".join(rows) + b"\n")
    found = list(numbered_lines(write(tmp_path, packed[: int(len(packed) * kept)])))
    *good, (number, error) = found
    assert isinstance(error, GenmeterError)
    assert error.code == "bad_line"
    assert "cut off" in error.message
    assert str(number) in error.message
    assert number == len(good) + 1
    assert [line for _, line in good] == rows[: len(good)]
    assert len(good) > 40_000 * kept * 0.97 - 40


@pytest.mark.parametrize("cut", [1, 4, 8])
def test_a_gzip_file_without_its_last_bytes(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path, gzip.compress(b"a\nb\n")[:-cut])
    reader = iter_lines(path)
    assert [next(reader), next(reader)] == [b"a", b"b"]
    with pytest.raises(GenmeterError, match=r"line 3 .*cut off"):
        next(reader)


def test_damage_in_a_gzip_file_is_one_error_at_its_place(tmp_path: Path) -> None:
    rows = incompressible(2000)
    packed = bytearray(gzip.compress(b"\n".join(rows) + b"\n"))
    packed[-6] ^= 0xFF  # the checksum
    *good, (number, error) = list(numbered_lines(write(tmp_path, bytes(packed))))
    assert isinstance(error, GenmeterError)
    assert [line for _, line in good] == rows
    assert number == 2001
    second = gzip.compress(b"a\n") + b"\x1f\x8b\x08garbage"
    *good, (number, error) = list(numbered_lines(write(tmp_path, second)))
    assert ([line for _, line in good], number) == ([b"a"], 2)
    assert isinstance(error, GenmeterError)


def test_a_line_beyond_the_limit_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINE", 1000)
    data = b"a\n" + b"x" * 400_000 + b"\nb\n" + b"y" * 999 + b"\n" + b"z" * 5000
    for stored in (data, gzip.compress(data)):
        found = list(numbered_lines(write(tmp_path, stored)))
        assert [n for n, _ in found] == [1, 2, 3, 4, 5]
        assert [line for _, line in found if isinstance(line, bytes)] == [b"a", b"b", b"y" * 999]
        assert all("longer than 1000" in str(line) for _, line in found if isinstance(line, GenmeterError))


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    for data in (b"\xef\xbb\xbfa\r\n\nb", gzip.compress(b"a\n\nb")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Pipe(data)))
        assert list(numbered_lines("-")) == [(1, b"a"), (3, b"b")]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(iter_lines(tmp_path / "none"))
