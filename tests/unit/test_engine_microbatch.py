"""Calls of many threads in shared batches, and the engine's door for them."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import genmeter
from genmeter.engine.microbatch import Busy, MicroBatcher


class Slow:
    """Doubles numbers; each batch takes as long as any other, and waits for a gate if there is one."""

    def __init__(self, seconds: float = 0.0, gate: threading.Event | None = None) -> None:
        self.seconds, self.gate = seconds, gate
        self.batches: list[list[int]] = []
        self.begun = threading.Event()

    def __call__(self, items: list[int]) -> list[int]:
        self.begun.set()
        self.batches.append(items)
        if self.gate is not None:
            assert self.gate.wait(20)
        time.sleep(self.seconds)
        if -1 in items:
            raise ValueError("no negative numbers")
        return [2 * item for item in items]


def test_an_idle_batcher_starts_at_once() -> None:
    batcher = MicroBatcher(Slow(), linger=0.005)
    began = time.monotonic()
    assert [batcher.submit(n).result(10) for n in range(20)] == [2 * n for n in range(20)]
    assert time.monotonic() - began < 5  # 20 times 5 ms, and room for a busy machine
    assert batcher.batches == 20
    batcher.close()


def test_calls_gather_while_a_batch_runs() -> None:
    gate = threading.Event()
    slow = Slow(gate=gate)
    batcher = MicroBatcher(slow, limit=16, linger=0.0)
    first = batcher.submit(0)
    assert slow.begun.wait(10)
    rest = [batcher.submit(n) for n in range(1, 41)]
    gate.set()
    assert [f.result(10) for f in [first, *rest]] == [2 * n for n in range(41)]
    assert [len(batch) for batch in slow.batches] == [1, 16, 16, 8]
    assert [n for batch in slow.batches for n in batch] == list(range(41))
    batcher.close()


def test_nothing_is_lost_under_32_threads() -> None:
    slow = Slow(seconds=0.01)
    batcher = MicroBatcher(slow, limit=64)

    def client(number: int) -> list[int]:
        return [batcher.submit(100 * number + i).result(30) for i in range(20)]

    with ThreadPoolExecutor(32) as threads:
        found = list(threads.map(client, range(32)))
    assert found == [[2 * (100 * n + i) for i in range(20)] for n in range(32)]
    assert batcher.answered == 640
    assert 640 / batcher.batches > 8
    batcher.close()


def test_a_failing_batch_fails_its_calls_and_no_other() -> None:
    batcher = MicroBatcher(Slow(), limit=1)
    bad = batcher.submit(-1)
    with pytest.raises(ValueError, match="negative"):
        bad.result(10)
    assert batcher.submit(4).result(10) == 8
    batcher.close()


def test_a_cancelled_call_costs_nothing() -> None:
    gate = threading.Event()
    slow = Slow(gate=gate)
    batcher = MicroBatcher(slow, linger=0.0)
    first = batcher.submit(0)
    assert slow.begun.wait(10)
    unwanted, wanted = batcher.submit(1), batcher.submit(2)
    assert unwanted.cancel()
    gate.set()
    assert (first.result(10), wanted.result(10)) == (0, 4)
    assert slow.batches == [[0], [2]]
    batcher.close()


def test_a_full_queue_says_so_or_waits() -> None:
    gate = threading.Event()
    slow = Slow(gate=gate)
    batcher = MicroBatcher(slow, linger=0.0, max_pending=2)
    futures = [batcher.submit(0)]
    assert slow.begun.wait(10)
    futures += [batcher.submit(1), batcher.submit(2)]
    with pytest.raises(Busy, match="2 samples"):
        batcher.submit(3, block=False)
    blocked: list[Any] = []
    thread = threading.Thread(target=lambda: blocked.append(batcher.submit(3)))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    gate.set()
    thread.join(10)
    assert [f.result(10) for f in [*futures, *blocked]] == [0, 2, 4, 6]
    batcher.close()


def test_closing_cancels_what_waits_and_finishes_what_runs() -> None:
    gate = threading.Event()
    slow = Slow(gate=gate)
    batcher = MicroBatcher(slow, linger=0.0)
    running = batcher.submit(0)
    assert slow.begun.wait(10)
    waiting = batcher.submit(1)
    closer = threading.Thread(target=batcher.close)
    closer.start()
    with pytest.raises(CancelledError):
        waiting.result(10)
    gate.set()
    closer.join(10)
    assert not closer.is_alive()
    assert running.result(0) == 0
    batcher.close()
    with pytest.raises(RuntimeError, match="closed"):
        batcher.submit(2)


@pytest.fixture
def grey(tmp_path: Path) -> Path:
    for level in range(32):
        Image.fromarray(np.full((8, 8, 3), 8 * level, np.uint8)).save(tmp_path / f"g{level}.png")
    return tmp_path


def test_an_engine_answers_calls_as_it_scores_a_list(grey: Path) -> None:
    samples = [{"id": str(i), "prompt": "p", "output": f"g{i % 32}.png"} for i in range(64)]
    samples[7]["output"] = "nowhere.png"
    with genmeter.Engine(["fake_level"], media_root=str(grey), device="cpu") as engine:
        expected = [result.eval_result for result in engine.score(samples)]
        with ThreadPoolExecutor(32) as threads:
            found = list(threads.map(lambda s: engine.submit(s).result(30), samples))
        stats = engine.stats()
        junk = [engine.submit(value).result(30) for value in ({}, None, [], {"id": 1})]  # type: ignore[arg-type]
    assert [result.eval_result for result in found] == expected
    assert [result.id for result in found] == [s["id"] for s in samples]
    assert found[7].errors["fake_level"]["code"] == "not_found"
    assert stats["samples"] == 64
    assert stats["mean_batch"] > 1
    assert all(result.errors[""]["code"] == "bad_sample" for result in junk)


def test_an_engine_is_awaited(grey: Path) -> None:
    async def together(engine: genmeter.Engine) -> list[Any]:
        samples = [{"id": str(i), "prompt": "p", "output": f"g{i}.png"} for i in range(16)]
        return list(await asyncio.gather(*(engine.score_async(s) for s in samples)))

    with genmeter.Engine(["fake_level"], media_root=str(grey), device="cpu") as engine:
        found = asyncio.run(together(engine))
        direct = list(engine.score({"id": r.id, "prompt": "p", "output": f"g{r.id}.png"} for r in found))
    assert [r.scores for r in found] == [r.scores for r in direct]


def test_each_call_has_a_place_of_its_own_and_keeps_its_array(grey: Path) -> None:
    buffer = np.full((8, 8, 3), 40, np.uint8)
    with genmeter.Engine(["fake_level"], device="cpu") as engine:
        futures = []
        for level in (40, 80, 120):
            buffer[:] = level
            futures.append(engine.submit({"prompt": "p", "output": buffer}))
        found = [future.result(30) for future in futures]
    assert [result.scores["fake_level"] for result in found] == [40.0, 80.0, 120.0]
    assert len({result.id for result in found}) == len({result.line for result in found}) == 3


def test_a_great_many_tasks_wait_for_room(grey: Path) -> None:
    async def together(engine: genmeter.Engine) -> list[Any]:
        return list(await asyncio.gather(*(engine.score_async({"id": "x", "output": "g1.png"}) for _ in range(1200))))

    with genmeter.Engine(["fake_level"], media_root=str(grey), device="cpu") as engine:
        assert {result.scores["fake_level"] for result in asyncio.run(together(engine))} == {8.0}


def test_a_closed_engine_takes_no_calls(grey: Path) -> None:
    engine = genmeter.Engine(["fake_level"], media_root=str(grey), device="cpu")
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        engine.submit({"id": "1", "output": "g1.png"})
    with pytest.raises(RuntimeError, match="closed"):
        next(engine.score([{"id": "1", "output": "g1.png"}]))


def test_warming_up_loads_what_is_configured(empty_home: Path) -> None:
    from genmeter.errors import GenmeterError

    with genmeter.Engine(["clipscore@tiny-clip", "fake_level"], device="cpu") as engine:
        engine.warmup()
        engine.warmup()
    with genmeter.Engine(["lpips"], device="cpu", offline=True) as engine:
        with pytest.raises(GenmeterError) as caught:
            engine.warmup()
        assert caught.value.code == "weights_unavailable"
