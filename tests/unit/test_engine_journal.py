"""The journal: all of a batch or none of it, one writer, and what an interrupted batch leaves behind."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from genmeter.contract import Feature
from genmeter.engine import journal as module
from genmeter.engine.journal import Journal
from genmeter.engine.ledger import Encoded, Entry, LineNote, Stamp


def key(index):
    return hashlib.sha256(str(index).encode()).digest()


def encoded(index):
    feature = Feature(np.full((2, 3), index, np.float32), np.ones(2, np.float32), {"n": index}, ("silent",))
    return Encoded(key(index), "e" * 64, feature, "|u1(4,)", 8)


def entry(line, score=0.5, code=None, metric="m"):
    row = {"score": score} if code is None else {"score": None, "error": {"code": code, "message": "x"}}
    return Entry(line, metric, row)


@pytest.fixture
def journal(tmp_path):
    made = Journal(tmp_path / "journal.sqlite")
    yield made
    made.close()


def reopen(journal):
    journal.close()
    return Journal(journal.path)


def test_a_committed_batch_is_there_after_reopening(journal):
    journal.begin([key(0), key(1)])
    journal.commit([encoded(0), encoded(1)], [entry(0), entry(1)], landed=[key(0), key(1)])
    again = reopen(journal)
    assert again.resumed
    assert again.finished(range(0, 5)) == {0: {"m"}, 1: {"m"}}
    assert again.suspects() == {}
    ghosts = again.unsealed()
    assert [ghost.key for ghost in ghosts] == [key(0), key(1)]
    assert ghosts[1].feature.values.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert ghosts[1].feature.detail == {"n": 1}
    assert ghosts[1].feature.flags == ("silent",)
    assert (ghosts[1].bucket, ghosts[1].nbytes) == ("|u1(4,)", 8)
    again.seal()
    assert again.unsealed() == []
    again.close()


def test_a_batch_that_was_begun_is_suspect_until_it_lands(journal):
    journal.begin([key(0)])
    journal = reopen(journal)
    journal.begin([key(0)])
    assert journal.suspects() == {key(0): 2}
    journal.commit([], [entry(0, code="internal")], landed=[key(0)])
    assert journal.suspects() == {}
    journal.close()


def test_a_failed_commit_leaves_nothing(journal):
    bad = Entry(1, "m", {"score": float("nan")})  # strict JSON refuses it
    with pytest.raises(ValueError):
        journal.commit([encoded(0)], [entry(0), bad], landed=[])
    assert journal.finished(range(5)) == {}
    assert journal.unsealed() == []
    journal.commit([encoded(0)], [entry(0)], landed=[])
    assert journal.finished(range(5)) == {0: {"m"}}


def test_one_writer(journal):
    with pytest.raises(ValueError, match="another genmeter process"):
        Journal(journal.path)


def test_no_shared_memory_file_is_made(journal):
    journal.commit([], [entry(0)], landed=[])
    names = {path.name for path in journal.path.parent.iterdir()}
    assert names <= {"journal.sqlite", "journal.sqlite-wal"}


def test_rollback_journal_on_a_network_file_system(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_on_network", lambda folder: True)
    journal = Journal(tmp_path / "j.sqlite")
    journal.commit([], [entry(0)], landed=[])
    assert not (tmp_path / "j.sqlite-wal").exists()
    journal.close()


def test_another_layout_is_refused(journal):
    journal.set_meta("layout", 99)
    journal.close()
    with pytest.raises(ValueError, match="another version"):
        Journal(journal.path)


def test_another_database_is_no_journal_of_ours(tmp_path):
    (tmp_path / "j.sqlite").write_bytes(b"SQLite format 3\0" + b"\1" * 4000)
    with pytest.raises(ValueError, match=r"cannot be used as a journal|is damaged or no journal"):
        Journal(tmp_path / "j.sqlite")


def test_rows_come_in_input_order(journal):
    for line in (3, 1, 2):
        journal.commit([], [entry(line, line / 10, metric=m) for m in "ba"], landed=[])
    assert [(line, sorted(rows), rows["a"]["score"]) for line, rows in journal.rows()] == [
        (1, ["a", "b"], 0.1),
        (2, ["a", "b"], 0.2),
        (3, ["a", "b"], 0.3),
    ]
    assert journal.codes() == {"a": {None: 3}, "b": {None: 3}}


def test_retry_forgets_the_failures_of_a_code_and_their_lines(journal):
    journal.commit([], [entry(0), entry(1, code="not_found"), entry(2, code="decode_failed")], landed=[])
    journal.note_lines([LineNote(i, bytes([i]) * 32, {}) for i in range(3)])
    assert journal.retry(["not_found", "timed_out"]) == 1
    assert journal.finished(range(5)) == {0: {"m"}, 2: {"m"}}
    assert journal.noted(range(5)) == {0, 2}


def test_a_changed_file_takes_its_lines_along(journal):
    stamp = Stamp(5, 6, b"d" * 32)
    journal.commit([], [entry(0), entry(1), entry(2)], landed=[])
    journal.note_lines([LineNote(0, b"a" * 32, {"/x": stamp}), LineNote(1, b"b" * 32, {"/x": stamp, "/y": stamp})])
    journal.note_lines([LineNote(2, None, {"/y": stamp})])
    assert dict(journal.stamps()) == {"/x": stamp, "/y": stamp}
    assert journal.forget_asset("/x") == 2
    assert journal.finished(range(5)) == {2: {"m"}}
    assert [uri for uri, _ in journal.stamps()] == ["/y"]


def test_a_full_disk_keeps_what_was_committed(tmp_path):
    journal = Journal(tmp_path / "j.sqlite")
    journal.commit([], [entry(0)], landed=[])
    pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
    journal._db.execute(f"PRAGMA max_page_count={pages + 1}")
    with pytest.raises(OSError, match="full"):
        journal.commit([encoded(i) for i in range(2000)], [entry(1)], landed=[])
    journal = reopen(journal)
    assert journal.finished(range(5)) == {0: {"m"}}
    journal.close()
