"""Image-to-image demo samples: a scene, an instruction, the edited scene as reference, and an output of known fault.

Outputs are the reference itself under a degradation, a different picture, or a file that cannot be scored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from genmeter.synth.degrade import degrade, jpeg_quality
from genmeter.synth.draw import draw
from genmeter.synth.scene import make_edit, make_scene
from genmeter.synth.words import caption, instruction

WIDTH, HEIGHT = 256, 192
STRENGTHS = {"mild": 0.15, "strong": 1.0}


class Case(NamedTuple):
    """What is wrong with one output.

    Attributes:
        degradation: The value of ``data_tag.degradation``: a kind of :mod:`genmeter.synth.degrade`, or a key of
            :data:`_OUTPUTS`.
        strength: The value of ``data_tag.strength``: ``good`` (as it should be), ``mild`` or ``strong`` (degraded),
            ``wrong`` (an intact picture that is not what was asked for) or ``broken`` (cannot be scored).
        suffix: Ending of the output's name.
    """

    degradation: str
    strength: str
    suffix: str = ".png"


# Mixed, so that the first lines of a run already show some of each.
CASES: tuple[Case, ...] = (
    Case("identical", "good"),
    Case("blur", "mild"),
    Case("blur", "strong"),
    Case("truncated", "broken"),
    Case("noise", "mild"),
    Case("noise", "strong"),
    Case("jpeg", "mild", ".jpg"),
    Case("jpeg", "strong", ".jpg"),
    Case("html", "broken"),
    Case("nearly", "good"),
    Case("colour", "mild"),
    Case("colour", "strong"),
    Case("missing", "broken"),
    Case("shift", "mild"),
    Case("shift", "strong"),
    Case("size", "broken"),
    Case("downscale", "mild"),
    Case("downscale", "strong"),
    Case("rgba", "good"),
    Case("empty", "broken"),
    Case("unrelated", "wrong"),
    Case("exif", "good", ".jpg"),
    Case("not_json", "broken"),
    Case("unedited", "wrong"),
)

_HTML = (
    b"<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>\n"
)


def write(folder: Path, n: int, seed: int) -> Iterator[dict[str, Any] | str]:
    """Write the media of ``n`` samples under ``folder`` and yield their lines (see :func:`write_demo`)."""
    for part in ("inputs", "outputs", "references"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for i in range(n):
        case = CASES[i % len(CASES)]
        before = make_scene(seed * 1_000_003 + i)
        after, edit = make_edit(before, before.seed)
        name = f"edit-{i:04d}"
        source, reference = f"inputs/{name}.png", f"references/{name}.png"
        output = f"outputs/{name}{case.suffix}"
        source_pixels, target = draw(before, WIDTH, HEIGHT), draw(after, WIDTH, HEIGHT)
        _save(folder / source, source_pixels)
        _save(folder / reference, target)
        _OUTPUTS.get(case.degradation, _degraded)(folder / output, target, source_pixels, case, before.seed)
        text = instruction(before, edit)
        if case.degradation == "not_json":
            # What a writer leaves behind that was killed in the middle of a line.
            yield f'{{"schema_version": "v1", "id": "{name}", "task_type": "image-to-image", "messages": [{{"role": "us'
            continue
        yield {
            "schema_version": "v1",
            "id": name,
            "task_type": "image-to-image",
            "messages": [{"role": "user", "content": [_image(source), {"type": "text", "text": text}]}],
            "references": [{"answer": [_image(reference)]}],
            "label": reference,
            "predict_result": [{"index": 0, "message": {"role": "assistant", "content": [_image(output)]}}],
            "data_tag": {"degradation": case.degradation, "strength": case.strength},
            "metadata": {"source_prompt": caption(before), "target_prompt": caption(after)},
        }


def _image(uri: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": uri}}


def _save(path: Path, pixels: np.ndarray, **options: Any) -> None:
    from PIL import Image

    Image.fromarray(pixels).save(path, **options)


Writer = Callable[[Path, np.ndarray, np.ndarray, Case, int], None]


def _degraded(path: Path, target: np.ndarray, source: np.ndarray, case: Case, seed: int) -> None:
    strength = STRENGTHS[case.strength]
    if case.degradation == "jpeg":
        _save(path, target, quality=jpeg_quality(strength), subsampling=2)
    else:
        _save(path, degrade(target, case.degradation, strength, seed=seed))


def _identical(path: Path, target: np.ndarray, source: np.ndarray, case: Case, seed: int) -> None:
    path.write_bytes((path.parent.parent / "references" / path.name).read_bytes())


def _nearly(path: Path, target: np.ndarray, source: np.ndarray, case: Case, seed: int) -> None:
    _save(path, degrade(target, "noise", 0.03, seed=seed))


def _unrelated(path: Path, target: np.ndarray, source: np.ndarray, case: Case, seed: int) -> None:
    _save(path, draw(make_scene(seed + 500_009), WIDTH, HEIGHT))


def _unedited(path: Path, target: np.ndarray, source: np.ndarray, case: Case, seed: int) -> None:
    _save(path, source)


def _rgba(path: Path, target: np.ndarray, source: np.ndarray, case: Case, seed: int) -> None:
    """The right picture with rounded, transparent corners, as a screenshot or cut-out tool writes it."""
    height, width = target.shape[:2]
    y, x = np.mgrid[0:height, 0:width] + 0.5
    radius = 12
    outside = np.hypot(
        np.maximum(radius - np.minimum(x, width - x), 0), np.maximum(radius - np.minimum(y, height - y), 0)
    )
    alpha = (np.clip(radius + 0.5 - outside, 0, 1) * 255).astype(np.uint8)
    _save(path, np.dstack([target, alpha]))


def _exif(path: Path, target: np.ndarray, source: np.ndarray, case: Case, seed: int) -> None:
    """The right picture stored on its side, with the EXIF orientation that turns it upright (6: rotate clockwise)."""
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    _save(path, np.ascontiguousarray(np.rot90(target)), quality=95, subsampling=0, exif=exif)


def _size(path: Path, target: np.ndarray, source: np.ndarray, case: Case, seed: int) -> None:
    _save(path, np.ascontiguousarray(target[: HEIGHT - 16, : WIDTH - 32]))


def _truncated(path: Path, target: np.ndarray, source: np.ndarray, case: Case, seed: int) -> None:
    _save(path, degrade(target, "noise", 0.03, seed=seed))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 3 // 5])


def _html(path: Path, target: np.ndarray, source: np.ndarray, case: Case, seed: int) -> None:
    path.write_bytes(_HTML)


def _empty(path: Path, target: np.ndarray, source: np.ndarray, case: Case, seed: int) -> None:
    path.write_bytes(b"")


def _missing(path: Path, target: np.ndarray, source: np.ndarray, case: Case, seed: int) -> None:
    path.unlink(missing_ok=True)


_OUTPUTS: dict[str, Writer] = {
    "identical": _identical,
    "nearly": _nearly,
    "unrelated": _unrelated,
    "unedited": _unedited,
    "rgba": _rgba,
    "exif": _exif,
    "size": _size,
    "truncated": _truncated,
    "html": _html,
    "empty": _empty,
    "missing": _missing,
    "not_json": _missing,
}
