"""The kind ``url``: one file over http(s), resumed where it broke off, with a few retries."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from genmeter.errors import GenmeterError
from genmeter.weights.lock import PartSpec
from genmeter.weights.sources import Progress

if TYPE_CHECKING:
    import httpx

ATTEMPTS = 4
BACKOFF_S = 0.5
MAX_BYTES = 32 << 30
# Read beyond the pinned size, so that a file which is only a little longer can be told by its hash.
_OVERRUN = 1 << 17
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


class _Broken(Exception):
    """A failure that another attempt may cure."""


def local(part: PartSpec) -> Path | None:
    """Never: the file has to be fetched."""
    return None


def describe(part: PartSpec) -> str:
    """The URL without credentials or query."""
    return public_url(part.where["url"])


def fetch(part: PartSpec, target: Path, progress: Progress) -> None:
    """Fetch the file to ``target``; a part of it that is there already is continued.

    Proxies and certificates are the user's (environment). Between attempts it waits 0.5, 1, 2 s.

    Raises:
        GenmeterError: ``weights_unavailable`` with the URL and the last failure.
    """
    download(part.where["url"], part, target, progress)


def download(
    url: str, part: PartSpec, target: Path, progress: Progress, headers: Mapping[str, str] | None = None
) -> None:
    """As :func:`fetch`, from a URL that is not the part's own.

    Args:
        url: http or https.
        part: Its ``sha256`` says whether a piece that is there may be continued, its ``bytes`` where to stop.
        target: The file to write.
        progress: Told how far it is.
        headers: Sent along; an Authorization goes to the URL's own host alone, never along a redirect elsewhere.
    """
    import httpx

    place = public_url(url)
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"{place}: only http and https are fetched")
    last = ""
    timeout = httpx.Timeout(30.0, connect=10.0)
    sent = {**(headers or {}), "Accept-Encoding": "identity"}
    try:
        with httpx.Client(follow_redirects=True, timeout=timeout, headers=sent) as client:
            for attempt in range(ATTEMPTS):
                if attempt:
                    time.sleep(BACKOFF_S * 2 ** (attempt - 1))
                try:
                    _attempt(client, url, part, target, progress)
                    return
                except _Broken as error:
                    last = str(error)
                except httpx.TransportError as error:
                    last = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        last = f"{type(error).__name__}: {error}"
    raise GenmeterError(
        "weights_unavailable", f"{place} could not be fetched: {last}", "check the network, proxy and disk"
    )


def _attempt(client: httpx.Client, url: str, part: PartSpec, target: Path, progress: Progress) -> None:
    # Only a pinned file is continued: its hash shows afterwards that both pieces were of one file.
    have = target.stat().st_size if part.sha256 and target.exists() else 0
    if part.bytes and have >= part.bytes:
        have = 0
    with client.stream("GET", url, headers={"Range": f"bytes={have}-"} if have else {}) as response:
        if response.status_code == 416:
            target.unlink(missing_ok=True)
            raise _Broken("the server cannot continue the file")
        if response.status_code in AGAIN:
            raise _Broken(f"the server answered {response.status_code}")
        if response.status_code not in (200, 206):
            raise GenmeterError(
                "weights_unavailable",
                f"{public_url(url)} could not be fetched: the server answered {response.status_code}",
                "check the network and proxy, or put the file by hand where the message says",
            )
        if response.status_code == 206 and not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            target.unlink(missing_ok=True)
            raise _Broken("the server continued the file at another place")
        if response.status_code == 200:
            have = 0
        length = int(response.headers.get("Content-Length") or 0)
        end = have + length
        total = part.bytes or (end if length else 0)
        limit = part.bytes or MAX_BYTES
        with target.open("ab" if have else "wb") as stream:
            for chunk in response.iter_raw():
                stream.write(chunk)
                have += len(chunk)
                progress(part.file, have, total)
                if have > limit + _OVERRUN:
                    return  # Longer than it may be: the check of size and hash will say so.
    if length and have < end:
        raise _Broken(f"the connection ended after {have} of {end} bytes")


def public_url(url: str) -> str:
    """A URL fit for a message: no user, password, query or fragment."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.port:
        host += f":{parts.port}"
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
