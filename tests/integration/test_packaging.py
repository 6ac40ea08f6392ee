"""The package as it is installed: archive -> wheel and archive -> sdist -> wheel, each run in a clean environment."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from genmeter import __version__

ROOT = Path(__file__).resolve().parents[2]
METRICS = sorted(p.parent.name for p in (ROOT / "metrics").glob("*/metric.toml"))

pytestmark = pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="builds from git's view of the working tree"
)


def run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(kind: str, source: Path, out: Path) -> Path:
    run(sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", out, source, cwd=out.parent)
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `git archive` would give if the working tree were committed now; git's own files stay untouched."""
    work = tmp_path_factory.mktemp("archive")
    (work / "objects").mkdir()
    objects = run("git", "rev-parse", "--path-format=absolute", "--git-path", "objects", cwd=ROOT).strip()
    env = {
        **os.environ,
        "GIT_INDEX_FILE": str(work / "index"),
        "GIT_OBJECT_DIRECTORY": str(work / "objects"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects,
    }
    run("git", "add", "--all", cwd=ROOT, env=env)
    tree = run("git", "write-tree", cwd=ROOT, env=env).strip()
    run("git", "archive", "--output", work / "tree.tar", tree, cwd=ROOT, env=env)
    source = work / "genmeter"
    unpack(work / "tree.tar", source)
    return source


def unpack(path: Path, into: Path) -> None:
    with tarfile.open(path) as tar:
        # Our own archive; the filter argument came with security releases that not every supported Python has.
        tar.extractall(into, **({"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def sdist(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", archive, tmp_path_factory.mktemp("sdist") / "dist")


@pytest.fixture(scope="module", params=["archive", "sdist"])
def wheel(request: pytest.FixtureRequest, archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp(f"wheel-{request.param}")
    source = archive
    if request.param == "sdist":
        unpack(request.getfixturevalue("sdist"), work / "unpacked")
        (source,) = (work / "unpacked").iterdir()
    return build("wheel", source, work / "dist")


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as file:
        return file.namelist()


def test_there_are_metrics() -> None:
    assert "lpips" in METRICS


def test_everything_is_in_the_wheel_exactly_once(wheel: Path) -> None:
    found = names(wheel)
    assert len(found) == len(set(found))
    assert {n.split("/")[0] for n in found} == {"genmeter", f"genmeter-{__version__}.dist-info"}
    expected = ["genmeter/models.lock", "genmeter/py.typed", "genmeter/report/templates/report.html"]
    for metric in METRICS:
        expected += [f"genmeter/metrics/{metric}/{f}" for f in ("metric.toml", "scorer.py", "card.md", "golden.json")]
    for name in expected:
        assert found.count(name) == 1, name
        # ... and under no second path, as a followed link would leave it.
        assert sum(n.endswith(name.removeprefix("genmeter/")) for n in found) == 1, name
    assert not [n for n in found if "__pycache__" in n or n.startswith("genmeter/tests")]


def test_every_module_of_the_tree_is_in_the_wheel(wheel: Path, archive: Path) -> None:
    modules = {p.relative_to(archive / "src").as_posix() for p in (archive / "src").rglob("*.py")}
    modules |= {f"genmeter/{p.relative_to(archive).as_posix()}" for p in (archive / "metrics").rglob("*.py")}
    assert len(modules) > 20
    assert modules <= set(names(wheel))


def test_the_sdist_holds_the_metrics_at_the_top_only(sdist: Path) -> None:
    with tarfile.open(sdist) as tar:
        found = [n.split("/", 1)[-1] for n in tar.getnames()]
    assert found.count("models.lock") == 1
    assert not [n for n in found if f"{n}/".startswith(("src/genmeter/metrics/", "src/genmeter/models.lock/"))]
    for name in ("README.md", "LICENSE", "pyproject.toml", "metrics/lpips/metric.toml"):
        assert found.count(name) == 1, name


@pytest.fixture
def clean(wheel: Path, tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """The scripts folder of an environment with this wheel, and environment variables to run them with.

    Dependencies come from the running environment by a path file: they were downloaded once. Its own genmeter stays
    invisible, since path files are not followed twice and the wheel comes first.
    """
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=tmp_path)
    scripts = venv / ("Scripts" if os.name == "nt" else "bin")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "GENMETER", "VIRTUAL_ENV"))}
    env["GENMETER_HOME"] = str(tmp_path / "home")
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run(scripts / "python", "-c", ask, cwd=tmp_path, env=env).strip())
    assert site.is_dir()
    shared = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "shared.pth").write_text("\n".join(sorted(shared)) + "\n")
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--ignore-installed", wheel)
    run(scripts / "python", *install, cwd=tmp_path, env=env)
    return scripts, env


def test_the_wheel_runs_in_a_clean_environment(clean: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    scripts, env = clean
    where = run(scripts / "python", "-c", "import genmeter; print(genmeter.__file__)", cwd=tmp_path, env=env)
    assert Path(where.strip()).is_relative_to(scripts.parent)
    assert "usage" in run(scripts / "genmeter", "--help", cwd=tmp_path, env=env).lower()
    listed = run(scripts / "genmeter", "metrics", cwd=tmp_path, env=env)
    models = run(scripts / "genmeter", "models", "list", cwd=tmp_path, env=env)
    for metric in METRICS:
        assert metric in listed
    assert "lpips-alex" in models
    assert not list((tmp_path / "home").glob("weights/*/*")), "listing needs no weights"


def test_the_running_environment_has_what_pyproject_asks_for() -> None:
    """The path file above is only honest if the dependencies it lends are those the package declares."""
    from packaging.requirements import Requirement

    for line in importlib.metadata.requires("genmeter") or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            assert requirement.specifier.contains(importlib.metadata.version(requirement.name), prereleases=True), line
