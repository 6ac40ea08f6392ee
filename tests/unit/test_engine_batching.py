"""Batches are a pure function of the units in order, bounded in items and bytes."""

from __future__ import annotations

import numpy as np
import pytest

from genmeter.contract import Feature, Prepared
from genmeter.engine.batching import Batcher, batch_limit, bucket_shape, encode
from genmeter.engine.prepare import Fresh, Known
from genmeter.errors import GenmeterError


def fresh(side, key, fill=0):
    return Fresh(key, Prepared((np.full((1, side, side, 3), fill, np.uint8),), np.ones(1, np.float32)))


def run(units, limit=4, waiting=1 << 30):
    batcher = Batcher(lambda encoder, bucket, shape: limit, waiting)
    batches = []
    for index, unit in enumerate(units):
        batches += batcher.add(0, index, unit)
    return [[item.unit for item in batch.items] for batch in batches + batcher.rest()]


def test_units_of_one_shape_share_a_batch():
    sides = [8, 9, 8, 9, 8, 8, 9]
    assert run([fresh(side, bytes([i])) for i, side in enumerate(sides)]) == [[0, 2, 4, 5], [1, 3, 6]]


def test_a_full_budget_flushes_the_largest_bucket():
    units = [fresh(10, b"a"), fresh(10, b"b"), fresh(4, b"c"), fresh(10, b"d")]
    assert run(units, limit=10, waiting=700) == [[0, 1], [2], [3]]


def test_an_item_above_the_budget_passes_alone():
    assert run([fresh(4, b"a"), fresh(100, b"b"), fresh(4, b"c")], waiting=1000) == [[0], [1], [2]]


def test_known_units_keep_their_place_in_the_plan():
    units = [fresh(8, bytes([i])) for i in range(10)]
    whole = run(units)
    feature = Feature(np.zeros((1, 1), np.float32), np.ones(1, np.float32))
    for done in (4, 8):
        resumed = [
            Known(u.key, feature, u.prepared.bucket, u.prepared.nbytes) if i < done else u for i, u in enumerate(units)
        ]
        assert run(resumed) == whole


def test_the_shape_of_a_bucket_can_be_read_back():
    item = Prepared((np.zeros((2, 5, 7, 3), np.uint8), np.zeros((2, 9), np.int64)), np.ones(2, np.float32))
    assert bucket_shape(item.bucket) == item.shape == (5, 7, 3)
    single = Prepared((np.zeros((1, 4)),), np.ones(1, np.float32))
    assert bucket_shape(single.bucket) == (4,)


class Sized:
    def bytes_per_item(self, shape):
        return 1000


@pytest.mark.parametrize(("budget", "expected"), [(500, 1), (1000, 1), (5000, 4), (9999, 8), (10**9, 256)])
def test_the_limit_is_a_power_of_two_that_fits(budget, expected):
    assert batch_limit(Sized(), (1,), budget, None) == expected


def test_a_wanted_batch_size_is_kept():
    assert batch_limit(Sized(), (1,), 10, 7) == 7


class Scripted:
    """Encodes a constant; fails as told."""

    def __init__(self, fail=None, short=False, shape=(1, 2)):
        self.fail, self.short, self.shape, self.sizes = fail, short, shape, []

    def encode(self, batch):
        self.sizes.append(len(batch))
        if self.fail:
            self.fail(batch)
        made = [Feature(np.zeros(self.shape, np.float32), np.ones(1, np.float32)) for _ in batch]
        return made[:-1] if self.short else made


def items(count):
    return [fresh(4, bytes([i]), i).prepared for i in range(count)]


def mark(item):
    return int(item.arrays[0][0, 0, 0, 0])


def test_a_typed_error_reaches_its_item_alone():
    def fail(batch):
        if any(mark(item) == 2 for item in batch):
            raise GenmeterError("too_short", "two")

    results = encode(Scripted(fail), items(5), "cpu", None)
    assert [isinstance(r, Feature) for r in results] == [True, True, False, True, True]
    assert results[2].code == "too_short"


def test_memory_errors_of_every_kind_halve_the_batch():
    class OutOfMemoryError(RuntimeError):
        pass

    for error in (MemoryError(), OutOfMemoryError("x"), RuntimeError("DefaultCPUAllocator: can't allocate memory")):

        def fail(batch, error=error):
            if len(batch) > 2:
                raise error

        encoder = Scripted(fail)
        assert all(isinstance(r, Feature) for r in encode(encoder, items(8), "cpu", None))
        assert encoder.sizes == [8, 4, 2, 2, 4, 2, 2]


def test_other_runtime_errors_are_no_memory_errors():
    def fail(batch):
        raise RuntimeError("shape mismatch")

    encoder = Scripted(fail)
    results = encode(encoder, items(3), "cpu", None)
    assert [r.code for r in results] == ["internal"] * 3
    assert "shape mismatch" in results[0].message


def test_a_wrong_number_or_shape_of_features_is_said():
    assert [r.code for r in encode(Scripted(short=True), items(2), "cpu", None)] == ["internal"] * 2
    assert [r.code for r in encode(Scripted(shape=(2,)), items(2), "cpu", None)] == ["internal"] * 2
