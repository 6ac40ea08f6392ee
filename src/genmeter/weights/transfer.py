"""Carrying verified weights to machines without a network: one tar with a manifest and the safetensors files.

An archive is not believed: nothing of it is unpacked by name. Only plain files that its manifest lists are read,
their bytes go to temporary files of our own, and a model takes its place only after its tensors were hashed and
agree with models.lock, with what this machine has locked, or, where neither knows a digest, with the manifest,
which is then locked as a first fetch would be.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from genmeter.errors import GenmeterError
from genmeter.weights import home
from genmeter.weights.load import file_digest
from genmeter.weights.lock import ModelEntry, bundled_path, entry_digest, load_lock, trust
from genmeter.weights.manager import expected_path, state
from genmeter.weights.store import exclusive, lock_digest, whole_file

SCHEMA = "genmeter.weights/1"
MANIFEST = "manifest.json"
_MAX_MANIFEST = 1 << 20


@dataclass(frozen=True)
class Imported:
    """What became of one model of an archive.

    Attributes:
        id: The model.
        digest: Its tensor digest (hex) by the manifest.
        outcome: ``installed``; ``ready``: it was here already; ``failed``: see ``error``.
        locked: Whether its digest was unknown here and is locked from now on.
        error: Why it failed.
    """

    id: str
    digest: str
    outcome: Literal["installed", "ready", "failed"]
    locked: bool = False
    error: GenmeterError | None = None


@dataclass(frozen=True)
class _Listed:
    id: str
    digest: str
    bytes: int

    @property
    def member(self) -> str:
        return f"weights/{self.id}/{self.digest[:16]}.safetensors"


def export_weights(entries: Iterable[ModelEntry], output: Path) -> list[ModelEntry]:
    """Write the weights of these models into one tar, each hashed first.

    Args:
        entries: Models whose weights are here; those that ship inside genmeter are left out.
        output: The archive; it appears whole or not at all.

    Returns:
        The entries that it holds, in order.

    Raises:
        GenmeterError: ``weights_unavailable`` or ``weights_mismatch`` for a model that is not here and whole.
        ValueError: There is nothing to export, or the archive cannot be written.
    """
    chosen = [entry for entry in entries if not bundled_path(entry)]
    if not chosen:
        raise ValueError("there are no weights to export: fetch some (`genmeter models fetch`) or name others")
    for entry in chosen:
        if (found := state(entry)) != "ready":
            raise GenmeterError(
                "weights_mismatch" if found == "damaged" else "weights_unavailable",
                f"the weights of {entry.id} are {found} on this machine ({expected_path(entry)})",
                f"run `genmeter models fetch {entry.id}` first",
            )
    output = output.absolute()
    if output.is_dir() or not output.parent.is_dir():
        raise ValueError(f"{output} cannot be written: name a file in a folder that exists, e.g. weights.tar")
    try:
        with (
            whole_file(output) as (_, stream),
            tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            manifest = json.dumps(_manifest(chosen), indent=2, ensure_ascii=False).encode("utf-8")
            _add(archive, MANIFEST, io.BytesIO(manifest), len(manifest))
            for entry in chosen:
                path = expected_path(entry)
                with path.open("rb") as weights:
                    _add(archive, _Listed(entry.id, entry_digest(entry), 0).member, weights, path.stat().st_size)
    except GenmeterError as error:
        raise ValueError(error.message) from None
    return chosen


def import_weights(archive: Path) -> list[Imported]:
    """Install the weights that an archive of :func:`export_weights` holds.

    Returns:
        One outcome a model of its manifest, in order. A model that fails leaves nothing behind.

    Raises:
        GenmeterError: ``weights_mismatch`` when the archive is damaged or holds anything but what it should: then
            nothing more of it is read; models that were installed before are whole and stay.
            ``weights_unavailable`` when the home cannot be written to.
        ValueError: There is no such file.
    """
    if not archive.is_file():
        raise ValueError(f"{archive} is no file")
    outcomes: dict[str, Imported] = {}
    try:
        # A stream is read once from front to back, so no member can point elsewhere; nothing in it is compressed, so
        # it holds no more than its own bytes.
        with tarfile.open(archive, "r|") as tar:
            members = iter(tar)
            listed = _read_manifest(tar, next(members, None), archive)
            waiting = {item.member: item for item in listed}
            for info in members:
                if info.name not in waiting or info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.issparse():
                    raise _refused(archive, f"it holds {info.name[:100]!r}, which is no plain file that it lists")
                item = waiting.pop(info.name)
                stream = tar.extractfile(info)
                if info.size != item.bytes or stream is None:
                    raise _refused(archive, f"{info.name} has {info.size} bytes, its manifest says {item.bytes}")
                outcomes[item.id] = _install(item, stream, archive)
    except GenmeterError:
        raise
    except Exception as error:  # tarfile meets damage with several kinds of exception.
        raise _refused(archive, f"it is damaged ({type(error).__name__})") from None
    for item in waiting.values():
        missing = _refused(archive, f"it lists {item.member} but does not hold it")
        outcomes[item.id] = Imported(item.id, item.digest, "failed", error=missing)
    return [outcomes[item.id] for item in listed]


def _manifest(entries: Sequence[ModelEntry]) -> dict[str, Any]:
    from genmeter import __version__

    models = [
        {
            "id": entry.id,
            "digest": entry_digest(entry),
            "bytes": expected_path(entry).stat().st_size,
            "trust": trust(entry),
            "licence": entry.licence,
        }
        for entry in entries
    ]
    return {"schema": SCHEMA, "genmeter": __version__, "models": models}


def _add(archive: tarfile.TarFile, name: str, stream: IO[bytes], size: int) -> None:
    info = tarfile.TarInfo(name)  # No owner, no time: equal weights make equal archives.
    info.size = size
    info.mode = 0o644
    archive.addfile(info, stream)


def _read_manifest(tar: tarfile.TarFile, info: tarfile.TarInfo | None, archive: Path) -> list[_Listed]:
    if info is None or info.name != MANIFEST or info.type != tarfile.REGTYPE or info.size > _MAX_MANIFEST:
        raise _refused(archive, f"it does not begin with {MANIFEST}")
    stream = tar.extractfile(info)
    try:
        data = json.loads(stream.read() if stream else b"")
        if data["schema"] != SCHEMA:
            raise _refused(archive, f"its manifest has another schema than {SCHEMA}")
        listed = [_Listed(str(m["id"]), str(m["digest"]), int(m["bytes"])) for m in data["models"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _refused(archive, f"its manifest cannot be read ({type(error).__name__})") from None
    for item in listed:
        if len(item.digest) != 64 or set(item.digest) - set("0123456789abcdef") or item.bytes < 0:
            raise _refused(archive, "its manifest has a model without a proper digest or size")
    if len({item.id for item in listed}) != len(listed):
        raise _refused(archive, "its manifest lists a model twice")
    return listed


def _install(item: _Listed, stream: IO[bytes], archive: Path) -> Imported:
    entry = load_lock().get(item.id)
    if entry is None:
        error = GenmeterError(
            "unknown_metric", f"no model {item.id[:100]!r} in models.lock", "the archive is of another genmeter"
        )
        return Imported(item.id, item.digest, "failed", error=error)
    with exclusive():
        expected = entry_digest(entry)
        if expected and expected != item.digest:
            error = GenmeterError(
                "weights_mismatch",
                f"{archive} holds {entry.id} with digest {item.digest}, expected {expected}",
                "it was made from other weights, or by another version of genmeter; fetch and export again",
            )
            return Imported(item.id, item.digest, "failed", error=error)
        if state(entry) == "ready":
            return Imported(item.id, item.digest, "ready")
        path = home.weights_path(entry.id, item.digest)
        try:
            with whole_file(path) as (temporary, target):
                shutil.copyfileobj(stream, target, 1 << 20)
                target.flush()
                if file_digest(temporary, fresh=True) != item.digest:
                    raise GenmeterError(
                        "weights_mismatch",
                        f"{item.member} in {archive} does not have the tensor digest {item.digest}",
                        "the archive is damaged or was changed: copy it again, or export it again",
                    )
        except GenmeterError as error:
            if error.code != "weights_mismatch":
                raise
            return Imported(item.id, item.digest, "failed", error=error)
        if not expected:
            lock_digest(entry.id, item.digest, [f"imported from {archive.name}"])
    return Imported(item.id, item.digest, "installed", locked=not expected)


def _refused(archive: Path, why: str) -> GenmeterError:
    return GenmeterError(
        "weights_mismatch", f"{archive} is refused: {why}", "use an archive made by `genmeter models export`"
    )
