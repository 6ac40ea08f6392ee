"""Bringing a model's weights onto this machine once, and never trusting a file that was not hashed.

A converted file is verified by hashing its tensors, at each start: that takes no lock and works on a
read-only home. Everything that writes happens under one lock for the home, into temporary files that are
renamed when they are whole, so any number of processes may start with an empty home.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from genmeter.errors import GenmeterError
from genmeter.weights import home
from genmeter.weights.archive import open_part
from genmeter.weights.convert import convert
from genmeter.weights.digest import file_sha256, tensors_digest
from genmeter.weights.load import file_digest
from genmeter.weights.lock import ModelEntry, PartSpec, SourceSpec, entry_digest, load_lock, locked_path
from genmeter.weights.sources import Progress, get_source

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
        ``<home>/weights/<id>/<first 16 digits of the digest>.safetensors``.

    Raises:
        GenmeterError: ``weights_unavailable`` when they are not here and cannot be had, saying what to do;
            ``weights_mismatch`` when what was had is not what models.lock pins, naming place, path and hash.
    """
    if path := _verified(entry):
        return path
    if offline and not any(_all_here(source) for source in entry.sources):
        raise _unavailable(entry, ["--offline is set"])
    with _exclusive(entry, progress):
        if path := _verified(entry):  # Another process was first.
            return path
        try:
            return _install(entry, offline, progress or _silent, load_lock().values() if siblings is None else siblings)
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
        tensors = convert(source.converter, streams)
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
    _write_tensors(path, tensors, entry.id, digest)
    if file_digest(path, fresh=True) != digest:
        raise GenmeterError(
            "weights_mismatch", f"{path} does not read back as it was written", "check the disk and its free space"
        )
    if not entry.digest:
        _lock_digest(entry.id, digest, source)
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
        _check(part, in_place, source.describe(part))
        return in_place, False
    path = home.downloads() / part.file
    if path.is_file():
        try:
            _check(part, path, source.describe(part))
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
            _check(part, partial, source.describe(part))
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


def _check(part: PartSpec, path: Path, place: str) -> None:
    size = path.stat().st_size
    found = file_sha256(path) if part.sha256 and (not part.bytes or size == part.bytes) else ""
    if found == part.sha256 and (not part.bytes or size == part.bytes):
        return
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


def _write_tensors(path: Path, tensors: dict[str, np.ndarray], model: str, digest: str) -> None:
    from safetensors.numpy import save

    _write(path, save(tensors, metadata={"model": model, "digest": digest, "format": "genmeter"}))


def _write(path: Path, data: bytes) -> None:
    """Write under a temporary name and rename, so that nobody ever sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise GenmeterError(
            "weights_unavailable",
            f"{path} cannot be written: {error.strerror}",
            "free some space, or set GENMETER_HOME",
        ) from None


def _lock_digest(model: str, digest: str, source: SourceSpec) -> None:
    import tomlkit

    try:
        document = tomlkit.parse(locked_path().read_text(encoding="utf-8"))
    except FileNotFoundError:
        document = tomlkit.document()
        document.add(tomlkit.comment("Tensor digests that models.lock does not pin, as the first fetch gave them."))
    table = tomlkit.table()
    table["digest"] = digest
    table["files"] = [f"{part.file} sha256:{part.sha256}" for part in source.parts]
    document[model] = table
    _write(locked_path(), tomlkit.dumps(document).encode("utf-8"))


@contextlib.contextmanager
def _exclusive(entry: ModelEntry, progress: Progress | None) -> Iterator[None]:
    """One process at a time may write into the home."""
    from filelock import FileLock, Timeout

    lock = home.home() / "weights" / ".lock"
    try:
        home.downloads().mkdir(parents=True, exist_ok=True)
        lock.parent.mkdir(parents=True, exist_ok=True)
        held = FileLock(lock)
        try:
            held.acquire(timeout=0)
        except Timeout:
            if progress:
                progress("waiting for another process to fetch weights", 0, 0)
            held.acquire()
    except NotImplementedError:
        held = None  # A file system without locks: temporary names and renames still keep files whole.
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
            held = None
        else:
            raise _unavailable(entry, [f"{home.home()} cannot be written to ({error.strerror})"]) from None
    try:
        yield
    finally:
        if held is not None:
            held.release()


def _unavailable(entry: ModelEntry, reasons: Iterable[str]) -> GenmeterError:
    """What is missing, why, and each way to get it here by hand."""
    by_hand = []
    for source in entry.sources:
        files = [f"{p.file}" + (f" (sha256 {p.sha256})" if p.sha256 else "") for p in source.parts if p.kind != "file"]
        if files:
            by_hand.append(f"put {' and '.join(files)} into {home.downloads()}")
        by_hand += [f"put {p.where['path']} in place" for p in source.parts if p.kind == "file"]
    damaged = state(entry) == "damaged"
    found = (
        f"{expected_path(entry)} is damaged (expected tensor digest {entry_digest(entry)})"
        if damaged
        else (f"the weights of {entry.id} are not at {expected_path(entry)}")
    )
    return GenmeterError(
        "weights_mismatch" if damaged else "weights_unavailable",
        f"{found}: {'; '.join(reasons)}",
        f"run `genmeter models fetch {entry.id}` where there is a network (and copy {home.home()} here), "
        f"or {', or '.join(by_hand)}",
    )


def _silent(what: str, done: int, total: int) -> None:
    return None
