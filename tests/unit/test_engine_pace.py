"""Reading on several threads, in turn, or by the caller: decided by sizes and times, and without effect on results."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from genmeter.engine.pace import Pace

SMALL, LARGE = 3_000, 300_000


def test_tiny_lines_are_read_in_turn_and_large_ones_on_every_thread() -> None:
    pace = Pace(8)
    assert not pace.in_turn
    assert pace.chunks == 17
    pace.note(16, 16 * SMALL, 16 * 0.0002)
    assert pace.in_turn
    assert pace.chunks == 3
    pace.note(16, 16 * LARGE, 16 * 0.0002)
    assert not pace.in_turn
    pace.note(0, 0, 0.0)
    assert not pace.in_turn


def test_threads_that_wait_for_each_other_are_seen_through() -> None:
    pace = Pace(8)
    pace.note(16, 16 * SMALL, 16 * 0.006)  # eight threads, each of them waiting for seven
    assert pace.in_turn


def test_a_slow_file_system_keeps_its_threads() -> None:
    pace = Pace(2)
    pace.note(16, 16 * SMALL, 16 * 0.005)
    assert not pace.in_turn
    pace = Pace(8)
    for _ in range(100):
        pace.note(16, 16 * SMALL, 16 * 0.005)  # taken for waiting at first
    assert not pace.in_turn
    pace.note(16, 16 * SMALL, 16 * 0.0001)
    assert not pace.in_turn, "found out once, it stands"


def test_a_few_slow_chunks_change_nothing() -> None:
    pace = Pace(2)
    for turn in range(60):
        pace.note(16, 16 * SMALL, 16 * (0.02 if turn % 5 == 4 else 0.0001))
        assert pace.in_turn


def test_the_caller_reads_only_where_there_is_nothing_to_read_beside() -> None:
    pace = Pace(2)
    pace.note(16, 16 * SMALL, 16 * 0.0001)
    assert pace.by_caller
    pace.encoded(0.05)  # a network: reading goes on while it computes
    assert not pace.by_caller
    assert pace.in_turn


@pytest.mark.parametrize("side", [8, 96])
@pytest.mark.parametrize("workers", [1, 3])
def test_who_reads_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: int, workers: int) -> None:
    import genmeter
    from genmeter.engine import prepare

    rng = np.random.default_rng(0)
    lines = []
    for index in range(90):
        Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(tmp_path / f"{index}.png")
        lines.append(f'{{"id": "{index}", "prompt": "p", "output": "{index}.png"}}\n')
    data = tmp_path / "samples.jsonl"
    data.write_text("".join(lines))
    seen: dict[str, set[str]] = {}
    rows = {}
    for name in ("as it comes", "in turn", "by caller", "on threads"):
        readers: set[str] = set()
        real = prepare._Work.run

        def run(self: Any, tasks: Any, real: Any = real, readers: set[str] = readers) -> Any:
            readers.add(threading.current_thread().name)
            return real(self, tasks)

        with monkeypatch.context() as patch:
            patch.setattr(prepare._Work, "run", run)
            if name != "as it comes":
                patch.setattr(Pace, "note", lambda *args: None)
                patch.setattr(Pace, "by_caller", name == "by caller")
                patch.setattr(Pace, "chunks", 3 if name == "in turn" else 7)
                real_init = Pace.__init__
                patch.setattr(
                    Pace,
                    "__init__",
                    lambda self, workers, init=real_init, turn=name == "in turn": (
                        init(self, workers),
                        setattr(self, "in_turn", turn),
                    )[-1],
                )
            genmeter.score(
                data, ["fake_level"], out=tmp_path / name, workers=workers, cache=False, report=False, device="cpu"
            )
        seen[name] = readers
        rows[name] = (tmp_path / name / "samples.jsonl").read_bytes()
    assert len(set(rows.values())) == 1
    assert seen["by caller"] == {threading.current_thread().name}
    assert threading.current_thread().name not in seen["on threads"] | seen["in turn"]
    if side == 8:
        assert threading.current_thread().name in seen["as it comes"]


def test_only_one_thread_reads_at_a_time_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from genmeter.engine import prepare

    inside, most = 0, 0
    lock = threading.Lock()

    def run(self: Any, tasks: Any) -> list[Any]:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.002)
        with lock:
            inside -= 1
        return []

    monkeypatch.setattr(prepare._Work, "run", run)
    work = object.__new__(prepare._Work)
    work._turn = threading.Lock()
    threads = [threading.Thread(target=work.run_in_turn, args=([],)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
