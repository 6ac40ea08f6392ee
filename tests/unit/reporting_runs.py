"""A synthetic run directory, as the engine leaves it, for the tests of summary, report and commands."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e"
LPIPS = {
    "variant": "alex-v0.1",
    "title": "LPIPS",
    "higher_is_better": False,
    "range": [0.0, None],
    "convention": None,
    "scope": "sample",
    "encoders": {"pair": {"model": "lpips-alex", "digest": "40d36571" + "a" * 56, "preprocessing": "lpips-1"}},
}
CLIP = {
    "variant": "openai-vit-b-32/hessel2021",
    "title": "CLIPScore",
    "higher_is_better": True,
    "range": [0.0, 2.5],
    "convention": "hessel2021",
    "scope": "sample",
    "encoders": {"image": {"model": "clip", "digest": "b" * 64}, "text": {"model": "clip", "digest": "b" * 64}},
}
FVD = {
    "variant": "i3d-k400/unterthiner2018",
    "title": "Frechet video distance",
    "higher_is_better": False,
    "range": [0.0, None],
    "scope": "set",
    "encoders": {},
}


def run_json(**changes: Any) -> dict[str, Any]:
    return {
        "schema": "genmeter.run/1",
        "run_id": "0123456789abcdef",
        "name": "sdxl",
        "version": "0.1.0",
        "created": "2026-01-02T03:04:05Z",
        "command": ["genmeter", "score", "in.jsonl"],
        "snapshot": "sha256:ab12cd34" + "0" * 56,
        "device": "cpu",
        "precision": "exact",
        "metrics": {"lpips": dict(LPIPS)},
        "config": {},
        "libraries": {"numpy": "2.0.0"},
        "counts": {},
        **changes,
    }


def scored(value: float, **more: Any) -> dict[str, Any]:
    return {"score": value, "variant": "alex-v0.1", "higher_is_better": False, **more}


def failed(code: str, message: str = "what was found", **more: Any) -> dict[str, Any]:
    error = {"code": code, "message": message, **more}
    return {"score": None, "variant": "alex-v0.1", "higher_is_better": False, "error": error}


def row(index: int, entry: dict[str, Any] | None, name: str = "lpips", **fields: Any) -> dict[str, Any]:
    metrics = {} if entry is None else {name: entry}
    result = {"overall": {"score": None, "passed": None}, "metrics": metrics}
    return {"id": f"s{index}", "messages": [], "task_type": "image-to-image", **fields, "eval_result": result}


def write_run(folder: Path, rows: list[dict[str, Any]], run: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if run is not None:
        (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    text = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)
    (folder / "samples.jsonl").write_text(text, encoding="utf-8")
    return folder


def image(path: Path, seed: int, size: tuple[int, int] = (96, 64)) -> str:
    """Write a small picture and return its digest as rows state it."""
    from PIL import Image, ImageDraw

    path.parent.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    picture = Image.new("RGB", size, tuple(rng.randrange(256) for _ in range(3)))
    draw = ImageDraw.Draw(picture)
    for _ in range(6):
        x, y, r = rng.randrange(size[0]), rng.randrange(size[1]), rng.randrange(4, 24)
        draw.ellipse((x - r, y - r, x + r, y + r), fill=tuple(rng.randrange(256) for _ in range(3)))
    picture.save(path)
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def picture_run(folder: Path, count: int = 60) -> Path:
    """A run with pictures, groups, failures of several kinds, flags, a hostile id and a set metric."""
    rng = random.Random(7)
    rows: list[dict[str, Any]] = []
    for i in range(count):
        out, ref = f"out/{i}.png", f"ref/{i}.png"
        digests = [image(folder / out, i), image(folder / ref, i + 1000)]
        inputs = [
            {"role": "prediction", "path": "output", "digest": digests[0]},
            {"role": "reference", "path": "reference", "digest": digests[1]},
        ]
        lpips = scored(rng.betavariate(2, 5), detail={"width": 96, "height": 64}, inputs=inputs)
        if i % 9 == 4:
            lpips = failed("decode_failed", f"{out}: PNG is cut after 2,311 bytes", asset=out, hint="write it again")
        elif i % 17 == 5:
            lpips = failed("size_mismatch", "prediction 96x64, reference 64x64", asset=out)
        elif i % 6 == 0:
            lpips["flags"] = ["alpha_composited"]
        fvd = {
            "score": 450.6,
            "variant": FVD["variant"],
            "scope": "set",
            "set": "all",
            "detail": {
                "n_prediction": count,
                "n_reference": count,
                "bias_corrected": 141.9,
                "interval95": [47.8, 236.0],
                "influence": rng.gauss(0, 12),
                "feature_distance": 14.0 + i,
            },
            "flags": ["low_sample_count"],
            "inputs": inputs,
        }
        rows.append(
            {
                "id": HOSTILE if i == 0 else f"edit-{i:04d}",
                "prompt": f"make the sky {rng.choice(['pink', 'green', 'stormy'])} and keep everything else {HOSTILE}",
                "output": out,
                "reference": ref,
                "data_tag": {"style": rng.choice(["photo", "anime", "sketch"]), "difficulty": i % 2},
                "eval_result": {
                    "overall": {"score": None, "passed": None},
                    "metrics": {"lpips": lpips, "fvd": fvd},
                },
            }
        )
    rows.append({"id": None, "line": count + 1, "eval_result": {"error": {"code": "bad_line", "message": "cut"}}})
    run = run_json(metrics={"lpips": LPIPS, "fvd": FVD}, media_roots=[str(folder)])
    return write_run(folder, rows, run)
