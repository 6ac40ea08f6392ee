"""Where an asset is, and whether it may be read: the only place that decides so.

A sample is data from somebody else, so a path in it is a request, not an instruction. A file is read only when
its real path, after links, lies under a media root and is a regular file; a host is contacted only when the policy
names it (:mod:`genmeter.assets.fetch`).
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

from genmeter.config import Policy
from genmeter.errors import GenmeterError

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):", re.ASCII)
_LONGEST_SHOWN = 240
# How many folders are remembered, and how long a name for one may be: some write base64 where a path belongs.
_FOLDERS, _LONGEST_FOLDER = 16_384, 4_096
# Object stores that fsspec reads; this version has no back end for them.
_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hf", "hdfs", "oss", "r2"})
_BASE64_START = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR", "Qk0", "SUkqA", "TU0AK", "AAAA")


class Location(NamedTuple):
    """A resolved asset that the policy lets through.

    Attributes:
        uri: As the sample wrote it; shortened for ``data:`` and in-memory objects.
        kind: How :func:`genmeter.assets.load.load` gets the bytes.
        path: The real path of a file or folder as text, links resolved; ``None`` for other kinds.
        payload: The ``data:`` or http(s) URI in full, or the in-memory object.
    """

    uri: str
    kind: Literal["file", "folder", "data", "http", "memory"]
    path: str | None
    payload: Any


class Resolver:
    """Resolves what samples name against the media roots. Thread-safe.

    Args:
        policy: Which hosts may be contacted.
        roots: Folders that files may come from, tried in order for relative paths. A root that does not exist
            (yet) admits nothing.
        apart: Roots of equal right: a relative path that leads to files under two of them is refused, since which one
            is meant cannot be told.

    Raises:
        ValueError: When an item of ``policy.allow_hosts`` is neither a host name nor an address.
    """

    def __init__(self, policy: Policy, roots: Sequence[Path], apart: Sequence[Path] = ()) -> None:
        self.policy = policy
        if policy.allow_hosts:
            from genmeter.assets.network import parse_entry

            for entry in policy.allow_hosts:
                parse_entry(entry)
        self.roots: tuple[Path, ...] = tuple(dict.fromkeys(Path(os.path.realpath(root)) for root in roots))
        self._apart = tuple(dict.fromkeys(os.path.realpath(root) for root in apart))
        self._prefixes = tuple(_prefix(str(root)) for root in self.roots)
        # Real paths of the folders seen so far, for each root. A folder that is turned into a link later does no harm:
        # load() asks what it has really opened, and refuses anything but the real path that was checked.
        self._folders: dict[str, tuple[str, ...]] = {}

    def resolve(self, value: Any, *, folders: bool = False) -> Location:
        """Find one asset.

        Args:
            value: A path, a ``file:``, ``data:``, ``http:`` or ``https:`` URI, or an object in memory: bytes, a PIL
                image, a numpy array, or sound as a tuple of a numpy array and its rate.
            folders: Whether a path may lead to a folder: one of frames, where a video is wanted.

        Raises:
            GenmeterError: ``not_found``; ``forbidden`` (outside the roots, not a regular file, or a scheme or host
                that the policy does not allow); ``extra_missing`` (an object store); ``unsupported_media`` (an
                object of another type).
        """
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
            if isinstance(value, bytes):
                value = os.fsdecode(value)
            return self._file(value, value, folders)
        if not isinstance(value, str):
            return _in_memory(value)
        match = _URI.match(value)
        if match is None:
            return self._file(value, value, folders)
        scheme = match.group(1).lower()
        if scheme == "data":
            return Location(shorten(value), "data", None, value)
        if scheme in ("http", "https"):
            from genmeter.assets.fetch import check_url

            check_url(value, self.policy)
            return Location(value, "http", None, value)
        if scheme == "file":
            return self._file(_path_of_file_uri(value), value, folders)
        if not value.startswith("//", match.end()):
            return self._file(value, value, folders)  # a file name that holds a colon
        shown = shorten(value)
        if scheme in _STORES:
            raise GenmeterError(
                "extra_missing",
                f"{scheme}:// assets are not read by this version",
                "copy the files to a folder and name it with --media-root",
                asset=shown,
            )
        raise GenmeterError(
            "forbidden",
            f"the scheme {scheme}: is not allowed; assets are local paths, file:, data:, http: or https:",
            "copy the file under a media root",
            asset=shown,
        )

    def _file(self, name: str, written: str, folders: bool) -> Location:
        if not name:
            raise GenmeterError("not_found", "the asset's path is empty", "name a file in the sample", asset=written)
        if "\0" in name:
            raise GenmeterError("forbidden", "the path holds a NUL byte", asset=shorten(written.replace("\0", "\\0")))
        inside: list[str] = []
        outside: list[str] = []
        for candidate in self._candidates(name, written):
            real, mode, trouble = _look(candidate)
            if not self._admits(real):
                outside.append(real)
            elif trouble is not None:
                raise _unusable(trouble, written)
            elif mode is None:
                inside.append(real)
            elif stat.S_ISREG(mode):
                self._refuse_twin(name, real, written)
                return Location(written, "file", real, None)
            elif folders and stat.S_ISDIR(mode):
                return Location(written, "folder", real, None)
            else:
                raise GenmeterError(
                    "forbidden", f"expected a regular file, found {_file_kind(mode)}", asset=shorten(written)
                )
        if inside or not outside:
            roots = ", ".join(str(root) for root in self.roots) or "none is set"
            raise GenmeterError(
                "not_found",
                f"no such file under the media roots ({roots})",
                _base64_hint(name) or "relative paths start at a media root; set one with --media-root DIR",
                asset=shorten(written),
            )
        # Whether the file exists is not said: a path outside the roots is never looked at.
        raise GenmeterError(
            "forbidden",
            "the path lies outside the media roots, after links are resolved",
            f"to admit it: --media-root {shorten(os.path.dirname(outside[0]))}",
            asset=shorten(written),
        )

    def _refuse_twin(self, name: str, real: str, written: str) -> None:
        if len(self._apart) < 2 or os.path.isabs(name):
            return
        for root in self._apart:
            other = os.path.realpath(os.path.join(root, name))
            if other != real and os.path.isfile(other):
                raise GenmeterError(
                    "forbidden",
                    f"the path could mean {shorten(real)} or {shorten(other)}, since inputs lie in both folders",
                    "score them apart, give names that differ, or say which folder is meant with --media-root",
                    asset=shorten(written),
                )

    def _candidates(self, name: str, written: str) -> Iterator[str]:
        """Where a path may lead, a place a root if it is relative; real but for its last part, which is not looked at.

        Folders are remembered: a run names few of them and many files.
        """
        folder, last = os.path.split(name)
        if last in ("", ".", ".."):
            folder, last = name, ""
        known = self._folders.get(folder)
        if known is None:
            starts = ("",) if os.path.isabs(name) else self.roots
            try:
                known = tuple([_prefix(os.path.realpath(os.path.join(start, folder))) for start in starts])
            except (OSError, ValueError) as error:
                raise _unusable(error, written) from None
            if len(self._folders) >= _FOLDERS:
                self._folders.clear()
            if len(folder) <= _LONGEST_FOLDER:
                self._folders[folder] = known
        for prefix in known:
            yield prefix + last if last else os.path.dirname(prefix) or prefix

    def _admits(self, real: str) -> bool:
        return real.startswith(self._prefixes) or Path(real) in self.roots


def _look(path: str) -> tuple[str, int | None, OSError | ValueError | None]:
    """The real path, its mode (None: there is no such file) and what else keeps it from being used."""
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            path = os.path.realpath(path)
            mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return path, None, None
    except (OSError, ValueError) as error:
        return path, None, error
    return path, mode, None


def shorten(text: str) -> str:
    """A URI as messages show it: ``data:`` without its content, long ones cut, no user name, password or query."""
    if text[:5].lower() == "data:":
        head = text[: min(text.find(",") + 1 or 40, 80)]
        return f"{head}... ({len(text)} characters)"
    if text[:7].lower() == "http://" or text[:8].lower() == "https://":
        text = _without_secrets(text)
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) > _LONGEST_SHOWN:
        return f"{text[:120]}...{text[-60:]} ({len(text)} characters)"
    return text


def _without_secrets(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return url.split("?")[0].split("#")[0].rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def _prefix(root: str) -> str:
    return root if root.endswith(os.sep) else root + os.sep


def _path_of_file_uri(uri: str) -> str:
    """The path of ``file:/p``, ``file:///p`` or ``file://localhost/p``, percent-decoded."""
    rest = uri[5:]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host.lower() not in ("", "localhost"):
            raise GenmeterError(
                "forbidden",
                "a file: URI that names another host cannot be read",
                "write file:///absolute/path",
                asset=shorten(uri),
            )
        rest = slash + path
    return os.fsdecode(unquote_to_bytes(rest.encode("utf-8", "surrogateescape")))


def _file_kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISFIFO(mode):
        return "a named pipe"
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return "a device"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a link that leads nowhere" if stat.S_ISLNK(mode) else "something else"


def _unusable(error: OSError | ValueError, written: str) -> GenmeterError:
    reason = (error.strerror or "it cannot be used") if isinstance(error, OSError) else "it is malformed"
    code = "forbidden" if isinstance(error, PermissionError) else "not_found"
    return GenmeterError(code, f"the path cannot be used: {reason}", _base64_hint(written), asset=shorten(written))


def _base64_hint(name: str) -> str | None:
    if len(name) > 200 and name.startswith(_BASE64_START):
        return "this looks like base64; write it as data:image/png;base64,..."
    return None


def _in_memory(value: Any) -> Location:
    if isinstance(value, bytes | bytearray | memoryview):
        return Location(f"memory:bytes[{len(value)}]", "memory", None, value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        shape = "x".join(str(side) for side in value.shape)
        return Location(f"memory:array[{shape} {value.dtype}]", "memory", None, value)
    pil = sys.modules.get("PIL.Image")
    if pil is not None and isinstance(value, pil.Image):
        return Location(f"memory:image[{value.width}x{value.height} {value.mode}]", "memory", None, value)
    if numpy is not None and isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], numpy.ndarray):
        shape = "x".join(str(side) for side in value[0].shape)
        return Location(f"memory:sound[{shape} {value[0].dtype} at {value[1]} Hz]", "memory", None, value)
    raise GenmeterError(
        "unsupported_media",
        f"expected a path, a URI, bytes, a PIL image, a numpy array or (samples, rate), found {type(value).__name__}",
        "tensors: convert to a (height, width, 3) uint8 array first",
        asset=f"memory:{type(value).__name__}",
    )
