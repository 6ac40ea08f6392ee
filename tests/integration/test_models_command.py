"""``genmeter models list|fetch|verify``: what people and programs see, and the exit codes."""

from __future__ import annotations

import hashlib
import json
import shutil
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
    assert {row["state"] for row in rows.values()} == {"absent"}
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
