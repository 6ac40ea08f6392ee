"""Inputs as one sequence: one line in, one line out, each with its sample or its reason."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from genmeter.inputs.source import open_source, run_name
from genmeter.schema.jsonio import dumps


def short(identity: Any = "a", **fields: Any) -> dict[str, Any]:
    record = {"id": identity, "output": "o.png", "reference": "r.png", **fields}
    return {key: value for key, value in record.items() if value is not None}


def write(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join((row if isinstance(row, bytes) else dumps(row)) + b"\n" for row in rows))
    return path


def test_every_line_has_its_place(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", short("1"), b"", b"{nonsense", short("2"))
    second = write(tmp_path / "b.jsonl", {"sample": short("3")}, [1])
    source = open_source([first, second])
    lines = list(source)
    assert [(x.index, x.file, x.number) for x in lines] == [
        (0, str(first), 1),
        (1, str(first), 3),
        (2, str(first), 4),
        (3, str(second), 1),
        (4, str(second), 2),
    ]
    assert [x.sample["id"] if x.sample else None for x in lines] == ["1", None, "2", "3", None]
    assert [x.error.code if x.error else None for x in lines] == [None, "bad_line", None, None, "bad_line"]
    assert [x.path for x in lines] == [(), (), (), ("sample",), ()]
    assert lines[0].record == short("1")
    assert lines[3].record == {"sample": short("3")}
    assert source.count == 5
    assert [x[:6] for x in source] == [x[:6] for x in lines]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"id": "secret-7", "output": "o', "ends in the middle"),
        (b'{"id": "secret-7\xff"}', "UTF-8"),
        (b"secret-7", "JSON"),
        (b'["secret-7"]', "found a list"),
        (b'"secret-7"', "found a string"),
        (b"7", "found a number"),
        (b"null", "found null"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "nested"),
        (b"{", "ends in the middle"),
    ],
)
def test_a_bad_line_is_one_error_and_the_others_are_read(tmp_path: Path, raw: bytes, words: str) -> None:
    path = write(tmp_path / "a.jsonl", short("1"), raw, short("2"))
    one, bad, two = open_source([path])
    assert one.sample
    assert two.sample
    assert bad.error is not None
    assert (bad.error.code, bad.record, bad.sample, bad.number) == ("bad_line", None, None, 2)
    assert "line 2" in bad.error.message
    assert words in bad.error.message
    assert "secret-7" not in str(bad.error.to_dict())


def test_a_last_line_that_was_half_written(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", short("1"), short("2", prompt="é" * 10))
    data = path.read_bytes()
    for cut in range(len(data) - 2, len(dumps(short("1"))) + 2, -1):
        path.write_bytes(data[:cut])
        lines = list(open_source([path]))
        assert len(lines) == 2
        assert lines[0].sample
        assert lines[1].error is not None
        assert lines[1].error.code == "bad_line"
    path.write_bytes(data[:-1])
    assert all(x.sample for x in open_source([path]))


def test_a_bad_sample_names_its_field_and_keeps_its_record(tmp_path: Path) -> None:
    bare = {"schema_version": "v1", "id": "b", "messages": "hello"}
    path = write(tmp_path / "a.jsonl", bare, {"sample": bare, "task_id": "t"})
    lines = list(open_source([path]))
    for line, where in zip(lines, ((), ("sample",)), strict=True):
        assert line.error is not None
        assert line.error.code == "bad_sample"
        assert line.error.message.startswith("messages: expected a list")
        assert line.sample is None
        assert line.path == where
    assert lines[1].record == {"sample": bare, "task_id": "t"}


def test_ids_that_are_numbers_or_missing(tmp_path: Path) -> None:
    full = {"schema_version": "v1", "id": 5, "messages": [], "predict_result": []}
    rows = [short(7), short(None), full, {"sample": short(None), "x": 1}]
    path = write(tmp_path / "a.jsonl", *rows)
    lines = list(open_source([path]))
    assert [x.sample["id"] for x in lines if x.sample] == ["7", "line-2", "5", "line-4"]
    assert lines[0].record == rows[0]
    assert lines[1].record == {"id": "line-2", **rows[1]}
    assert lines[2].record == full
    assert lines[3].record == {"sample": {"id": "line-4", **rows[3]["sample"]}, "x": 1}


def test_missing_ids_in_two_files_do_not_clash(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a.jsonl", short(None)), write(tmp_path / "b.jsonl", short(None))
    ids = [x.sample["id"] for x in open_source([one, two]) if x.sample]
    assert len(set(ids)) == 2


def test_bom_crlf_separators_and_duplicate_keys(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    text = (
        "\ufeff"
        + '{"id":"1","output":"o.png","prompt":"a\u2028b\x85c"}\r\n\r\n{"id":"x","id":"2","output":"p.png"}\r\n'
    )
    path.write_bytes(text.encode())
    one, two = open_source([path])
    assert one.record == {"id": "1", "output": "o.png", "prompt": "a\u2028b\x85c"}
    assert two.record == {"id": "2", "output": "p.png"}
    assert two.number == 3


def test_what_strict_json_cannot_hold_becomes_null_and_numbers_survive(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        b'{"id":"1","output":"o.png","x":NaN,"eval_result":{"metrics":{"a":{"score":-Infinity}}}}',
        b'{"id":"2","output":"o.png","n":123456789012345678901234567890,"s":"\\ud800"}',
    )
    one, two = open_source([path])
    assert one.record is not None
    assert one.record["x"] is None
    assert one.record["eval_result"]["metrics"]["a"]["score"] is None
    assert json.loads(dumps(two.record)) == json.loads(path.read_bytes().split(b"\n")[1])


def test_gzip_cut_off_keeps_what_was_read(tmp_path: Path) -> None:
    rows = [short(str(i), note=os.urandom(20).hex()) for i in range(3000)]
    packed = gzip.compress(b"".join(dumps(row) + b"\n" for row in rows))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(packed[: len(packed) // 2])
    source = open_source([path])
    *good, last = source
    assert 1000 < len(good) < 2000
    assert [x.record for x in good] == rows[: len(good)]
    assert last.error is not None
    assert last.error.code == "bad_line"
    assert source.count == len(good) + 1


def test_digest_is_of_content_alone(tmp_path: Path) -> None:
    rows = [short("1"), short("2")]
    plain = write(tmp_path / "a.jsonl", *rows)
    digest = open_source([plain]).digest
    assert len(digest) == 64
    other = tmp_path / "x" / "b.jsonl.gz"
    other.parent.mkdir()
    other.write_bytes(gzip.compress(b"\xef\xbb\xbf" + plain.read_bytes().replace(b"\n", b"\r\n\r\n")))
    assert open_source([other]).digest == digest
    assert open_source([write(tmp_path / "c.jsonl", *reversed(rows))]).digest != digest
    assert open_source([write(tmp_path / "d.jsonl", rows[0])]).digest != digest
    assert open_source([plain], limit=1).digest != digest
    assert open_source([write(tmp_path / "e.jsonl", rows[0]), write(tmp_path / "f.jsonl", rows[1])]).digest != digest


def test_limit_counts_lines_over_all_inputs(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a.jsonl", short("1"), b"x"), write(tmp_path / "b.jsonl", short("2"), short("3"))
    source = open_source([one, two], limit=3)
    assert source.count == 3
    assert [x.index for x in source] == [0, 1, 2]
    assert open_source([one], limit=0).count == 0
    with pytest.raises(ValueError, match="limit"):
        open_source([one], limit=-1)


def test_lines_added_after_counting_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", short("1"))
    source = open_source([path])
    assert source.count == 1
    with open(path, "ab") as file:
        file.write(dumps(short("2")) + b"\n")
    assert len(list(source)) == 1


def test_an_id_may_come_twice_in_one_file_and_not_in_another(tmp_path: Path) -> None:
    one = write(tmp_path / "a.jsonl", short("x"), short("x"), short("y"))
    assert [x.sample["id"] for x in open_source([one]) if x.sample] == ["x", "x", "y"]
    two = write(tmp_path / "b.jsonl", short("z"), {"sample": short("y")})
    with pytest.raises(ValueError, match="'y'") as caught:
        open_source([one, two])
    text = str(caught.value)
    assert f"{one} (line 3)" in text
    assert f"{two} (line 2)" in text
    assert "genmeter compare" in text
    with pytest.raises(ValueError, match="stands in"):
        open_source([one, one])
    assert open_source([one, write(tmp_path / "c.jsonl", short("z"), b"bad")]).count == 5


def test_number_and_string_ids_are_the_same_id(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'7'"):
        open_source([write(tmp_path / "a.jsonl", short(7)), write(tmp_path / "b.jsonl", short("7"))])


def test_standard_input_can_be_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = dumps(short("1")) + b"\n" + dumps(short("2"))
    spool = tmp_path / "run" / "spool"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    source = open_source(["-"], spool=spool)
    assert source.count == 2
    assert [x.sample["id"] for x in source if x.sample] == ["1", "2"]
    assert [x.file for x in source] == ["stdin", "stdin"]
    assert source.name == "stdin"
    assert source.roots == (Path.cwd(),)
    assert [p.name for p in spool.iterdir()] == ["stdin-0.jsonl"]
    assert source.digest == open_source([write(tmp_path / "a.jsonl", short("1"), short("2"))]).digest
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(data))))
    source = open_source(["-"])
    (kept,) = (path for _, path in source._inputs)
    assert [x.sample["id"] for x in source if x.sample] == ["1", "2"]
    assert kept.exists()
    del source
    assert not kept.parent.exists()
    with pytest.raises(ValueError, match="twice"):
        open_source(["-", "-"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(dumps(short("1")) + b"\n"))
    writer.start()
    source = open_source([pipe], spool=tmp_path)
    writer.join()
    assert source.count == 1
    assert [x.sample["id"] for x in source if x.sample] == ["1"]


def test_roots_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "x" / "part one.v2.jsonl.gz", short("1"))
    write(tmp_path / "y" / "b.jsonl", short("2"))
    write(tmp_path / "c.jsonl", short("3"))
    source = open_source(["x/part one.v2.jsonl.gz", Path("y/b.jsonl"), "c.jsonl"])
    assert source.roots == (tmp_path / "x", tmp_path / "y", tmp_path)
    assert source.name == "part_one.v2"
    assert source.files == ("x/part one.v2.jsonl.gz", str(Path("y/b.jsonl")), "c.jsonl")
    assert source.notes == []
    assert run_name(Path("/")) == "run"
    assert run_name(Path("out/日本.JSONL")) == "日本"


def test_what_is_no_input_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.jsonl: no such file"):
        open_source([tmp_path / "none.jsonl"])
    with pytest.raises(ValueError, match="no input"):
        open_source([])
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    with pytest.raises(ValueError, match="binary"):
        open_source([tmp_path / "a.png"])
    path = write(tmp_path / "a.jsonl", short("1"))
    with pytest.raises(ValueError, match="--references"):
        open_source([path], references=tmp_path)
    with pytest.raises(ValueError, match="--prompts"):
        open_source([path], prompts=tmp_path)
    with pytest.raises(ValueError, match="alone"):
        open_source([path, tmp_path])
    assert open_source([write(tmp_path / "empty.jsonl")]).count == 0


def test_memory_is_flat_in_the_number_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"

    def peak(count: int) -> int:
        with open(path, "wb") as file:
            for i in range(count):
                file.write(dumps(short(f"identifier-{i:09d}")) + b"\n")
        tracemalloc.start()
        source = open_source([path])
        assert source.count == count
        assert sum(1 for _ in source) == count
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    small = peak(500)
    assert peak(5000) < small + 100_000
