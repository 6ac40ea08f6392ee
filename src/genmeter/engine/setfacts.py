"""What the files of a set have in common and what not: frame sizes, frame rates, and how much of each was read."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from genmeter.contract import Json

KEYS = ("frames_used", "frames_total", "size", "fps")
"""The facts of a feature's detail that a row of a set metric repeats."""

# Rates that differ by less are one: 29.97 and 30.
_RATE_TOLERANCE = 0.01
_SIZES_SHOWN = 5


class FileFacts(NamedTuple):
    """Facts of the files of one side.

    Attributes:
        names: Frame sizes, as WIDTHxHEIGHT.
        size: (u,) int32: which size each file has; -1 where nobody says.
        fps: (u,) float64 frames a second; NaN where nobody says.
        used: (u,) int64 frames that were read; 0 where nobody says.
        total: (u,) int64 frames of the file, likewise.
    """

    names: tuple[str, ...]
    size: np.ndarray
    fps: np.ndarray
    used: np.ndarray
    total: np.ndarray

    def of(self, files: np.ndarray) -> FileFacts:
        """The facts of some files."""
        return FileFacts(self.names, self.size[files], self.fps[files], self.used[files], self.total[files])


class FactsReader:
    """Collects the facts of files from the details of their features, a few bytes each."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._size, self._fps = array("i"), array("d")
        self._used, self._total = array("q"), array("q")

    def add(self, detail: Mapping[str, Json]) -> None:
        """Take the detail of one more file's feature."""
        size = detail.get("size")
        self._size.append(self._names.setdefault(size, len(self._names)) if isinstance(size, str) else -1)
        fps = detail.get("fps")
        self._fps.append(float(fps) if isinstance(fps, (int, float)) else math.nan)
        for column, key in ((self._used, "frames_used"), (self._total, "frames_total")):
            count = detail.get(key)
            column.append(count if isinstance(count, int) else 0)

    def read(self) -> FileFacts:
        """The facts of all files, in the order in which they were added."""
        return FileFacts(
            tuple(self._names),
            np.array(self._size, np.int32),
            np.array(self._fps, np.float64),
            np.array(self._used, np.int64),
            np.array(self._total, np.int64),
        )


def compare(prediction: FileFacts, reference: FileFacts | None) -> tuple[dict[str, Json], tuple[str, ...]]:
    """What a row says of its sets' files.

    Args:
        prediction: Of the prediction set.
        reference: Of the reference set; None where only its features are at hand.

    Returns:
        ``detail.media``, a mapping for each side with ``frames_used``, ``frames_total`` and ``fps`` (one number, or
        [least, most]) and ``size`` (a word, or how many files have each of the most frequent sizes), of what is known;
        and the flags ``size_mismatch_sets`` and ``frame_rate_mismatch`` where one side has sizes or rates that the
        other has not.
    """
    sides = {"prediction": prediction, **({} if reference is None else {"reference": reference})}
    media = {side: described for side, facts in sides.items() if (described := _describe(facts))}
    flags: list[str] = []
    if reference is not None:
        ours, theirs = (_sizes(facts) for facts in (prediction, reference))
        if ours and theirs and ours.keys() != theirs.keys():
            flags.append("size_mismatch_sets")
        rates = [np.unique(facts.fps[np.isfinite(facts.fps)]) for facts in (prediction, reference)]
        if all(len(found) for found in rates) and not (_within(*rates) and _within(*rates[::-1])):
            flags.append("frame_rate_mismatch")
    return ({"media": media} if media else {}), tuple(flags)


def _describe(facts: FileFacts) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for key, values in (("frames_used", facts.used), ("frames_total", facts.total)):
        known = values[values > 0]
        if len(known):
            found[key] = _span(int(known.min()), int(known.max()))
    sizes = _sizes(facts)
    if sizes:
        most = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
        found["size"] = most[0][0] if len(most) == 1 else dict(most[:_SIZES_SHOWN])
    known = facts.fps[np.isfinite(facts.fps)]
    if len(known):
        found["fps"] = _span(round(float(known.min()), 3), round(float(known.max()), 3))
    return found


def _span(low: float, high: float) -> Json:
    return low if low == high else [low, high]


def _sizes(facts: FileFacts) -> dict[str, int]:
    """How many files have each size."""
    codes, counts = np.unique(facts.size[facts.size >= 0], return_counts=True)
    return {facts.names[code]: int(count) for code, count in zip(codes, counts, strict=True)}


def _within(rates: np.ndarray, others: np.ndarray) -> bool:
    """Whether each of some ascending rates is near one of the others."""
    at = np.searchsorted(others, rates)
    nearest = [others[np.clip(at + step, 0, len(others) - 1)] for step in (-1, 0)]
    gaps = np.minimum(*(np.abs(rates - other) for other in nearest))
    return bool((gaps <= _RATE_TOLERANCE * rates).all())
