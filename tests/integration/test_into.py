"""``score --into``: results in the records they came from, everything else of the files as it was."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import genmeter
from genmeter.engine.into import targets, write_into
from genmeter.inputs.lines import InputChanged
from genmeter.inputs.source import open_source
from genmeter.schema.splice import without_member
from genmeter.synth.demo import write_demo


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    write_demo(folder, n=3, tasks=["text-to-image"])
    return folder


@pytest.fixture
def data(demo: Path, tmp_path: Path) -> Path:
    shutil.copytree(demo, tmp_path / "data")
    return tmp_path / "data"


def score(folder: Path, *args: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "genmeter.cli.main", "score", *map(str, args)]
    command += ["--profile", "tiny", "--offline", "--device", "cpu", "--no-report", "--into"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def score_here(folder: Path, *names: str, out: str = "run", **settings: Any) -> None:
    inputs = [name if name == "-" else folder / name for name in names]
    settings |= {"profile": "tiny", "offline": True, "device": "cpu", "report": False, "into": True}
    genmeter.score(inputs, out=folder / out, **settings)


def bare(line: bytes, path: tuple[str, ...] = ()) -> bytes:
    return without_member(line, path, "eval_result")


def shapes(first: bytes, second: bytes, third: bytes) -> list[bytes]:
    """Lines as different writers leave them."""
    record = json.loads(second)
    older = {**record, "eval_result": {"human": {"rating": 4}, "metrics": {"mos": {"score": 4.5}}}}
    short = {"prompt": "a red square", "output": "outputs/missing.png", "mine": [1.0, 10**30]}
    return [
        b"\xef\xbb\xbf" + first + b"\r\n",
        b"\n",
        b"{ broken\n",
        b'  {"sample": ' + third + b', "judge_output" : {"score":1.50e0}, "score": NaN}  \n',
        json.dumps(older).encode() + b"\n",
        b"[1, 2]\n",
        json.dumps(short).encode(),
    ]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_nothing_is_lost_and_results_are_there(data: Path, packed: bool) -> None:
    lines = shapes(*(data / "samples.jsonl").read_bytes().splitlines())
    real = data / ("kept.jsonl.gz" if packed else "kept.jsonl")
    real.write_bytes(gzip.compress(b"".join(lines)) if packed else b"".join(lines))
    real.chmod(0o640)
    link = data / "in.jsonl"
    link.symlink_to(real.name)

    score(data, link.name, "-o", "run")
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    found = gzip.decompress(real.read_bytes()) if packed else real.read_bytes()
    after = found.split(b"\n")
    before = b"".join(lines).split(b"\n")
    assert len(after) == len(before)
    assert after[0].startswith(b"\xef\xbb\xbf")
    assert after[0].endswith(b"\r")
    assert bare(after[0][3:]) == before[0][3:]
    assert after[1:3] == before[1:3]
    assert bare(after[3], ("sample",)) == before[3]
    assert bare(after[4]) == bare(before[4])
    assert after[5] == before[5]
    assert bare(after[6]) == before[6]

    rows = [json.loads(line) for line in (data / "run/samples.jsonl").read_bytes().splitlines()]
    results = [json.loads(after[0][3:]), json.loads(after[3])["sample"], json.loads(after[4]), json.loads(after[6])]
    kept = [rows[0], rows[2]["sample"], rows[3], rows[5]]
    assert [r["eval_result"] for r in results] == [r["eval_result"] for r in kept]
    assert results[0]["eval_result"]["metrics"]["clipscore"]["score"] > 0
    assert results[2]["eval_result"]["human"] == {"rating": 4}
    assert results[2]["eval_result"]["metrics"]["mos"] == {"score": 4.5}
    assert results[3]["eval_result"]["metrics"]["clipscore"]["error"]["code"] == "not_found"
    assert "id" not in results[3]
    leftovers = [path.name for path in data.iterdir() if path.name.endswith(".tmp")]
    assert leftovers == []

    # The file that holds its results is the same input: nothing is scored again, nothing is written again.
    stamp, identity = real.stat().st_mtime_ns, json.loads((data / "run/run.json").read_text())["run_id"]
    again = score(data, link.name, "-o", "run")
    assert "held these results already" in again.stderr
    assert real.stat().st_mtime_ns == stamp
    run = json.loads((data / "run/run.json").read_text())
    assert run["run_id"] == identity
    assert run["counts"]["encoded"] == 0


def test_another_run_over_the_same_file_goes_on(data: Path) -> None:
    file = data / "samples.jsonl"
    before = file.read_bytes()
    score_here(data, file.name, out="a", metrics="clipscore")
    score_here(data, file.name, out="b", metrics="clipscore/cosine", limit=2)
    found = [json.loads(line)["eval_result"]["metrics"] for line in file.read_bytes().splitlines()]
    assert [sorted(metrics) for metrics in found] == [["clipscore", "clipscore/cosine"]] * 2 + [["clipscore"]]
    score_here(data, file.name, out="a", metrics="clipscore")
    assert [bare(line) for line in file.read_bytes().splitlines()] == before.splitlines()


def test_several_files_are_each_written(data: Path) -> None:
    lines = (data / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (data / "one.jsonl").write_bytes(lines[0])
    (data / "two.jsonl").write_bytes(b"\n" + lines[1] + lines[2])
    score_here(data, "one.jsonl", "two.jsonl")
    ids = [
        json.loads(line)["id"]
        for name in ("one.jsonl", "two.jsonl")
        for line in (data / name).read_bytes().splitlines()
        if line and "clipscore" in json.loads(line)["eval_result"]["metrics"]
    ]
    assert ids == [json.loads(line)["id"] for line in lines]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("-", None, "standard input"),
        ("outputs", None, "a folder of media"),
        ("t.csv", b"prompt,output\na,b.png\n", "a table"),
        ("d.yaml", b"datasets: []\n", "a dataset file"),
        ("u.jsonl", '{"id": "é"}'.encode("utf-16"), "save it as UTF-8"),
    ],
)
def test_what_holds_no_records_is_refused(data: Path, name: str, content: bytes | None, words: str) -> None:
    if content is not None:
        (data / name).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        score_here(data, name)
    assert not (data / "run").exists()


def test_damaged_gzip_is_left_alone(data: Path) -> None:
    file = data / "cut.jsonl.gz"
    file.write_bytes(gzip.compress((data / "samples.jsonl").read_bytes())[:-30])
    before = file.read_bytes()
    with pytest.raises(ValueError, match="damaged"):
        score_here(data, file.name)
    assert file.read_bytes() == before
    assert (data / "run/samples.jsonl").exists()


def finished(data: Path) -> tuple[Path, Path, int]:
    """An input and the samples.jsonl of its run, which was not written back."""
    file, kept = data / "samples.jsonl", data / "kept"
    kept.write_bytes(file.read_bytes())
    score_here(data, file.name)
    os.replace(kept, file)
    return file, data / "run/samples.jsonl", open_source([file]).count


def test_a_file_that_changed_meanwhile_is_refused(data: Path) -> None:
    file, samples, count = finished(data)
    found = targets([file])
    later = file.read_bytes() + b'{"id": "new"}\n'
    file.write_bytes(later)
    with pytest.raises(InputChanged, match="changed while it was being scored"):
        write_into(found, count, samples)
    assert file.read_bytes() == later


def test_a_failure_at_any_line_leaves_the_old_file(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import genmeter.engine.into as module

    file, samples, count = finished(data)
    before, calls = file.read_bytes(), 0
    original: Any = module.put_member

    def interrupted(*args: Any) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(module, "put_member", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_into(targets([file]), count, samples)
    assert file.read_bytes() == before
    assert not [path for path in data.iterdir() if path.name.endswith(".tmp")]
    monkeypatch.undo()
    assert write_into(targets([file]), count, samples) == 1
    assert [bare(line) for line in file.read_bytes().splitlines()] == before.splitlines()
