"""Tables and what `genmeter ingest` makes of them: the same samples, the same scores."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import genmeter
from genmeter.inputs.source import open_source
from genmeter.inputs.tables import open_tables, read_mapping

ROWS = 12


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve grey pictures in data/pictures."""
    (tmp_path / "data/pictures").mkdir(parents=True)
    for level in range(ROWS):
        Image.fromarray(np.full((8, 8, 3), 20 * level, np.uint8)).save(tmp_path / f"data/pictures/{level}.png")
    return tmp_path


def rows() -> list[dict[str, Any]]:
    return [
        {
            "key": f"k{i}",
            "caption": f'grey, "level"\n{i}',
            "image": f"pictures/{i}.png",
            "model": f"m{i % 2}",
            "seed": i,
        }
        for i in range(ROWS)
    ]


def write_csv(path: Path, table: list[dict[str, Any]], encoding: str = "utf-8", **options: Any) -> Path:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, table[0].keys(), **options)
    writer.writeheader()
    writer.writerows(table)
    path.write_bytes(out.getvalue().encode(encoding))
    return path


def write_parquet(path: Path, table: list[dict[str, Any]]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(pyarrow.Table.from_pylist(table), path, row_group_size=5)
    return path


def scores(path: Any, out: Path, **options: Any) -> dict[str, float | None]:
    options = {"device": "cpu", "cache": False, "report": False, **options}
    result = genmeter.score(path, ["fake_level"], out=out, **options)
    found = {}
    for record in result.samples:
        found[record["id"]] = record["eval_result"]["metrics"]["fake_level"]["score"]
    return found


def command(*words: Any, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "200"}
    line = [sys.executable, "-m", "genmeter.cli.main", *map(str, words)]
    return subprocess.run(line, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("kind", ["csv", "tsv", "semicolons", "mark", "utf-16", "parquet", "bytes"])
def test_a_table_is_scored_like_the_samples_it_stands_for(kind: str, folder: Path) -> None:
    data = folder / "data"
    lines = data / "plain.jsonl"
    lines.write_text(
        "".join(
            json.dumps(
                {"id": r["key"], "prompt": r["caption"], "output": r["image"], "metadata": {"model": r["model"]}}
            )
            + "\n"
            for r in rows()
        )
    )
    expected = scores(lines, folder / "plain")
    assert len(set(expected.values())) == ROWS
    if kind == "csv":
        path = write_csv(data / "t.csv", rows())
    elif kind == "tsv":
        path = write_csv(data / "t.tsv", rows(), delimiter="\t")
    elif kind == "semicolons":
        path = write_csv(data / "t.csv", [{**r, "caption": "grey"} for r in rows()], delimiter=";")
    elif kind == "mark":
        path = write_csv(data / "t.csv", rows(), "utf-8-sig")
    elif kind == "utf-16":
        path = write_csv(data / "t.csv", rows(), "utf-16")
    elif kind == "parquet":
        path = write_parquet(data / "t.parquet", rows())
    else:
        table = [{**r, "image": {"bytes": (data / r["image"]).read_bytes(), "path": "x.png"}} for r in rows()]
        path = write_parquet(data / "t.parquet", table)
    assert scores(path, folder / "direct") == expected
    out = folder / "elsewhere" / "samples.jsonl"
    done = command("ingest", path, "-o", out, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert f"{ROWS} of {ROWS} samples" in done.stdout
    assert "output from 'image'" in done.stderr
    assert ("--media-root" in done.stderr) == (kind != "bytes")
    assert scores(out, folder / "ingested", media_root=(str(out.parent), str(data))) == expected
    samples = [json.loads(line) for line in out.read_text().splitlines()]
    assert [s["id"] for s in samples] == [r["key"] for r in rows()]
    assert all(genmeter.Sample.model_validate(s) for s in samples)
    assert samples[3]["metadata"]["model"] == "m1"
    if kind != "semicolons":
        assert samples[3]["messages"][0]["content"][0]["text"] == 'grey, "level"\n3'


def test_parts_of_one_set_and_candidates(folder: Path) -> None:
    data = folder / "data"
    first = write_csv(data / "a.csv", [{"id": "x", "output": '["pictures/1.png", "pictures/2.png"]'}])
    second = write_csv(data / "b.csv", [{"id": "y", "output": "pictures/3.png"}])
    source = open_source([first, second])
    found = {line.sample["id"]: line.sample for line in source if line.sample}
    assert [len(found[i]["predict_result"]) for i in ("x", "y")] == [2, 1]
    third = write_csv(data / "c.csv", [{"id": "z", "picture": "pictures/3.png"}])
    with pytest.raises(ValueError, match=r"c\.csv: has no column 'output'"):
        open_source([first, third])
    with pytest.raises(ValueError, match="can only be scored with tables"):
        open_source([first, data / "plain.jsonl"])


def test_columns_by_name(folder: Path) -> None:
    path = write_csv(folder / "data/t.csv", rows())
    table = open_tables([path], read_mapping(["metadata.made_by=model", "data_tag.seed=seed"]))
    record = next(iter(table.records()))
    assert record == {
        "id": "k0",
        "prompt": 'grey, "level"\n0',
        "output": "pictures/0.png",
        "metadata": {"made_by": "m0"},
        "data_tag": {"seed": "0"},
    }
    for wrong, words in (
        ({"output": "picture"}, ["picture", "'image'", "t.csv"]),
        ({"prompt": "Caption"}, ["Caption", "'caption'"]),
    ):
        with pytest.raises(ValueError) as caught:
            open_tables([path], wrong)
        assert all(word in str(caught.value) for word in words)
    with pytest.raises(ValueError, match="FIELD=COLUMN"):
        read_mapping(["prompt"])
    bare = write_csv(folder / "data/bare.csv", [{"prompt": "p", "where": "a.png"}])
    with pytest.raises(ValueError, match=r"--map output=COLUMN.*'where'"):
        open_tables([bare])


def test_a_bad_row_costs_itself(folder: Path) -> None:
    path = folder / "data/t.csv"
    path.write_text("id,output\na,pictures/1.png\nb,pictures/2.png,extra\n\nc\nd,pictures/3.png\n,pictures/4.png\n")
    lines = list(open_source([path]))
    assert [line.sample["id"] if line.sample else line.error.code for line in lines if line.sample or line.error] == [
        "a",
        "bad_line",
        "bad_line",
        "d",
        "line-5",
    ]
    assert lines[1].error is not None
    assert "expected 2 cells, found 3" in lines[1].error.message
    done = command("ingest", path, "-o", folder / "s.jsonl", cwd=folder)
    assert done.returncode == 0
    assert "3 of 5 samples" in done.stdout
    assert "found 3" in done.stderr


def test_what_cannot_be_read_says_what_to_do(folder: Path) -> None:
    empty = folder / "data/empty.csv"
    empty.write_text("")
    twice = folder / "data/twice.csv"
    twice.write_text("output,output\na,b\n")
    broken = folder / "data/broken.parquet"
    broken.write_bytes(b"PAR1 no")
    for path, word in ((empty, "header"), (twice, "two columns"), (broken, "Parquet"), (folder / "no.csv", "no such")):
        done = command("score", path, "--metrics", "fake_level", "-o", folder / "run", cwd=folder)
        assert done.returncode == 2, done.stderr
        assert word in done.stderr
        assert "Traceback" not in done.stderr
    assert not (folder / "run").exists()
    (folder / "plain.jsonl").write_text('{"id": "a", "output": "data/pictures/1.png"}\n')
    done = command("score", "plain.jsonl", "--map", "output=x", "-o", folder / "run", cwd=folder)
    assert done.returncode == 2
    assert "--map" in done.stderr


def test_ingest_keeps_what_is_there(folder: Path) -> None:
    path = write_csv(folder / "data/t.csv", rows())
    out = folder / "samples.jsonl"
    out.write_text("mine")
    done = command("ingest", path, cwd=folder)
    assert done.returncode == 2
    assert "--force" in done.stderr
    assert out.read_text() == "mine"
    assert command("ingest", path, "--force", cwd=folder).returncode == 0
    assert len(out.read_text().splitlines()) == ROWS


def test_a_table_that_changes_while_it_is_scored(folder: Path) -> None:
    path = write_csv(folder / "data/t.csv", rows())
    source = open_source([path])
    assert source.count == ROWS
    write_csv(path, rows()[:3])
    with pytest.raises(ValueError, match="changed"):
        list(source)


def test_folders_and_lines_are_ingested_too(folder: Path) -> None:
    done = command("ingest", folder / "data/pictures", "-o", folder / "f.jsonl", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert scores(folder / "f.jsonl", folder / "run1") == scores(folder / "data/pictures", folder / "run2")
    assert command("ingest", folder / "f.jsonl", "-o", folder / "sub/g.jsonl", cwd=folder).returncode == 0
    again = scores(folder / "sub/g.jsonl", folder / "run3", media_root=(str(folder / "sub"), str(folder)))
    assert again == scores(folder / "f.jsonl", folder / "run4")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_path_that_could_mean_two_files_is_refused(kind: str, tmp_path: Path) -> None:
    """Inputs in two folders name a.png: which one is meant is never guessed; names that differ are found."""
    files = []
    for number, level in enumerate((40, 200)):
        folder = tmp_path / f"d{number}"
        folder.mkdir()
        for name in ("a.png", f"only{number}.png"):
            Image.fromarray(np.full((8, 8, 3), level, np.uint8)).save(folder / name)
        rows = [{"id": f"{number}-{name}", "output": name} for name in ("a.png", f"only{number}.png")]
        if kind == "csv":
            files.append(write_csv(folder / "t.csv", rows))
        else:
            files.append(folder / "t.jsonl")
            files[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = scores(files, tmp_path / "run")
    assert found == {"0-a.png": None, "0-only0.png": 40.0, "1-a.png": None, "1-only1.png": 200.0}
    assert scores(files[1], tmp_path / "alone")["1-a.png"] == 200.0
    named = scores(files[1], tmp_path / "named", media_root=str(tmp_path / "d1"))
    assert named["1-a.png"] == 200.0


def test_an_id_in_two_tables_is_refused(folder: Path) -> None:
    first = write_csv(folder / "data/a.csv", [{"id": "x", "output": "pictures/1.png"}])
    second = write_csv(folder / "data/b.csv", [{"id": "x", "output": "pictures/2.png"}])
    with pytest.raises(ValueError, match=r"id 'x' stands in .*a\.csv \(line 1\) and in .*b\.csv"):
        open_source([first, second])


def test_a_mistyped_field_is_named(folder: Path) -> None:
    path = write_csv(folder / "data/t.csv", rows())
    with pytest.raises(ValueError, match="did you mean 'prompt'"):
        open_tables([path], {"promt": "caption"})
