"""Writing into the home: whole files or none, one process at a time, and the digests locked on first fetch."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from genmeter.errors import GenmeterError
from genmeter.weights import home
from genmeter.weights.lock import locked_path
from genmeter.weights.safefile import write_safetensors


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A temporary file beside ``path`` that takes its name when the block ends well, so that nobody sees half a file.

    Yields:
        Its path and the open stream. The block may raise to have it removed.

    Raises:
        GenmeterError: ``weights_unavailable`` when it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as stream:
            yield temporary, stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise GenmeterError(
            "weights_unavailable",
            f"{path} cannot be written: {error.strerror or error}",
            "free some space, or set GENMETER_HOME",
        ) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], model: str, digest: str) -> None:
    """Write a model's canonical tensors. Raises ``weights_unavailable`` when the disk does not take them."""
    with whole_file(path) as (_, stream):
        write_safetensors(stream, tensors, {"model": model, "digest": digest, "format": "genmeter"})


def lock_digest(model: str, digest: str, files: Iterable[str]) -> None:
    """Remember the tensor digest (hex) of a model that models.lock does not pin, and where it came from."""
    import tomlkit

    try:
        document = tomlkit.parse(locked_path().read_text(encoding="utf-8"))
    except FileNotFoundError:
        document = tomlkit.document()
        document.add(tomlkit.comment("Tensor digests that models.lock does not pin, as the first fetch gave them."))
    table = tomlkit.table()
    table["digest"] = digest
    table["files"] = list(files)
    document[model] = table
    with whole_file(locked_path()) as (_, stream):
        stream.write(tomlkit.dumps(document).encode("utf-8"))


@contextlib.contextmanager
def exclusive(waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """One process at a time may write into the home.

    Args:
        waiting: Called once when another process holds the lock.

    Raises:
        GenmeterError: ``weights_unavailable`` when the home cannot be written to.
    """
    from filelock import FileLock, Timeout

    lock = home.home() / "weights" / ".lock"
    try:
        home.downloads().mkdir(parents=True, exist_ok=True)
        lock.parent.mkdir(parents=True, exist_ok=True)
        held = FileLock(lock)
        try:
            held.acquire(timeout=0)
        except Timeout:
            if waiting:
                waiting()
            held.acquire()
    except NotImplementedError:
        held = None  # A file system without locks: temporary names and renames still keep files whole.
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
            held = None
        else:
            raise GenmeterError(
                "weights_unavailable",
                f"{home.home()} cannot be written to ({error.strerror})",
                "set GENMETER_HOME to a folder that can be written to",
            ) from None
    try:
        yield
    finally:
        if held is not None:
            held.release()
