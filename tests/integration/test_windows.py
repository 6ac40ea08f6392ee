"""What one window leaves to the next: features are written once, and what a window holds goes with it."""

from __future__ import annotations

import contextlib
import gc
import json
import sqlite3
import weakref
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

import genmeter
from genmeter.engine import run as engine_run
from genmeter.inputs.source import InputLine, Source


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(engine_run, "_WINDOW_LINES", 4)
    return 4


def repeated(path: Path, times: int) -> None:
    """The same samples over and over, each time under new ids."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    rows = [{**line, "id": f"{line['id']}-{turn}"} for turn in range(times) for line in lines]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def stored(run: Path) -> list[bytes]:
    """The keys of all features in the shards of a run."""
    return [
        bytes(key) for path in sorted((run / "features").glob("*/*.safetensors")) for key in load_file(path)["keys"]
    ]


def score(data: Path, out: Path, metrics: list[str], **options: Any) -> Any:
    return genmeter.score(data, metrics, out=out, report=False, device="cpu", **options)


@pytest.mark.parametrize("cache", [False, True])
def test_features_are_written_once_a_run(grey_set: Any, tmp_path: Path, small_windows: int, cache: bool) -> None:
    """Also those of a set, which a run keeps itself: from an earlier window as from the shared cache."""
    data = grey_set([10, 20, 30])
    repeated(data, 6)
    first = score(data, tmp_path / "first", ["fake_gap", "fake_level"], cache=cache)
    keys = stored(tmp_path / "first")
    assert len(keys) == len(set(keys)) == 4  # three outputs and a reference
    second = score(data, tmp_path / "second", ["fake_gap", "fake_level"], cache=cache)
    assert sorted(stored(tmp_path / "second")) == sorted(keys)
    assert second.run["counts"]["encoded"] == (0 if cache else first.run["counts"]["encoded"])
    for name in ("samples.jsonl", "summary.json"):
        assert (tmp_path / "second" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()


def test_the_size_of_a_window_changes_no_score(grey_set: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = grey_set(list(range(0, 200, 9)))
    rows = []
    for size in (1, 4, 4096):
        monkeypatch.setattr(engine_run, "_WINDOW_LINES", size)
        score(data, tmp_path / str(size), ["fake_gap", "fake_pair", "fake_level"], cache=False)
        rows.append((tmp_path / str(size) / "samples.jsonl").read_bytes())
    assert rows[0] == rows[1] == rows[2]


def test_lines_are_let_go_as_soon_as_they_are_planned(
    grey_set: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window of long samples would otherwise be held as parsed objects, many times the size of its lines."""

    class Sample(dict[str, Any]):
        pass

    alive: list[weakref.ref[Sample]] = []
    most = 0
    real = Source._read

    def read(self: Source, *args: Any) -> InputLine:
        nonlocal most
        line = real(self, *args)
        assert line.sample is not None
        sample = Sample(line.sample)
        gc.collect()
        alive[:] = [reference for reference in alive if reference() is not None]
        alive.append(weakref.ref(sample))
        most = max(most, len(alive))
        return line._replace(sample=sample, record=None, error=None)

    monkeypatch.setattr(Source, "_read", read)
    monkeypatch.setattr(engine_run.LineWriter, "write", lambda *args, **options: None)
    score(grey_set(list(range(40))), tmp_path / "run", ["fake_level"], cache=False)
    assert most <= 4


def test_a_window_ends_at_its_size_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from genmeter.inputs.source import open_source

    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": str(i), "output": "x" * 990}) + "\n" for i in range(10)), "utf-8")
    monkeypatch.setattr(engine_run, "_WINDOW_BYTES", 3000)
    sizes = [[line.index for line in window] for window in engine_run.windows(open_source([path]))]
    assert sizes == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    monkeypatch.setattr(engine_run, "_WINDOW_LINES", 2)
    assert [len(list(window)) for window in engine_run.windows(open_source([path]))] == [2] * 5


def test_the_journal_forgets_the_features_of_a_finished_window(grey_set: Any, tmp_path: Path) -> None:
    score(grey_set([10, 20, 30]), tmp_path / "run", ["fake_level"], cache=False)
    with contextlib.closing(sqlite3.connect(tmp_path / "run" / "journal.sqlite")) as db:
        assert db.execute("SELECT COUNT(*) FROM feature").fetchone() == (0,)
        assert db.execute("SELECT COUNT(*) FROM inflight").fetchone() == (0,)
