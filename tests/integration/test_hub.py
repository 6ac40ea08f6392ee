"""The hub kind against a hub on loopback: what it asks for, what it sends where, and what it makes of trouble."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_server import COMMIT, PAGE, REPO, Hub, lock_file, serving
from safetensors.numpy import save

from genmeter.errors import GenmeterError
from genmeter.weights.digest import tensors_digest
from genmeter.weights.load import load_tensors
from genmeter.weights.lock import ModelEntry, get_entry, read_locked
from genmeter.weights.manager import ensure, expected_path, state
from genmeter.weights.sources import url as transfer

pytest.importorskip("huggingface_hub")
TENSORS = {"w": np.random.default_rng(0).standard_normal((64, 300)).astype("f4"), "b": np.ones(3, "f4")}
DATA = save(TENSORS)
FILE = "open_clip_model.safetensors"
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(transfer, "BACKOFF_S", 0.01)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "in-the-way").write_text("no folder")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "in-the-way"))  # For subprocesses: a home that nobody can write to.
    with serving() as made:
        made.files = {FILE: DATA}
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        yield made


def tiny(folder: Path, **options: Any) -> ModelEntry:
    return get_entry("tiny", lock_file(folder, {FILE: DATA}, **options))


def fetch(entry: ModelEntry, **options: Any) -> Path:
    return ensure(entry, siblings=(), **options)


def failing(entry: ModelEntry, **options: Any) -> GenmeterError:
    with pytest.raises(GenmeterError) as caught:
        fetch(entry, **options)
    return caught.value


@pytest.mark.parametrize("large", [True, False])
def test_a_file_arrives_from_the_pinned_commit(tmp_path: Path, empty_home: Path, hub: Hub, large: bool) -> None:
    hub.large = large
    steps: list[tuple[str, int, int]] = []
    path = fetch(tiny(tmp_path), progress=lambda *step: steps.append(step))
    assert tensors_digest(load_tensors(path)) == tensors_digest(TENSORS)
    assert (steps[0][0].endswith(FILE), steps[0][2]) == (True, len(DATA))
    first = hub.requests[0]
    assert (first.method, first.path) == ("HEAD", f"/{REPO}/resolve/{COMMIT}/{FILE}")
    assert first.headers["User-Agent"].startswith("genmeter/")
    assert not any("Authorization" in request.headers for request in hub.requests)
    assert len(hub.transfers) == 1
    assert not list((empty_home / "downloads").iterdir())
    asked = len(hub.requests)
    assert fetch(tiny(tmp_path)) == path  # Here now: nobody is asked again.
    assert len(hub.requests) == asked


def test_a_token_goes_to_the_hub_and_nowhere_else(
    tmp_path: Path, empty_home: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_sesame")
    hub.token = "hf_sesame"
    fetch(tiny(tmp_path))
    by_server = {s: {r.headers.get("Authorization") for r in hub.requests if r.server == s} for s in ("hub", "store")}
    assert by_server == {"hub": {"Bearer hf_sesame"}, "store": {None}}


@pytest.mark.parametrize("token", ["", "hf_wrong"])
def test_a_gated_repository_asks_for_a_token(
    tmp_path: Path, empty_home: Path, hub: Hub, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    hub.token = "hf_sesame"
    error = failing(tiny(tmp_path))
    assert error.code == "weights_unavailable"
    assert "401" in error.message
    assert hub.url in error.message
    assert "hf_" not in str(error)
    assert len(hub.requests) == 1  # Asking again would not help.


def test_an_endpoint_with_a_password_is_not_shown(
    tmp_path: Path, empty_home: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url.replace("//", "//user:hunter2@") + "/")
    hub.files = {}
    error = failing(tiny(tmp_path))
    assert "404" in error.message
    assert "hunter2" not in str(error)


def test_a_repository_without_the_file(tmp_path: Path, empty_home: Path, hub: Hub) -> None:
    hub.files = {"other.bin": DATA}
    error = failing(tiny(tmp_path))
    assert error.code == "weights_unavailable"
    for word in ("404", f"{hub.url}/{REPO}/resolve/{COMMIT}/{FILE}", "tiny"):
        assert word in error.message
    assert f"lab--tiny-clip--{FILE}" in (error.hint or "")
    assert SHA256 in (error.hint or "")


def test_a_busy_hub_is_asked_again(tmp_path: Path, empty_home: Path, hub: Hub) -> None:
    hub.busy = 2
    assert fetch(tiny(tmp_path)).is_file()


def test_another_commit_is_refused(tmp_path: Path, empty_home: Path, hub: Hub) -> None:
    hub.commit = "f" * 40
    error = failing(tiny(tmp_path))
    assert error.code == "weights_mismatch"
    assert "f" * 40 in error.message
    assert hub.transfers == []


def test_a_broken_transfer_is_continued(tmp_path: Path, empty_home: Path, hub: Hub) -> None:
    hub.cut = lambda n: 20_000 if n == 1 else None
    fetch(tiny(tmp_path))
    assert len(hub.transfers) == 2
    assert 0 < hub.transfers[1].start <= 22_048


@pytest.mark.parametrize("pinned", [True, False])
def test_what_a_killed_process_left_is_continued(
    tmp_path: Path, empty_home: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, pinned: bool
) -> None:
    hub.cut = lambda n: 30_000
    monkeypatch.setattr(transfer, "ATTEMPTS", 1)
    assert failing(tiny(tmp_path, pinned=pinned)).code == "weights_unavailable"
    assert len(list((empty_home / "downloads").glob(".*.part"))) == 1
    hub.cut = lambda n: None
    fetch(tiny(tmp_path, pinned=pinned))
    assert [request.start > 0 for request in hub.transfers] == [False, True]


def test_a_hub_that_goes_away(tmp_path: Path, empty_home: Path, hub: Hub) -> None:
    def vanish(n: int) -> int:
        hub._store.socket.close()  # The transfer breaks, and nobody takes the next one.
        return 30_000

    hub.cut = vanish
    error = failing(tiny(tmp_path))
    assert error.code == "weights_unavailable"
    assert hub.url in error.message
    assert "genmeter models fetch tiny" in (error.hint or "")
    assert state(tiny(tmp_path)) == "absent"
    with serving() as again:
        again.files = hub.files
        os.environ["HF_ENDPOINT"] = again.url
        fetch(tiny(tmp_path))
        assert again.transfers[0].start > 0


def test_a_hub_that_is_not_there(tmp_path: Path, empty_home: Path, hub: Hub) -> None:
    hub.leave()
    start = time.monotonic()
    error = failing(tiny(tmp_path))
    assert error.code == "weights_unavailable"
    assert hub.url in error.message
    assert time.monotonic() - start < 40  # Old clients insist.


def test_a_page_with_200_is_no_model(tmp_path: Path, empty_home: Path, hub: Hub) -> None:
    hub.page = PAGE
    error = failing(tiny(tmp_path))
    assert error.code == "weights_mismatch"
    for word in ("HTML", hub.url, str(empty_home), SHA256, hashlib.sha256(PAGE).hexdigest()):
        assert word in error.message
    assert "hotel" not in str(error)
    assert not [path for path in empty_home.rglob("*") if path.is_file() and path.name != ".lock"]
    hub.page = b""
    fetch(tiny(tmp_path))


def test_an_unpinned_page_is_not_kept_or_locked(tmp_path: Path, empty_home: Path, hub: Hub) -> None:
    hub.page = PAGE
    assert failing(tiny(tmp_path, pinned=False)).code == "weights_mismatch"
    assert read_locked() == {}
    hub.page = b""
    fetch(tiny(tmp_path, pinned=False))
    assert read_locked() == {"tiny": tensors_digest(TENSORS)}
    assert SHA256 in (empty_home / "locked.toml").read_text()  # What was hashed, though nothing pinned it.


WRONG = {"other": save({"w": np.zeros(7, "f4")}), "half": DATA[: len(DATA) // 2], "one bit": DATA[:-1] + b"\x01"}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("pinned", [True, False])
def test_wrong_bytes_are_replaced_once_then_named(
    tmp_path: Path, empty_home: Path, hub: Hub, kind: str, pinned: bool
) -> None:
    """Pinned by models.lock, or only announced by the hub: neither half a file nor another one gets in."""
    hub.files, hub.claims = {FILE: WRONG[kind]}, {FILE: DATA}
    error = failing(tiny(tmp_path, pinned=pinned))
    assert error.code == "weights_mismatch"
    for word in (hub.url, str(empty_home), SHA256, hashlib.sha256(WRONG[kind]).hexdigest()):
        assert word in error.message
    assert len(hub.transfers) == 2
    assert not [path for path in empty_home.rglob("*") if path.is_file() and path.name != ".lock"]
    hub.files = {FILE: DATA}
    fetch(tiny(tmp_path, pinned=pinned))


def test_a_file_without_end_stops_at_its_size(tmp_path: Path, empty_home: Path, hub: Hub) -> None:
    hub.files, hub.claims = {FILE: DATA * 40}, {FILE: DATA}
    sizes: list[int] = []
    with pytest.raises(GenmeterError, match="sha256"):
        fetch(tiny(tmp_path), progress=lambda what, done, total: sizes.append(done))
    assert max(sizes) <= len(DATA) + (1 << 18)


def test_weights_and_tokenizer_come_together(tmp_path: Path, empty_home: Path, hub: Hub) -> None:
    from genmeter.weights.clip import TOKENIZER

    towers = {"logit_scale": np.array(4.6, "f4"), "visual.w": np.ones((3, 5), "f2"), "text.w": np.ones(2, "f4")}
    words = '{"model": {"vocab": {"猫": 0}}}\n'.encode()  # Of odd length: what follows must stay aligned.
    hub.files = {FILE: save(towers), "sub/tokenizer.json": words}
    entry = get_entry("tiny", lock_file(tmp_path, hub.files, converter="open_clip_tokenizer", pinned=False))
    tensors = load_tensors(fetch(entry))
    assert tensors[TOKENIZER].tobytes() == words
    assert tensors["visual.w"].dtype == np.float16
    assert set(tensors) == {*towers, TOKENIZER}
    del hub.files["sub/tokenizer.json"]
    expected_path(entry).unlink()
    error = failing(entry)
    assert error.code == "weights_unavailable"
    assert "sub/tokenizer.json" in error.message  # The one that is missing.


WORKER = """
import sys, time
from pathlib import Path
from genmeter.weights.lock import get_entry
from genmeter.weights.manager import ensure
while time.time() < float(sys.argv[2]): time.sleep(0.001)
print(ensure(get_entry("tiny", Path(sys.argv[1])), siblings=()))
"""


def test_eight_processes_fetch_once(tmp_path: Path, empty_home: Path, hub: Hub) -> None:
    hub.delay = 0.01
    lock = lock_file(tmp_path, {FILE: DATA})
    start = str(time.time() + 2)
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(lock), start], stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    found = {worker.communicate(timeout=120)[0].strip() for worker in workers}
    assert {worker.returncode for worker in workers} == {0}
    assert found == {str(expected_path(get_entry("tiny", lock)))}
    assert len(hub.transfers) == 1


WATCHED = """
import json, sys, time
from pathlib import Path
from genmeter.errors import GenmeterError
from genmeter.weights.lock import get_entry
from genmeter.weights.manager import ensure
events = []
def watch(event, args):
    if event.startswith("socket.") and event != "socket.gethostname" or event == "subprocess.Popen":
        events.append(event)
entry = get_entry("tiny", Path(sys.argv[1]))
sys.addaudithook(watch)
start = time.monotonic()
try:
    said = str(ensure(entry, offline=sys.argv[2] == "offline", siblings=()))
except GenmeterError as error:
    said = error.code + ": " + error.message + " | " + (error.hint or "")
print(json.dumps({"said": said, "events": events, "took": time.monotonic() - start}))
"""


def watched(lock: Path, mode: str, **env: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(lock), mode],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_offline_opens_no_socket(tmp_path: Path, empty_home: Path, hub: Hub) -> None:
    lock = lock_file(tmp_path, {FILE: DATA})
    answer = watched(lock, "offline")
    assert answer["said"].startswith("weights_unavailable")
    assert answer["events"] == []
    assert answer["took"] < 5
    by_hand = empty_home / "downloads" / f"lab--tiny-clip--{FILE}"
    assert str(by_hand.parent) in answer["said"]
    assert by_hand.name in answer["said"]
    by_hand.parent.mkdir(exist_ok=True)
    by_hand.write_bytes(DATA)
    answer = watched(lock, "offline")
    assert Path(answer["said"]).is_file()
    assert answer["events"] == []
    assert by_hand.exists()
    assert hub.requests == []


@pytest.mark.parametrize("value", ["1", "YES"])
def test_hf_hub_offline_is_offline(tmp_path: Path, empty_home: Path, hub: Hub, value: str) -> None:
    answer = watched(lock_file(tmp_path, {FILE: DATA}), "online", HF_HUB_OFFLINE=value)
    assert answer["said"].startswith("weights_unavailable")
    assert "HF_HUB_OFFLINE" in answer["said"]
    assert answer["events"] == []
    assert hub.requests == []


def test_a_filled_home_asks_nobody(tmp_path: Path, empty_home: Path, hub: Hub) -> None:
    path = fetch(tiny(tmp_path))
    asked = len(hub.requests)
    folders = [empty_home, *(folder for folder in empty_home.rglob("*") if folder.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        for mode in ("online", "offline"):
            answer = watched(lock_file(tmp_path, {FILE: DATA}), mode)
            assert (answer["said"], answer["events"]) == (str(path), [])
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert len(hub.requests) == asked


def hub_cache(folder: Path, data: bytes) -> Path:
    """What huggingface_hub leaves after a download of its own."""
    root = folder / "hf" / "hub" / f"models--{REPO.replace('/', '--')}"
    (root / "blobs").mkdir(parents=True)
    (root / "blobs" / "blob").write_bytes(data)
    (root / "snapshots" / COMMIT).mkdir(parents=True)
    (root / "snapshots" / COMMIT / FILE).symlink_to(root / "blobs" / "blob")
    return folder / "hf"


@pytest.mark.parametrize("pinned", [True, False])
def test_the_hubs_own_cache_is_used_in_place(tmp_path: Path, empty_home: Path, hub: Hub, pinned: bool) -> None:
    home = hub_cache(tmp_path, DATA)
    answer = watched(lock_file(tmp_path, {FILE: DATA}, pinned=pinned), "offline", HF_HOME=str(home))
    assert Path(answer["said"]).is_file()
    assert answer["events"] == []
    assert hub.requests == []
    assert (home / "hub").exists()


def test_a_bad_copy_in_the_hubs_cache_is_not_used(tmp_path: Path, empty_home: Path, hub: Hub) -> None:
    home, lock = hub_cache(tmp_path, DATA[:-9]), lock_file(tmp_path, {FILE: DATA})
    answer = watched(lock, "offline", HF_HOME=str(home))
    assert answer["said"].startswith("weights_mismatch")
    assert str(home) in answer["said"]
    assert Path(watched(lock, "online", HF_HOME=str(home))["said"]).is_file()
    assert len(hub.transfers) == 1


def test_without_the_client(tmp_path: Path, empty_home: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setitem(sys.modules, "huggingface_hub.utils", None)
    error = failing(tiny(tmp_path))
    assert "huggingface_hub is not installed" in error.message
    assert hub.requests == []
