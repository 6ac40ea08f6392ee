"""A URL in the data must not make this machine contact an address that its owner did not allow."""

from __future__ import annotations

import io
import socket
import time

import httpcore
import numpy as np
import pytest
from PIL import Image

from genmeter.assets.decode import decode
from genmeter.assets.fetch import check_url, fetch
from genmeter.assets.load import load
from genmeter.assets.network import GuardedBackend, ascii_host, check_addresses, host_allowed, is_public, parse_entry
from genmeter.assets.resolve import Resolver
from genmeter.config import Policy
from genmeter.errors import GenmeterError

SECRET = b"<!doctype html><html>internal-token-48151623</html>"


def png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(buffer, "PNG")
    return buffer.getvalue()


def refused(url: str, policy: Policy, code: str = "forbidden") -> GenmeterError:
    with pytest.raises(GenmeterError) as caught:
        load(Resolver(policy, []).resolve(url), policy)
    assert caught.value.code == code
    assert "internal-token" not in str(caught.value)
    return caught.value


def test_an_allowed_host_is_fetched_and_decoded(server) -> None:
    url = server.body("/a.png", png())
    policy = Policy(allow_hosts=(server.host,))
    blob = load(Resolver(policy, []).resolve(url), policy)
    assert blob.data == png()
    assert blob.mtime_ns is None
    assert decode(blob, "image", policy).pixels[0, 1].tolist() == [3, 4, 5]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f000001", "0177.0.0.1", "127.1"])
def test_no_host_is_contacted_by_default(server, host) -> None:
    server.body("/a.png", png())
    error = refused(server.url("/a.png", host), Policy())
    assert "--allow-host" in (error.hint or "")
    assert server.hits == []


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://[::1]/a.png",
        "http://[::ffff:127.0.0.1]/a.png",
        "http://[::ffff:7f00:1]/a.png",
        "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/",
        "http://[fe80::1%25eth0]/",
        "http://0.0.0.0/",
        "http://0/",
        "http://10.0.0.1/",
        "http://192.168.1.1/",
        "http://100.64.0.1/",
        "http://224.0.0.1/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://017700000001/",
        "http://127.1/",
        "http://localhost/",
        "http://localhost./",
        "http://user:pw@example.com/",
        "http://example.com@127.0.0.1/",
        "http://127.0.0.1\\@example.com/",
        "http://example.com#@127.0.0.1/",
        "http:///a.png",
        "http://",
        "https://exa mple.com/",
        "http://example.com:99999/",
        "http://[::1/",
    ],
)
def test_addresses_and_tricks_are_refused_even_with_every_public_host_allowed(url, monkeypatch) -> None:
    def resolve(host, port, **_):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    def connect(*args, **kwargs):
        raise AssertionError(f"connected: {args}")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "create_connection", connect)
    error = refused(url, Policy(allow_hosts=("*",)))
    assert "pw" not in error.message + (error.asset or "")


def test_user_names_are_refused_even_for_an_allowed_host(server) -> None:
    server.body("/a.png", png())
    for user in ("user", "user:pw", "", "127.0.0.1%40"):
        refused(server.url("/a.png", f"{user}@127.0.0.1"), Policy(allow_hosts=(server.host,)))
    assert server.hits == []


@pytest.mark.parametrize("scheme", ["ftp", "gopher", "javascript", "dict", "FTP", "ws"])
def test_only_http_and_https(scheme) -> None:
    policy = Policy(allow_hosts=("*", "127.0.0.1"))
    refused(f"{scheme}://127.0.0.1/a.png", policy)
    with pytest.raises(GenmeterError):
        fetch(f"{scheme}://127.0.0.1/a.png", policy)


def test_a_public_name_that_leads_inside_is_refused(server, monkeypatch) -> None:
    server.body("/a.png", png())
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *a, **k: real("127.0.0.1", *a, **k))
    url = server.url("/a.png", "cdn.example.com")
    error = refused(url, Policy(allow_hosts=("cdn.example.com",)))
    assert "127.0.0.1" in error.message
    assert server.hits == []
    # Naming the address as well says that it is meant.
    policy = Policy(allow_hosts=("cdn.example.com", "127.0.0.1"))
    assert load(Resolver(policy, []).resolve(url), policy).data == png()


def test_one_private_address_among_public_ones_refuses_the_host() -> None:
    with pytest.raises(GenmeterError, match=r"10\.0\.0\.7"):
        check_addresses("cdn.example.com", 443, ["93.184.216.34", "10.0.0.7"], ("cdn.example.com",))


def test_the_connection_goes_to_the_address_that_was_checked(monkeypatch) -> None:
    """DNS rebinding: a second look-up of the name would give the loopback address."""
    answers = iter([["93.184.216.34"], ["127.0.0.1"]])
    asked: list[str] = []
    connected: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return next(answers)

    def connect(address, timeout=None, source_address=None):
        connected.append(address[0])
        raise OSError("no route")

    monkeypatch.setattr(socket, "create_connection", connect)
    backend = GuardedBackend(("rebind.example.com",), time.monotonic() + 5, resolve)
    with pytest.raises(httpcore.ConnectError):
        backend.connect_tcp("rebind.example.com", 80)
    assert asked == ["rebind.example.com"]
    assert connected == ["93.184.216.34"]


def test_the_back_end_checks_the_host_itself() -> None:
    backend = GuardedBackend(("cdn.example.com",), time.monotonic() + 5, lambda host, port: ["93.184.216.34"])
    with pytest.raises(GenmeterError, match="not allowed"):
        backend.connect_tcp("other.example.com", 80)
    with pytest.raises(GenmeterError):
        backend.connect_unix_socket("/run/docker.sock")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_followed_only_to_allowed_hosts(server, other_server, status) -> None:
    other_server.body("/b.png", png())
    url = server.redirect("/a.png", other_server.url("/b.png"), status)
    refused(url, Policy(allow_hosts=(server.host,)))
    assert server.hits == ["/a.png"]
    assert other_server.hits == []
    assert fetch(url, Policy(allow_hosts=(server.host, other_server.host))) == png()


@pytest.mark.parametrize(
    "target",
    [
        "file:///etc/passwd",
        "ftp://127.0.0.1/a.png",
        "http://169.254.169.254/",
        "http://[::1]/",
        "http://localhost/",
        "//10.0.0.1/a.png",
        "http://2130706433/",
        "gopher://127.0.0.1/",
        "data:image/png;base64,AAAA",
    ],
)
def test_redirect_targets_are_checked_like_first_urls(server, target) -> None:
    refused(server.redirect("/a.png", target), Policy(allow_hosts=(server.host, "*")))


def test_a_relative_redirect_stays_on_its_host(server) -> None:
    server.body("/deep/b.png", png())
    assert fetch(server.redirect("/a.png", "/deep/b.png"), Policy(allow_hosts=(server.host,))) == png()


def test_redirect_loops_end(server) -> None:
    url = server.redirect("/a.png", "/a.png")
    refused(url, Policy(allow_hosts=(server.host,)), "fetch_failed")
    assert len(server.hits) == 6


def test_an_oversized_body_is_refused_from_its_header(server) -> None:
    url = server.body("/a.png", b"x" * 50_000)
    refused(url, Policy(allow_hosts=(server.host,), max_bytes=10_000), "too_large")


def test_an_oversized_body_without_a_length_is_cut_off(server) -> None:
    sent = []

    def endless(handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n")
        for _ in range(2000):
            handler.wfile.write(b"x" * 10_000)
            sent.append(1)

    server.answers["/a.png"] = endless
    refused(server.url("/a.png"), Policy(allow_hosts=(server.host,), max_bytes=100_000), "too_large")
    assert len(sent) < 2000


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-Slow: ", b""],
    ids=["body", "headers", "status line"],
)
def test_a_slow_drip_ends_at_the_deadline(server, head) -> None:
    url = server.drip("/a.png", head)
    started = time.monotonic()
    refused(url, Policy(allow_hosts=(server.host,), decode_timeout_s=0.5), "timed_out")
    assert time.monotonic() - started < 2.0


def test_a_slow_name_server_ends_at_the_deadline(monkeypatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: time.sleep(3) or [])
    started = time.monotonic()
    refused("http://slow.example.com/a.png", Policy(allow_hosts=("*",), decode_timeout_s=0.3), "timed_out")
    assert time.monotonic() - started < 1.5


def test_redirects_share_one_deadline(server) -> None:
    def slow(handler) -> None:
        time.sleep(0.2)
        handler.send_response(302)
        handler.send_header("Location", "/a.png")
        handler.end_headers()

    server.answers["/a.png"] = slow
    refused(server.url("/a.png"), Policy(allow_hosts=(server.host,), decode_timeout_s=0.5), "timed_out")
    assert len(server.hits) <= 3


def test_an_error_page_with_status_200_is_named_and_not_quoted(server) -> None:
    policy = Policy(allow_hosts=(server.host,))
    blob = load(Resolver(policy, []).resolve(server.body("/a.png", SECRET)), policy)
    with pytest.raises(GenmeterError, match="HTML") as caught:
        decode(blob, "image", policy)
    assert caught.value.code == "unsupported_media"
    assert "internal-token" not in str(caught.value)


@pytest.mark.parametrize("status", [204, 206, 401, 403, 404, 500, 503])
def test_other_statuses_fail_without_their_body(server, status) -> None:
    def answer(handler) -> None:
        handler.send_response(status, "internal-token in the reason")
        handler.send_header("Content-Length", str(len(SECRET)))
        handler.end_headers()
        handler.wfile.write(SECRET)

    server.answers["/a.png"] = answer
    error = refused(server.url("/a.png"), Policy(allow_hosts=(server.host,)), "fetch_failed")
    assert str(status) in error.message


def test_damaged_answers_are_typed(server) -> None:
    policy = Policy(allow_hosts=(server.host,))
    refused(server.body("/short.png", png()[:20], content_length="5000"), policy, "fetch_failed")
    refused(server.body("/gzip.png", png(), Content_Encoding="gzip"), policy, "fetch_failed")
    refused(server.body("/empty.png", b""), policy, "empty_media")
    server.answers["/bad.png"] = lambda handler: handler.wfile.write(b"internal-token nonsense\r\n\r\n")
    refused(server.url("/bad.png"), policy, "fetch_failed")


def test_a_closed_port_and_an_unknown_name_are_fetch_failed(monkeypatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    refused(f"http://127.0.0.1:{port}/a.png", Policy(allow_hosts=("127.0.0.1",)), "fetch_failed")

    def unknown(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    refused("http://nowhere.example/a.png", Policy(allow_hosts=("nowhere.example",)), "fetch_failed")


def test_proxies_of_the_environment_are_not_used(server, other_server, monkeypatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy"):
        monkeypatch.setenv(name, other_server.url(""))
    assert fetch(server.body("/a.png", png()), Policy(allow_hosts=(server.host,))) == png()
    assert other_server.hits == []


def test_names_passwords_and_signatures_are_not_in_messages(server) -> None:
    url = server.url("/a.png?X-Signature=hunter2")
    error = refused(url, Policy(allow_hosts=(server.host,)), "fetch_failed")
    assert "hunter2" not in str(error) + (error.asset or "")


@pytest.mark.parametrize(
    ("entries", "host", "port", "allowed"),
    [
        (("cdn.example.com",), "cdn.example.com", 443, True),
        (("CDN.Example.com.",), "cdn.example.com", 443, True),
        (("cdn.example.com",), "evil-cdn.example.com", 443, False),
        (("cdn.example.com",), "cdn.example.com.evil.net", 443, False),
        (("*.example.com",), "a.b.example.com", 443, True),
        (("*.example.com",), "example.com", 443, False),
        (("*.example.com",), "badexample.com", 443, False),
        (("cdn.example.com:8443",), "cdn.example.com", 443, False),
        (("cdn.example.com:8443",), "cdn.example.com", 8443, True),
        (("https://cdn.example.com/path",), "cdn.example.com", 443, True),
        (("127.0.0.1",), "127.0.0.1", 80, True),
        (("127.0.0.1:80",), "127.0.0.1", 81, False),
        (("127.0.0.1",), "localhost", 80, False),
        (("::1",), "::1", 80, True),
        (("[::1]:80",), "::1", 80, True),
        (("[::1]:80",), "::1", 81, False),
        (("10.0.0.0/8",), "10.2.3.4", 80, True),
        (("10.0.0.0/8",), "11.2.3.4", 80, False),
        (("*",), "anything.example", 80, True),
        (("*",), "8.8.8.8", 80, True),
        (("*",), "10.0.0.1", 80, False),
        ((), "cdn.example.com", 443, False),
        (("bücher.example",), "xn--bcher-kva.example", 443, True),
    ],
)
def test_the_allow_list(entries, host, port, allowed) -> None:
    assert host_allowed(host, port, entries) is allowed


@pytest.mark.parametrize("entry", ["", "exa mple.com", "-", "http://", "1.2.3", "*.*"])
def test_a_senseless_entry_is_an_error_and_never_matches_everything(entry) -> None:
    try:
        parsed = parse_entry(entry)
    except ValueError:
        return
    assert parsed.name != "*"
    assert not host_allowed("cdn.example.com", 80, (entry,))


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700:4700::1111", True),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::808:808", True),
        ("127.0.0.1", False),
        ("0.0.0.0", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("192.0.2.1", False),
        ("198.18.0.1", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("240.0.0.1", False),
        ("::", False),
        ("::1", False),
        ("fe80::1", False),
        ("fec0::1", False),
        ("fd00::1", False),
        ("ff0e::1", False),
        ("::ffff:127.0.0.1", False),
        ("::127.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
        ("2001::1", False),
    ],
)
def test_public_addresses(address, public) -> None:
    import ipaddress

    assert is_public(ipaddress.ip_address(address)) is public


def test_hosts_in_their_wire_form() -> None:
    assert ascii_host("CDN.Example.COM.") == "cdn.example.com"
    assert ascii_host("0:0:0:0:0:0:0:1") == "::1"
    assert ascii_host("bücher.example") == "xn--bcher-kva.example"
    for odd in ("2130706433", "0x7f.1", "127.1", "1.2.3", "a..b", "", "a b", "a" * 64 + ".com"):
        assert ascii_host(odd) is None


def test_checking_a_url_resolves_nothing(monkeypatch) -> None:
    def never(*args, **kwargs):
        raise AssertionError("resolved")

    monkeypatch.setattr(socket, "getaddrinfo", never)
    check_url("https://cdn.example.com/a b.png".replace(" ", "%20"), Policy(allow_hosts=("cdn.example.com",)))
    with pytest.raises(GenmeterError):
        check_url("https://other.example.com/", Policy(allow_hosts=("cdn.example.com",)))
