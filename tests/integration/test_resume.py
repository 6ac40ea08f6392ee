"""A run can be stopped at any moment: the same command goes on, and the result equals an unbroken run."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import sqlite3
import time

import pytest

METRICS = "fake_level,fake_pair,fake_gap"
LEVELS = list(range(0, 240, 4))


def metrics_of(run):
    lines = (run / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["eval_result"]["metrics"] for line in lines]


def levels(run):
    return [metrics["fake_level"] for metrics in metrics_of(run)]


def score(command, data, out, *more, **options):
    words = ("score", data, "-o", out, "--metrics", METRICS, "--batch-size", 4, "--no-cache", "--no-report", *more)
    return command(*words, **options)


def cells(run):
    with contextlib.closing(sqlite3.connect(run / "journal.sqlite")) as db:
        return db.execute("SELECT COUNT(*) FROM cell").fetchone()[0]


def wait_for_cells(run, count, process):
    """Wait until the journal holds so many cells; it is read from a copy of what is on disk."""
    wal = run / "journal.sqlite-wal"
    size = count * 120
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        if wal.exists() and wal.stat().st_size > size:
            return
        time.sleep(0.01)


def test_killed_at_random_three_times(genmeter_command, grey_set, tmp_path):
    data = grey_set(LEVELS)
    whole = score(genmeter_command, data, tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    rng = random.Random()
    kills = 0
    for _ in range(3):
        process = score(
            genmeter_command, data, tmp_path / "broken", background=True, extra={"GENMETER_FAKE_DELAY": "0.06"}
        )
        wait_for_cells(tmp_path / "broken", 1, process)
        time.sleep(rng.uniform(0.0, 0.5))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
    assert kills, "at least one kill hit a running process"
    assert not (tmp_path / "broken/samples.jsonl").exists() or kills < 3
    done = cells(tmp_path / "broken")
    last = score(genmeter_command, data, tmp_path / "broken")
    assert last.returncode == 0, last.stderr
    if done:
        assert "going on with an earlier run" in last.stderr
    for name in ("samples.jsonl", "summary.json"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_orderly_stop_says_how_to_go_on(genmeter_command, grey_set, tmp_path, number):
    data = grey_set(LEVELS)
    process = score(genmeter_command, data, tmp_path / "run", background=True, extra={"GENMETER_FAKE_DELAY": "0.2"})
    wait_for_cells(tmp_path / "run", 4, process)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert b"run the same command to go on" in stderr
    assert not (tmp_path / "run/samples.jsonl").exists()
    assert score(genmeter_command, data, tmp_path / "run").returncode == 0
    assert len((tmp_path / "run/samples.jsonl").read_text().splitlines()) == len(LEVELS)


def test_an_item_that_takes_the_process_down_costs_itself(genmeter_command, grey_set, tmp_path):
    data = grey_set(LEVELS)
    codes = []
    for _ in range(6):
        process = score(genmeter_command, data, tmp_path / "run", extra={"GENMETER_FAKE_KILL_AT": "fake_pixels 40"})
        codes.append(process.returncode)
        if process.returncode == 0:
            break
    assert codes == [-signal.SIGKILL] * 3 + [0]
    rows = levels(tmp_path / "run")
    failed = [index for index, row in enumerate(rows) if row["score"] is None]
    assert failed == [LEVELS.index(40)]
    assert rows[failed[0]]["error"]["code"] == "internal"


def test_two_runs_on_one_directory(genmeter_command, grey_set, tmp_path):
    data = grey_set(LEVELS)
    first = score(genmeter_command, data, tmp_path / "run", background=True, extra={"GENMETER_FAKE_DELAY": "0.3"})
    wait_for_cells(tmp_path / "run", 4, first)
    second = score(genmeter_command, data, tmp_path / "run")
    assert second.returncode == 2
    assert "another genmeter process" in second.stderr
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=30)


def test_other_settings_are_refused_by_name(genmeter_command, grey_set, tmp_path):
    data, run = grey_set([10, 20]), tmp_path / "run"
    assert score(genmeter_command, data, run).returncode == 0
    refused = score(genmeter_command, data, run, "--candidate", "first")
    assert refused.returncode == 2
    assert "candidate was 'all', now 'first'" in refused.stderr
    assert "--fresh" in refused.stderr
    data.write_text(data.read_text() + data.read_text().splitlines()[0].replace("s0", "s9") + "\n")
    refused = score(genmeter_command, data, run)
    assert refused.returncode == 2
    assert "the input's content" in refused.stderr
    assert score(genmeter_command, data, run, "--fresh").returncode == 0
    assert len((run / "samples.jsonl").read_text().splitlines()) == 3
    # Batch size, workers and failures allowed are no settings.
    assert score(genmeter_command, data, run, "--workers", 1, "--max-failed", 5).returncode == 0


def test_a_metric_may_be_added(genmeter_command, grey_set, tmp_path):
    data, run = grey_set([10, 20]), tmp_path / "run"
    assert genmeter_command("score", data, "-o", run, "--metrics", "fake_level").returncode == 0
    assert genmeter_command("score", data, "-o", run, "--metrics", "fake_level,fake_pair").returncode == 0
    rows = metrics_of(run)
    assert [sorted(row) for row in rows] == [["fake_level", "fake_pair"]] * 2
    assert [row["fake_pair"]["score"] for row in rows] == [90.0, 80.0]


def test_what_a_second_attempt_may_cure_is_tried_again(genmeter_command, grey_set, tmp_path):
    data, run = grey_set([10, 20, 30]), tmp_path / "run"
    broken = data.parent / "out/0.png"
    good = broken.read_bytes()
    broken.write_bytes(good[:50])
    (data.parent / "out/1.png").rename(data.parent / "later.png")
    assert score(genmeter_command, data, run).returncode == 0
    codes = [row["error"]["code"] for row in levels(run) if row["score"] is None]
    assert codes == ["decode_failed", "not_found"]
    (data.parent / "later.png").rename(data.parent / "out/1.png")
    score(genmeter_command, data, run)
    assert [row["score"] for row in levels(run)] == [None, 20.0, 30.0]
    broken.write_bytes(good)
    score(genmeter_command, data, run)
    assert [row["score"] for row in levels(run)] == [10.0, 20.0, 30.0], "a repaired file is another file"


def test_a_lost_cache_and_lost_outputs_do_not_break_a_resume(genmeter_command, grey_set, tmp_path):
    import os
    import shutil

    data, run = grey_set([10, 20, 30]), tmp_path / "run"
    words = ("score", data, "-o", run, "--metrics", METRICS, "--no-report")
    assert genmeter_command(*words).returncode == 0
    before = (run / "samples.jsonl").read_bytes()
    shutil.rmtree(os.environ["GENMETER_CACHE"])
    for name in ("samples.jsonl", "summary.json", "run.json"):
        (run / name).unlink()
    again = genmeter_command(*words)
    assert again.returncode == 0, again.stderr
    assert (run / "samples.jsonl").read_bytes() == before


def test_a_damaged_journal_is_said(genmeter_command, grey_set, tmp_path):
    data, run = grey_set([10]), tmp_path / "run"
    run.mkdir()
    (run / "journal.sqlite").write_bytes(b"not a database at all" * 100)
    refused = score(genmeter_command, data, run)
    assert refused.returncode == 2
    assert "--fresh" in refused.stderr
    assert score(genmeter_command, data, run, "--fresh").returncode == 0


def test_fresh_never_removes_what_is_not_a_run(genmeter_command, grey_set, tmp_path):
    data = grey_set([10])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("years of work")
    refused = score(genmeter_command, data, tmp_path / "mine", "--fresh")
    assert refused.returncode == 2
    assert (tmp_path / "mine/thesis.tex").exists()


def test_a_finished_run_with_the_samples_own_metrics_writes_the_same_again(genmeter_command, grey_set, tmp_path):
    data, run = grey_set([10, 20]), tmp_path / "run"
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    lines[0]["eval_config"] = {"metrics": ["fake_pair", "fake_level"]}
    lines[1]["eval_config"] = {"metrics": ["fake_level", "no_such"]}
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("score", data, "-o", run, "--no-report")
    assert genmeter_command(*words).returncode == 0
    before = {name: (run / name).read_bytes() for name in ("samples.jsonl", "summary.json")}
    assert b'"variant":"difference"' in before["samples.jsonl"]
    (run / "samples.jsonl").unlink()
    assert genmeter_command(*words).returncode == 0
    assert {name: (run / name).read_bytes() for name in before} == before
    config = tmp_path / "run.yaml"
    config.write_text("metrics: {fake_level: {alpha: drop}}\n")
    refused = genmeter_command(*words, "--config", config)
    assert refused.returncode == 2
    assert "fake_level was mean" in refused.stderr


def test_a_full_disk_keeps_what_was_finished(genmeter_command, grey_set, tmp_path):
    import resource

    data, run = grey_set(LEVELS), tmp_path / "run"

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (140_000, 140_000))

    done = score(genmeter_command, data, run, preexec_fn=small_files)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert "run the same command to go on" in done.stderr
    assert not (run / "samples.jsonl").exists()
    again = score(genmeter_command, data, run)
    assert again.returncode == 0, again.stderr
    whole = score(genmeter_command, data, tmp_path / "whole")
    assert whole.returncode == 0
    assert (run / "samples.jsonl").read_bytes() == (tmp_path / "whole/samples.jsonl").read_bytes()


def test_media_that_take_the_process_down_cost_their_own_sample(genmeter_command, grey_set, tmp_path):
    data = grey_set(LEVELS)
    codes = []
    for _ in range(8):
        process = score(genmeter_command, data, tmp_path / "run", extra={"GENMETER_FAKE_KILL_DECODING": "40"})
        codes.append(process.returncode)
        if process.returncode == 0:
            break
    assert codes == [-signal.SIGKILL] * 4 + [0], process.stderr
    failed = {i: row["error"] for i, row in enumerate(levels(tmp_path / "run")) if row["score"] is None}
    assert list(failed) == [LEVELS.index(40)]
    assert failed[LEVELS.index(40)]["code"] == "internal"
    assert "took the process down" in failed[LEVELS.index(40)]["message"]
