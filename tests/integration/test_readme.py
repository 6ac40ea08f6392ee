"""What the documents show is what happens: snippets run, links and names exist, the sample is the real one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from genmeter.config import Policy, RunConfig
from genmeter.errors import CODES, FLAGS
from genmeter.integrations.gage.settings import read_settings
from genmeter.synth.demo import write_demo

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
README = ROOT / "README.md"


class Fence(NamedTuple):
    language: str
    text: str
    name: str


def fences(path: Path) -> list[Fence]:
    text = path.read_text(encoding="utf-8")
    found = []
    for match in re.finditer(r"^```([a-z]*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, match.start()) + 1
        found.append(Fence(match[1], match[2], f"line-{line}-{match[1]}"))
    return found


SNIPPETS = fences(README)
MAKE = [f for f in SNIPPETS if f.language == "bash" and all(x.startswith("make ") for x in f.text.split("\n") if x)]
RUN = [f for f in SNIPPETS if f.language in ("bash", "python") and f not in MAKE]
LIBRARY = [f for f in fences(ROOT / "docs/library.md") if f.language == "python"]
SAMPLES = [f for f in SNIPPETS if f.language == "json"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader has after `make demo`, less the run itself."""
    folder = tmp_path_factory.mktemp("readme")
    write_demo(folder / "demo" / "data")
    return folder


def execute(command: list[str], cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout


def run(fence: Fence, cwd: Path, env: dict[str, str]) -> str:
    if fence.language == "python":
        return execute([sys.executable, "-c", fence.text], cwd, env)
    return execute(["bash", "-euo", "pipefail", "-c", fence.text], cwd, env)


def test_the_readme_has_what_is_tested_here() -> None:
    assert len(MAKE) == 1
    assert len(SAMPLES) == 2
    assert sum(f.language == "bash" for f in RUN) >= 5
    assert sum(f.language == "python" for f in RUN) >= 2
    assert {f.language for f in SNIPPETS} == {"bash", "python", "json"}


def test_make_commands_are_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for line in MAKE[0].text.split():
        if line != "make":
            assert re.search(rf"^{re.escape(line)}:", makefile, re.MULTILINE), line


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")
@pytest.mark.parametrize("target", ["demo", "test", "test-all", "test-cuda", "test-gage", "lint", "bench"])
def test_make_targets_resolve(target: str, tmp_path: Path) -> None:
    done = subprocess.run(["make", "-n", target, f"VENV={tmp_path / 'venv'}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # A fresh environment is made first, then the package goes in, then the work is done.
    made, installed = (done.stdout.index(word) for word in ("-m venv", "install --editable"))
    assert made < installed < done.stdout.rindex(str(tmp_path / "venv/bin"))


@pytest.mark.weights
@pytest.mark.usefixtures("lpips_weights")
def test_the_demo_tells_good_from_bad(tmp_path: Path, command_env: dict[str, str]) -> None:
    first = execute(["genmeter", "demo"], tmp_path, command_env)
    assert "18 of 24" in first
    assert "higher is worse" in first
    assert (tmp_path / "demo/run/report.html").stat().st_size > 1000
    lpips = json.loads((tmp_path / "demo/run/summary.json").read_text())["metrics"]["lpips"]
    means = {name: group["mean"] for name, group in lpips["groups"]["data_tag.strength"].items()}
    assert means["good"] < 0.02 < means["mild"] < 0.2 < means["strong"]
    assert means["broken"] is None
    faults = ("bad_line", "decode_failed", "empty_media", "not_found", "size_mismatch", "unsupported_media")
    assert lpips["n"]["failed"] == dict.fromkeys(faults, 1)
    # Again, with other pictures, over the first.
    assert execute(["genmeter", "demo", "--seed", "1"], tmp_path, command_env) != first


@pytest.mark.weights
@pytest.mark.usefixtures("lpips_weights")
@pytest.mark.parametrize("fence", RUN, ids=[f.name for f in RUN])
def test_snippet_runs(fence: Fence, workspace: Path, command_env: dict[str, str]) -> None:
    output = run(fence, workspace, command_env)
    assert output.strip()


@pytest.mark.parametrize("fence", LIBRARY, ids=[f.name for f in LIBRARY])
def test_library_snippet_runs(fence: Fence, tmp_path: Path, command_env: dict[str, str]) -> None:
    output = run(fence, tmp_path, command_env)
    assert "error" not in output
    assert output.strip()


def test_the_sample_shown_is_a_line_of_the_demo(workspace: Path) -> None:
    shown = json.loads(SAMPLES[0].text)
    lines = (workspace / "demo/data/samples.jsonl").read_text().split("\n")
    real = next(json.loads(x) for x in lines if f'"id": "{shown["id"]}"' in x)
    left_out = {"label", "metadata"}
    assert shown == {k: v for k, v in real.items() if k not in left_out}


@pytest.mark.weights
@pytest.mark.usefixtures("lpips_weights")
def test_the_result_shown_is_the_real_one(workspace: Path, command_env: dict[str, str]) -> None:
    shown = json.loads(SAMPLES[1].text)
    execute(
        ["genmeter", "score", "demo/data/samples.jsonl", "--limit", "2", "--metrics", "lpips", "-o", "runs/shown"],
        workspace,
        command_env,
    )
    lines = (workspace / "runs/shown/samples.jsonl").read_text().split("\n")
    real = next(json.loads(x) for x in lines if f'"id":"{shown["id"]}"' in x.replace(": ", ":"))
    assert_shown(shown, real, "")


def assert_shown(shown: Any, real: Any, path: str) -> None:
    """All that is shown is there; numbers to the digits shown, digests that are cut with `...` by their beginning."""
    if isinstance(shown, dict):
        for key, value in shown.items():
            assert key in real, f"{path}.{key} is not in the result"
            assert_shown(value, real[key], f"{path}.{key}")
    elif isinstance(shown, list):
        assert len(shown) == len(real), path
        for i, pair in enumerate(zip(shown, real, strict=True)):
            assert_shown(*pair, f"{path}[{i}]")
    elif isinstance(shown, float):
        assert real == pytest.approx(shown, abs=1e-4), path
    elif isinstance(shown, str) and shown.endswith("..."):
        assert real.startswith(shown[:-3]), path
    else:
        assert shown == real, path


@pytest.fixture(scope="module")
def example_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site folder with CONTRIBUTING's example installed as a package of somebody else."""
    site = tmp_path_factory.mktemp("site")
    for fence in fences(ROOT / "CONTRIBUTING.md"):
        if where := re.match(r"# metrics/(edit_gain/\S+)\n", fence.text):
            path = site / "your_package" / where[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(fence.text)
    (site / "your_package/__init__.py").touch()
    (site / "your_package/edit_gain/__init__.py").touch()
    (site / "your_package-1.dist-info").mkdir()
    (site / "your_package-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: your-package\nVersion: 1\n")
    announced = "[genmeter.metrics]\nedit_gain = your_package.edit_gain\n"
    (site / "your_package-1.dist-info/entry_points.txt").write_text(announced)
    return site


def test_the_example_metric_is_listed(example_site: Path, tmp_path: Path, command_env: dict[str, str]) -> None:
    env = {**command_env, "PYTHONPATH": str(example_site)}
    assert "edit_gain" in execute(["genmeter", "metrics"], tmp_path, env)
    assert "edit_gain" not in execute(["genmeter", "metrics"], tmp_path, command_env)


@pytest.mark.weights
@pytest.mark.usefixtures("lpips_weights")
def test_the_example_metric_scores(example_site: Path, tmp_path: Path, command_env: dict[str, str]) -> None:
    env = {**command_env, "PYTHONPATH": str(example_site)}
    samples = write_demo(tmp_path / "data", tasks=["image-to-image"])
    run_folder = tmp_path / "run"
    execute(["genmeter", "score", str(samples), "--metrics", "edit_gain,lpips", "-o", str(run_folder)], tmp_path, env)
    rows: dict[str, dict[str, Any]] = {}
    for line in (run_folder / "samples.jsonl").read_text().split("\n"):
        record = json.loads(line) if line else {}
        if "data_tag" in record:
            rows[record["data_tag"]["degradation"] + "/" + record["data_tag"]["strength"]] = record["eval_result"][
                "metrics"
            ]
    scores = {case: metrics["edit_gain"]["score"] for case, metrics in rows.items()}
    assert scores["identical/good"] == 1
    assert scores["unedited/wrong"] == pytest.approx(0, abs=1e-5)
    assert scores["nearly/good"] > 0.9
    assert scores["blur/strong"] < scores["blur/mild"] < 1
    for fault in ("truncated", "html", "missing", "size", "empty"):
        assert scores[f"{fault}/broken"] is None
        assert (
            rows[f"{fault}/broken"]["edit_gain"]["error"]["code"] == rows[f"{fault}/broken"]["lpips"]["error"]["code"]
        )
    assert all(m["edit_gain"]["detail"]["left"] == m["lpips"]["score"] for m in rows.values() if m["lpips"]["score"])


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http://", "https://", "#")):
            assert (path.parent / target.split("#")[0]).exists(), target
        if target.startswith("#"):
            headings = [
                re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.+)$", text, re.M)
            ]
            assert target[1:] in headings


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_json_and_yaml_fences_are_valid(path: Path) -> None:
    import yaml

    for fence in fences(path):
        if fence.language == "json":
            json.loads(fence.text)
        elif fence.language == "yaml" and path.name == "gage.md":
            for adapter in yaml.safe_load(fence.text)["role_adapters"]:
                assert read_settings(adapter["params"]["implementation_params"]).config.metrics
        elif fence.language == "yaml":
            RunConfig.model_validate(yaml.safe_load(fence.text))


def test_every_code_and_flag_is_documented() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", (ROOT / "docs/errors.md").read_text(), re.MULTILINE)
    assert {name: text.strip() for name, text in rows} == {**CODES, **FLAGS}


def test_every_setting_is_documented_with_its_default() -> None:
    text = (ROOT / "docs/configuration.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE))
    assert set(rows) == set(RunConfig.model_fields) | set(Policy.model_fields)
    for model in (RunConfig, Policy):
        for name, field in model.model_fields.items():
            shown = rows[name].strip().strip("`").replace(",", "")
            if isinstance(field.default, bool):
                assert shown == str(field.default).lower(), name
            elif isinstance(field.default, (int, float)):
                assert float(shown) == field.default, name
            elif isinstance(field.default, str):
                assert shown == field.default, name


def test_the_examples_are_what_synth_writes(tmp_path: Path) -> None:
    from PIL import Image

    written = write_demo(tmp_path, n=4, tasks=["image-to-image"])
    kept = ROOT / "examples/image-to-image"
    assert (kept / "samples.jsonl").read_text() == written.read_text()
    for path in tmp_path.rglob("*.png"):
        other = kept / path.relative_to(tmp_path)
        try:
            with Image.open(path) as a, Image.open(other) as b:
                assert np.array_equal(np.asarray(a), np.asarray(b)), other
        except OSError:
            assert "outputs" in path.parts, "only an output is broken on purpose"
            assert other.exists()
