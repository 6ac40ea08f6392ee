"""Dataset files: what they may hold, and that no line is lost whatever the mode is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from genmeter.inputs.dataset import DatasetSpec, check_dataset, read_dataset_file
from genmeter.inputs.source import open_source

FAKES = Path(__file__).parents[1] / "fakes"
SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"
ENTRY = "datasets:\n- dataset_id: d\n  loader: jsonl\n  params: {path: s.jsonl}\n"


def sample(identity: Any = "a", **more: Any) -> dict[str, Any]:
    picture = {"type": "image_url", "image_url": {"url": "o.png"}}
    return {
        "schema_version": "v1",
        "id": identity,
        "messages": [{"role": "user", "content": "a cat"}],
        "predict_result": [{"index": 0, "message": {"role": "assistant", "content": [picture]}}],
        **more,
    }


MIXED = [
    sample("good"),
    sample("tools", tools=[3]),
    sample("shots", few_shot_examples=[{"messages": [], "references": [], "sandbox": {}}]),
    "{cut",
    sample("label", label=[]),
    {"id": "short", "output": "o.png"},
    {"sample": sample("inner", tools=[3])},
]


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return path


def dataset(folder: Path, text: str = ENTRY, rows: list[Any] | None = None) -> Path:
    if rows is not None:
        write(folder / "s.jsonl", rows)
    path = folder / "data.yaml"
    path.write_text(text, "utf-8")
    return path


def test_an_entry_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sets").mkdir()
    beside = write(tmp_path / "sets" / "beside.jsonl", [])
    here = write(tmp_path / "here.jsonl", [])
    write(tmp_path / "beside.jsonl", [])
    path = dataset(
        tmp_path / "sets",
        f"""
tasks: [whatever]
datasets:
- {{dataset_id: a, loader: jsonl, params: {{path: beside.jsonl, limit: 3}}, schema: {{mode: strict}}}}
- {{dataset_id: b, hub: inline, params: {{path: here.jsonl}}, schema: {{mode: off}}}}
- {{dataset_id: c, params: {{path: '{here}', limit: null}}}}
""",
    )
    assert read_dataset_file(Path("sets/data.yaml")) == read_dataset_file(path)
    assert read_dataset_file(path) == [
        DatasetSpec("a", beside, 3, "strict"),
        DatasetSpec("b", here, None, "off"),
        DatasetSpec("c", here, None, "warn"),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "datasets: expected a list"),
        ("- 1", "expected a mapping"),
        ("datasets: {}", "datasets: expected a list of datasets, found an object"),
        ("datasets: []", "datasets: expected a list"),
        ("datasets: [3]", "datasets[0]: expected a mapping, found a number"),
        ("datasets: [{params: {path: s.jsonl}}]", "datasets[0].dataset_id: expected a name, found nothing"),
        (ENTRY.replace("jsonl\n", "parquet\n"), "datasets[0].loader: expected jsonl"),
        (ENTRY.replace("path: s.jsonl", "limit: 3"), "datasets[0].params.path: expected the path"),
        (ENTRY.replace("path: s.jsonl", "paths: s.jsonl"), "did you mean 'path'?"),
        (ENTRY.replace("s.jsonl", "gone.jsonl"), "datasets[0].params.path: no such file"),
        (ENTRY.replace("s.jsonl", "s.jsonl, limit: -1"), "datasets[0].params.limit: expected a whole number"),
        (ENTRY.replace("s.jsonl", "s.jsonl, limit: true"), "datasets[0].params.limit: expected a whole number"),
        (ENTRY + "  preprocess: x\n", "unknown key 'preprocess'"),
        (ENTRY + "  schema: {mode: strikt}\n", "did you mean 'strict'?"),
        (ENTRY + "  schema: {mode: [warn]}\n", "datasets[0].schema.mode"),
        (ENTRY + "  schema: strict\n", "datasets[0].schema: expected a mapping"),
        (ENTRY + "- {dataset_id: d, params: {path: s.jsonl}}\n", "datasets[1].dataset_id: 'd'"),
        ("datasets: [", "cannot be read as YAML"),
        ("[" * 5000, "nested too deeply"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = dataset(tmp_path, text, [sample()])
    with pytest.raises(ValueError, match=r"data\.yaml") as caught:
        read_dataset_file(path)
    assert says in str(caught.value)


def test_a_missing_dataset_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"gone\.yaml: no such file"):
        open_source([tmp_path / "gone.yaml"])


@pytest.mark.parametrize("mode", ["off", "warn"])
def test_every_line_comes_out(tmp_path: Path, mode: str) -> None:
    path = dataset(tmp_path, ENTRY + f"  schema: {{mode: {mode}}}\n", MIXED)
    source = open_source([path])
    lines = list(source)
    assert source.count == len(lines) == len(MIXED)
    assert [line.error.code if line.error else None for line in lines] == [
        *(None, None, None, "bad_line", "bad_sample", None, None)
    ]
    assert source.roots[0] == tmp_path
    assert source.name == "data"
    if mode == "off":
        assert source.notes == []
        return
    (note,) = source.notes
    assert "dataset d: 5 of 7 lines" in note
    assert "(line 2, 3, 4, 5, 7)" in note
    assert "all 7 are kept, and 2 of them cannot be scored" in note
    assert "tools.*: expected an object, found a number (2)" in note
    assert "few_shot_examples.*.sandbox: expected nothing" in note


def test_the_report_counts_lines_issues_and_kinds(tmp_path: Path) -> None:
    path = write(tmp_path / "s.jsonl", MIXED)
    report = check_dataset(DatasetSpec("d", path))
    assert (report.lines, report.odd, report.unscored) == (7, 5, 2)
    assert [line.number for line in report.first] == [2, 3, 4, 5, 7]
    assert sum(report.counts.values()) == 5
    assert len(report.counts) == 4
    assert check_dataset(DatasetSpec("d", path, limit=1)).odd == 0
    assert read_dataset_file(dataset(tmp_path, ENTRY.replace("s.jsonl", f"s.jsonl, limit: {10**30}")))[0].limit
    assert open_source([tmp_path / "data.yaml"]).count == 7
    assert check_dataset(DatasetSpec("d", path), limit=2).odd == 1


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        (sample(tools=[3]), "line 3: tools[0]: expected an object, found a number"),
        ({"id": "a", "messages": []}, "line 3: schema_version: is missing"),
        ("{cut", "line 3 is not valid JSON"),
        ("[1]", "line 3: expected an object, found a list"),
        ({"id": "a", "output": 3}, "line 3: output: expected a path or URL"),
        (sample(""), "line 3: id: expected a string, found an empty one"),
        ({"nothing": 1}, "line 3: messages: is missing"),
    ],
)
def test_strict_stops_at_the_first_issue(tmp_path: Path, odd: Any, says: str) -> None:
    path = dataset(tmp_path, ENTRY + "  schema: {mode: strict}\n", [sample("x"), "", odd, sample("y", tools=3)])
    with pytest.raises(ValueError, match=r"s\.jsonl") as caught:
        open_source([path])
    assert says in str(caught.value)
    assert len(list(open_source([path], limit=1))) == 1


def test_limits_hold_for_each_dataset_and_over_all(tmp_path: Path) -> None:
    write(tmp_path / "t.jsonl", [sample(f"t{n}", **({"tools": 3} if n > 2 else {})) for n in range(5)])
    text = ENTRY.replace("s.jsonl", "s.jsonl, limit: 2")
    text += "- {dataset_id: e, params: {path: t.jsonl}, schema: {mode: strict}}\n"
    path = dataset(tmp_path, text, [sample(f"s{n}") for n in range(4)])
    with pytest.raises(ValueError, match=r"t\.jsonl: line 4: tools"):
        open_source([path])
    source = open_source([path], limit=5)
    assert source.count == 5
    assert [line.sample["id"] for line in source if line.sample] == ["s0", "s1", "t0", "t1", "t2"]
    extra = write(tmp_path / "u.jsonl", [sample("u")])
    off = dataset(tmp_path, text.replace("strict", "off"))
    ids = [line.sample["id"] for line in open_source([extra, off]) if line.sample]
    assert ids == ["u", "s0", "s1", *(f"t{n}" for n in range(5))]


def command(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(FAKES), "GENMETER_HOME": str(folder / "home")}
    return subprocess.run(
        [sys.executable, "-m", "genmeter.cli.main", *map(str, words)],
        cwd=folder,
        env=env,
        text=True,
        capture_output=True,
        timeout=100,
    )


def test_the_command_scores_a_dataset_file(tmp_path: Path, save_image: Any) -> None:
    save_image(tmp_path / "o.png", np.full((16, 16, 3), 100, np.uint8))
    path = dataset(tmp_path, ENTRY, MIXED)
    ended = command(tmp_path, "score", path, "--metrics", "fake_level", "-o", "run", "--no-report")
    assert ended.returncode == 0, ended.stderr
    assert "5 of 7 lines do not follow the Sample standard" in ended.stderr + ended.stdout
    rows = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == len(MIXED)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text("utf-8"))
    assert summary["samples"]["total"] == len(MIXED)
    assert summary["metrics"]["fake_level"]["n"]["scored"] == 5
    run = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    results = [row.get("sample", row)["eval_result"] for row in rows]
    for name, documents in (("summary", [summary]), ("run", [run]), ("eval_result", results)):
        schema = json.loads((SCHEMAS / f"{name}.json").read_text("utf-8"))
        for document in documents:
            assert [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(document)] == []

    dataset(tmp_path, ENTRY + "  schema: {mode: strict}\n")
    ended = command(tmp_path, "score", path, "--metrics", "fake_level", "-o", "other")
    assert ended.returncode == 2
    assert "s.jsonl: line 2: tools[0]: expected an object" in " ".join(ended.stderr.split())
    assert not (tmp_path / "other").exists()
