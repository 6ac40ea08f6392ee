"""Bringing a model's weights onto this machine once, and never trusting a file that was not hashed.

A converted file is verified by hashing its tensors, at each start: that takes no lock and works on a
read-only home. Everything that writes happens under one lock for the home, into temporary files that are
renamed when they are whole, so any number of processes may start with an empty home.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from genmeter.errors import GenmeterError
from genmeter.weights import home
from genmeter.weights.archive import open_part
from genmeter.weights.convert import convert
from genmeter.weights.digest import file_sha256, tensors_digest
from genmeter.weights.load import file_digest
from genmeter.weights.lock import (
    ModelEntry,
    PartSpec,
    SourceSpec,
    bundled_path,
    entry_digest,
    load_lock,
    locked_path,
)
from genmeter.weights.sources import Progress, get_source
from genmeter.weights.store import exclusive, lock_digest, write_tensors

State = Literal["ready", "absent", "damaged"]


def ensure(
    entry: ModelEntry,
    *,
    offline: bool = False,
    progress: Progress | None = None,
    siblings: Iterable[ModelEntry] | None = None,
) -> Path:
    """The verified safetensors file of a model, fetched and converted first where it is missing or damaged.

    Args:
        entry: From models.lock.
        offline: Use what is on this machine only (also an archive that was put into ``downloads``, and
            ``file`` sources); no socket is opened and nothing is started.
        progress: Called with what is done, bytes so far and bytes in all (0: unknown).
        siblings: Entries to convert along when they come from the same archive, so that it is fetched
            once; by default all of models.lock.

    Returns:
        ``<home>/weights/<id>/<first 16 digits of the digest>.safetensors``; inside the installed package for a
        model that ships with genmeter.

    Raises:
        GenmeterError: ``weights_unavailable`` when they are not here and cannot be had, saying what to do;
            ``weights_mismatch`` when what was had is not what models.lock pins, naming place, path and hash.
    """
    if path := _verified(entry):
        return path
    if offline and not any(_all_here(source) for source in entry.sources):
        raise _unavailable(entry, ["--offline is set"])
    say = progress or _silent
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(exclusive(lambda: say("waiting for another process to fetch weights", 0, 0)))
        except GenmeterError as error:
            raise _unavailable(entry, [error.message]) from None
        if path := _verified(entry):  # Another process was first.
            return path
        try:
            return _install(entry, offline, say, load_lock().values() if siblings is None else siblings)
        except OSError as error:
            raise _unavailable(entry, [f"{error.filename or home.home()}: {error.strerror or error}"]) from None


def state(entry: ModelEntry) -> State:
    """Whether the weights are here and whole (hashed once a process while the file stays as it is)."""
    return _state(entry, fresh=False)


def verify(entry: ModelEntry) -> State:
    """As :func:`state`, but the file is read and hashed again in any case."""
    return _state(entry, fresh=True)


def expected_path(entry: ModelEntry) -> Path:
    """Where the weights lie or will lie; the model's folder while no digest is known."""
    if bundled := bundled_path(entry):
        return bundled
    digest = entry_digest(entry)
    return home.weights_path(entry.id, digest) if digest else home.home() / "weights" / entry.id


def _state(entry: ModelEntry, *, fresh: bool) -> State:
    digest = entry_digest(entry)
    path = expected_path(entry)
    if not digest or not os.path.lexists(path):
        return "absent"
    return "ready" if file_digest(path, fresh=fresh) == digest else "damaged"


def _verified(entry: ModelEntry) -> Path | None:
    return expected_path(entry) if state(entry) == "ready" else None


def _install(entry: ModelEntry, offline: bool, progress: Progress, siblings: Iterable[ModelEntry]) -> Path:
    failures: list[GenmeterError] = []
    for source in entry.sources:
        files: dict[str, Path] = {}
        ours: list[Path] = []  # Fetched here, so not the user's to keep.
        try:
            for part in source.parts:
                files[part.name], fetched = _obtain(part, offline, progress)
                ours += [files[part.name]] if fetched else []
            path = _convert(entry, source, files, progress)
        except GenmeterError as error:
            failures.append(error)
            if error.code == "weights_mismatch":
                _remove(ours)
            continue
        _convert_siblings(entry, source, files, siblings)
        _remove(ours)
        return path
    for failure in failures:
        if failure.code == "weights_mismatch":
            raise GenmeterError(failure.code, f"{entry.id}: {failure.message}", failure.hint)
    raise _unavailable(entry, [failure.message for failure in failures])


def _convert(entry: ModelEntry, source: SourceSpec, files: dict[str, Path], progress: Progress) -> Path:
    progress(f"converting {entry.id}", 0, 0)
    with contextlib.ExitStack() as stack:
        streams = {part.name: stack.enter_context(open_part(files[part.name], part)) for part in source.parts}
        try:
            tensors = convert(source.converter, streams)
        except GenmeterError as error:
            raise GenmeterError(
                error.code, f"{', '.join(map(str, files.values()))}: {error.message}", error.hint
            ) from None
    digest = tensors_digest(tensors)
    expected = entry_digest(entry)
    if expected and digest != expected:
        pinned = "models.lock pins" if entry.digest else f"{locked_path()} locked on first fetch"
        raise GenmeterError(
            "weights_mismatch",
            f"the tensors from {', '.join(map(str, files.values()))} have digest {digest}; {pinned} {expected}",
            "the source serves other weights than the pinned ones; do not use them",
        )
    path = home.weights_path(entry.id, digest)
    write_tensors(path, tensors, entry.id, digest)
    del tensors
    if file_digest(path, fresh=True) != digest:
        raise GenmeterError(
            "weights_mismatch", f"{path} does not read back as it was written", "check the disk and its free space"
        )
    if not entry.digest:
        names = {p.name: p.sha256 or file_sha256(files[p.name]) for p in source.parts}
        lock_digest(entry.id, digest, [f"{p.file} sha256:{names[p.name]}" for p in source.parts])
    return path


def _convert_siblings(
    entry: ModelEntry, source: SourceSpec, files: dict[str, Path], siblings: Iterable[ModelEntry]
) -> None:
    """Convert what else comes from the same archive while it is here. A failure there is not this model's."""
    if len(source.parts) != 1 or not source.parts[0].sha256:
        return
    path = next(iter(files.values()))
    for other in siblings:
        for candidate in other.sources:
            same = len(candidate.parts) == 1 and candidate.parts[0].sha256 == source.parts[0].sha256
            if same and other.id != entry.id and state(other) != "ready":
                with contextlib.suppress(GenmeterError, ValueError, OSError):
                    _convert(other, candidate, {candidate.parts[0].name: path}, _silent)


def _obtain(part: PartSpec, offline: bool, progress: Progress) -> tuple[Path, bool]:
    """The part's file with the right hash, and whether it was fetched just now; a bad one is replaced once."""
    source = get_source(part.kind)
    in_place = source.local(part)
    if in_place is not None:
        try:
            _check(part, in_place)
            return in_place, False
        except GenmeterError:
            if offline or part.kind == "file":  # Another program's cache may hold a bad copy of what can be had.
                raise
    path = home.downloads() / part.file
    if path.is_file():
        try:
            _check(part, path)
            return path, False
        except GenmeterError:
            if offline:
                raise
    if offline:
        raise GenmeterError("weights_unavailable", f"{path} is not here and --offline is set")
    partial = path.with_name(f".{part.file}.{(part.sha256 or 'unpinned')[:16]}.part")
    for attempt in range(2):
        source.fetch(part, partial, progress)
        try:
            _check(part, partial)
            break
        except GenmeterError:
            partial.unlink(missing_ok=True)
            if attempt:
                raise
    os.replace(partial, path)
    return path, True


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def _check(part: PartSpec, path: Path) -> None:
    size = path.stat().st_size
    found = file_sha256(path) if part.sha256 and (not part.bytes or size == part.bytes) else ""
    if found == part.sha256 and (not part.bytes or size == part.bytes):
        return
    place = get_source(part.kind).describe(part)
    with path.open("rb") as stream:
        head = stream.read(512).lstrip().lower()
    page = " (an HTML page: some server or proxy answered instead)" if head.startswith((b"<!doctype", b"<html")) else ""
    raise GenmeterError(
        "weights_mismatch",
        f"{place}: {path} has {size} bytes{page}, sha256 {found or file_sha256(path)}; "
        f"expected {part.bytes or 'any number of'} bytes, sha256 {part.sha256}",
        "check the network or the mirror, then fetch again; a file put by hand must be the pinned one",
    )


def _here(part: PartSpec) -> bool:
    return get_source(part.kind).local(part) is not None or (home.downloads() / part.file).is_file()


def _all_here(source: SourceSpec) -> bool:
    return all(_here(part) for part in source.parts)


def _unavailable(entry: ModelEntry, reasons: Iterable[str]) -> GenmeterError:
    """What is missing, why, and each way to get it here."""
    damaged = state(entry) == "damaged"
    found = (
        f"{expected_path(entry)} is damaged (expected tensor digest {entry_digest(entry)})"
        if damaged
        else (f"the weights of {entry.id} are not at {expected_path(entry)}")
    )
    return GenmeterError(
        "weights_mismatch" if damaged else "weights_unavailable", f"{found}: {'; '.join(reasons)}", _advice(entry)
    )


def _advice(entry: ModelEntry) -> str:
    if bundled_path(entry):
        return "the file ships with genmeter: install genmeter again"
    by_hand = []
    for source in entry.sources:
        files = [_by_hand(part) for part in source.parts if part.kind != "file"]
        if files:
            by_hand.append(f"put {' and '.join(files)} into {home.downloads()}")
        by_hand += [f"put {part.where['path']} in place" for part in source.parts if part.kind == "file"]
    # The ways most people want come first: a table may have no room for all of them.
    said = f"run `genmeter models fetch {entry.id}` where there is a network"
    small = [m for m in load_lock().values() if m.task == entry.task and m.extra.get("profile") == "tiny"]
    if small and entry.extra.get("profile") != "tiny":
        said += f", or try `--profile tiny` ({small[0].id} ships with genmeter; its scores are not comparable)"
    return (
        f"{said}; for a machine without a network, `genmeter models export {entry.id} -o weights.tar` there and "
        f"`genmeter models import weights.tar` here, or copy {home.home()} here, or {', or '.join(by_hand)}"
    )


def _by_hand(part: PartSpec) -> str:
    pinned = f" (sha256 {part.sha256})" if part.sha256 else ""
    if part.kind == "hub":
        where = part.where
        return f"{where['path']} of {where['repo']} at {where['revision'][:12]}{pinned} as {part.file}"
    return f"{part.file}{pinned}"


def _silent(what: str, done: int, total: int) -> None:
    return None
