"""Golden cases of the metrics: inputs made by a generator call, the value they must score, and who printed it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Roles = dict[str, np.ndarray]


@dataclass(frozen=True)
class GoldenCase:
    """One case of a ``golden.json``.

    Attributes:
        name: What is compared, in words.
        variant: The metric variant to score it with.
        generator: A name of :data:`GENERATORS`.
        args: Its arguments.
        expected: The score.
        tolerance: Largest absolute difference that passes.
        source: Where the value comes from.
        published: Whether others printed it; else it was measured here.
    """

    name: str
    variant: str
    generator: str
    args: Mapping[str, Any]
    expected: float
    tolerance: float
    source: str
    published: bool

    def inputs(self) -> Roles:
        """Role -> (H, W, 3) uint8 image."""
        return GENERATORS[self.generator](**self.args)


def read_cases(folder: Path) -> list[GoldenCase]:
    """The golden cases of a metric's folder; empty when it has none.

    Raises:
        ValueError: Naming the file and the case that cannot be used.
    """
    path = folder / "golden.json"
    if not path.is_file():
        return []
    cases = []
    for raw in json.loads(path.read_text(encoding="utf-8"))["cases"]:
        fields = dict(raw)
        inputs = fields.pop("inputs", {})
        if inputs.get("generator") not in GENERATORS:
            raise ValueError(f"{path}: {raw.get('name')!r}: unknown generator {inputs.get('generator')!r}")
        try:
            cases.append(GoldenCase(**fields, generator=inputs["generator"], args=inputs.get("args", {})))
        except TypeError as error:
            raise ValueError(f"{path}: {raw.get('name')!r}: {error}") from None
    return cases


def solid_pair(width: int, height: int, prediction: Sequence[int], reference: Sequence[int]) -> Roles:
    """Two images of one RGB colour each."""
    return {
        role: np.broadcast_to(np.array(colour, dtype=np.uint8), (height, width, 3)).copy()
        for role, colour in (("prediction", prediction), ("reference", reference))
    }


def pattern_pair(width: int, height: int) -> Roles:
    """A busy image against smooth ramps, unlike in every channel; integer arithmetic only, so equal everywhere."""
    y, x = np.mgrid[0:height, 0:width]
    busy = np.stack([x * y, x * 7 + y * 3, 255 - x * 3], axis=-1)
    smooth = np.stack([x * 4, y * 4, x * 2 + y * 2], axis=-1)
    return {"prediction": (busy % 256).astype(np.uint8), "reference": (smooth % 256).astype(np.uint8)}


GENERATORS: Mapping[str, Callable[..., Roles]] = {"solid_pair": solid_pair, "pattern_pair": pattern_pair}
