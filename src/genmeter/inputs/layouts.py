"""Folders as well-known benchmarks lay them out, read without a list beside them.

``geneval`` (a folder a prompt, with metadata.jsonl and samples/), ``t2i-compbench`` (``{prompt}_000000.png``),
``vbench`` (``{prompt}-0.mp4``) and ``imagefolder`` (metadata.csv or metadata.jsonl with a file_name). Several outputs
of one prompt are candidates of one sample.
"""

from __future__ import annotations

import csv
import io
import os
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

from genmeter.inputs.listing import Listing, media_below, natural, one_or_all
from genmeter.schema.jsonio import loads
from genmeter.schema.media import kind_of_name

_COMPBENCH = re.compile(r"(.+)_([0-9]{6})")
_VBENCH = re.compile(r"(.+)-([0-9]{1,3})")
_TEXTS = ("prompt", "caption", "text")


def open_layout(root: Path, name: str | None = None) -> Listing | None:
    """Read a folder by its layout.

    Args:
        root: The folder.
        name: A name of :data:`LAYOUTS`, or ``None`` to take one that is unmistakable.

    Returns:
        The samples; ``None`` when no name is given and no layout is recognised.

    Raises:
        ValueError: The named layout is none, or not that of the folder; a list in it cannot be read. With an example.
    """
    if name is not None and name not in LAYOUTS:
        raise ValueError(f"--layout {name!r}: expected one of {', '.join(LAYOUTS)}")
    top = Path(os.path.abspath(root))
    for known, (read, shape) in LAYOUTS.items():
        if name not in (None, known):
            continue
        found = read(top)
        if found is not None:
            records, left = found
            listing = Listing(top, records)
            outputs = sum(1 if isinstance(r["output"], str) else len(r["output"]) for r in records)
            listing.notes.append(f"layout {known}: {outputs} outputs of {len(records)} prompts ({shape})")
            if left:
                listing.notes.append(f"{len(left)} files left out, the first: {left[0]!r}")
            return listing
        if name is not None:
            example = next(iter(media_below(top)), None)
            seen = f"for example {example!r}" if example else "no media"
            raise ValueError(f"--layout {name}: expected {shape} in {root}, found {seen}")
    return None


Found = tuple[list[dict[str, Any]], list[str]] | None


def _geneval(root: Path) -> Found:
    folders = sorted(
        (p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")), key=lambda p: natural(p.name)
    )
    prompts = [folder for folder in folders if (folder / "metadata.jsonl").is_file()]
    if not prompts:
        return None
    records, left = [], [folder.name for folder in folders if folder not in prompts]
    for folder in prompts:
        about = _json(folder / "metadata.jsonl", (folder / "metadata.jsonl").read_bytes().strip() or b"null")
        if not isinstance(about, dict) or not isinstance(about.get("prompt"), str):
            raise ValueError(f"{folder / 'metadata.jsonl'}: expected an object with a prompt")
        names = [f"{folder.name}/samples/{name}" for name in media_below(folder / "samples")]
        if not names:
            left.append(f"{folder.name} (no samples)")
            continue
        record: dict[str, Any] = {"id": folder.name, "prompt": about["prompt"], "output": one_or_all(names)}
        rest = {key: value for key, value in about.items() if key != "prompt"}
        if rest:
            record["metadata"] = rest
        if isinstance(about.get("tag"), str):
            record["data_tag"] = {"tag": about["tag"]}
        records.append(record)
    return (records, left) if records else None


def _json(file: Path, text: str | bytes) -> Any:
    try:
        return loads(text)
    except ValueError as error:
        raise ValueError(f"{file}: a line is {error}") from None


def _named_after_prompts(root: Path, pattern: re.Pattern[str], kind: str) -> Found:
    """Files whose names are prompts with a number; unmistakable only where all of them are, and say a sentence."""
    groups: dict[str, list[str]] = {}
    for path in media_below(root):
        stem = unicodedata.normalize("NFC", path.rpartition("/")[2].rpartition(".")[0])
        match = pattern.fullmatch(stem)
        if match is None or kind_of_name(path) != kind:
            return None
        groups.setdefault(match[1], []).append(path)
    if not groups or sum(" " in prompt for prompt in groups) * 2 < len(groups):
        return None
    return [{"id": p, "prompt": p, "output": one_or_all(names)} for p, names in groups.items()], []


def _compbench(root: Path) -> Found:
    return _named_after_prompts(root, _COMPBENCH, "image")


def _vbench(root: Path) -> Found:
    return _named_after_prompts(root, _VBENCH, "video")


def _imagefolder(root: Path) -> Found:
    file = next((root / name for name in ("metadata.csv", "metadata.jsonl") if (root / name).is_file()), None)
    if file is None:
        return None
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{file}: is not UTF-8; save the file as UTF-8") from None
    if file.suffix == ".csv":
        rows: list[Any] = list(csv.DictReader(io.StringIO(text, newline="")))
    else:
        rows = [_json(file, line) for line in text.split("\n") if line.strip()]
    if not rows or not all(isinstance(row, dict) and row.get("file_name") for row in rows):
        raise ValueError(f"{file}: expected a file_name in every row")
    records = []
    for row in rows:
        name = str(row["file_name"])
        record: dict[str, Any] = {"id": name.rpartition(".")[0] or name, "output": name}
        prompt = next((row[key] for key in _TEXTS if isinstance(row.get(key), str) and row[key].strip()), None)
        if prompt is not None:
            record["prompt"] = prompt
        rest = {k: v for k, v in row.items() if k not in ("file_name", *_TEXTS) and v not in (None, "") and k}
        if rest:
            record["metadata"] = rest
        records.append(record)
    listed = {record["output"] for record in records}
    return records, [path for path in media_below(root) if path not in listed]


LAYOUTS: dict[str, tuple[Callable[[Path], Found], str]] = {
    "geneval": (_geneval, "folders with metadata.jsonl and samples/"),
    "imagefolder": (_imagefolder, "metadata.csv or metadata.jsonl with a file_name"),
    "t2i-compbench": (_compbench, "images named {prompt}_000000.png"),
    "vbench": (_vbench, "videos named {prompt}-0.mp4"),
}
"""Name to reader and what it looks for; the first that fits is taken."""
