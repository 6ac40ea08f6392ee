"""A model hub on loopback: enough of one for huggingface_hub, and ways to misbehave."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

REPO = "lab/tiny-clip"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
PAGE = b"<!DOCTYPE html><html><body>Sign in to the hotel network</body></html>"


class Request(NamedTuple):
    server: str  # "hub" or "store"
    method: str
    path: str
    headers: dict[str, str]

    @property
    def start(self) -> int:
        """Where a continued transfer goes on."""
        return int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])


class Hub:
    """Answers for files by path in the repository; large files are redirected to a store at another origin.

    Attributes:
        files: Path in the repository to bytes.
        claims: Path to the bytes whose SHA-256 and size the hub announces, where they are not those it sends.
        large: Whether files lie in the store (as large files do on the real hub).
        token: Needed to see anything, when set.
        page: Answer everything with this page instead (a captive portal).
        busy: How many requests are answered with 503 first.
        cut: Called with the number of the transfer (from 1); after how many bytes it breaks off, or None.
        piece: Bytes that are sent at a time.
        delay: Seconds between pieces.
        commit: What the hub says the commit is.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.claims: dict[str, bytes] = {}
        self.large = True
        self.token = ""
        self.page = b""
        self.busy = 0
        self.cut: Callable[[int], int | None] = lambda n: None
        self.piece = 2048
        self.delay = 0.0
        self.commit = COMMIT
        self.requests: list[Request] = []
        self._lock = threading.Lock()
        self._hub, self._store = self._serve("hub"), self._serve("store")
        self.url = f"http://127.0.0.1:{self._hub.server_port}"

    @property
    def transfers(self) -> list[Request]:
        """Requests that were sent bytes of a file."""
        place = "store" if self.large else "hub"
        return [request for request in self.requests if request.method == "GET" and request.server == place]

    def leave(self) -> None:
        """Nobody listens any more."""
        for server in (self._hub, self._store):
            server.shutdown()
            server.server_close()

    def _serve(self, name: str) -> ThreadingHTTPServer:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                with contextlib.suppress(ConnectionError):
                    hub._answer(self, name)

            do_GET = do_HEAD

            def log_message(self, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return server

    def _answer(self, handler: BaseHTTPRequestHandler, server: str) -> None:
        if handler.path.startswith("/api/"):  # huggingface_hub's own business: no file is asked for.
            return _send(handler, 404, b"")
        with self._lock:
            headers = {key.title(): value for key, value in handler.headers.items()}
            self.requests.append(Request(server, handler.command, handler.path, headers))
            number = len(self.transfers)
            busy, self.busy = self.busy > 0, max(0, self.busy - 1)
        if busy:
            return _send(handler, 503, b"later")
        if self.page:
            return _send(handler, 200, self.page, Content_Type="text/html")
        if self.token and server == "hub" and headers.get("Authorization") != f"Bearer {self.token}":
            return _send(handler, 401, b"", X_Error_Code="RepoNotFound")
        prefix = f"/{REPO}/resolve/{COMMIT}/"
        path = handler.path.removeprefix(prefix if server == "hub" else "/blob/")
        if path == handler.path or path not in self.files:
            return _send(handler, 404, b"", X_Error_Code="EntryNotFound")
        claimed = self.claims.get(path, self.files[path])
        tag = f'"{hashlib.sha256(claimed).hexdigest()}"'
        if server == "hub" and self.large:
            where = f"http://127.0.0.1:{self._store.server_port}/blob/{path}"
            linked = {"X_Linked_Size": str(len(claimed)), "X_Linked_ETag": tag, "X_Repo_Commit": self.commit}
            return _send(handler, 302, b"", Location=where, ETag='"pointer"', **linked)
        self._send_file(handler, self.files[path], tag, number)

    def _send_file(self, handler: BaseHTTPRequestHandler, data: bytes, tag: str, number: int) -> None:
        start = Request("", "", "", {k.title(): v for k, v in handler.headers.items()}).start
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(data) - start))
        handler.send_header("ETag", tag)
        handler.send_header("X-Repo-Commit", self.commit)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        handler.end_headers()
        if handler.command == "HEAD":
            return
        end = self.cut(number)
        for at in range(start, len(data), self.piece):
            if end is not None and at >= end:
                handler.close_connection = True
                return
            if self.delay:
                time.sleep(self.delay)
            handler.wfile.write(data[at : at + self.piece])


def _send(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


@contextlib.contextmanager
def serving() -> Iterator[Hub]:
    """A hub for the length of the block."""
    hub = Hub()
    try:
        yield hub
    finally:
        with contextlib.suppress(OSError):
            hub.leave()


def lock_file(folder: Path, files: dict[str, bytes], *, converter: str = "safetensors", pinned: bool = True) -> Path:
    """A models.lock with one model, ``tiny``, whose parts are these files (path in the repository to bytes)."""
    source = f'[[model.source]]\nconverter = "{converter}"\n'
    for i, (path, data) in enumerate(files.items()):
        pins = f'sha256 = "{hashlib.sha256(data).hexdigest()}"\nbytes = {len(data)}\n' if pinned else ""
        part = f'kind = "hub"\nrepo = "{REPO}"\nrevision = "{COMMIT}"\nfile = "{path}"\n{pins}'
        if len(files) > 1:
            part = f'[[model.source.part]]\nname = "{"tokenizer" if i else "weights"}"\n{part}'
        source += part
    text = '[[model]]\nid = "tiny"\ntask = "image-text"\nloader = "l"\narchitecture = "a"\nlicence = "CC0-1.0"\n'
    path = folder / f"{hashlib.sha256(source.encode()).hexdigest()[:10]}.lock"
    path.write_text(f"{text}unverified = true\n{source}")
    return path
