"""What a command imports: nothing that it does not need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HEAVY = ("torch", "torchvision", "open_clip", "transformers", "laion_clap", "scipy", "pandas", "av", "librosa")
FAKES = Path(__file__).resolve().parent.parent / "fakes"


@pytest.fixture
def imported(command_env: dict[str, str]) -> Any:
    """``imported(program, *words)``: which of the heavy packages a program has imported when it is through."""

    def run(program: str, *words: object) -> set[str]:
        end = f"\nimport sys, json; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
        env = {**command_env, "PYTHONPATH": str(FAKES), "GENMETER_CACHE": os.environ["GENMETER_CACHE"]}
        command = [sys.executable, "-c", program + end, *map(str, words)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return set(json.loads(done.stdout.splitlines()[-1]))

    return run


SCORE = """
import sys
import genmeter
data, metric, out = sys.argv[1:]
result = genmeter.score(data, [metric], out=out, profile="tiny", device="cpu", report=False)
entry = result.summary["metrics"][metric]
assert entry["n"]["scored"] == entry["n"]["total"] > 0, entry
"""


def test_a_second_run_on_a_warm_store_does_without_torch(imported: Any, demo_data: Path, tmp_path: Path) -> None:
    data = tmp_path / "samples.jsonl"
    made = [line for line in demo_data.read_text("utf-8").splitlines() if "text-to-image" in line]
    data.write_text("\n".join(made[:4]) + "\n", "utf-8")
    score = SCORE.replace("device=", f"media_root={str(demo_data.parent)!r}, device=")
    assert "torch" in imported(score, data, "clipscore", tmp_path / "cold")
    assert imported(score, data, "clipscore", tmp_path / "warm") == set()
    rows = [(tmp_path / name / "samples.jsonl").read_bytes() for name in ("cold", "warm")]
    assert rows[0] == rows[1]


def test_an_encoder_without_a_network_does_without_torch(imported: Any, grey_set: Any, tmp_path: Path) -> None:
    assert imported(SCORE, grey_set([10, 20]), "fake_level", tmp_path / "run") == set()


@pytest.mark.parametrize(
    "program",
    [
        "import genmeter",
        "import genmeter; genmeter.list_metrics()",
        "import genmeter; genmeter.Engine, genmeter.score, genmeter.Sample",
        "from genmeter.cli.main import app",
        "import genmeter.stats, genmeter.schema.forms, genmeter.contract",
    ],
)
def test_importing_is_light(imported: Any, program: str) -> None:
    assert imported(program) == set()


def test_help_imports_not_even_numpy(command_env: dict[str, str]) -> None:
    program = (
        "import sys\nfrom genmeter.cli.main import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('numpy', 'pydantic', 'PIL', 'torch') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], env=command_env, capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "[]"
