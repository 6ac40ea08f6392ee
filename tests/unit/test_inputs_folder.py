"""A folder of media: pairing by stem, counts both ways, and nothing guessed."""

from __future__ import annotations

import json
import os
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from genmeter.inputs.prompts import read_prompts
from genmeter.inputs.source import open_source
from genmeter.schema.roles import predictions, prompt_texts, references, task_type


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return folder


def records(*args: Any, **options: Any) -> list[dict[str, Any]]:
    lines = list(open_source(*args, **options))
    assert all(line.error is None for line in lines)
    return [line.record for line in lines if line.record]


def test_a_folder_alone(tmp_path: Path) -> None:
    out = fill(
        tmp_path / "my run", "b.png", "a.JPG", "sub/deep/c.webp", ".hidden.png", ".git/d.png", "notes.txt", "README"
    )
    source = open_source([out])
    lines = list(source)
    assert [line.record for line in lines] == [
        {"id": "a", "output": "a.JPG"},
        {"id": "b", "output": "b.png"},
        {"id": "sub/deep/c", "output": "sub/deep/c.webp"},
    ]
    assert [(x.index, x.number, x.file, x.path) for x in lines][2] == (2, 3, str(out), ())
    assert source.roots == (out, Path.cwd())
    assert source.name == "my_run"
    assert source.files == (str(out),)
    assert source.count == 3
    assert source.notes == [f"2 files of {out} left out: not an image, audio or video by the name"]
    assert lines[0].sample is not None
    assert task_type(lines[0].sample) == "text-to-image"


def test_references_pair_by_stem_and_counts_go_both_ways(tmp_path: Path) -> None:
    out = fill(tmp_path / "out", "a.png", "b.png", "s/c.png", "only.png")
    ref = fill(tmp_path / "ref", "a.jpg", "b.PNG", "s/c.webp", "spare.png", "c.png")
    source = open_source([out], references=ref)
    by_id = {line.record["id"]: line for line in source if line.record}
    assert by_id["a"].record == {"id": "a", "output": "a.png", "reference": str(ref / "a.jpg")}
    assert by_id["s/c"].record is not None
    assert by_id["s/c"].record["reference"] == str(ref / "s/c.webp")
    assert by_id["only"].record == {"id": "only", "output": "only.png"}
    assert by_id["a"].sample is not None
    assert task_type(by_id["a"].sample) == "image-to-image"
    assert predictions(by_id["a"].sample, "image")[0][:2] == ("a.png", "output")
    assert references(by_id["a"].sample, "image")[0][:2] == (str(ref / "a.jpg"), "reference")
    assert source.roots == (out, ref, Path.cwd())
    assert source.notes == [
        "3 of 4 outputs have a reference (1 not, the first: 'only')",
        "2 of 5 references have no output (2 not, the first: 'c')",
    ]


def test_a_reference_is_never_mistaken_for_the_output_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "out", "a.png")
    fill(tmp_path / "ref", "a.png")
    (record,) = records(["out"], references=Path("ref"))
    assert os.path.isabs(record["reference"])
    assert (tmp_path / "ref/a.png").samefile(record["reference"])


def test_references_inside_the_folder_are_no_outputs(tmp_path: Path) -> None:
    out = fill(tmp_path / "run", "a.png", "refs/a.png")
    assert [r["id"] for r in records([out], references=out / "refs")] == ["a"]
    outer = fill(tmp_path / "set", "a.png", "out/a.png")
    assert [r["id"] for r in records([outer / "out"], references=outer)] == ["a"]


def test_names_in_composed_and_decomposed_form_pair(tmp_path: Path) -> None:
    composed, decomposed = (unicodedata.normalize(form, "café 日本.png") for form in ("NFC", "NFD"))
    out, ref = fill(tmp_path / "out", decomposed), fill(tmp_path / "ref", composed)
    (record,) = records([out], references=ref)
    assert record["id"] == "café 日本"
    assert (out / record["output"]).exists()
    assert Path(record["reference"]).exists()
    prompts = tmp_path / "p.csv"
    prompts.write_text(f"file,prompt\n{composed},a café\n", encoding="utf-8")
    assert records([out], prompts=prompts)[0]["prompt"] == "a café"


@pytest.mark.parametrize("names", [("a.png", "a.jpg"), ("a.png", "a.PNG"), ("s/a.png", "s/a.wav")])
def test_two_files_of_one_stem_are_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    both = fill(tmp_path / "both", *names)
    if len(list(both.rglob("a.*"))) < 2:
        pytest.skip("names differ in case only, which this file system does not tell apart")
    one = fill(tmp_path / "one", names[0])
    for call in ({"inputs": [both]}, {"inputs": [one], "references": both}):
        with pytest.raises(ValueError, match="two files of one name") as caught:
            open_source(**call)  # type: ignore[arg-type]
        assert names[0] in str(caught.value)
        assert names[1] in str(caught.value)


def test_nothing_in_common_is_an_error_with_an_example(tmp_path: Path) -> None:
    out, ref = fill(tmp_path / "out", "gen_1.png"), fill(tmp_path / "ref", "real_1.png")
    with pytest.raises(ValueError, match="no output has a reference") as caught:
        open_source([out], references=ref)
    assert "'gen_1.png'" in str(caught.value)
    assert "'real_1.png'" in str(caught.value)
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"id": "other", "prompt": "x"}\n')
    with pytest.raises(ValueError, match="no output has a prompt") as caught:
        open_source([out], prompts=prompts)
    assert "'other'" in str(caught.value)


def test_folders_without_media(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty"):
        open_source([tmp_path / "empty"])
    texts = fill(tmp_path / "texts", "samples.jsonl", "b.txt")
    with pytest.raises(ValueError, match=r"2 files of other kinds.*samples\.jsonl"):
        open_source([texts])
    out = fill(tmp_path / "out", "a.png")
    for bad in (tmp_path / "none", texts, texts / "b.txt", out):
        with pytest.raises(ValueError, match="--references"):
            open_source([out], references=bad)


def test_numbers_in_names_are_sorted_as_numbers(tmp_path: Path) -> None:
    out = fill(tmp_path / "out", *(f"{i}.png" for i in range(12)))
    prompts = tmp_path / "p.txt"
    prompts.write_text("".join(f"prompt {i}\n" for i in range(12)))
    found = records([out], prompts=prompts)
    assert [r["id"] for r in found] == [str(i) for i in range(12)]
    assert all(r["prompt"] == f"prompt {r['id']}" for r in found)


def test_a_text_file_must_have_a_line_for_each_output(tmp_path: Path) -> None:
    out = fill(tmp_path / "out", "a.png", "b.png")
    prompts = tmp_path / "p.txt"
    prompts.write_bytes("first\u2028still first\r\nsecond\r\n\r\n".encode())
    assert [r["prompt"] for r in records([out], prompts=prompts)] == ["first\u2028still first", "second"]
    prompts.write_bytes(b"only\n")
    with pytest.raises(ValueError, match="1 lines and out 2 outputs"):
        open_source([out], prompts=prompts)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.jsonl", '{"id":"a","prompt":"one"}\n\n{"id":"s/b","prompt":"two"}\n{"id":"z","prompt":"spare"}'),
        ("p.jsonl", '{"file":"a.png","prompt":"one"}\n{"stem":"./s/b","caption":"two"}\n{"stem":"z","text":"spare"}'),
        ("p.JSON", '{"a": "one", "s/b.png": "two", "z": "spare"}'),
        ("p.json", '[{"path":"a.png","prompt":"one"},{"path":"s\\\\b.png","prompt":"two"},{"id":1,"prompt":"spare"}]'),
        ("p.csv", 'ID,Prompt\r\na,one\r\ns/b,two\r\nz,"spare, with\nnewline"\r\n'),
        ("p.tsv", "file_name\tcaption\na.png\tone\ns/b.png\ttwo\nz.png\tspare\n"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_prompts_by_name(tmp_path: Path, name: str, text: str, encoding: str) -> None:
    out = fill(tmp_path / "out", "a.png", "s/b.png", "c.png")
    file = tmp_path / name
    file.write_bytes(text.encode(encoding))
    source = open_source([out], prompts=file)
    lines = {line.record["id"]: line for line in source if line.record}
    assert {key: line.record.get("prompt") for key, line in lines.items() if line.record} == {
        "a": "one",
        "s/b": "two",
        "c": None,
    }
    assert lines["a"].sample is not None
    assert prompt_texts(lines["a"].sample)[0][:2] == ("one", "prompt")
    assert source.notes[0] == "2 of 3 outputs have a prompt (1 not, the first: 'c')"
    assert source.notes[1].startswith("1 of 3 prompts have no output")


def test_a_stem_may_hold_dots_and_several_prompts(tmp_path: Path) -> None:
    out = fill(tmp_path / "out", "v1.0.png", "v1.1.png")
    file = tmp_path / "p.jsonl"
    file.write_text('{"id":"v1.0","prompt":["a","b"]}\n{"id":"v1.1","prompt":"c"}\n')
    assert [r["prompt"] for r in records([out], prompts=file)] == [["a", "b"], "c"]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("p.jsonl", b'{"id":"a","prompt":"x"}\n{"prompt":"x"}', "line 2 names no output"),
        ("p.jsonl", b'{"id":"a"}', "line 1: expected a prompt"),
        ("p.jsonl", b'{"id":"a","prompt":5}', "line 1: expected a prompt .*a number"),
        ("p.jsonl", b'{"id":"a","prompt":"x"}\n{"id":"a","prompt":"y"}', "line 2 gives 'a' a second"),
        ("p.jsonl", b"secret\n", "line 1 is not valid JSON"),
        ("p.jsonl", b"[1]\n", "line 1: expected an object"),
        ("p.jsonl", b"\n", "holds no prompt"),
        ("p.json", b"3", "expected a list"),
        ("p.csv", b"name;prompt\na;x\n", "expected a header"),
        ("p.csv", b"a,one\nb,two\n", "expected a header"),
        ("p.csv", b"", "expected a header"),
        ("p.txt", b"caf\xe9\n", "line 1 is not UTF-8"),
        ("p.txt", b"a\nb\xff\n", "line 2 is not UTF-8"),
        ("p.txt", b"\n\n", "holds no prompt"),
    ],
)
def test_prompts_that_cannot_be_used(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    file = tmp_path / name
    file.write_bytes(data)
    with pytest.raises(ValueError, match=words) as caught:
        read_prompts(file)
    assert str(file) in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_missing_prompts_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        open_source([fill(tmp_path / "out", "a.png")], prompts=tmp_path / "none.txt")


def test_digest_does_not_depend_on_where_the_folders_lie(tmp_path: Path) -> None:
    digests = []
    for place in ("x", "y/z"):
        out, ref = fill(tmp_path / place / "o", "a.png", "b.png"), fill(tmp_path / place / "r", "a.png")
        digests.append(open_source([out], references=ref).digest)
        digests.append(open_source([out]).digest)
    assert digests[0] == digests[2]
    assert digests[1] == digests[3]
    assert digests[0] != digests[1]


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on POSIX only")
def test_a_name_that_is_not_utf8_survives(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    try:
        Path(os.fsdecode(os.fsencode(out) + b"/caf\xe9.png")).write_bytes(b"x")
    except OSError:
        pytest.skip("this file system holds UTF-8 names only")
    source = open_source([out])
    (line,) = source
    assert line.record is not None
    assert (out / line.record["output"]).exists()
    assert json.dumps(line.record)
    assert len(source.digest) == 64
