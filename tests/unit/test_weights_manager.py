"""The manager: one download for many processes, nothing trusted unhashed, nothing written where it need not be."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from genmeter.errors import GenmeterError
from genmeter.weights import lock as lock_module
from genmeter.weights import manager
from genmeter.weights.digest import tensors_digest
from genmeter.weights.load import load_tensors
from genmeter.weights.lock import ModelEntry, get_entry, locked_path, read_locked
from genmeter.weights.manager import ensure, state, verify
from genmeter.weights.sources import url as url_source

TENSORS = {"w": np.arange(60, dtype="f4").reshape(3, 20), "b": np.ones(3, "f4")}
DIGEST = tensors_digest(TENSORS)
DATA = save(TENSORS)
HTML = b"<!DOCTYPE html><html><body>Sign in to the hotel network</body></html>"


class Host:
    """A loopback server whose answer can be changed; ``asked`` counts requests."""

    def __init__(self) -> None:
        self.answer: Callable[[int], bytes] = lambda n: DATA
        self.delay = 0.0
        self.asked = 0
        host = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                host.asked += 1
                body = host.answer(host.asked)
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # A client that has seen enough hangs up.
                    for start in range(0, len(body), 100):
                        time.sleep(host.delay)
                        self.wfile.write(body[start : start + 100])

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/tiny.safetensors"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(url_source, "BACKOFF_S", 0.01)
    made = Host()
    yield made
    made.http.shutdown()
    made.http.server_close()


def lock_file(tmp_path: Path, url: str, *, digest: str = DIGEST, data: bytes = DATA, pinned: bool = True) -> Path:
    pins = f'sha256 = "{hashlib.sha256(data).hexdigest()}"\nbytes = {len(data)}' if pinned else ""
    text = f"""
[[model]]
id = "tiny"
task = "t"
loader = "l"
architecture = "a"
licence = "CC0-1.0"
{f'digest = "{digest}"' if digest else "unverified = true"}
[[model.source]]
converter = "safetensors"
kind = "url"
url = "{url}"
file = "tiny.safetensors"
{pins}
"""
    path = tmp_path / f"{hashlib.sha256(text.encode()).hexdigest()[:10]}.lock"
    path.write_text(text)
    return path


def tiny(tmp_path: Path, host: Host, **options: object) -> ModelEntry:
    return get_entry("tiny", lock_file(tmp_path, host.url, **options))  # type: ignore[arg-type]


def fetch(entry: ModelEntry, **options: object) -> Path:
    return ensure(entry, siblings=(), **options)  # type: ignore[arg-type]


def failing(entry: ModelEntry, **options: object) -> GenmeterError:
    with pytest.raises(GenmeterError) as caught:
        fetch(entry, **options)
    return caught.value


def test_fetched_once_then_verified_without_asking(tmp_path: Path, empty_home: Path, host: Host) -> None:
    entry = tiny(tmp_path, host)
    assert state(entry) == "absent"
    path = fetch(entry)
    assert path == empty_home / "weights" / "tiny" / f"{DIGEST[:16]}.safetensors"
    for name, tensor in load_tensors(path).items():
        np.testing.assert_array_equal(tensor, TENSORS[name])
    assert fetch(entry) == path
    assert host.asked == 1
    assert state(entry) == verify(entry) == "ready"
    assert not list((empty_home / "downloads").iterdir())  # Nothing is kept twice.
    if os.name == "posix":
        assert path.stat().st_mode & 0o444 == 0o444  # Others may read a shared home.


DAMAGES = {
    "html": lambda data: HTML,
    "half": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "one bit": lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
    "other tensors": lambda data: save({"w": np.zeros(3, "f4")}),
    "one more": lambda data: save({**TENSORS, "x": np.zeros(1, "f4")}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_replaced(tmp_path: Path, empty_home: Path, host: Host, damage: str) -> None:
    entry = tiny(tmp_path, host)
    path = fetch(entry)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert state(entry) == "damaged"
    assert fetch(entry) == path
    assert host.asked == 2
    assert tensors_digest(load_file(path)) == DIGEST


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_download_is_replaced(tmp_path: Path, empty_home: Path, host: Host, damage: str) -> None:
    """What an interrupted or fooled program may have left where the archive belongs."""
    (empty_home / "downloads").mkdir()
    (empty_home / "downloads" / "tiny.safetensors").write_bytes(DAMAGES[damage](DATA))
    path = fetch(tiny(tmp_path, host))
    assert tensors_digest(load_file(path)) == DIGEST


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_bad_answer_is_asked_for_once_more(tmp_path: Path, empty_home: Path, host: Host, damage: str) -> None:
    host.answer = lambda n: DAMAGES[damage](DATA) if n == 1 else DATA
    fetch(tiny(tmp_path, host))
    assert host.asked == 2


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_bad_answer_twice_is_named(tmp_path: Path, empty_home: Path, host: Host, damage: str) -> None:
    bad = DAMAGES[damage](DATA)
    host.answer = lambda n: bad
    error = failing(tiny(tmp_path, host))
    assert error.code == "weights_mismatch"
    assert host.asked == 2
    for word in (host.url, str(empty_home), hashlib.sha256(DATA).hexdigest(), hashlib.sha256(bad).hexdigest()):
        assert word in error.message
    assert ("HTML" in error.message) == (damage == "html")
    assert "hotel" not in str(error)  # Never content.
    left = [path for path in empty_home.rglob("*") if path.is_file() and path.name != ".lock"]
    assert left == []  # A bad file is not kept, so it cannot be trusted later.
    host.answer = lambda n: DATA
    fetch(tiny(tmp_path, host))


def test_other_tensors_than_pinned_are_refused(tmp_path: Path, empty_home: Path, host: Host) -> None:
    """The file is the pinned one, but its tensors are not: the second lock on the door."""
    error = failing(tiny(tmp_path, host, digest="0" * 64))
    assert error.code == "weights_mismatch"
    assert DIGEST in error.message
    assert "0" * 64 in error.message
    assert not list((empty_home / "weights").rglob("*.safetensors"))


def test_an_unpinned_model_is_locked_on_first_fetch(tmp_path: Path, empty_home: Path, host: Host) -> None:
    entry = tiny(tmp_path, host, digest="", pinned=False)
    path = fetch(entry)
    assert read_locked() == {"tiny": DIGEST}
    assert fetch(entry) == path
    assert host.asked == 1
    path.unlink()
    other = save({"w": np.zeros(3, "f4")})
    host.answer = lambda n: other
    error = failing(entry)
    assert error.code == "weights_mismatch"
    assert str(locked_path()) in error.message
    host.answer = lambda n: DATA
    fetch(entry)  # The wrong download was not kept.


def test_an_unpinned_page_of_html_is_not_kept(tmp_path: Path, empty_home: Path, host: Host) -> None:
    entry = tiny(tmp_path, host, digest="", pinned=False)
    host.answer = lambda n: HTML
    assert failing(entry).code == "weights_mismatch"
    assert read_locked() == {}
    host.answer = lambda n: DATA
    fetch(entry)


WORKER = """
import json, sys, time
from pathlib import Path
from genmeter.weights.lock import get_entry
from genmeter.weights.manager import ensure
while time.time() < float(sys.argv[2]): time.sleep(0.001)
print(ensure(get_entry("tiny", Path(sys.argv[1])), siblings=()))
"""


@pytest.mark.parametrize("damaged", [False, True])
def test_eight_processes_fetch_once(tmp_path: Path, empty_home: Path, host: Host, damaged: bool) -> None:
    entry = tiny(tmp_path, host)
    if damaged:
        path = manager.expected_path(entry)
        path.parent.mkdir(parents=True)
        path.write_bytes(HTML)
    host.delay = 0.1
    lock = lock_file(tmp_path, host.url)
    start = str(time.time() + 3)
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(lock), start], stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    found = {worker.communicate(timeout=120)[0].strip() for worker in workers}
    assert {worker.returncode for worker in workers} == {0}
    assert found == {str(manager.expected_path(entry))}
    assert host.asked == 1
    assert tensors_digest(load_file(found.pop())) == DIGEST


WATCHED = """
import sys
events = []
def watch(event, args):
    writes = event == "open" and (isinstance(args[1], str) and set(args[1]) & set("wax+") or (args[2] or 0) & 3)
    if writes or event.split(".")[0] in ("socket", "subprocess", "shutil", "tempfile", "fcntl") or event in (
        "os.mkdir", "os.rename", "os.remove", "os.chmod", "os.utime", "os.fork", "os.posix_spawn", "os.exec"
    ):
        events.append((event, repr(args)[:200]))
import json, time
from pathlib import Path
import genmeter.errors
from genmeter.weights.lock import get_entry
from genmeter.weights.manager import ensure
from genmeter.weights.load import load_tensors
entry = get_entry("tiny", Path(sys.argv[1]))
sys.dont_write_bytecode = True
sys.addaudithook(watch)
start = time.monotonic()
try:
    said = str(ensure(entry, offline=sys.argv[2] == "offline", siblings=()))
    load_tensors(Path(said))
except genmeter.errors.GenmeterError as error:
    said = error.code + ": " + error.message + " | " + (error.hint or "")
took = time.monotonic() - start
print(json.dumps({"said": said, "events": events, "took": took, "httpx": "httpx" in sys.modules}))
"""


def watched(lock: Path, mode: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(lock), mode], capture_output=True, text=True, check=True, timeout=60
    )
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_a_verified_file_needs_no_lock_no_write_and_no_socket(
    tmp_path: Path, empty_home: Path, host: Host, mode: str
) -> None:
    path = fetch(tiny(tmp_path, host))
    (empty_home / "weights" / ".lock").unlink(missing_ok=True)
    folders = [empty_home, *(folder for folder in empty_home.rglob("*") if folder.is_dir())]
    path.chmod(0o444)
    for folder in folders:
        folder.chmod(0o555)
    try:
        answer = watched(lock_file(tmp_path, host.url), mode)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert answer["said"] == str(path)
    assert answer["events"] == []
    assert host.asked == 1
    assert not (empty_home / "weights" / ".lock").exists()


def test_offline_says_what_to_do_at_once(tmp_path: Path, empty_home: Path, host: Host) -> None:
    answer = watched(lock_file(tmp_path, host.url), "offline")
    said = str(answer["said"])
    assert said.startswith("weights_unavailable")
    assert answer["events"] == []
    assert not answer["httpx"]
    assert float(answer["took"]) < 2  # type: ignore[arg-type]
    for word in (
        "genmeter models fetch tiny",
        str(empty_home / "downloads"),
        "tiny.safetensors",
        hashlib.sha256(DATA).hexdigest(),
        str(manager.expected_path(tiny(tmp_path, host))),
    ):
        assert word in said
    assert list(empty_home.iterdir()) == []


def test_offline_takes_an_archive_put_there_by_hand(tmp_path: Path, empty_home: Path, host: Host) -> None:
    by_hand = empty_home / "downloads" / "tiny.safetensors"
    by_hand.parent.mkdir()
    by_hand.write_bytes(DATA)
    answer = watched(lock_file(tmp_path, host.url), "offline")
    assert Path(str(answer["said"])).is_file()
    assert not [event for event in answer["events"] if event[0].startswith(("socket", "subprocess"))]  # type: ignore[attr-defined]
    assert host.asked == 0
    assert by_hand.exists()  # It is the user's.


@pytest.mark.parametrize("damage", DAMAGES)
def test_offline_refuses_a_wrong_archive(tmp_path: Path, empty_home: Path, host: Host, damage: str) -> None:
    by_hand = empty_home / "downloads" / "tiny.safetensors"
    by_hand.parent.mkdir()
    by_hand.write_bytes(DAMAGES[damage](DATA))
    error = failing(tiny(tmp_path, host), offline=True)
    assert error.code == "weights_mismatch"
    assert str(by_hand) in error.message
    assert hashlib.sha256(DATA).hexdigest() in error.message
    assert by_hand.exists()
    assert host.asked == 0


def test_offline_with_a_damaged_file(tmp_path: Path, empty_home: Path, host: Host) -> None:
    entry = tiny(tmp_path, host)
    path = fetch(entry)
    path.write_bytes(HTML)
    error = failing(entry, offline=True)
    assert error.code == "weights_mismatch"
    assert str(path) in error.message
    assert DIGEST in error.message
    assert "models fetch tiny" in (error.hint or "")
    assert host.asked == 1


def test_a_home_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("GENMETER_HOME", str(tmp_path / "file" / "home"))
    for offline in (True, False):
        error = failing(tiny(tmp_path, host), offline=offline)
        assert error.code == "weights_unavailable"
        assert str(tmp_path / "file" / "home") in error.message
    assert host.asked == 0


def test_a_full_disk_is_typed_and_leaves_nothing(
    tmp_path: Path, empty_home: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    error = failing(tiny(tmp_path, host))
    assert error.code == "weights_unavailable"
    assert "No space left" in error.message
    assert not list((empty_home / "weights").rglob("*.safetensors*"))


def test_a_stopped_process_leaves_no_half_file(tmp_path: Path, empty_home: Path, host: Host) -> None:
    """Killed during the slow download, the next one goes on and ends well."""
    host.delay = 0.15
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(lock_file(tmp_path, host.url)), "0"])
    deadline = time.monotonic() + 30
    while not list((empty_home / "downloads").glob(".*.part")) and time.monotonic() < deadline:
        time.sleep(0.02)
    worker.kill()
    worker.wait()
    assert state(tiny(tmp_path, host)) == "absent"
    host.delay = 0.0
    assert tensors_digest(load_file(fetch(tiny(tmp_path, host)))) == DIGEST


def test_sources_are_tried_in_order(tmp_path: Path, empty_home: Path, host: Host) -> None:
    text = lock_file(tmp_path, host.url).read_text()
    second = text[text.index("[[model.source]]") :]
    lock = tmp_path / "two.lock"
    lock.write_text(text.replace(host.url, "http://127.0.0.1:9/nobody") + second)
    fetch(get_entry("tiny", lock))
    assert host.asked == 1


BUNDLED = """
[[model]]
id = "small"
task = "t"
loader = "l"
architecture = "a"
licence = "CC0-1.0"
profile = "tiny"
{digest}
[[model.source]]
converter = "safetensors"
kind = "file"
path = "package:encoders/small.safetensors"
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that holds a small network; the lock file lies elsewhere."""
    root = tmp_path / "site-packages" / "genmeter"
    (root / "encoders").mkdir(parents=True)
    (root / "encoders" / "small.safetensors").write_bytes(DATA)
    (root / "models.lock").write_text("")
    monkeypatch.setattr(lock_module, "package_root", lambda: root)
    return root


def bundled_lock(tmp_path: Path, digest: str = f'digest = "{DIGEST}"') -> Path:
    path = tmp_path / f"bundled-{len(digest)}.lock"
    path.write_text(BUNDLED.format(digest=digest))
    return path


def test_weights_that_ship_are_used_where_they_lie(tmp_path: Path, empty_home: Path, package: Path) -> None:
    entry = get_entry("small", bundled_lock(tmp_path))
    assert state(entry) == verify(entry) == "ready"
    for offline in (True, False):
        assert fetch(entry, offline=offline) == package / "encoders" / "small.safetensors"
    assert list(empty_home.iterdir()) == []  # No copy, no lock: the home may be read-only.


@pytest.mark.parametrize("damage", DAMAGES)
def test_weights_that_ship_are_hashed_too(tmp_path: Path, empty_home: Path, package: Path, damage: str) -> None:
    path = package / "encoders" / "small.safetensors"
    path.write_bytes(DAMAGES[damage](DATA))
    error = failing(get_entry("small", bundled_lock(tmp_path)))
    assert error.code == "weights_mismatch"
    assert str(path) in error.message
    assert not list(empty_home.rglob("*.safetensors"))


def test_a_package_without_the_weights_that_ship(tmp_path: Path, empty_home: Path, package: Path) -> None:
    (package / "encoders" / "small.safetensors").unlink()
    error = failing(get_entry("small", bundled_lock(tmp_path)))
    assert error.code == "weights_unavailable"
    assert "install genmeter again" in (error.hint or "")


def test_the_digest_of_weights_that_will_ship(tmp_path: Path, empty_home: Path, package: Path) -> None:
    """While models.lock has no digest yet, the file is fetched like any other, and its digest can be read off."""
    entry = get_entry("small", bundled_lock(tmp_path, "unverified = true"))
    assert fetch(entry).parent == empty_home / "weights" / "small"
    assert read_locked() == {"small": DIGEST}


def test_missing_weights_end_in_a_way_out(
    tmp_path: Path, empty_home: Path, host: Host, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What to fetch and how; and, where a small network of the same task ships, how to try without."""
    error = failing(tiny(tmp_path, host), offline=True)
    for words in ("genmeter models fetch tiny", "genmeter models export tiny", "genmeter models import"):
        assert words in (error.hint or "")
    assert "--profile tiny" not in (error.hint or "")
    path, real = bundled_lock(tmp_path), lock_module._load
    monkeypatch.setattr(lock_module, "_load", lambda asked: real(path if asked.name == "models.lock" else asked))
    error = failing(tiny(tmp_path, host), offline=True)
    first = (error.hint or "").partition(";")[0]  # What a narrow table has room for.
    assert first == (
        "run `genmeter models fetch tiny` where there is a network, or try `--profile tiny` (small ships with genmeter"
    )
