"""Weights in a tar: what comes out is what went in, and an archive that is anything else gets nowhere."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save, save_file

from genmeter.errors import GenmeterError
from genmeter.weights import lock as lock_module
from genmeter.weights.digest import tensors_digest
from genmeter.weights.load import load_tensors
from genmeter.weights.lock import get_entry, load_lock, read_locked
from genmeter.weights.manager import ensure, expected_path, state
from genmeter.weights.transfer import MANIFEST, SCHEMA, export_weights, import_weights

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
TENSORS = {"pinned": {"w": np.arange(600, dtype="f4")}, "fresh": {"w": np.arange(7, dtype="f2")}}
DIGESTS = {model: tensors_digest(tensors) for model, tensors in TENSORS.items()}


@pytest.fixture
def models(tmp_path: Path, empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """``models(name)``: another machine (home). Both models are known, ``pinned`` by digest, ``fresh`` is not."""
    text = ""
    for model, tensors in TENSORS.items():
        path = tmp_path / f"{model}.safetensors"
        save_file(tensors, path)
        digest = f'digest = "{DIGESTS[model]}"' if model == "pinned" else "unverified = true"
        text += MODEL.format(id=model, digest=digest, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    path = tmp_path / "models.lock"
    path.write_text(text)
    real: Callable[..., Any] = lock_module._load
    monkeypatch.setattr(lock_module, "_load", lambda asked: real(path))

    def machine(name: str) -> Path:
        home = tmp_path / name
        home.mkdir(exist_ok=True)
        monkeypatch.setenv("GENMETER_HOME", str(home))
        return home

    return machine


@pytest.fixture
def archive(models: Callable[[str], Path], tmp_path: Path) -> Path:
    """Both models, packed on a machine with a network; the machine is now one without."""
    models("connected")
    for entry in load_lock().values():
        ensure(entry, siblings=())
    export_weights(load_lock().values(), tmp_path / "w.tar")
    models("island")
    return tmp_path / "w.tar"


def members(path: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(path) as tar:
        for info in tar:
            stream = tar.extractfile(info)
            yield info, stream.read() if stream else b""


def packed(path: Path, contents: list[tuple[tarfile.TarInfo, bytes]], mode: str = "w") -> Path:
    with tarfile.open(path, mode, format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        for info, data in contents:
            info.size = len(data) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(data))
    return path


def manifest(*items: dict[str, Any], schema: str = SCHEMA) -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(MANIFEST), json.dumps({"schema": schema, "models": list(items)}).encode()


def listed(model: str, data: bytes, digest: str = "") -> dict[str, Any]:
    return {"id": model, "digest": digest or DIGESTS.get(model, "0" * 64), "bytes": len(data)}


def place(model: str, digest: str = "") -> tarfile.TarInfo:
    return tarfile.TarInfo(f"weights/{model}/{(digest or DIGESTS[model])[:16]}.safetensors")


def refused(path: Path) -> str:
    with pytest.raises(GenmeterError) as caught:
        import_weights(path)
    assert caught.value.code == "weights_mismatch"
    assert str(path) in caught.value.message
    return caught.value.message


def nothing_installed(home: Path) -> bool:
    left = [path for path in home.rglob("*") if path.is_file() and path.name != ".lock"]
    return left == [] and read_locked() == {}


def test_there_and_back(archive: Path) -> None:
    assert [state(entry) for entry in load_lock().values()] == ["absent", "absent"]
    done = import_weights(archive)
    assert [(item.id, item.outcome, item.locked) for item in done] == [
        ("pinned", "installed", False),
        ("fresh", "installed", True),  # Nothing here knew its digest.
    ]
    assert read_locked() == {"fresh": DIGESTS["fresh"]}
    for entry in load_lock().values():
        path = ensure(entry, offline=True, siblings=())
        assert tensors_digest(load_tensors(path)) == DIGESTS[entry.id]
    assert [item.outcome for item in import_weights(archive)] == ["ready", "ready"]


def test_what_an_archive_holds(archive: Path) -> None:
    found = list(members(archive))
    assert [info.name for info, _ in found] == [MANIFEST, place("pinned").name, place("fresh").name]
    assert {(info.uid, info.mtime, info.uname) for info, _ in found} == {(0, 0, "")}  # Of nobody's machine.
    data = json.loads(found[0][1])
    assert data["schema"] == SCHEMA
    assert [(m["id"], m["digest"], m["trust"]) for m in data["models"]] == [
        ("pinned", DIGESTS["pinned"], "verified"),
        ("fresh", DIGESTS["fresh"], "locked"),
    ]


def test_only_what_is_here_and_whole_is_packed(models: Callable[[str], Path], tmp_path: Path) -> None:
    models("connected")
    with pytest.raises(GenmeterError, match="models fetch pinned") as caught:
        export_weights([get_entry("pinned")], tmp_path / "w.tar")
    assert caught.value.code == "weights_unavailable"
    path = ensure(get_entry("pinned"), siblings=())
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(GenmeterError) as caught:
        export_weights([get_entry("pinned")], tmp_path / "w.tar")
    assert caught.value.code == "weights_mismatch"
    with pytest.raises(ValueError, match="no weights"):
        export_weights([], tmp_path / "w.tar")
    ensure(get_entry("pinned"), siblings=())
    for bad in (tmp_path, tmp_path / "no" / "w.tar"):
        with pytest.raises(ValueError, match=r"weights\.tar"):
            export_weights([get_entry("pinned")], bad)
    assert not list(tmp_path.glob("*.tar"))


def test_a_changed_tensor_is_found(archive: Path, tmp_path: Path, models: Callable[[str], Path]) -> None:
    other = save({"w": np.ones(600, "f4")})
    contents = [manifest(listed("pinned", other), listed("fresh", b"x"))]
    good = [(info, data) for info, data in members(archive) if "fresh" in info.name]
    contents[0] = manifest(listed("pinned", other), listed("fresh", good[0][1]))
    done = import_weights(packed(tmp_path / "bad.tar", [*contents, (place("pinned"), other), *good]))
    assert [(item.id, item.outcome) for item in done] == [("pinned", "failed"), ("fresh", "installed")]
    assert done[0].error is not None
    assert done[0].error.code == "weights_mismatch"
    assert DIGESTS["pinned"] in done[0].error.message
    assert state(get_entry("pinned")) == "absent"
    assert not list((models("island") / "weights" / "pinned").glob("*"))


@pytest.mark.parametrize("known", ["models.lock", "locked"])
def test_other_weights_than_this_machine_expects(
    archive: Path, tmp_path: Path, models: Callable[[str], Path], known: str
) -> None:
    """Consistent in itself, but of other weights: the archive's own manifest is not enough."""
    model = "pinned" if known == "models.lock" else "fresh"
    home = models("island")
    if known == "locked":
        (home / "locked.toml").write_text(f'[fresh]\ndigest = "{DIGESTS["fresh"]}"\n')
    other = {"w": np.ones(600, "f4")}
    digest, data = tensors_digest(other), save(other)
    contents = [manifest(listed(model, data, digest)), (place(model, digest), data)]
    done = import_weights(packed(tmp_path / "bad.tar", contents))
    assert done[0].outcome == "failed"
    assert done[0].error is not None
    assert DIGESTS[model] in done[0].error.message
    assert digest in done[0].error.message
    assert state(get_entry(model)) == "absent"


def test_a_model_of_another_genmeter(archive: Path, tmp_path: Path, models: Callable[[str], Path]) -> None:
    data = save(TENSORS["pinned"])
    for model in ("unheard-of", "../evil", "/etc/evil"):
        info = tarfile.TarInfo(f"weights/{model}/{'0' * 16}.safetensors")
        done = import_weights(packed(tmp_path / "bad.tar", [manifest(listed(model, data)), (info, data)]))
        assert (done[0].outcome, done[0].error.code if done[0].error else "") == ("failed", "unknown_metric")
    assert not list(tmp_path.rglob("*evil*"))


def special(kind: bytes, name: str) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/hostname"
    return info, b""


GOOD = save(TENSORS["pinned"])
NAME = place("pinned").name
HOSTILE: dict[str, list[tuple[tarfile.TarInfo, bytes]]] = {
    "a symbolic link": [manifest(listed("pinned", b"")), special(tarfile.SYMTYPE, NAME)],
    "a hard link": [manifest(listed("pinned", b"")), special(tarfile.LNKTYPE, NAME)],
    "a device": [manifest(listed("pinned", b"")), special(tarfile.CHRTYPE, NAME)],
    "a pipe": [manifest(listed("pinned", b"")), special(tarfile.FIFOTYPE, NAME)],
    "a folder": [manifest(listed("pinned", b"")), special(tarfile.DIRTYPE, NAME)],
    "up and away": [manifest(listed("pinned", GOOD)), (tarfile.TarInfo("../evil"), GOOD)],
    "an absolute path": [manifest(listed("pinned", GOOD)), (tarfile.TarInfo("/tmp/evil"), GOOD)],
    "a name of its own": [manifest(listed("pinned", GOOD)), (tarfile.TarInfo("weights/evil"), GOOD)],
    "a detour": [manifest(listed("pinned", GOOD)), (tarfile.TarInfo(f"weights/../{NAME}"), GOOD)],
    "the same twice": [manifest(listed("pinned", GOOD)), (place("pinned"), GOOD), (place("pinned"), b"x" * len(GOOD))],
    "another size": [manifest({**listed("pinned", GOOD), "bytes": 1}), (place("pinned"), GOOD)],
    "no manifest": [(place("pinned"), GOOD)],
    "nothing": [],
    "another schema": [manifest(listed("pinned", GOOD), schema="x/9"), (place("pinned"), GOOD)],
    "a model twice": [manifest(listed("pinned", GOOD), listed("pinned", GOOD)), (place("pinned"), GOOD)],
    "a short digest": [manifest({**listed("pinned", GOOD), "digest": "ab"}), (place("pinned"), GOOD)],
    "a digest with a path": [manifest({**listed("pinned", GOOD), "digest": "../" * 21 + "x"}), (place("pinned"), GOOD)],
    "a list for a manifest": [(tarfile.TarInfo(MANIFEST), b"[1]")],
    "no JSON": [(tarfile.TarInfo(MANIFEST), b"{")],
    "a linked manifest": [special(tarfile.SYMTYPE, MANIFEST)],
    "a deep manifest": [(tarfile.TarInfo(MANIFEST), b"[" * 100_000)],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused(tmp_path: Path, models: Callable[[str], Path], kind: str) -> None:
    home = models("island")
    contents = [(tarfile.TarInfo.frombuf(info.tobuf(), "utf-8", ""), data) for info, data in HOSTILE[kind]]
    refused(packed(tmp_path / "bad.tar", contents))
    if kind != "the same twice":  # There the first was good, and is installed.
        assert nothing_installed(home)
    assert not list(tmp_path.parent.rglob("*evil*"))
    assert not Path("/tmp/evil").exists()


def test_an_archive_without_a_file_it_lists(archive: Path, tmp_path: Path, models: Callable[[str], Path]) -> None:
    done = import_weights(packed(tmp_path / "bad.tar", [manifest(listed("pinned", GOOD))]))
    assert done[0].outcome == "failed"
    assert nothing_installed(models("island"))


@pytest.mark.parametrize("kind", ["half", "page", "empty", "compressed"])
def test_a_damaged_archive(archive: Path, tmp_path: Path, models: Callable[[str], Path], kind: str) -> None:
    data, bad = archive.read_bytes(), tmp_path / "bad.tar"
    bad.write_bytes({"half": data[:3000], "page": b"<!DOCTYPE html>" * 99, "empty": b""}.get(kind, b""))
    if kind == "compressed":  # A small file must not become a large one.
        packed(bad, list(members(archive)), "w:gz")
    refused(bad)
    assert nothing_installed(models("island"))


def test_no_archive_at_all(tmp_path: Path) -> None:
    for path in (tmp_path / "none.tar", tmp_path):
        with pytest.raises(ValueError, match="is no file"):
            import_weights(path)


def test_a_damaged_file_is_mended_by_an_import(archive: Path) -> None:
    import_weights(archive)
    path = expected_path(get_entry("pinned"))
    path.write_bytes(b"<html>")
    assert import_weights(archive)[0].outcome == "installed"
    assert state(get_entry("pinned")) == "ready"


def test_a_home_that_cannot_be_written(
    archive: Path, tmp_path: Path, models: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("GENMETER_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(GenmeterError) as caught:
        import_weights(archive)
    assert caught.value.code == "weights_unavailable"
