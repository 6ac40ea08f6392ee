"""Assets over http(s), for the hosts that the policy names and no other.

A URL in a sample must not make this machine contact an address that its owner did not mean: every hop of a redirect
is checked as the first URL was, a host's addresses are checked after they are resolved, and the connection goes to the
very address that was checked, so a name that resolves differently a second later changes nothing. Proxies and passwords
of the environment are not used, since a proxy would resolve the name again.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from genmeter.assets.resolve import shorten
from genmeter.config import Policy
from genmeter.errors import GenmeterError

if TYPE_CHECKING:
    import ssl

_MAX_HOPS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
_MUST_BE_ENCODED = frozenset('\\\x7f"<>^`{|}') | {chr(code) for code in range(33)}
_HEADERS = [
    ("User-Agent", "genmeter"),
    ("Accept", "image/*,audio/*,video/*,*/*;q=0.5"),
    # A compressed transfer would let a small body grow without bound while it is unpacked.
    ("Accept-Encoding", "identity"),
    ("Connection", "close"),
]


class _Redirect(NamedTuple):
    target: str


def fetch(url: str, policy: Policy) -> bytes:
    """Download one asset. Thread-safe.

    Args:
        url: An http or https URL.
        policy: ``allow_hosts`` lists host names, ``*.domain`` patterns, and IP addresses or networks, each optionally
            with ``:port``. A name may only lead to public addresses unless its address is listed too (``localhost``
            lists the loopback addresses). ``max_bytes`` bounds the body; ``decode_timeout_s`` the time from the call
            to the last byte, all hops together.

    Raises:
        GenmeterError: ``forbidden``, ``too_large``, ``timed_out`` or ``fetch_failed``. What the server sent is never
            quoted.
    """
    deadline = time.monotonic() + policy.decode_timeout_s
    target = url
    for _ in range(_MAX_HOPS + 1):
        check_url(target, policy)
        answer = _get(target, policy, deadline)
        if isinstance(answer, bytes):
            return answer
        target = urljoin(target, answer.target)
    raise GenmeterError("fetch_failed", f"more than {_MAX_HOPS} redirects", "name the final URL", asset=shorten(url))


def check_url(url: str, policy: Policy) -> None:
    """Whether the policy lets this URL be fetched, before anything is resolved.

    Raises:
        GenmeterError: ``forbidden``, naming the host and the flag that would allow it.
    """
    try:
        _check_url(url, policy)
    except GenmeterError as error:
        raise error.with_asset(shorten(url)) from None


def _check_url(url: str, policy: Policy) -> None:
    try:
        parts = urlsplit(url)
        host, port, scheme = parts.hostname, parts.port, parts.scheme
    except ValueError:
        raise GenmeterError("forbidden", "the URL is malformed") from None
    if scheme not in _PORTS:
        raise GenmeterError("forbidden", f"the scheme {scheme[:20]!r} is not allowed; only http and https are")
    if any(character in _MUST_BE_ENCODED for character in url):
        raise GenmeterError("forbidden", "the URL holds a space or another character that must be percent-encoded")
    if not host:
        raise GenmeterError("forbidden", "the URL names no host")
    if "@" in parts.netloc:
        raise GenmeterError("forbidden", "the URL holds a user name or password", "write it without one")
    if not policy.allow_hosts:
        raise GenmeterError(
            "forbidden", f"no host may be contacted; the URL names {host}", f"to allow it: --allow-host {host}"
        )
    from genmeter.assets.network import ascii_host, host_allowed

    name = ascii_host(host)
    if name is None:
        raise GenmeterError("forbidden", "the host name is malformed, or an address in an unusual notation")
    if not host_allowed(name, _PORTS[scheme] if port is None else port, policy.allow_hosts):
        raise GenmeterError("forbidden", f"the host {host} is not allowed", f"to allow it: --allow-host {host}")


def _get(url: str, policy: Policy, deadline: float) -> bytes | _Redirect:
    import httpcore
    import httpx

    from genmeter.assets.network import GuardedBackend

    shown = shorten(url)
    try:
        target = httpx.URL(url).copy_with(fragment=None)
        context = _tls() if target.scheme == "https" else None
        backend = GuardedBackend(policy.allow_hosts, deadline)
        headers = [("Host", target.netloc.decode("ascii")), *_HEADERS]
        with (
            httpcore.ConnectionPool(ssl_context=context, network_backend=backend) as pool,
            pool.stream("GET", str(target), headers=headers) as response,
        ):
            return _read(response, policy)
    except GenmeterError as error:
        raise error.with_asset(shown) from None
    except httpcore.TimeoutException:
        raise GenmeterError(
            "timed_out",
            f"the download did not finish within {policy.decode_timeout_s:g} s",
            "raise policy.decode_timeout_s, or download the files first",
            asset=shown,
        ) from None
    except (httpcore.ConnectError, OSError) as error:
        raise GenmeterError(
            "fetch_failed", f"the connection failed: {error}", "check that the host can be reached", asset=shown
        ) from None
    except Exception as error:
        raise GenmeterError(
            "fetch_failed",
            f"the download broke off ({type(error).__name__})",
            "check the URL, then run again",
            asset=shown,
        ) from None


def _read(response: Any, policy: Policy) -> bytes | _Redirect:
    headers = {name.lower(): value for name, value in response.headers}
    if response.status in _REDIRECTS:
        if b"location" not in headers:
            raise GenmeterError("fetch_failed", f"HTTP status {response.status} without a location")
        return _Redirect(headers[b"location"].decode("latin-1"))
    if response.status != 200:
        raise GenmeterError("fetch_failed", f"HTTP status {response.status}", "check that the URL is still valid")
    if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
        raise GenmeterError("fetch_failed", "the server compressed the answer although it was asked not to")
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > policy.max_bytes:
        raise _too_large(policy)
    body = bytearray()
    for chunk in response.iter_stream():
        if len(body) + len(chunk) > policy.max_bytes:
            raise _too_large(policy)
        body += chunk
    return bytes(body)


def _too_large(policy: Policy) -> GenmeterError:
    return GenmeterError(
        "too_large",
        f"the download is above the limit of {policy.max_bytes} bytes",
        "raise policy.max_bytes if it is meant to be this large",
    )


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    """One context for all downloads: reading the certificate store takes longer than a small download."""
    import httpx

    return httpx.create_ssl_context()
