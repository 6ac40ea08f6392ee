"""A folder of media as samples: outputs, with references and prompts paired by name."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from genmeter.inputs.listing import natural, unreadable
from genmeter.inputs.prompts import Prompts, read_prompts
from genmeter.schema.jsonio import dumps
from genmeter.schema.media import kind_of_name


class Folder:
    """A folder of outputs, paired. Made by :func:`open_folder`.

    Attributes:
        root: The folder, absolute; output paths are relative to it.
        references: The folder of references, absolute, or ``None``.
        notes: Sentences with matched and unmatched counts, both ways.
    """

    def __init__(self, root: Path, references: Path | None) -> None:
        self.root = root
        self.references = references
        self.notes: list[str] = []
        self.outputs: dict[str, str] = {}
        self.targets: dict[str, str] = {}
        self.prompts: dict[str, str | list[str]] = {}

    def records(self) -> Iterator[dict[str, Any]]:
        """A short record for each output: id (the path less its suffix), output, and what pairs; 2.png before 10.png.

        A reference is written with its whole path: a relative one could name a file of the outputs.
        """
        for stem, output in self.outputs.items():
            record: dict[str, Any] = {"id": stem}
            if stem in self.prompts:
                record["prompt"] = self.prompts[stem]
            record["output"] = output
            if stem in self.targets:
                record["reference"] = str(self.references / self.targets[stem]) if self.references else None
            yield record

    def identity(self, record: dict[str, Any]) -> bytes:
        """What of a record belongs to the input's digest: everything but where the references lie."""
        target = self.targets.get(record["id"])
        return dumps({**record, "reference": target} if target else record)


def open_folder(root: Path, *, references: Path | None = None, prompts: Path | None = None) -> Folder:
    """Find the media of a folder, and pair them.

    All media files in the folder and its subfolders count, known by their suffix; hidden ones do not. The stem of a
    file is its path below the folder less the suffix (``portraits/0001``), in Unicode's composed form.

    Args:
        root: The folder of outputs.
        references: A folder whose files are paired with the outputs by stem.
        prompts: A file of prompts; see :func:`genmeter.inputs.prompts.read_prompts`.

    Raises:
        ValueError: There are no media; two files share a stem; or nothing could be paired. With an example.
    """
    top = Path(os.path.abspath(root))
    target = Path(os.path.abspath(references)) if references is not None else None
    if target is not None and not target.is_dir():
        raise ValueError(f"--references {references}: expected a folder of media")
    if target == top:
        raise ValueError(f"--references {references}: is the folder of outputs itself")
    folder = Folder(top, target)
    folder.outputs, others = _by_stem(top, root, without=target)
    if not folder.outputs:
        raise ValueError(_no_media(root, others))
    if others:
        folder.notes.append(f"{_files(others)} of {root} left out: not an image, audio or video by the name")
    if target is not None and references is not None:
        folder.targets, _ = _by_stem(target, references, without=top)
        if not folder.targets:
            raise ValueError(f"--references {references}: no image, audio or video in it")
        _note_pairs(folder, references)
    if prompts is not None:
        _pair_prompts(folder, prompts)
    return folder


def stem_of(path: str) -> str:
    """A media path less its suffix, in composed form: what pairs an output with its reference and its prompt."""
    name = unicodedata.normalize("NFC", path)
    return name.rpartition(".")[0] if kind_of_name(name) else name


def _by_stem(top: Path, shown: Path, *, without: Path | None) -> tuple[dict[str, str], list[str]]:
    """Media paths below a folder by stem, sorted by path; and the names of the other files."""
    paths: list[str] = []
    others: list[str] = []
    for where, folders, names in os.walk(top, onerror=unreadable):
        folders[:] = [n for n in folders if not n.startswith(".") and Path(where, n) != without]
        for name in names:
            if name.startswith("."):
                continue
            (paths if kind_of_name(name) else others).append(Path(where, name).relative_to(top).as_posix())
    found: dict[str, str] = {}
    for path in sorted(paths, key=natural):
        stem = stem_of(path)
        if stem in found:
            raise ValueError(
                f"{shown}: two files of one name, {found[stem]} and {path}; which one belongs to {stem!r} cannot be "
                f"told. Keep one of them, or write a JSONL file"
            )
        found[stem] = path
    return found, others


def _note_pairs(folder: Folder, references: Path) -> None:
    both = sum(stem in folder.targets for stem in folder.outputs)
    alone = [stem for stem in folder.outputs if stem not in folder.targets]
    spare = [stem for stem in folder.targets if stem not in folder.outputs]
    if not both:
        raise ValueError(
            f"no output has a reference of its name: {folder.root.name} holds {next(iter(folder.outputs.values()))!r}, "
            f"{references} holds {next(iter(folder.targets.values()))!r}. They are paired by the path below the "
            f"folder, less the suffix"
        )
    folder.notes.append(f"{both} of {len(folder.outputs)} outputs have a reference{_without(alone)}")
    if spare:
        folder.notes.append(f"{len(spare)} of {len(folder.targets)} references have no output{_without(spare)}")


def _pair_prompts(folder: Folder, file: Path) -> None:
    prompts = read_prompts(file)
    used = _ordered(folder, file, prompts) if prompts.by_key is None else _keyed(folder, prompts)
    if not folder.prompts:
        raise ValueError(
            f"no output has a prompt of its name: {folder.root.name} holds {next(iter(folder.outputs.values()))!r}, "
            f"{file} names {next(iter(prompts.by_key or {}), 'nothing')!r}"
        )
    alone = [stem for stem in folder.outputs if stem not in folder.prompts]
    folder.notes.append(f"{len(folder.prompts)} of {len(folder.outputs)} outputs have a prompt{_without(alone)}")
    spare = [key for key in prompts.by_key or {} if key not in used]
    if spare:
        folder.notes.append(f"{len(spare)} of {len(prompts.by_key or {})} prompts have no output{_without(spare)}")


def _ordered(folder: Folder, file: Path, prompts: Prompts) -> set[str]:
    if len(prompts.lines) != len(folder.outputs):
        raise ValueError(
            f"{file} holds {len(prompts.lines)} lines and {folder.root.name} {len(folder.outputs)} outputs; one "
            f"prompt a line, in the sorted order of the file names, must be equally many. Name them instead: "
            f'{{"stem": "{next(iter(folder.outputs))}", "prompt": "..."}} a line, in a .jsonl file'
        )
    folder.prompts = dict(zip(folder.outputs, prompts.lines, strict=True))
    first, last = (list(folder.outputs.values())[at] for at in (0, -1))
    # Nothing else can tell that the order is not the one the prompts were written in.
    folder.notes.append(f"prompts go to outputs in the order of their names: {first} first, {last} last")
    return set()


def _keyed(folder: Folder, prompts: Prompts) -> set[str]:
    used: set[str] = set()
    known = prompts.by_key or {}
    for stem, output in folder.outputs.items():
        # The whole path first: an id may hold a dot that only looks like a suffix.
        for key in (unicodedata.normalize("NFC", output), stem):
            if key in known:
                folder.prompts[stem] = known[key]
                used.add(key)
                break
    return used


def _no_media(root: Path, others: list[str]) -> str:
    text = f"{root}: no image, audio or video in this folder"
    if not others:
        return f"{text}, which is empty"
    lines = next((name for name in sorted(others) if name.endswith((".jsonl", ".jsonl.gz"))), None)
    advice = f"; to score {lines}, give the file itself" if lines else ""
    return f"{text} ({_files(others)} of other kinds){advice}"


def _files(names: list[str]) -> str:
    return f"{len(names)} file{'s' if len(names) > 1 else ''}"


def _without(stems: list[str]) -> str:
    return f" ({len(stems)} not, the first: {stems[0]!r})" if stems else ""


__all__ = ["Folder", "open_folder", "stem_of"]
