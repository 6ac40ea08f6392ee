"""Golden cases of the metrics: inputs, the value they must score, and who printed it.

``inputs`` of a case in a ``golden.json`` is one of

- ``{"generator": NAME, "args": {...}}``: images or videos drawn by a function here; with ``"texts": {"prompt": ...}``
  beside them where the metric reads one, and ``"count": N`` for that many equal samples where it is of a set;
- ``{"features": {NEED: [[...]]}}``: what the encoder would return, so that the metric's own arithmetic is held to a
  value on every machine;
- ``{"items": [{NEED: {...}}]}``: what the planner would hand to a metric of texts; the value is the mean over them;
- ``{"samples": [{"prediction": FILE, "prompt": TEXT, "references": [...]}]}``: files of other people, which are named
  with their origin and SHA-256 under ``files`` and never shipped. A text may be ``{"file": JSON, "key": ...}``. Such
  a case runs where the files lie in the folder that the environment variable ``GENMETER_GOLDENS`` names. Its value is
  the mean over the samples, or with ``"reduce": "difference"`` the first less the second.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Roles = dict[str, np.ndarray]
FOLDER_VARIABLE = "GENMETER_GOLDENS"


@dataclass(frozen=True)
class GoldenCase:
    """One case of a ``golden.json``.

    Attributes:
        name: What is compared, in words.
        variant: The metric variant to score it with.
        generator: A name of :data:`GENERATORS`; empty where the inputs are features or files.
        args: Its arguments.
        expected: The score.
        tolerance: Largest absolute difference that passes.
        source: Where the value comes from.
        published: Whether others printed it; else it was measured here.
        parameters: Parameters of the variant.
        texts: Text of each role that has one.
        features: (k, d) features of each need, by name.
        items: What a metric of texts is handed, by need.
        samples: Files and texts by role, one mapping a sample.
        reduce: ``mean`` or ``difference`` of the samples' scores.
        count: How many equal samples are made of drawn inputs.
        files: Of each file that ``samples`` name: ``sha256`` (empty where no source states it) and ``origin``.
    """

    name: str
    variant: str
    generator: str
    args: Mapping[str, Any]
    expected: float
    tolerance: float
    source: str
    published: bool
    parameters: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    features: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    items: tuple[Mapping[str, Any], ...] = ()
    samples: tuple[Mapping[str, Any], ...] = ()
    reduce: str = "mean"
    count: int = 1
    files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def inputs(self) -> Roles:
        """Role -> (H, W, 3) uint8 image, or (T, H, W, 3) uint8 frames of a video."""
        return GENERATORS[self.generator](**self.args)

    def missing(self) -> list[str]:
        """Why the case cannot run here: files that are not in the folder, or are not the ones the value belongs to."""
        trouble = []
        for name in sorted(_named_files(self.samples)):
            path = golden_folder() / name
            wanted = self.files[name].get("sha256", "")
            if not path.is_file():
                trouble.append(f"{name} is not in {FOLDER_VARIABLE} (it is {self.files[name]['origin']})")
            elif wanted and hashlib.sha256(path.read_bytes()).hexdigest() != wanted:
                trouble.append(f"{name} is another file than {self.files[name]['origin']}")
        return trouble

    def records(self) -> list[dict[str, Any]]:
        """The case as records of the short form, with images in memory or paths below :func:`golden_folder`."""
        if self.generator:
            images = self.inputs()
            record = {"output": images["prediction"], **({"prompt": self.texts["prompt"]} if self.texts else {})}
            if "reference" in images:
                record["reference"] = images["reference"]
            return [{"id": f"{self.name} {i}" if i else self.name, **record} for i in range(self.count)]
        return [{"id": f"{self.name} {i}", **_record(sample)} for i, sample in enumerate(self.samples)]

    def value(self, scores: Sequence[float]) -> float:
        """The samples' scores as the one number that is compared."""
        return scores[0] - scores[1] if self.reduce == "difference" else float(np.mean(scores))


def golden_folder() -> Path:
    """Where files of other people lie, when somebody has put them there."""
    return Path(os.environ.get(FOLDER_VARIABLE) or "goldens")


def read_cases(folder: Path) -> list[GoldenCase]:
    """The golden cases of a metric's folder; empty when it has none.

    Raises:
        ValueError: Naming the file and the case that cannot be used.
    """
    path = folder / "golden.json"
    if not path.is_file():
        return []
    data = json.loads(path.read_text(encoding="utf-8"))
    files = data.get("files", {})
    cases = []
    for raw in data["cases"]:
        try:
            cases.append(_case(dict(raw), files))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {raw.get('name')!r}: {error}") from None
    return cases


def _case(fields: dict[str, Any], files: Mapping[str, Mapping[str, str]]) -> GoldenCase:
    inputs = dict(fields.pop("inputs", {}))
    samples, items = tuple(inputs.pop("samples", ())), tuple(inputs.pop("items", ()))
    generator, features = inputs.pop("generator", None), inputs.pop("features", {})
    if not samples and not items and not features and generator not in GENERATORS:
        raise ValueError(f"unknown generator {generator!r}")
    for name in _named_files(samples):
        if not files.get(name, {}).get("origin"):
            raise ValueError(f"{name} does not stand under files, with its origin")
    return GoldenCase(
        **fields,
        generator=generator or "",
        args=inputs.pop("args", {}),
        features=features,
        items=items,
        samples=samples,
        files={name: files[name] for name in _named_files(samples)},
        **inputs,
    )


def _named_files(samples: Sequence[Mapping[str, Any]]) -> set[str]:
    names = {sample["prediction"] for sample in samples}
    texts = [value for sample in samples for key, value in sample.items() if key != "prediction"]
    return names | {text["file"] for text in texts if isinstance(text, Mapping)}


def _record(sample: Mapping[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = {"output": sample["prediction"], "prompt": _read_text(sample["prompt"])}
    if "references" in sample:
        answers = [{"type": "text", "text": text} for text in _read_text(sample["references"])]
        record["references"] = [{"answer": [answer]} for answer in answers]
    return record


def _read_text(value: Any) -> Any:
    if isinstance(value, Mapping):
        return json.loads((golden_folder() / value["file"]).read_text(encoding="utf-8"))[value["key"]]
    return value


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


def torch_noise(height: int, width: int, **seeds: int) -> Roles:
    """Role -> noise of ``torch.randint(255, (3, height, width))`` under its seed, as torchmetrics' examples draw it."""
    import torch

    images = {}
    for role, seed in seeds.items():
        noise = torch.randint(255, (3, height, width), generator=torch.Generator().manual_seed(seed))
        images[role] = noise.permute(1, 2, 0).numpy().astype(np.uint8)
    return images


def solid_videos(frames: int, width: int, height: int, prediction: Sequence[int], reference: Sequence[int]) -> Roles:
    """Two videos of one RGB colour each."""
    images = solid_pair(width, height, prediction, reference)
    return {role: np.repeat(image[None], frames, axis=0) for role, image in images.items()}


def pattern_videos(frames: int, width: int, height: int) -> Roles:
    """The images of :func:`pattern_pair` moving, one across and one down, three pixels a frame."""
    images = pattern_pair(width, height)
    moved = {
        role: [np.roll(image, 3 * t, axis=axis) for t in range(frames)]
        for axis, (role, image) in enumerate(images.items())
    }
    return {role: np.stack(clip) for role, clip in moved.items()}


GENERATORS: Mapping[str, Callable[..., Roles]] = {
    "solid_pair": solid_pair,
    "pattern_pair": pattern_pair,
    "torch_noise": torch_noise,
    "solid_videos": solid_videos,
    "pattern_videos": pattern_videos,
}
