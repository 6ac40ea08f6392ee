"""The kind ``hub``: one file of a model hub's repository, at a pinned commit.

Which hub, which token and whether the hub may be asked at all is huggingface_hub's business, so that HF_ENDPOINT,
HF_TOKEN, HF_HUB_OFFLINE and a login count as everywhere; no host stands here. The bytes then come by the same careful
transfer as a ``url`` source's: into our own folder, whatever HF_HOME is, continued where they broke off (also by the
next process), never more than the pinned size. A copy that the hub's own cache already holds is used in place.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from genmeter.errors import GenmeterError
from genmeter.weights.digest import file_sha256
from genmeter.weights.lock import PartSpec
from genmeter.weights.sources import Progress
from genmeter.weights.sources import url as transfer

_SHA256 = re.compile(r"[0-9a-f]{64}")
_PATIENCE_S = 8.0
_YES = frozenset({"1", "on", "yes", "true"})


def local(part: PartSpec) -> Path | None:
    """The file in the hub's own cache on this machine, at the pinned commit, when it is there. Asks nobody."""
    where = part.where
    # The layout that huggingface_hub documents; importing the client itself would open a socket in some versions.
    path = _cache() / f"models--{where['repo'].replace('/', '--')}" / "snapshots" / where["revision"] / where["path"]
    return path if path.is_file() else None


def describe(part: PartSpec) -> str:
    """The file's URL on the hub that is configured; repository, commit and path where there is no hub client."""
    try:
        return transfer.public_url(_url(part))
    except ImportError:
        return f"{part.where['repo']}@{part.where['revision'][:8]}/{part.where['path']} on the model hub"


def fetch(part: PartSpec, target: Path, progress: Progress) -> None:
    """Fetch the file to ``target``; a part of it that is there already is continued.

    Raises:
        GenmeterError: ``weights_unavailable`` with the URL and the hub's answer; ``weights_mismatch`` when the hub
            answers for another commit, or keeps sending other bytes than it announces.
    """
    if _offline():
        raise GenmeterError(
            "weights_unavailable",
            f"{part.where['path']} of {part.where['repo']} is not asked for: HF_HUB_OFFLINE is set",
            "unset it (and TRANSFORMERS_OFFLINE) to fetch",
        )
    try:
        url, headers = _url(part), _headers()
    except ImportError:
        raise GenmeterError(
            "extra_missing", "the package huggingface_hub is not installed", "python -m pip install huggingface_hub"
        ) from None
    metadata = _ask(url, headers)
    commit = metadata.commit_hash
    if commit and commit != part.where["revision"]:
        raise GenmeterError(
            "weights_mismatch",
            f"{transfer.public_url(url)}: the hub answers for commit {commit}, not {part.where['revision']}",
            "the hub or a mirror serves another version than the pinned one",
        )
    # Where nothing pins the bytes, what the hub says of them still tells half a file from a whole one.
    announced = metadata.etag if metadata.etag and _SHA256.fullmatch(metadata.etag) else ""
    wanted = replace(part, sha256=part.sha256 or announced, bytes=part.bytes or metadata.size or 0)
    for attempt in range(2):
        transfer.download(url, wanted, target, progress, headers)
        if part.sha256 or not announced or file_sha256(target) == announced:
            return
        found = f"{target.stat().st_size} bytes, sha256 {file_sha256(target)}"
        target.unlink()
        if attempt:
            raise GenmeterError(
                "weights_mismatch",
                f"{transfer.public_url(url)} sent {found} for {target.parent / part.file}; the hub announces "
                f"{wanted.bytes or 'some'} bytes, sha256 {announced}",
                "check the network, the proxy or the mirror, then fetch again",
            )


def _url(part: PartSpec) -> str:
    from huggingface_hub import hf_hub_url

    # huggingface_hub reads the variable when it is imported; a program may set it later.
    endpoint = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or None
    where = part.where
    url: str = hf_hub_url(where["repo"], where["path"], revision=where["revision"], endpoint=endpoint)
    return url


def _headers() -> dict[str, str]:
    """User agent, and the token of HF_TOKEN or of a login where there is one."""
    from genmeter import __version__

    hub: Any = import_module("huggingface_hub.utils")
    agent = {"library_name": "genmeter", "library_version": __version__}
    try:
        headers: dict[str, str] = hub.build_hf_headers(**agent)
    except OSError:  # HF_HOME, where a login would lie, cannot be read.
        headers = hub.build_hf_headers(token=False, **agent)
    return headers


def _cache() -> Path:
    """Where huggingface_hub keeps its downloads."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if value := os.environ.get(name):
            return Path(value).expanduser()
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / "hub"


def _offline() -> bool:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(name, "").strip().lower() in _YES:
            return True
    try:
        from huggingface_hub import constants
    except ImportError:
        return False
    return bool(constants.HF_HUB_OFFLINE)


def _ask(url: str, headers: dict[str, str]) -> Any:
    """What the hub says of the file: commit, ETag, size. Asked again while it is busy or out of reach."""
    from huggingface_hub import get_hf_file_metadata

    place = transfer.public_url(url)
    said = ""
    for attempt in range(transfer.ATTEMPTS):
        if attempt:
            time.sleep(transfer.BACKOFF_S * 2 ** (attempt - 1))
        started = time.monotonic()
        try:
            return get_hf_file_metadata(url, headers=headers, token=False)
        except Exception as error:  # Its transport, and so its exceptions, change between versions.
            status = getattr(getattr(error, "response", None), "status_code", None)
            said = f"the hub answered {status}" if status else type(error).__name__
            if status and status not in transfer.AGAIN:
                raise GenmeterError(
                    "weights_unavailable", f"{place} could not be fetched: {said}", _advice(status)
                ) from None
            if time.monotonic() - started > _PATIENCE_S:
                break  # Some versions have asked again themselves.
    raise GenmeterError(
        "weights_unavailable", f"{place} could not be fetched: {said}", "check the network, proxy and HF_ENDPOINT"
    )


def _advice(status: int) -> str:
    if status in (401, 403):
        return "log in (HF_TOKEN), and accept the model's terms on its page if it has any"
    return "check HF_ENDPOINT: the hub or mirror does not have this repository, commit or file"
