"""``genmeter models list|fetch|verify|lock|export|import``: what people and programs see, and the exit codes."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from genmeter.cli.models import app
from genmeter.weights import lock as lock_module
from genmeter.weights.digest import tensors_digest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MODEL = """
[[model]]
id = "{id}"
task = "t"
loader = "l"
architecture = "a"
licence = "CC0-1.0"
{digest}
[[model.source]]
converter = "safetensors"
kind = "file"
path = "{id}.safetensors"
sha256 = "{sha256}"
"""


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


@pytest.fixture
def models(tmp_path: Path, empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A models.lock with ``good`` (pinned), ``fresh`` (locked on first fetch) and ``gone`` (its file is missing)."""
    text = ""
    for i, model in enumerate(("good", "fresh", "gone")):
        path = tmp_path / f"{model}.safetensors"
        tensors = {"w": np.arange(6 + i, dtype="f4")}
        save_file(tensors, path)
        digest = "unverified = true" if model == "fresh" else f'digest = "{tensors_digest(tensors)}"'
        text += MODEL.format(id=model, digest=digest, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    (tmp_path / "gone.safetensors").unlink()
    path = tmp_path / "models.lock"
    path.write_text(text)
    real: Callable[..., Any] = lock_module._load
    monkeypatch.setattr(lock_module, "_load", lambda asked: real(path))
    return empty_home


def states(result: Any) -> dict[str, str]:
    document = json.loads(result.stdout)  # One JSON document and nothing else.
    assert document["schema"] == "genmeter.models/1"
    return {row["id"]: row["state"] for row in document["models"]}


def test_list_of_what_ships(empty_home: Path) -> None:
    result = run("list", "--json")
    assert result.exit_code == 0
    rows = {row["id"]: row for row in json.loads(result.stdout)["models"]}
    assert {"lpips-alex", "lpips-vgg", "lpips-squeeze"} <= set(rows)
    ready = [name for name, row in rows.items() if row["state"] != "absent"]
    assert ready == ["tiny-clip", "tiny-clap"], "only what ships with the package is there before anything was fetched"
    assert (rows["lpips-alex"]["pinned"], rows["lpips-squeeze"]["pinned"]) == ("models.lock", "not yet")
    assert rows["lpips-alex"]["download_bytes"] == 63794605
    table = run("list").stdout
    assert "lpips-alex" in table
    assert "63.8 MB" in table
    assert list(empty_home.iterdir()) == []  # Looking changes nothing.


def test_fetch_list_verify(models: Path) -> None:
    result = run("fetch", "good", "fresh", "--json")
    assert result.exit_code == 0, result.stderr
    assert states(result) == {"good": "ready", "fresh": "ready"}
    assert states(run("list", "--json")) == {"good": "ready", "fresh": "ready", "gone": "absent"}
    assert {row["pinned"] for row in json.loads(run("list", "fresh", "--json").stdout)["models"]} == {"first fetch"}
    result = run("verify", "--json")
    assert result.exit_code == 0
    assert states(result)["good"] == "ready"


def test_verify_finds_damage_and_fetch_mends_it(models: Path) -> None:
    assert run("fetch", "good").exit_code == 0
    path = next((models / "weights" / "good").glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1])
    result = run("verify", "--json")
    assert result.exit_code == 3
    assert states(result)["good"] == "damaged"
    assert run("fetch", "good").exit_code == 0
    assert run("verify", "good").exit_code == 0


def test_verify_of_a_named_model_that_is_absent(models: Path) -> None:
    assert run("verify", "good").exit_code == 3
    assert run("verify").exit_code == 0


@pytest.mark.parametrize("offline", [True, False])
def test_one_failure_does_not_stop_the_others(models: Path, offline: bool) -> None:
    result = run("fetch", "--all", "--json", *(["--offline"] if offline else []))
    assert result.exit_code == 3
    rows = {row["id"]: row for row in json.loads(result.stdout)["models"]}
    assert (rows["good"]["state"], rows["fresh"]["state"], rows["gone"]["state"]) == ("ready", "ready", "absent")
    assert rows["gone"]["error"]["code"] == "weights_unavailable"
    assert "gone.safetensors" in rows["gone"]["error"]["hint"]
    assert "error" not in rows["good"]


def test_a_failure_is_told_in_words(models: Path) -> None:
    result = run("fetch", "gone")
    assert result.exit_code == 3
    assert "gone.safetensors" in result.stderr
    assert "absent" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fetch"], "--metrics"),
        (["fetch", "goood"], "did you mean 'good'"),
        (["list", "goood"], "did you mean 'good'"),
        (["verify", "goood"], "did you mean 'good'"),
        (["fetch", "--nonsense"], "nonsense"),
    ],
)
def test_usage_errors_end_with_2(models: Path, arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_metrics_select_models(empty_home: Path) -> None:
    pytest.importorskip("genmeter.registry")
    assert set(states(run("list", "--metrics", "lpips", "--json"))) == {"lpips-alex"}
    assert set(states(run("list", "--metrics", "lpips, lpips@vgg,lpips", "--json"))) == {"lpips-alex", "lpips-vgg"}
    result = run("list", "--metrics", "lpipz")
    assert result.exit_code == 2
    assert "lpips" in result.stderr


def test_list_says_how_far_each_is_vouched_for(models: Path) -> None:
    assert run("fetch", "fresh").exit_code == 0
    rows = {row["id"]: row for row in json.loads(run("list", "--json").stdout)["models"]}
    assert {model: row["trust"] for model, row in rows.items()} == {
        "good": "verified",
        "fresh": "locked",
        "gone": "verified",
    }
    assert "locked" in run("list").stdout


def test_the_list_of_what_ships_fits_a_terminal(empty_home: Path) -> None:
    result = CliRunner().invoke(app, ["list"], env={"COLUMNS": "80"})
    assert "clip-openai-vit-l-14-336" in result.stdout
    assert "3944.5 MB" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    trusts = {row["id"]: row["trust"] for row in json.loads(run("list", "--json").stdout)["models"]}
    assert trusts["clip-openai-vit-b-32"] == "verified"
    assert trusts["clip-laion2b-vit-h-14"] == trusts["clip-siglip2-vit-b-16"] == "unverified"


def test_lock_prints_the_line_to_pin(models: Path) -> None:
    result = run("lock", "fresh")
    assert result.exit_code == 0, result.stderr
    digest = lock_module.read_locked()["fresh"]
    assert f'digest = "{digest}"' in result.stdout.splitlines()
    assert tomllib.loads(result.stdout) == {"digest": digest}
    assert tomllib.loads((models / "locked.toml").read_text())["fresh"]["digest"] == digest
    rows = json.loads(run("lock", "fresh", "good", "--json").stdout)["models"]
    assert [row["toml"] for row in rows] == [f'digest = "{row["digest"]}"' for row in rows]
    assert [(row["trust"], row["pinned"]) for row in rows] == [("locked", "first fetch"), ("verified", "models.lock")]


def test_lock_of_everything_with_one_missing(models: Path) -> None:
    result = run("lock", "--all")
    assert result.exit_code == 3
    assert result.stdout.count("digest = ") == 2
    assert "gone.safetensors" in result.stderr
    assert run("lock").exit_code == 2


def test_export_and_import(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("fetch", "good", "fresh").exit_code == 0
    archive = tmp_path / "w.tar"
    result = run("export", "-o", str(archive), "--json")  # What is here, by default.
    assert result.exit_code == 0, result.stderr
    assert states(result) == {"good": "ready", "fresh": "ready"}
    island = tmp_path / "island"
    island.mkdir()
    monkeypatch.setenv("GENMETER_HOME", str(island))
    for model in ("good", "fresh"):
        (tmp_path / f"{model}.safetensors").unlink()
    result = run("import", str(archive), "--json")
    assert result.exit_code == 0, result.stderr
    rows = {row["id"]: row for row in json.loads(result.stdout)["models"]}
    assert {model: (row["imported"], row["locked_on_import"]) for model, row in rows.items()} == {
        "good": ("installed", False),
        "fresh": ("installed", True),
    }
    assert run("verify", "good", "fresh").exit_code == 0
    assert run("fetch", "good", "fresh", "--offline").exit_code == 0


def test_export_and_import_say_what_is_wrong(models: Path, tmp_path: Path) -> None:
    archive = str(tmp_path / "w.tar")
    result = run("export", "good", "-o", archive)
    assert (result.exit_code, "models fetch good" in result.stderr) == (3, True)
    result = run("export", "-o", archive)
    assert (result.exit_code, "no weights" in result.stderr) == (2, True)
    assert run("export", "good").exit_code == 2  # Where to?
    assert run("export", "goood", "-o", archive).exit_code == 2
    assert run("import", archive).exit_code == 2
    (tmp_path / "page.tar").write_bytes(b"<!DOCTYPE html>" * 99)
    result = run("import", str(tmp_path / "page.tar"))
    assert result.exit_code == 3
    assert "page.tar" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.weights
def test_the_real_weights_verify(lpips_weights: Path) -> None:
    result = run("verify", "lpips-alex", "--json")
    assert result.exit_code == 0
    assert states(result) == {"lpips-alex": "ready"}


@pytest.mark.weights
def test_a_copied_home_is_enough(lpips_weights: Path, empty_home: Path) -> None:
    """Weights for a machine without a network: the folder of the model, and nothing else."""
    shutil.copytree(lpips_weights.parent, empty_home / "weights" / "lpips-alex")
    result = run("fetch", "lpips-alex", "--offline", "--json")
    assert result.exit_code == 0
    assert states(result) == {"lpips-alex": "ready"}
