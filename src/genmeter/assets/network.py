"""Which hosts and addresses the policy lets through, and a network back end that connects to nothing else."""

from __future__ import annotations

import ipaddress
import queue
import socket
import threading
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import httpcore

from genmeter.errors import GenmeterError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Prefixes that carry an IPv4 address to which a gateway on the way may lead (RFC 6052, 8215).
_NAT64 = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))


class Entry(NamedTuple):
    """One item of ``policy.allow_hosts``: a name (``*.domain`` and ``*`` are patterns) or a network, maybe a port."""

    name: str
    network: Network | None
    port: int | None


@lru_cache(maxsize=256)
def parse_entry(text: str) -> Entry:
    """Parse ``host``, ``*.domain``, ``*``, an address or a network, each optionally with ``:port``.

    Raises:
        ValueError: When it is none of these.
    """
    item = text.strip().lower()
    item = item.partition("://")[2] or item
    item = item if _network(item) else item.partition("/")[0]
    port = None
    if _network(item) is None:
        head, colon, tail = item.rpartition(":")
        if colon and tail.isdecimal() and (head.startswith("[") or ":" not in head):
            item, port = head, int(tail)
    item = item.strip("[]")
    network = _network(item)
    if network is not None:
        return Entry(item, network, port)
    bare = item.removeprefix("*.")
    name = bare if bare == "*" else ascii_host(bare)
    if not name:
        raise ValueError(f"allow_hosts: {text!r} is neither a host name nor an address")
    return Entry("*." + name if item.startswith("*.") else name, None, port)


def ascii_host(host: str) -> str | None:
    """A host as it goes on the wire: lower case, IDNA, no trailing dot, addresses in their usual form.

    ``None`` when it is malformed, or a number in a notation other than dotted decimal: ``2130706433`` and ``0x7f.1``
    are 127.0.0.1 to many resolvers, and nobody writes them in good faith.
    """
    host = host.rstrip(".")
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        name = host.encode("idna").decode("ascii").lower() if not host.isascii() else host.lower()
    except UnicodeError:
        return None
    labels = name.split(".")
    if not name or len(name) > 253 or any(not _is_label(label) for label in labels):
        return None
    last = labels[-1]
    if last.isdecimal() or (last.startswith("0x") and all(c in "0123456789abcdef" for c in last[2:])):
        return None
    return name


def host_allowed(host: str, port: int, allow_hosts: Iterable[str]) -> bool:
    """Whether a host may be asked for at all; ``host`` as :func:`ascii_host` returns it."""
    address = _address(host)
    for entry in map(parse_entry, allow_hosts):
        if entry.port is not None and entry.port != port:
            continue
        if address is not None:
            if _entry_lists(entry, address) or (entry.name == "*" and is_public(address)):
                return True
        elif entry.name in ("*", host) or (entry.name.startswith("*.") and host.endswith(entry.name[1:])):
            return True
    return False


def check_addresses(host: str, port: int, found: Iterable[str], allow_hosts: Iterable[str]) -> list[str]:
    """Check what a host resolved to.

    Returns:
        The addresses, each once, in their order.

    Raises:
        GenmeterError: ``forbidden`` if any of them is neither public nor listed. One such address refuses the host:
            nobody mixes them for a good reason.
    """
    addresses = list(dict.fromkeys(found))
    entries = [parse_entry(item) for item in allow_hosts]
    for text in addresses:
        address = ipaddress.ip_address(text.partition("%")[0])
        listed = any(_entry_lists(entry, address) for entry in entries if entry.port in (None, port))
        if not listed and not is_public(address):
            raise GenmeterError(
                "forbidden",
                f"the host {host} leads to {address}, which is not a public address",
                f"if that is meant, list the address as well: --allow-host {address}",
            )
    return addresses


def is_public(address: Address) -> bool:
    """Whether an address is reachable by everybody, looking through the ways of writing IPv4 as IPv6."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address.sixtofour is not None or address.teredo is not None:
            return False
        if any(address in prefix for prefix in _NAT64):
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


class GuardedBackend(httpcore.NetworkBackend):
    """Resolves, checks, and connects to the address it checked; no operation outlasts the deadline.

    Args:
        allow_hosts: The policy's list.
        deadline: On the clock of ``time.monotonic``.
        resolve: ``(host, port) -> addresses``; replaced in tests.
    """

    def __init__(self, allow_hosts: tuple[str, ...], deadline: float, resolve: Any = None) -> None:
        self._allow_hosts = allow_hosts
        self._deadline = deadline
        self._resolve = resolve or _system_resolve
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect; raises ``GenmeterError('forbidden')`` or httpcore's connection errors."""
        # Asked again here: what counts is the host that is connected to, however a URL was read before.
        name = ascii_host(host)
        if name is None or not host_allowed(name, port, self._allow_hosts):
            raise GenmeterError("forbidden", f"the host {host} is not allowed", f"to allow it: --allow-host {host}")
        found = [name] if _address(name) is not None else self._within_deadline(name, port)
        addresses = check_addresses(name, port, found, self._allow_hosts)
        failure: Exception = httpcore.ConnectError("no address")
        for address in addresses:
            try:
                stream = self._backend.connect_tcp(
                    address, port, remaining(self._deadline), local_address, socket_options or []
                )
            except httpcore.ConnectError as error:
                failure = error
                continue
            return _BoundedStream(stream, self._deadline)
        raise failure

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        """Never used; refused."""
        raise GenmeterError("forbidden", "local sockets are not allowed")

    def _within_deadline(self, host: str, port: int) -> list[str]:
        """Resolve in a thread, since the system's resolver takes no timeout."""
        answers: queue.SimpleQueue[list[str] | Exception] = queue.SimpleQueue()

        def work() -> None:
            try:
                answers.put(self._resolve(host, port))
            except Exception as error:
                answers.put(error)

        threading.Thread(target=work, name="genmeter-resolve", daemon=True).start()
        try:
            answer = answers.get(timeout=remaining(self._deadline))
        except queue.Empty:
            raise httpcore.ConnectTimeout("resolving the host name took too long") from None
        if isinstance(answer, Exception):
            raise httpcore.ConnectError("the host name does not resolve") from answer
        return answer


def remaining(deadline: float) -> float:
    """Seconds left; raises httpcore's timeout when there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout("deadline")
    return left


class _BoundedStream(httpcore.NetworkStream):
    """A stream on which each operation may take no longer than what is left of the whole."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: float) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, remaining(self._deadline))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, remaining(self._deadline))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        secure = self._stream.start_tls(ssl_context, server_hostname, remaining(self._deadline))
        return _BoundedStream(secure, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _system_resolve(host: str, port: int) -> list[str]:
    return [str(item[4][0]) for item in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _entry_lists(entry: Entry, address: Address) -> bool:
    if entry.network is not None:
        return address.version == entry.network.version and address in entry.network
    return entry.name == "localhost" and address.is_loopback


def _address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _is_label(label: str) -> bool:
    return 0 < len(label) <= 63 and all(c.isalnum() or c in "-_" for c in label)
