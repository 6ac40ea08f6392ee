"""Loopback HTTP servers that count who calls them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

Answer = Callable[[BaseHTTPRequestHandler], None]


class Server:
    """A server on 127.0.0.1 whose paths are answered by functions; ``hits`` lists the requests it saw."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.hits: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.hits.append(self.path)
                answer = outer.answers.get(self.path)
                if answer is None:
                    self.send_error(404)
                    return
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    answer(self)

            def log_message(self, *args: object) -> None:
                pass

        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.httpd.daemon_threads = True
        self.port: int = self.httpd.server_address[1]
        threading.Thread(target=self.httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def body(self, path: str, data: bytes, kind: str = "image/png", **headers: str) -> str:
        """Serve bytes; returns the URL."""

        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Type", kind)
            if "content_length" not in headers:
                handler.send_header("Content-Length", str(len(data)))
            for name, value in headers.items():
                handler.send_header(name.replace("_", "-"), value)
            handler.end_headers()
            handler.wfile.write(data)

        self.answers[path] = answer
        return self.url(path)

    def redirect(self, path: str, target: str, status: int = 302) -> str:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            handler.send_header("Location", target)
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        self.answers[path] = answer
        return self.url(path)

    def drip(self, path: str, head: bytes, pause: float = 0.05) -> str:
        """Send ``head``, then one byte at a time for ten seconds."""

        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.wfile.write(head)
            for _ in range(int(10 / pause)):
                handler.wfile.write(b"x")
                handler.wfile.flush()
                time.sleep(pause)

        self.answers[path] = answer
        return self.url(path)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.httpd.shutdown()
    made.httpd.server_close()


@pytest.fixture
def other_server() -> Iterator[Server]:
    made = Server()
    yield made
    made.httpd.shutdown()
    made.httpd.server_close()
