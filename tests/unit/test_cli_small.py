"""summary, metrics, schema, cache and report as commands."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import typer
from reporting_runs import picture_run, row, run_json, scored, write_run
from typer.testing import CliRunner

from genmeter.cli import cache, metrics, report, schema, summary
from genmeter.contract import Feature
from genmeter.engine.store import FeatureStore

app = typer.Typer()
for name, module in (("summary", summary), ("metrics", metrics), ("schema", schema), ("report", report)):
    app.command(name)(module.command)
app.add_typer(cache.app, name="cache")


def call(*args: object, code: int = 0, text: str | None = None) -> str:
    result = CliRunner().invoke(app, [str(a) for a in args], input=text)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.output


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return picture_run(tmp_path_factory.mktemp("run"), 20)


def test_summary_in_every_format(run: Path) -> None:
    assert "decode_failed" in call("summary", run)
    assert json.loads(call("summary", run, "--json"))["schema"] == "genmeter.summary/1"
    assert call("summary", run, "--format", "csv").startswith("run,metric,")
    assert call("summary", run, "--format", "md").count("| lpips |") == 1
    assert "\\toprule" in call("summary", run, "--format", "latex")
    assert len(json.loads(call("summary", run, run, "--json"))["runs"]) == 2


def test_summary_with_other_groups(run: Path) -> None:
    found = json.loads(call("summary", run, "--json", "--group-by", "id,task_type", "--cluster-by", "data_tag.style"))
    assert len(found["metrics"]["lpips"]["groups"]["id"]) == 20
    assert found["metrics"]["lpips"]["interval"]["cluster_by"] == "data_tag.style"


def test_usage_errors_end_with_2(run: Path, tmp_path: Path) -> None:
    assert "no such run" in call("summary", tmp_path / "x", code=2)
    assert "expected one of" in call("summary", run, "--format", "xml", code=2)
    assert "neither" in call("report", tmp_path, code=2)
    assert "sumary" in call("schema", "sumary", code=2)
    assert "did you mean 'lpips'" in call("metrics", "lpip", code=2)
    (tmp_path / "summary.json").write_text('{"schema": "other"}')
    assert "expected a genmeter summary" in call("summary", tmp_path, code=2)


def test_report(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    assert call("report", run, "-o", out).strip() == str(out)
    assert out.read_text().startswith("<!doctype html>") or "<!doctype html>" in out.read_text()[:200]


def test_metrics_lists_and_shows_cards() -> None:
    assert "lpips" in call("metrics")
    listed = json.loads(call("metrics", "--json"))
    lpips = next(m for m in listed if m["id"] == "lpips")
    assert lpips["higher_is_better"] is False
    assert lpips["models"]["alex"] == "alex-v0.1"
    json.dumps(listed, allow_nan=False)
    assert json.loads(call("metrics", "lpips", "--json"))["card"]
    assert "lpips@vgg" in call("metrics", "lpips")
    assert call("metrics", "lpips@vgg/input") == call("metrics", "lpips")


@pytest.mark.parametrize("name", ["sample", "eval_result", "summary", "run"])
def test_schemas_are_schemas(name: str) -> None:
    found = json.loads(call("schema", name))
    jsonschema.Draft202012Validator.check_schema(found)
    assert found["$schema"].startswith("https://json-schema.org/")


def test_schemas_accept_what_is_written_and_refuse_what_is_not(run: Path) -> None:
    of = {name: json.loads(call("schema", name)) for name in ("eval_result", "summary", "run")}
    for line in (run / "samples.jsonl").read_text().splitlines():
        jsonschema.validate(json.loads(line)["eval_result"], of["eval_result"])
    jsonschema.validate(json.loads((run / "run.json").read_text()), of["run"])
    good = json.loads(call("summary", run, "--json"))
    jsonschema.validate(good, of["summary"])
    for broken in (
        {"metrics": {"lpips": {"score": None, "variant": "a"}}},
        {"metrics": {"lpips": {"score": "0.5", "variant": "a"}}},
        {"metrics": {"lpips": {"score": 0.5, "variant": "a", "flags": ["made_up"]}}},
        {"error": {"code": "made_up", "message": ""}},
        {},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, of["eval_result"])
    jsonschema.validate({"metrics": {"bleu": {"score": 3}}}, of["eval_result"])  # somebody else's
    for key in ("mean", "n", "signature"):
        bad = json.loads(json.dumps(good))
        del bad["metrics"]["lpips"][key]
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, of["summary"])


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with three shards of two encoders, the oldest first, beside files that are none of its business."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("GENMETER_CACHE", str(folder))
    features = FeatureStore(folder)
    for age, encoder in ((300, "a" * 64), (200, "b" * 64), (100, "b" * 64)):
        item = (os.urandom(32), Feature(np.zeros((1, 250), np.float32), np.ones(1, np.float32)))
        path = features.add(encoder, [item])
        assert path is not None
        os.utime(path, (1e9 - age, 1e9 - age))
    (folder / "notes.txt").write_text("mine")
    from safetensors.numpy import save_file

    save_file({"w": np.zeros(10, np.float32)}, str(folder / "weights.safetensors"))
    (folder / "broken.safetensors").write_bytes(b"\xff" * 20)
    return folder


def shards(folder: Path) -> list[Path]:
    return [shard.path for shard in cache.find_shards(folder)]


def test_cache_stats(store: Path) -> None:
    found = json.loads(call("cache", "stats", "--json"))
    assert found["shards"] == 3
    assert found["bytes"] == sum(p.stat().st_size for p in shards(store))
    assert {name: e["shards"] for name, e in found["encoders"].items()} == {"a" * 32: 1, "b" * 32: 2}
    assert "3 shards" in call("cache", "stats")


def test_cache_gc_removes_the_oldest_first(store: Path) -> None:
    kept = shards(store)
    sizes = [p.stat().st_size for p in kept]
    found = json.loads(call("cache", "gc", "--max-size", sizes[1] + sizes[2], "--json"))
    assert found == {"removed_shards": 1, "removed_bytes": sizes[0]}
    assert shards(store) == kept[1:]
    assert not kept[0].parent.exists(), "an empty folder goes too"
    call("cache", "gc", "--max-size", "1GB")
    assert shards(store) == kept[1:]
    call("cache", "gc", "--max-size", "0")
    assert shards(store) == []


def test_cache_clear_asks_and_spares_what_is_not_a_shard(store: Path) -> None:
    assert "--yes" in call("cache", "clear", code=2), "nobody is there to be asked"
    assert len(shards(store)) == 3
    call("cache", "clear", "--yes")
    assert shards(store) == []
    assert sorted(p.name for p in store.iterdir()) == ["broken.safetensors", "notes.txt", "weights.safetensors"]
    assert "removed 0" in call("cache", "clear"), "nothing to ask about"


def test_cache_follows_no_links(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shard = shards(store)[0]
    other.mkdir()
    moved = shard.rename(other / shard.name)
    (store / "link").symlink_to(other)
    (store / "file.safetensors").symlink_to(moved)
    call("cache", "clear", "--yes")
    assert moved.exists()


def test_cache_removes_what_a_killed_process_left(store: Path) -> None:
    old = store / f".{'a' * 32}.safetensors.123.deadbeef.tmp"
    new = store / f".{'b' * 32}.safetensors.123.deadbeef.tmp"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1e9, 1e9))
    call("cache", "clear", "--yes")
    assert not old.exists()
    assert new.exists(), "another process may be writing it now"


def test_an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENMETER_CACHE", str(tmp_path / "none"))
    assert json.loads(call("cache", "stats", "--json"))["shards"] == 0
    call("cache", "gc", "--max-size", "1GB")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5 * 10**9), ("500MiB", 500 * 2**20), ("1.5k", 1500), ("0", 0), ("12", 12), (" 2 tb ", 2 * 10**12)],
)
def test_sizes(text: str, size: int) -> None:
    assert cache.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "5XB", "5 i", "1e9", "٣GB", "5GBB"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="5GB"):
        cache.parse_size(text)


def test_commands_import_nothing_heavy() -> None:
    import subprocess
    import sys

    script = (
        "import sys, genmeter.cli.summary, genmeter.cli.metrics, genmeter.cli.schema, genmeter.cli.cache, "
        "genmeter.cli.report\n"
        "heavy = ('torch', 'numpy', 'pydantic', 'PIL', 'jinja2', 'scipy')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_scored_file_alone_can_be_summarised(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r", [row(0, scored(0.5)), row(1, scored(0.7))], run_json())
    found = json.loads(call("summary", folder / "samples.jsonl", "--json"))
    assert found["metrics"]["lpips"]["mean"] == pytest.approx(0.6)
