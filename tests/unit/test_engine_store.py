"""Feature shards: what is written is found, by key alone, and a damaged file counts as absent."""

from __future__ import annotations

import hashlib
import multiprocessing

import numpy as np
import pytest

from genmeter.contract import Feature
from genmeter.engine.features import adopt
from genmeter.engine.store import FeatureStore, write_atomic

ENCODER = "ab" * 32


def key(index):
    return hashlib.sha256(str(index).encode()).digest()


def feature(index, rows=1):
    return Feature(np.full((rows, 3), index, np.float32), np.ones(rows, np.float32), {"i": index}, ("silent",))


def test_round_trip_over_many_shards(tmp_path):
    store = FeatureStore(tmp_path)
    keys = [key(i) for i in range(300)]
    keys[5] = keys[5][:-2] + b"\0\0"  # fixed-width bytes lose their trailing zeros on the way through numpy
    for start in range(10):
        store.add(ENCODER, [(keys[i], feature(i, rows=1 + i % 3)) for i in range(start, 300, 10)])
    for reader in (store, FeatureStore(tmp_path)):
        for index, name in enumerate(keys):
            found = reader.find(ENCODER, name)
            assert found is not None
            assert found.values.shape == (1 + index % 3, 3)
            assert (found.values == index).all()
            assert found.detail == {"i": index}
            assert found.flags == ("silent",)
        assert reader.find(ENCODER, key("absent")) is None
        assert reader.find("cd" * 32, keys[0]) is None


def test_features_are_read_as_they_were_written(tmp_path):
    values = np.random.default_rng(0).standard_normal((4, 400)).astype(np.float32)
    FeatureStore(tmp_path).add(ENCODER, [(key(0), Feature(values, np.arange(4, dtype=np.float32)))])
    found = FeatureStore(tmp_path).find(ENCODER, key(0))
    assert found.values.tobytes() == values.tobytes()
    assert found.weights.tolist() == [0, 1, 2, 3]
    assert found.detail == {}


@pytest.mark.parametrize("damage", ["cut", "empty", "html", "flip"])
def test_a_damaged_shard_counts_as_absent(tmp_path, damage):
    store = FeatureStore(tmp_path)
    bad = store.add(ENCODER, [(key(0), feature(0))])
    store.add(ENCODER, [(key(1), feature(1))])
    data = bad.read_bytes()
    content = {"cut": data[: len(data) // 2], "empty": b"", "html": b"<html>" * 50, "flip": b"\xff" * 8 + data[8:]}
    bad.write_bytes(content[damage])
    reader = FeatureStore(tmp_path)
    assert reader.find(ENCODER, key(0)) is None
    assert reader.find(ENCODER, key(1)) is not None


def test_a_shard_deleted_under_a_reader_counts_as_absent(tmp_path):
    store = FeatureStore(tmp_path)
    path = store.add(ENCODER, [(key(0), feature(0))])
    reader = FeatureStore(tmp_path)
    assert reader.find(ENCODER, key(1)) is None  # the index is read, the rows are not
    path.unlink()
    assert reader.find(ENCODER, key(0)) is None


def _add(folder, start):
    store = FeatureStore(folder)
    for index in range(start, start + 5):
        store.add(ENCODER, [(key(index), feature(index))])


def test_processes_add_to_one_folder(tmp_path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_add, args=(tmp_path, start)) for start in (0, 100, 200)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    reader = FeatureStore(tmp_path)
    for start in (0, 100, 200):
        for index in range(start, start + 5):
            assert reader.find(ENCODER, key(index)).values[0, 0] == index


def test_an_adopted_shard_is_found_and_a_read_only_cache_is_no_error(tmp_path):
    store = FeatureStore(tmp_path / "run")
    path = store.add(ENCODER, [(key(0), feature(0))])
    adopt(path, tmp_path / "cache" / path.parent.name)
    assert FeatureStore(tmp_path / "cache").find(ENCODER, key(0)).values[0, 0] == 0
    (tmp_path / "file").write_text("in the way")
    adopt(path, tmp_path / "file" / "x")


def test_an_atomic_write_leaves_nothing_behind_when_it_fails(tmp_path, monkeypatch):
    target = tmp_path / "a.json"
    write_atomic(target, b"old")
    monkeypatch.setattr("os.replace", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write_atomic(target, b"new")
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_no_features_no_shard(tmp_path):
    assert FeatureStore(tmp_path / "x").add(ENCODER, []) is None
    assert not (tmp_path / "x").exists()
