"""Outputs of a folder paired with prompts and references by what their names say (``--match``)."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from genmeter.inputs.folder import stem_of
from genmeter.inputs.listing import Listing, media_below, one_or_all
from genmeter.inputs.prompts import read_prompts

_NUMBERED = re.compile(r"(.+?)[_-]([0-9]+)")
Key = Callable[[str], str | None]


def open_matched(root: Path, match: str, *, references: Path | None = None, prompts: Path | None = None) -> Listing:
    """Pair a folder by a key of its file names; outputs of one key are candidates of one sample.

    Args:
        root: The folder of outputs.
        match: ``id``: the file name less its ending, and less a number behind it where only that is known
            (``cat_0.png`` and ``cat_1.png`` of the id ``cat``); ``prompt``: the file name is the prompt, compared
            without case and punctuation; else a regular expression whose one group is the key, found anywhere in the
            path below the folder less its ending.
        references: A folder whose files are paired by the same key.
        prompts: A file of prompts by key; see :func:`genmeter.inputs.prompts.read_prompts`.

    Raises:
        ValueError: No media; an expression that is none; nothing matched. With an example of what was tried.
    """
    top = Path(os.path.abspath(root))
    paths = media_below(top)
    if not paths:
        raise ValueError(f"{root}: no image, audio or video in this folder")
    known, lines = _prompts(prompts, match)
    targets = media_below(Path(os.path.abspath(references))) if references is not None else []
    key = _key(match, set(known) | {_plain(stem_of(path)) for path in targets} if match == "id" else set(known))
    outputs, missed = _grouped(paths, key)
    found, _ = _grouped(targets, key)
    records: list[dict[str, Any]] = []
    for identity, names in outputs.items():
        prompt = known.get(identity)
        if match == "prompt" and prompts is None:
            prompt = _numberless(_plain(stem_of(names[0])), set()).replace("_", " ")
        record: dict[str, Any] = {"id": lines.get(identity, identity), "output": one_or_all(names)}
        if prompt is not None:
            record["prompt"] = prompt
        if identity in found:
            record["reference"] = found[identity]
        records.append(record)
    matched = [r for r in records if "prompt" in r or "reference" in r]
    if not outputs or ((prompts is not None or references is not None) and not matched):
        raise ValueError(_nothing(match, paths, outputs, known, found))
    listing = Listing(top, records, Path(os.path.abspath(references)) if references is not None else None)
    _count(listing, outputs, known, found, missed)
    return listing


def _prompts(file: Path | None, match: str) -> tuple[dict[str, str | list[str]], dict[str, str]]:
    """Prompts by key; and, where the key is the prompt itself, the id that each one has."""
    if file is None:
        return {}, {}
    read = read_prompts(file)
    if match == "prompt":
        texts = read.lines if read.by_key is None else [p for p in read.by_key.values() if isinstance(p, str)]
        names = texts if read.by_key is None else [k for k, p in read.by_key.items() if isinstance(p, str)]
        return {_words(t): t for t in texts}, {_words(t): n for t, n in zip(texts, names, strict=True)}
    if read.by_key is None:
        raise ValueError(f"{file}: holds one prompt a line and no names, and --match {match} looks prompts up by name")
    return dict(read.by_key), {}


def _key(match: str, known: set[str]) -> Key:
    if match == "prompt":
        return lambda path: _words(_numberless(_plain(stem_of(path)), known))
    if match == "id":
        return lambda path: _known_id(_plain(stem_of(path)), known)
    try:
        pattern = re.compile(match)
    except re.error as error:
        raise ValueError(f"--match {match!r}: expected stem, id, prompt or a regular expression; {error}") from None
    if pattern.groups != 1:
        raise ValueError(f"--match {match!r}: expected one group, as in '(.+)_[0-9]+$', found {pattern.groups}")

    def search(path: str) -> str | None:
        hit = pattern.search(stem_of(path))
        return unicodedata.normalize("NFC", hit[1]) if hit and hit[1] else None

    return search


def _plain(stem: str) -> str:
    return stem.rpartition("/")[2]


def _known_id(name: str, known: set[str]) -> str:
    numbered = _NUMBERED.fullmatch(name)
    return numbered[1] if numbered and name not in known and numbered[1] in known else name


def _numberless(name: str, known: set[str]) -> str:
    """A file name less the number of its candidate, unless the prompt itself ends in it."""
    numbered = _NUMBERED.fullmatch(name)
    if numbered is None or _words(name) in known:
        return name
    return numbered[1]


def _words(text: str) -> str:
    """A text as its words, without case and punctuation: what a file name keeps of a prompt."""
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFC", text).casefold().replace("_", " ")))


def _grouped(paths: list[str], key: Key) -> tuple[dict[str, list[str]], list[str]]:
    groups: dict[str, list[str]] = {}
    missed = []
    for path in paths:
        found = key(path)
        if found:
            groups.setdefault(found, []).append(path)
        else:
            missed.append(path)
    return groups, missed


def _nothing(
    match: str, paths: list[str], outputs: Mapping[str, Any], known: Mapping[str, Any], found: Mapping[str, Any]
) -> str:
    tried = f"{paths[0]!r} gives {next(iter(outputs))!r}" if outputs else f"{paths[0]!r} gives no key"
    wanted = next(iter(known or found), None)
    other = f", and the other side has {wanted!r}" if wanted is not None else ""
    return f"--match {match!r}: nothing matched: {tried}{other}"


def _count(
    listing: Listing,
    outputs: Mapping[str, list[str]],
    known: Mapping[str, Any],
    found: Mapping[str, Any],
    missed: list[str],
) -> None:
    """Matched and unmatched, both ways."""
    for what, other in (("prompt", known), ("reference", found)):
        if not other:
            continue
        alone = [names[0] for identity, names in outputs.items() if identity not in other]
        spare = [identity for identity in other if identity not in outputs]
        first = f" ({len(alone)} not, the first: {alone[0]!r})" if alone else ""
        listing.notes.append(f"{len(outputs) - len(alone)} of {len(outputs)} samples have a {what}{first}")
        if spare:
            listing.notes.append(f"{len(spare)} of {len(other)} {what}s have no output, the first: {spare[0]!r}")
    if missed:
        listing.notes.append(f"{len(missed)} files left out, since --match finds no key; the first: {missed[0]!r}")
