"""Batches: which units run together, and running them so that no batch can take its neighbours down.

The batch plan is a pure function of the units in their input order: their buckets, their sizes and nothing else. A unit
that an interrupted process already encoded keeps its place in the plan, so that a resumed run forms the same batches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from genmeter.contract import Encoder, Feature, Prepared
from genmeter.engine import device
from genmeter.engine.prepare import Fresh, Known
from genmeter.errors import GenmeterError

_WAITING_BYTES = 512 << 20
MAX_BATCH = 256


class Item(NamedTuple):
    """One unit in a batch; ``prepared`` is None for a unit whose feature is already known."""

    unit: int
    key: bytes
    prepared: Prepared | None


class Batch(NamedTuple):
    """Units of one encoder and one bucket that run together."""

    encoder: int
    bucket: str
    items: tuple[Item, ...]

    @property
    def fresh(self) -> list[Item]:
        """The items that still have to be encoded."""
        return [item for item in self.items if item.prepared is not None]


class Batcher:
    """Collects units into batches.

    Args:
        limit: Items per batch for an encoder, a bucket and the shape of its items.
        waiting_bytes: Above this the largest bucket is flushed before it is full.
    """

    def __init__(self, limit: Callable[[int, str, tuple[int, ...]], int], waiting_bytes: int = _WAITING_BYTES) -> None:
        self._limit, self._waiting_bytes = limit, waiting_bytes
        self._buckets: dict[tuple[int, str], list[Item]] = {}
        self._sizes: dict[tuple[int, str], int] = {}
        self._held = 0
        self._names: dict[tuple[Any, ...], str] = {}
        self._limits: dict[tuple[int, str], int] = {}

    def add(self, encoder: int, unit: int, outcome: Fresh | Known) -> list[Batch]:
        """Put one unit into its bucket. Returns the batches that are due, in the order in which they must run."""
        if isinstance(outcome, Fresh):
            prepared = outcome.prepared
            slot = (encoder, self._bucket(prepared))
            item, size = Item(unit, outcome.key, prepared), prepared.nbytes
            if slot not in self._limits:
                self._limits[slot] = self._limit(encoder, slot[1], prepared.shape)
        else:
            slot = (encoder, outcome.bucket)
            item, size = Item(unit, outcome.key, None), outcome.nbytes
            if slot not in self._limits:
                self._limits[slot] = self._limit(encoder, outcome.bucket, bucket_shape(outcome.bucket))
        due = []
        while self._buckets and self._held + size > self._waiting_bytes:
            due.append(self._flush(max(self._sizes, key=self._sizes.__getitem__)))
        bucket = self._buckets.setdefault(slot, [])
        bucket.append(item)
        self._sizes[slot] = self._sizes.get(slot, 0) + size
        self._held += size
        if len(bucket) >= self._limits[slot]:
            due.append(self._flush(slot))
        return due

    def _bucket(self, prepared: Prepared) -> str:
        like = tuple([(array.dtype, array.shape[1:]) for array in prepared.arrays])
        name = self._names.get(like)
        if name is None:
            name = self._names[like] = prepared.bucket
        return name

    def rest(self) -> list[Batch]:
        """The batches that are left at the end of a window."""
        return [self._flush(slot) for slot in list(self._buckets)]

    def _flush(self, slot: tuple[int, str]) -> Batch:
        self._held -= self._sizes.pop(slot)
        return Batch(*slot, tuple(self._buckets.pop(slot)))


def bucket_shape(bucket: str) -> tuple[int, ...]:
    """The shape of the first array of a bucket, as :attr:`genmeter.contract.Prepared.bucket` writes it."""
    inner = bucket.partition(";")[0].partition("(")[2].rstrip(")")
    return tuple(int(part) for part in inner.split(",") if part.strip())


def batch_limit(encoder: Encoder, shape: tuple[int, ...], budget: int, wanted: int | None) -> int:
    """Items per batch: as many as fit into the budget, a power of two of at most 256, or what was asked for."""
    if wanted is not None:
        return wanted
    fitting = budget // max(encoder.bytes_per_item(shape), 1)
    return max(1, min(MAX_BATCH, 1 << (max(fitting, 1).bit_length() - 1)))


def encode(
    encoder: Encoder, items: Sequence[Prepared], place: str, fallback: Callable[[], Encoder] | None
) -> list[Feature | GenmeterError]:
    """Encode items of one bucket; whatever happens, each gets a feature or a typed error.

    Out of memory halves the batch; an item that does not fit alone goes to ``fallback`` (the CPU) or becomes a typed
    error. Any other failure runs the items one by one, so that only the one at fault is lost. A device that failed for
    good raises :class:`~genmeter.engine.device.DeviceLostError`: whatever would be tried on it fails too.

    Args:
        encoder: A loaded encoder.
        items: Items of one bucket.
        place: Name of the device, for messages.
        fallback: Makes an encoder for an item that does not fit alone; None where there is no other place.
    """
    try:
        features = list(encoder.encode(items))
    except GenmeterError as error:
        if len(items) == 1:
            return [error]
        return _halves(encoder, items, place, fallback, len(items))
    except (Exception, SystemExit) as error:
        if device.is_out_of_memory(error):
            device.release_cached_memory(place)
            if len(items) > 1:
                return _halves(encoder, items, place, fallback, 2)
            return [_alone(items[0], place, fallback)]
        if device.is_lost(error, place):
            raise device.DeviceLostError(place, error) from error
        if len(items) > 1:
            return _halves(encoder, items, place, fallback, len(items))
        return [GenmeterError("internal", f"encoding failed: {type(error).__name__}: {error}", "please report it")]
    if len(features) != len(items):
        if len(items) > 1:
            return _halves(encoder, items, place, fallback, len(items))
        message = f"the encoder returned {len(features)} features for {len(items)} items"
        return [GenmeterError("internal", message, "please report it")]
    return [_checked(feature) for feature in features]


def _halves(
    encoder: Encoder, items: Sequence[Prepared], place: str, fallback: Callable[[], Encoder] | None, parts: int
) -> list[Feature | GenmeterError]:
    step = -(-len(items) // parts)
    results: list[Feature | GenmeterError] = []
    for start in range(0, len(items), step):
        results += encode(encoder, items[start : start + step], place, fallback)
    return results


def _alone(item: Prepared, place: str, fallback: Callable[[], Encoder] | None) -> Feature | GenmeterError:
    if fallback is None:
        return device.out_of_memory(item.shape, place)
    try:
        other = fallback()
    except GenmeterError as error:
        return error
    except Exception:  # there is no room on the CPU either, or no such network there
        return device.out_of_memory(item.shape, place)
    [result] = encode(other, [item], "cpu", None)
    if isinstance(result, Feature):
        return result._replace(detail={**result.detail, "device": "cpu"})
    return result


def _checked(feature: Any) -> Feature | GenmeterError:
    """The feature if it is one that can be stored and scored, else the error that its unit gets."""
    if not isinstance(feature, Feature):
        return _odd(f"a {type(feature).__name__} where a feature was expected")
    values: Any = feature.values
    weights: Any = feature.weights
    if not (isinstance(values, np.ndarray) and isinstance(weights, np.ndarray)):
        return _odd(f"{type(values).__name__} and {type(weights).__name__} where arrays were expected")
    if values.ndim != 2 or weights.shape != values.shape[:1] or not values.size:
        return _odd(f"values {values.shape} with {weights.shape} weights")
    if values.dtype.kind not in "fiu" or weights.dtype.kind not in "fiu":
        return _odd(f"values of type {values.dtype} with weights of type {weights.dtype}")
    if not _finite(values):
        return GenmeterError("non_finite", "the network returned NaN or infinity for this item")
    if not _weigh(weights):
        return _odd("weights that no mean can be taken with")
    if feature.detail or feature.flags:
        try:
            json.dumps([dict(feature.detail), list(feature.flags)], allow_nan=False)
        except (TypeError, ValueError) as error:
            return _odd(f"a detail that cannot be written down ({error})")
    if values.dtype == weights.dtype == np.float32:
        return feature
    # As they are stored, so that a resumed run scores the same numbers.
    return feature._replace(values=values.astype(np.float32), weights=weights.astype(np.float32))


def _finite(values: np.ndarray) -> bool:
    return b"\0" not in np.isfinite(values).tobytes()  # on small arrays several times faster than all()


def _weigh(weights: np.ndarray) -> bool:
    """Whether a mean can be taken with these weights."""
    if weights.size == 1:
        return bool(0 < weights.item() < math.inf)
    return bool((weights >= 0).all() and 0 < weights.sum() < np.inf)


def _odd(what: str) -> GenmeterError:
    return GenmeterError("internal", f"the encoder returned {what}", "please report it")
