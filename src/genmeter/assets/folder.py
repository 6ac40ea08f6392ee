"""A folder of pictures as one video: its files in the order of their names, read and hashed one by one."""

from __future__ import annotations

import hashlib
import os
import re

from genmeter.assets.load import Blob, FileStamp, load
from genmeter.assets.resolve import Location
from genmeter.config import Policy
from genmeter.errors import GenmeterError
from genmeter.schema.media import kind_of_name

_DIGITS = re.compile(r"(\d+)")
_MOST_FILES = 100_000


def load_folder(location: Location, policy: Policy) -> Blob:
    """Read a folder of frames whole.

    Frames are the files whose names end as those of images do; hidden files, folders and all others are left out. Their
    order is that of their names with numbers compared as numbers, so that ``2.png`` stands before ``10.png``.

    Args:
        location: A folder that the policy lets through.
        policy: ``max_bytes`` bounds all of it together.

    Returns:
        A blob with ``parts``; the digest is over the files' digests in order, whatever their names.

    Raises:
        GenmeterError: As :func:`genmeter.assets.load.load` for each file; ``empty_media`` for a folder without frames;
            ``forbidden`` for a frame that is a link.
    """
    path = str(location.path)
    before = _look(path)
    names = _frames(path)
    parts: list[bytes] = []
    stamps: list[FileStamp] = []
    digest = hashlib.sha256(b"genmeter/frames/1\n")
    left = policy.max_bytes
    for name in names:
        own = os.path.join(path, name)
        if os.path.islink(own):
            raise GenmeterError("forbidden", f"the frame {name} is a link", "copy the frames themselves")
        blob = load(Location(own, "file", own, None), policy)
        left -= blob.size
        if left < 0:
            raise GenmeterError(
                "too_large",
                f"the folder's frames hold more than {policy.max_bytes} bytes",
                "raise policy.max_bytes if it is meant to be this large",
            )
        parts.append(blob.data)
        stamps.append(FileStamp(own, blob.size, blob.mtime_ns or 0, blob.digest))
        digest.update(blob.digest)
    if _look(path) != before or _frames(path) != names:
        raise GenmeterError(
            "changed_during_run", "the folder changed while it was read", "let its writer finish, then run again"
        )
    found = digest.digest()
    stamps.append(FileStamp(path, *before, found))
    return Blob(b"", found, policy.max_bytes - left, None, None, tuple(parts), tuple(stamps))


def _look(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        raise GenmeterError("not_found", "the folder is gone") from None
    return found.st_size, found.st_mtime_ns


def _frames(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries if not entry.is_dir()]
    except OSError as error:
        reason = error.strerror or "unknown reason"
        raise GenmeterError("forbidden", f"the folder cannot be read: {reason}", "check its owner and mode") from None
    names = [name for name in names if not name.startswith(".") and kind_of_name(name) == "image"]
    if not names:
        raise GenmeterError("empty_media", "the folder holds no pictures that could be frames of a video")
    if len(names) > _MOST_FILES:
        raise GenmeterError("too_large", f"the folder holds {len(names)} pictures; the limit is {_MOST_FILES}")
    return sorted(names, key=_natural)


def _natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """A key that orders numbers within names by their value."""
    pieces = [(0, int(piece), "") if piece.isdigit() else (1, 0, piece) for piece in _DIGITS.split(name) if piece]
    return pieces, name
