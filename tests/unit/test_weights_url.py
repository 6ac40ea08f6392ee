"""The url kind: retries, resuming, limits, and messages that give nothing away. All servers are on loopback."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from genmeter.errors import GenmeterError
from genmeter.weights.lock import PartSpec
from genmeter.weights.sources import url as source

DATA = bytes(range(256)) * 4096


@contextmanager
def server(answer: Callable[[BaseHTTPRequestHandler, int], None]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A loopback server; ``answer(handler, n)`` answers the n-th request. Yields its URL and the requests' headers."""
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append({"path": self.path, **dict(self.headers)})
            answer(self, len(seen))

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/w.bin", seen
    finally:
        http.shutdown()
        http.server_close()


def send(
    handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, claimed: int | None = None, **headers: str
) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body) if claimed is None else claimed))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def part(url: str, data: bytes = DATA, pinned: bool = True) -> PartSpec:
    sha256 = hashlib.sha256(data).hexdigest() if pinned else ""
    return PartSpec("weights", "url", "w.bin", sha256, len(data) if pinned else 0, where={"url": url})


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "BACKOFF_S", 0.01)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def fetch(spec: PartSpec, target: Path) -> list[tuple[str, int, int]]:
    steps: list[tuple[str, int, int]] = []
    source.fetch(spec, target, lambda *step: steps.append(step))
    return steps


def test_a_file_arrives_with_progress(tmp_path: Path) -> None:
    with server(lambda handler, n: send(handler, DATA)) as (url, _):
        steps = fetch(part(url), tmp_path / "t")
    assert (tmp_path / "t").read_bytes() == DATA
    assert steps[-1] == ("w.bin", len(DATA), len(DATA))
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_busy_server_is_asked_again(tmp_path: Path, status: int) -> None:
    def answer(handler: BaseHTTPRequestHandler, n: int) -> None:
        send(handler, b"later", status) if n < 3 else send(handler, DATA)

    with server(answer) as (url, seen):
        fetch(part(url), tmp_path / "t")
    assert len(seen) == 3
    assert (tmp_path / "t").read_bytes() == DATA


def test_a_server_that_never_answers_well_is_given_up(tmp_path: Path) -> None:
    busy = server(lambda handler, n: send(handler, b"secret body", 503))
    with busy as (url, seen), pytest.raises(GenmeterError) as caught:
        fetch(part(url.replace("//", "//user:hunter2@") + "?token=hunter3"), tmp_path / "t")
    assert caught.value.code == "weights_unavailable"
    assert len(seen) == source.ATTEMPTS
    text = str(caught.value)
    assert "503" in text
    assert url in text
    assert not any(word in text for word in ("hunter2", "hunter3", "secret body"))


def test_a_missing_file_is_not_asked_for_again(tmp_path: Path) -> None:
    empty = server(lambda handler, n: send(handler, b"", 404))
    with empty as (url, seen), pytest.raises(GenmeterError, match="404"):
        fetch(part(url), tmp_path / "t")
    assert len(seen) == 1


def _half_then_range(handler: BaseHTTPRequestHandler, n: int) -> None:
    if n == 1:
        send(handler, DATA[:400_000], claimed=len(DATA))
        return
    start = int(handler.headers["Range"][len("bytes=") : -1])
    send(handler, DATA[start:], 206, Content_Range=f"bytes {start}-{len(DATA) - 1}/{len(DATA)}")


def test_a_broken_transfer_is_continued(tmp_path: Path) -> None:
    with server(_half_then_range) as (url, seen):
        fetch(part(url), tmp_path / "t")
    assert (tmp_path / "t").read_bytes() == DATA
    assert len(seen) == 2
    assert 0 < int(seen[1]["Range"][len("bytes=") : -1]) <= 400_000


@pytest.mark.parametrize("kind", ["ignores the range", "another place", "cannot"])
def test_a_server_that_cannot_continue_starts_over(tmp_path: Path, kind: str) -> None:
    (tmp_path / "t").write_bytes(DATA[:1000])

    def answer(handler: BaseHTTPRequestHandler, n: int) -> None:
        if n > 1 or kind == "ignores the range":
            send(handler, DATA)
        elif kind == "another place":
            send(handler, DATA[500:], 206, Content_Range=f"bytes 500-{len(DATA) - 1}/{len(DATA)}")
        else:
            send(handler, b"", 416)

    with server(answer) as (url, _):
        fetch(part(url), tmp_path / "t")
    assert (tmp_path / "t").read_bytes() == DATA


def test_an_unpinned_file_is_never_pieced_together(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"of another version")
    with server(lambda handler, n: send(handler, DATA)) as (url, seen):
        fetch(part(url, pinned=False), tmp_path / "t")
    assert "Range" not in seen[0]
    assert (tmp_path / "t").read_bytes() == DATA


def test_a_file_without_end_stops_at_its_pinned_size(tmp_path: Path) -> None:
    with server(lambda handler, n: send(handler, DATA * 8)) as (url, _):
        fetch(part(url), tmp_path / "t")
    assert len(DATA) < (tmp_path / "t").stat().st_size <= len(DATA) + (1 << 18)


def test_redirects_are_followed(tmp_path: Path) -> None:
    def answer(handler: BaseHTTPRequestHandler, n: int) -> None:
        send(handler, b"", 302, Location="/other") if n == 1 else send(handler, DATA)

    with server(answer) as (url, seen):
        fetch(part(url), tmp_path / "t")
    assert [request["path"] for request in seen] == ["/w.bin", "/other"]
    assert (tmp_path / "t").read_bytes() == DATA


def test_nobody_listens(tmp_path: Path) -> None:
    with server(lambda handler, n: None) as (url, _):
        pass
    with pytest.raises(GenmeterError) as caught:
        fetch(part(url), tmp_path / "t")
    assert caught.value.code == "weights_unavailable"
    assert url in caught.value.message


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://example.org/w.bin", "w.bin"])
def test_other_schemes_are_usage_errors(tmp_path: Path, url: str) -> None:
    with pytest.raises(ValueError, match="http"):
        fetch(part(url), tmp_path / "t")
