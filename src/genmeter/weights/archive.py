"""Reading one member of a downloaded archive into memory; nothing is ever unpacked to disk."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path
from typing import IO, BinaryIO

from genmeter.errors import GenmeterError
from genmeter.weights.lock import PartSpec

# Above any member that models.lock names; an archive that claims more is not believed.
MAX_MEMBER = 8 << 30


def open_part(path: Path, part: PartSpec) -> BinaryIO:
    """The checkpoint of a part as a seekable stream: the named member of the archive, or the file itself.

    Args:
        path: The file, already checked against ``part.sha256``.
        part: Names the member and, where known, its SHA-256.

    Raises:
        GenmeterError: ``weights_mismatch`` when the archive is damaged, lacks the member, or the member
            has another hash.
    """
    if not part.member:
        return path.open("rb")
    try:
        data = _read_zip(path, part.member) if zipfile.is_zipfile(path) else _read_tar(path, part.member)
    except GenmeterError:
        raise
    except Exception as error:  # tarfile, zipfile and zlib meet damage with a dozen kinds of exception.
        raise GenmeterError(
            "weights_mismatch", f"{path} is no whole archive ({type(error).__name__})", "delete it and fetch again"
        ) from None
    if data is None:
        raise GenmeterError("weights_mismatch", f"{path} has no member {part.member}", "models.lock and file disagree")
    found = hashlib.sha256(data).hexdigest()
    if part.member_sha256 and found != part.member_sha256:
        raise GenmeterError(
            "weights_mismatch",
            f"{part.member} in {path} has sha256 {found}, expected {part.member_sha256}",
            "delete the archive and fetch again",
        )
    return io.BytesIO(data)


def _read_zip(path: Path, member: str) -> bytes | None:
    with zipfile.ZipFile(path) as archive:
        if member not in archive.namelist():
            return None
        info = archive.getinfo(member)
        with archive.open(info) as stream:
            return _read(stream, info.file_size, path)


def _read_tar(path: Path, member: str) -> bytes | None:
    # A stream ("r|*") never seeks back in the compressed file. Source archives put everything under one
    # folder, name-version, which models.lock leaves out.
    with tarfile.open(path, "r|*") as archive:
        for info in archive:
            if info.isreg() and member in (info.name, info.name.partition("/")[2]):
                stream = archive.extractfile(info)
                return _read(stream, info.size, path) if stream else None
    return None


def _read(stream: IO[bytes], size: int, path: Path) -> bytes:
    if size > MAX_MEMBER:
        raise GenmeterError(
            "weights_mismatch", f"a member of {path} claims {size} bytes", "the archive is not to be trusted"
        )
    data = stream.read(size)
    if len(data) != size or stream.read(1):
        raise GenmeterError("weights_mismatch", f"{path} ends too early", "delete it and fetch again")
    return data
