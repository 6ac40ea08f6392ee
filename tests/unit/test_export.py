"""``genmeter export``: every score and every missing one in a table, exact, safe to open, flat in memory."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from reporting_runs import CLIP, FVD, LPIPS, failed, row, run_json, scored, write_run
from typer.testing import CliRunner

from genmeter.cli.main import app
from genmeter.report.rows_export import TABLES, table_rows, write_csv, write_parquet


def call(*args: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["export", *map(str, args)])
    assert result.exit_code == code, result.output
    return result


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def fvd(influence: float) -> dict[str, Any]:
    detail = {"n_prediction": 2, "n_reference": 3, "bias_corrected": -0.25, "interval95": [-1.5, 2.5]}
    detail |= {"influence": influence, "feature_distance": 14.2}
    return {**scored(450.6), "variant": FVD["variant"], "scope": "set", "set": "all", "detail": detail}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rows = [
        row(0, scored(0.1 + 0.2, flags=["identical", "clipped"], detail={"per_reference": [0.3, 0.5]})),
        row(1, failed("decode_failed", "cut,\nshort"), data_tag={"style": "photo"}, metadata={"set": "core"}),
        row(2, None),
        {"id": None, "line": 4, "eval_result": {"error": {"code": "bad_line", "message": "line 4 is not JSON"}}},
        row(4, scored(1e-300), id="=cmd|' /C calc'!A0"),
    ]
    rows[0]["eval_result"]["metrics"]["fvd"] = fvd(12.4)
    rows[4]["eval_result"]["metrics"]["fvd"] = fvd(-12.4)
    rows[4]["eval_result"]["metrics"]["human"] = {"score": 5}
    metrics = {"lpips": dict(LPIPS), "fvd": dict(FVD)}
    return write_run(tmp_path / "run", rows, run_json(metrics=metrics))


def test_one_row_a_sample_and_metric(run: Path) -> None:
    found = read(call(run).stdout)
    assert [(r["line"], r["metric"], r["error_code"]) for r in found] == [
        ("1", "lpips", ""),
        ("2", "lpips", "decode_failed"),
        ("4", "lpips", "bad_line"),
        ("5", "lpips", ""),
    ]
    assert [r["score"] for r in found] == ["0.30000000000000004", "", "", "1e-300"]
    assert found[0]["flags"] == "identical;clipped"
    assert json.loads(found[0]["detail"]) == {"per_reference": [0.3, 0.5]}
    assert found[1]["set"] == "core"
    assert json.loads(found[1]["data_tag"]) == {"style": "photo"}
    assert found[3]["id"].startswith("'="), "no spreadsheet may take it for a formula"


def test_sets_stand_apart(run: Path) -> None:
    result = call(run, "--table", "sets")
    (whole,) = read(result.stdout)
    assert (whole["metric"], whole["set"], whole["score"], whole["bias_corrected"]) == ("fvd", "all", "450.6", "-0.25")
    assert (whole["interval95_low"], whole["n_reference"]) == ("-1.5", "3")
    parts = read(call(run, "--table", "contributions").stdout)
    assert [(r["line"], r["influence"]) for r in parts] == [("1", "12.4"), ("4", ""), ("5", "-12.4")]
    assert parts[1]["error_code"] == "bad_line"
    assert "--table sets" in call(run).stderr


def test_parquet_has_types_and_exact_text(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.parquet"
    call(run, "-o", out)
    table = pyarrow.parquet.read_table(out)
    assert table.column("score").to_pylist() == [0.1 + 0.2, None, None, 1e-300]
    assert table.column("id").to_pylist()[3] == "=cmd|' /C calc'!A0"
    assert table.column("error_message").to_pylist()[1] == "cut,\nshort"
    assert str(table.schema.field("line").type) == "int64"
    assert str(table.schema.field("score").type) == "double"
    assert str(table.schema.field("higher_is_better").type) == "bool"


@pytest.mark.parametrize("table", list(TABLES))
def test_both_formats_hold_the_same_rows(run: Path, tmp_path: Path, table: str) -> None:
    out = tmp_path / "rows.parquet"
    call(run, "--table", table, "--format", "parquet", "-o", out)
    listed = pyarrow.parquet.read_table(out).to_pylist()
    cells = read(call(run, "--table", table).stdout)
    assert len(listed) == len(cells) > 0
    for one, other in zip(listed, cells, strict=True):
        assert list(one) == list(other) == list(TABLES[table])
        for name, kind in TABLES[table].items():
            if kind == "number":
                assert one[name] == (float(other[name]) if other[name] else None)
            else:
                assert (one[name] is None) == (other[name] == ""), name


def test_a_table_without_rows_has_its_columns(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [row(0, scored(0.5))], run_json())
    assert call(run, "--table", "sets").stdout.strip() == ",".join(TABLES["sets"])
    out = tmp_path / "none.parquet"
    call(run, "--table", "sets", "-o", out)
    assert pyarrow.parquet.read_table(out).schema.names == list(TABLES["sets"])


def test_several_runs_of_one_name_go_by_their_folders(run: Path, tmp_path: Path) -> None:
    entry = {**scored(0.7), "variant": CLIP["variant"], "higher_is_better": True}
    other = write_run(tmp_path / "b", [row(0, entry, "clipscore")], run_json(metrics={"clipscore": dict(CLIP)}))
    found = read(call(run, other).stdout)
    assert {r["run"] for r in found} == {str(run), str(other)}
    assert found[-1]["variant"] == "openai-vit-b-32/hessel2021"
    assert found[-1]["higher_is_better"] == "true"


def test_half_a_surrogate_pair_can_be_exported(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [], run_json())
    line = r'{"id": "a\ud800", "messages": [], "eval_result": {"metrics": {"lpips": {"score": 1}}}}'
    (run / "samples.jsonl").write_text(line + "\n")
    assert read(call(run).stdout)[0]["id"] == r"a\ud800"
    call(run, "-o", tmp_path / "x.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "x.parquet").column("id").to_pylist() == [r"a\ud800"]


def test_usage_errors(run: Path, tmp_path: Path) -> None:
    assert "name a file with -o" in call(run, "--format", "parquet", code=2).output
    assert "expected csv or parquet" in call(run, "--format", "xlsx", code=2).output
    assert "expected one of samples" in call(run, "--table", "rows", code=2).output
    assert "no such run" in call(tmp_path / "x", code=2).output
    assert "is a folder" in call(run, "-o", tmp_path, code=2).output


def test_a_failed_export_leaves_the_old_file(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    out.write_text("kept")
    with open(run / "samples.jsonl", "a") as file:
        file.write("no json\n")
    assert "line 6 is no JSON" in call(run, "-o", out, code=2).output
    assert out.read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_parquet_without_pyarrow_says_what_to_install(run: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = sys.modules['pyarrow.parquet'] = None\n"
        "from genmeter.cli.main import main\nmain()"
    )
    command = [sys.executable, "-c", code, "export", str(run), "-o", str(tmp_path / "x.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "genmeter[tables]" in done.stderr
    assert not (tmp_path / "x.parquet").exists()


@pytest.mark.parametrize("write", [write_csv, write_parquet])
def test_memory_does_not_grow_with_the_lines(tmp_path: Path, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genmeter.report.rows_export._GROUP_ROWS", 1_000)
    text = json.dumps(row(0, scored(0.5, detail={"cosine": 0.25}))) + "\n"
    peaks = []
    for lines in (2_000, 8_000):
        run = write_run(tmp_path / str(lines), [], run_json())
        (run / "samples.jsonl").write_text(text * lines)
        tracemalloc.start()
        with open(tmp_path / "out", "wb") as file:
            assert write(table_rows([run], "samples"), "samples", file) == lines
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0] + (1 << 17)


def test_ids_that_differ_stay_different_and_formulas_are_guarded() -> None:
    from genmeter.report.rows_export import _text

    assert len({_text(text) for text in ("a b", "a  b", " a b", "a\nb", "x" * 3000, "x" * 3001)}) == 6
    assert [_text(text)[0] for text in ("=1", " =1", "+1", "-1", "@x", "\uff1d1", "\t=1")] == ["'"] * 7
    assert _text("a=1") == "a=1"
