"""Decoding processes: what a file breaks is one of them, and it costs one sample."""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
import sound_files as files
from decoders import misbehaving
from PIL import Image

from genmeter.assets import wire
from genmeter.assets.audio import decode_audio
from genmeter.assets.decode import decode
from genmeter.assets.keeper import worker_environment
from genmeter.assets.limits import Limits
from genmeter.assets.load import Blob
from genmeter.assets.workers import DecodePool
from genmeter.config import Policy
from genmeter.contract import AudioMedia, ImageMedia
from genmeter.errors import GenmeterError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends signals")

TONE = files.wav(files.tone(16000, 0.2), 16000)


def blob(data: bytes) -> Blob:
    return Blob(data, bytes(32), len(data), None)


def policy(**settings) -> Policy:
    return Policy(**{"decode_timeout_s": 30, **settings})


def one(pool: DecodePool, data: bytes = TONE, modality: str = "audio", **request):
    [found] = pool.decode(blob(data), modality, [request])
    return found


def code(found) -> str | None:
    return found.code if isinstance(found, GenmeterError) else None


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process ends within some seconds; one that only waits to be reaped has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


# --- what comes back ------------------------------------------------------------------------------------------------


def test_a_worker_gives_what_decoding_here_gives() -> None:
    asked = [{"rate": 48000}, {}, {"rate": 16000}, {"rate": 48000}]
    data = files.wav(files.tone(44100, 0.5), 44100)
    with DecodePool(policy(), 2) as pool:
        found = pool.decode(blob(data), "audio", asked)
    here = decode_audio(memoryview(data), asked, Limits.of(Policy()))
    for media, other in zip(found, here, strict=True):
        assert isinstance(media, AudioMedia)
        assert np.array_equal(media.samples, other.samples)
        assert media._replace(samples=None) == other._replace(samples=None)
        assert not media.samples.flags.writeable
    assert found[0] is found[3], "equal requests are answered once"


def test_half_a_minute_is_equal_to_the_bit_in_two_processes() -> None:
    """B14: 10 s tone, 10 s noise, 10 s silence, five times in each."""
    noise = np.random.default_rng(1).uniform(-0.5, 0.5, 480000)
    sound = np.concatenate([files.tone(48000, 10, 440.0), noise, np.zeros(480000)])
    data = files.wav(sound[::2], 24000)
    seen = set()
    for _ in range(2):
        with DecodePool(policy(), 1) as pool:
            seen |= {one(pool, data, rate=48000).samples.tobytes() for _ in range(5)}
    assert len(seen) == 1
    assert len(seen.pop()) == 4 * 1_440_000


def pictures() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    made = {}
    for name, shape in (("RGB", (30, 40, 3)), ("RGBA", (30, 40, 4)), ("L", (30, 40))):
        for suffix in ("PNG", "WEBP", "TIFF"):
            buffer = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(buffer, suffix)
            made[f"{name} {suffix}"] = buffer.getvalue()
    photo = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    for name, options in (("JPEG", {"exif": exif}), ("GIF", {"save_all": True, "append_images": [photo.rotate(90)]})):
        buffer = io.BytesIO()
        photo.save(buffer, name, **options)
        made[name] = buffer.getvalue()
    made["cut"] = made["RGB PNG"][:200]
    made["cut JPEG"] = made["JPEG"][: len(made["JPEG"]) // 2]
    made["bomb"] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (20000).to_bytes(4, "big") * 2 + b"\x08\2\0\0\0" + bytes(4)
    made["sound"], made["page"] = TONE, b"<html></html>"
    return made


def test_images_in_workers_are_the_images_of_threads() -> None:
    """isolate: all gives the same pixels, flags, detail and errors."""
    apart, near = policy(isolate="all", max_pixels=10**8), policy(max_pixels=10**8)
    with DecodePool(apart, 1) as pool, DecodePool(near, 1) as threads:
        for name, data in pictures().items():
            found, other = one(pool, data, "image"), one(threads, data, "image")
            if isinstance(other, GenmeterError):
                assert found.to_dict() == other.to_dict(), name
            else:
                assert isinstance(found, ImageMedia)
                assert np.array_equal(found.pixels, other.pixels), name
                assert (found.flags, found.detail) == (other.flags, other.detail), name
                assert np.array_equal(other.pixels, decode(blob(data), "image", near).pixels)
        assert len(pool.pids) == 1
        assert threads.pids == []


def test_errors_come_back_whole() -> None:
    with DecodePool(policy(), 1) as pool:
        found = one(pool, TONE[:-100])
        assert code(found) == "decode_failed"
        assert "cut short" in found.message
        assert found.hint
        assert code(one(pool, b"<html>")) == "unsupported_media"
        assert code(one(pool, files.wav(np.zeros(0)))) == "empty_media"
        assert code(one(pool)) is None
        assert len(pool.pids) == 1


# --- deadlines and deaths --------------------------------------------------------------------------------------------


def test_a_worker_that_hangs_is_killed_at_the_deadline() -> None:
    with DecodePool(policy(decode_timeout_s=0.5), 1) as pool:
        assert code(one(pool)) is None
        [stuck] = pool.pids
        os.kill(stuck, signal.SIGSTOP)
        began = time.monotonic()
        found = one(pool)
        assert code(found) == "timed_out"
        assert "0.5 s" in found.message
        assert time.monotonic() - began < 10
        assert gone(stuck)
        assert code(one(pool)) is None
        assert stuck not in pool.pids


@pytest.mark.parametrize("slow", ["time.sleep(60)", "while True: pass"])
def test_a_task_that_takes_too_long_costs_itself(slow) -> None:
    command = misbehaving(f"if count == 1: {slow}" if "sleep" in slow else f"if count == 1:\n    {slow}")
    with DecodePool(policy(decode_timeout_s=1.0), 1, command) as pool:
        assert code(one(pool)) == "timed_out"
        assert len(pool.pids) == 0
    command = misbehaving("if len(parts[0]) == 64: time.sleep(60)")
    with DecodePool(policy(decode_timeout_s=1.0), 2, command) as pool:
        codes = [code(one(pool, data)) for data in (TONE, bytes(64), TONE)]
        assert codes == [None, "timed_out", None]


@pytest.mark.parametrize(
    ("death", "expected", "word"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "decode_failed", "SIGSEGV"),
        ("os.abort()", "decode_failed", "SIGABRT"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "out_of_memory", "SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "internal", "SIGTERM"),
        ("os._exit(3)", "internal", "exit code 3"),
        ("raise RuntimeError('secret-token')", "internal", "RuntimeError"),
        ("raise MemoryError", "out_of_memory", "decode_memory"),
    ],
)
def test_what_kills_a_decoder_costs_one_sample(death, expected, word) -> None:
    command = misbehaving(f"if len(parts[0]) == 64: {death}")
    with DecodePool(policy(), 1, command) as pool:
        found = [one(pool, data) for data in (TONE, bytes(64), TONE, bytes(64), TONE)]
        assert [code(item) for item in found] == [None, expected, None, expected, None]
        assert word in found[1].message
        assert found[1].hint
        assert "secret-token" not in str(found[1].to_dict())
        assert len(pool.pids) == 1


def test_a_death_that_does_not_repeat_costs_nothing() -> None:
    """What an earlier file left behind in a decoder is not charged to the next one."""
    with DecodePool(policy(), 1, misbehaving("if count == 2: os.kill(os.getpid(), signal.SIGSEGV)")) as pool:
        assert [code(one(pool)) for _ in range(6)] == [None] * 6


def test_a_segfault_from_outside_in_the_middle_of_a_task() -> None:
    with DecodePool(policy(), 1) as pool:
        one(pool)
        [pid] = pool.pids
        os.kill(pid, signal.SIGSTOP)
        found = []
        thread = threading.Thread(target=lambda: found.append(one(pool)))
        thread.start()
        time.sleep(0.3)
        os.kill(pid, signal.SIGSEGV)
        os.kill(pid, signal.SIGCONT)
        thread.join(30)
        assert [code(item) for item in found] == [None]
        assert gone(pid)
        assert pool.pids != [pid]


def test_a_worker_that_died_while_idle_is_replaced() -> None:
    with DecodePool(policy(), 1) as pool:
        one(pool)
        [pid] = pool.pids
        os.kill(pid, signal.SIGKILL)
        assert gone(pid)
        assert code(one(pool)) is None


def test_memory_is_limited() -> None:
    """Five minutes of 8 kHz asked for at 1 MHz is 1.2 GB."""
    data = files.wav(np.zeros(8000 * 300), 8000, "u8")
    with DecodePool(policy(decode_memory=400_000_000), 1) as pool:
        assert code(one(pool)) is None
        [before] = pool.pids
        found = one(pool, data, rate=1_000_000)
        assert code(found) == "out_of_memory"
        assert "decode_memory" in found.message
        assert code(one(pool)) is None
        assert before not in pool.pids, "what ran out of memory is not used again"
        assert code(one(pool, data, rate=16000)) is None
    with DecodePool(policy(decode_memory=256_000_000), 1) as pool:
        assert code(one(pool, bytes(250_000_000))) == "out_of_memory"
        assert code(one(pool, bytes(260_000_000))) == "out_of_memory"
        assert code(one(pool)) is None


def test_a_decoder_that_cannot_be_started_says_why() -> None:
    program = [sys.executable, "-c", "import sys; sys.exit('the reason')", "0", "0"]
    with DecodePool(policy(), 2, program) as pool:
        found = one(pool)
        assert code(found) == "internal"
        assert "the reason" in found.message
    with DecodePool(policy(), 2, ["/nowhere/python"]) as pool:
        assert code(one(pool)) == "internal"
        assert code(one(pool)) == "internal"


# --- what a decoder says is not trusted -------------------------------------------------------------------------------


HUGE = 2**40
LIES = [
    {"results": [{"kind": "audio", "shape": [HUGE], "rate": 48000, "flags": [], "detail": {}}]},
    {"results": [{"kind": "audio", "shape": [-1], "rate": 48000, "flags": [], "detail": {}}]},
    {"results": [{"kind": "audio", "shape": [4.0], "rate": 48000, "flags": [], "detail": {}}]},
    {"results": [{"kind": "audio", "shape": [True], "rate": 48000, "flags": [], "detail": {}}]},
    {"results": [{"kind": "audio", "shape": [1, 1], "rate": 48000, "flags": [], "detail": {}}]},
    {"results": [{"kind": "audio", "shape": [1], "rate": 44100, "flags": [], "detail": {}}]},
    {"results": [{"kind": "audio", "shape": [1], "rate": "48000", "flags": [], "detail": {}}]},
    {"results": [{"kind": "audio", "shape": "1", "rate": 48000, "flags": [], "detail": {}}]},
    {"results": [{"kind": "image", "shape": [1, 1, 3], "flags": [], "detail": {}}]},
    {"results": [{"kind": "audio", "shape": [1], "rate": 48000, "flags": ["nonsense"], "detail": {}}]},
    {"results": [{"kind": "audio", "shape": [1], "rate": 48000, "flags": [[]], "detail": {}}]},
    {"results": [{"kind": "audio", "shape": [1], "rate": 48000, "flags": ["silent"] * 99, "detail": {}}]},
    {"results": [{"kind": "audio", "shape": [1], "rate": 48000, "flags": [], "detail": {"a": []}}]},
    {"results": [{"kind": "audio", "shape": [1], "rate": 48000, "flags": [], "detail": {"a": "x" * 9999}}]},
    {"results": [{"kind": "audio", "shape": [1], "rate": 48000, "flags": [], "detail": {"a": 10**40}}]},
    {"results": [{"kind": "audio", "shape": [1], "rate": 48000, "flags": [], "detail": [1]}]},
    {
        "results": [
            {"kind": "audio", "shape": [1], "rate": 48000, "flags": [], "detail": {str(i): 0 for i in range(99)}}
        ]
    },
    {"results": [{"error": ["no_such_code", "m", None]}]},
    {"results": [{"error": [[], "m", None]}]},
    {"results": [{"error": ["decode_failed", 5, None]}]},
    {"results": [{"error": "decode_failed"}]},
    {"results": [[]]},
    {"results": []},
    {"results": {}},
    {"results": [{"error": ["decode_failed", "m", None]}] * 2},
    {},
]


@pytest.mark.parametrize("header", LIES, ids=range(len(LIES)))
def test_an_answer_that_is_none(header) -> None:
    pipe = io.BytesIO(bytes(64))
    with pytest.raises(wire.Broken):
        wire.read_outcomes(pipe, header, "audio", [{"rate": 48000}], Limits.of(Policy()))
    assert pipe.tell() == 0


@pytest.mark.parametrize(
    ("modality", "shape"),
    [
        ("image", [20000, 20000, 3]),
        ("image", [4, 4, 2]),
        ("image", [4, 4]),
        ("video", [3000, 4, 4, 3]),
        ("video", [2, 20000, 20000, 3]),
        ("video", [2048, 1000, 1000, 3]),
        ("video", [2, 4, 4, 4]),
        ("video", [2, 4, 4]),
    ],
)
def test_pictures_beyond_the_limits(modality, shape) -> None:
    said = {"kind": modality, "shape": shape, "flags": [], "detail": {}}
    with pytest.raises(wire.Broken):
        wire.read_outcomes(io.BytesIO(), {"results": [said]}, modality, [{}], Limits.of(Policy()))


@pytest.mark.parametrize(
    "data",
    [
        b"GMW0\2\0\0\0{}",
        b"GMW1\xff\xff\xff\xff{}",
        b"GMW1\2\0\0\0[]",
        b"GMW1\3\0\0\0{}}",
        b"GMW1\x0b\0\0\0" + b'{"a": NaN} ',
        b"GMW1" + (200_000).to_bytes(4, "little") + b"[" * 200_000,
        b"GMW1\x04\0\0\0\x80\x04\x95.",  # how a pickle begins
    ],
)
def test_a_header_that_is_none(data) -> None:
    with pytest.raises(wire.Broken):
        wire.receive(io.BytesIO(data))


def test_a_frame_that_is_cut() -> None:
    whole = io.BytesIO()
    wire.send(whole, {"a": 1}, [b"abc"])
    for length in range(1, 15):
        with pytest.raises(wire.Closed):
            wire.receive(io.BytesIO(whole.getvalue()[:length]))
    assert wire.receive(io.BytesIO()) is None
    assert wire.receive(io.BytesIO(whole.getvalue())) == {"a": 1}


@pytest.mark.parametrize("answer", [json.dumps(LIES[0]).encode(), b"cos\nsystem\n(S'echo'\ntR.", b"[" * 100_000])
def test_a_decoder_that_was_taken_over_costs_one_sample(answer) -> None:
    lie = (
        "if len(parts[0]) == 64:\n"
        f"    answer = {answer!r}\n"
        "    out = next(fd for fd in range(3, 20) if os.path.exists(f'/proc/self/fd/{fd}')"
        " and os.readlink(f'/proc/self/fd/{fd}').startswith('pipe:') and os.get_inheritable(fd) is False"
        " and __import__('fcntl').fcntl(fd, 3) & 3 == os.O_WRONLY)\n"
        "    os.write(out, b'GMW1' + len(answer).to_bytes(4, 'little') + answer)\n"
        "    time.sleep(60)"
    )
    if not os.path.exists("/proc/self/fd"):
        pytest.skip("looks for its pipe in /proc")
    with DecodePool(policy(), 1, misbehaving(lie)) as pool:
        before = psutil.Process().memory_info().rss
        found = [code(one(pool, data)) for data in (TONE, bytes(64), TONE)]
        assert found == [None, "internal", None]
        assert psutil.Process().memory_info().rss < before + (50 << 20)


# --- manners ---------------------------------------------------------------------------------------------------------


def test_what_a_library_prints_goes_nowhere(capfd) -> None:
    noise = "os.write(1, b'noise' * 100_000)\nos.write(2, b'noise' * 100_000)\nprint('noise')\nos.read(0, 10)"
    with DecodePool(policy(), 1, misbehaving(noise)) as pool:
        assert [code(one(pool)) for _ in range(3)] == [None] * 3
    assert capfd.readouterr() == ("", "")


def test_ctrl_c_is_the_parents_business() -> None:
    with DecodePool(policy(), 1) as pool:
        one(pool)
        [pid] = pool.pids
        assert os.getpgid(pid) != os.getpgid(0), "Ctrl-C reaches the whole group of the terminal"
        os.kill(pid, signal.SIGINT)
        assert code(one(pool)) is None
        assert pool.pids == [pid]


def test_a_worker_sees_no_secrets_and_starts_light(monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret-token")
    environment = worker_environment()
    assert "secret-token" not in str(environment)
    script = (
        "import sys, genmeter.assets.worker\n"
        "print([name for name in ('torch', 'pydantic', 'av', 'scipy', 'PIL', 'httpx') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-s", "-c", script], env=environment, capture_output=True, text=True)
    assert told.stdout.strip() == "[]", told.stderr
    with DecodePool(policy(), 1) as pool:
        one(pool)
        [pid] = pool.pids
        if os.path.exists(f"/proc/{pid}/environ"):
            with open(f"/proc/{pid}/environ", "rb") as file:
                assert b"secret-token" not in file.read()
        if sys.platform == "linux":
            assert os.readlink(f"/proc/{pid}/cwd") == "/", "modules in the current folder are not imported"


def test_no_core_files_and_no_files_written() -> None:
    resource = pytest.importorskip("resource")
    with DecodePool(policy(), 1) as pool:
        one(pool)
        process = psutil.Process(pool.pids[0])
        if not hasattr(process, "rlimit"):
            pytest.skip("limits of other processes cannot be read here")
        assert process.rlimit(resource.RLIMIT_CORE) == (0, 0)
        assert process.rlimit(resource.RLIMIT_FSIZE) == (0, 0)
        assert process.rlimit(resource.RLIMIT_DATA)[0] == policy().decode_memory


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)", "sys.exit(0)", "1/0"])
def test_workers_die_with_the_parent(end) -> None:
    """Also while they decode, and however it ends."""
    script = f"""
import os, signal, sys, threading, time
sys.path[:0] = {[p for p in sys.path if p]!r}
from test_assets_workers import DecodePool, TONE, blob, misbehaving, policy
pool = DecodePool(policy(), 2, misbehaving("if len(parts[0]) == 64: time.sleep(60)"))
pool.decode(blob(TONE), "audio", [{{}}])
threading.Thread(target=pool.decode, args=(blob(bytes(64)), "audio", [{{}}]), daemon=True).start()
pool.decode(blob(TONE), "audio", [{{}}])
print(*pool.pids, flush=True)
time.sleep(0.2)
{end}
"""
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout is not None
    pids = [int(pid) for pid in child.stdout.readline().split()]
    child.wait(60)
    child.stdout.close()
    assert pids
    for pid in pids:
        assert gone(pid)


def test_closing_is_quick_and_final() -> None:
    pool = DecodePool(policy(), 2, misbehaving("if len(parts[0]) == 64: time.sleep(60)"))
    one(pool)
    found = []
    thread = threading.Thread(target=lambda: found.append(one(pool, bytes(64))))
    thread.start()
    time.sleep(0.3)
    pids = pool.pids
    began = time.monotonic()
    pool.close()
    thread.join(10)
    assert time.monotonic() - began < 3
    assert [code(item) for item in found] == ["cancelled"]
    assert code(one(pool)) == "cancelled"
    pool.close()
    for pid in pids:
        assert not psutil.pid_exists(pid), "nothing is left to be reaped"


def test_a_pool_that_is_forgotten_ends_its_workers() -> None:
    pool = DecodePool(policy(), 1)
    one(pool)
    [pid] = pool.pids
    del pool
    gc.collect()
    assert gone(pid)


def test_no_more_workers_than_asked_for() -> None:
    with DecodePool(policy(), 2, misbehaving("time.sleep(0.05)")) as pool:
        found: list[str | None] = []
        most = 0
        threads = [threading.Thread(target=lambda: found.extend(code(one(pool)) for _ in range(3))) for _ in range(6)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            most = max(most, len(pool.pids))
            time.sleep(0.01)
        assert found == [None] * 18
        assert most == 2


def soak(tasks: int, faults: int) -> None:
    """Tasks of all kinds with deaths among them leave nothing behind."""
    own = psutil.Process()
    others = {child.pid for child in own.children()}  # of other tests in this process
    kinds = [
        files.wav(files.tone(8000, 0.01), 8000),
        *(files.encoded_kind(k, files.tone, 0.05) for k in ("flac", "mp3")),
    ]
    kinds += [kinds[0][:-10], bytes(64)]
    command = misbehaving(f"if len(parts[0]) == 64 and count % {faults} == 0: os.abort()")
    with DecodePool(policy(), 2, command) as pool:
        for index in range(50):
            one(pool, kinds[index % 3], rate=16000)
        gc.collect()
        handles, threads = own.num_fds(), own.num_threads()
        memory = own.memory_info().rss

        def work() -> None:
            for index in range(tasks // 2):
                found = one(pool, kinds[index % 5], rate=16000)
                expected = [None] * 3 + ["decode_failed", "unsupported_media"]
                assert code(found) == expected[index % 5] or (index % 5 == 4 and code(found) == "decode_failed")

        workers = [threading.Thread(target=work) for _ in range(2)]
        for thread in workers:
            thread.start()
        for thread in workers:
            thread.join()
        assert own.num_fds() <= handles + 4  # two workers for one
        assert own.num_threads() <= threads + 1
        assert own.memory_info().rss < memory + (30 << 20)
        assert {child.pid for child in own.children()} - others == set(pool.pids)
        assert len(pool.pids) <= 2
        for pid in pool.pids:
            assert psutil.Process(pid).num_fds() <= 6
            assert psutil.Process(pid).memory_info().rss < 200 << 20
    assert own.num_fds() < handles


def test_nothing_is_left_behind() -> None:
    soak(1500, 40)


@pytest.mark.slow
def test_nothing_is_left_behind_by_twenty_thousand_tasks() -> None:
    soak(20_000, 40)
