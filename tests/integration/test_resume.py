"""The same command goes on: after a stop, with other settings, more metrics, repaired files, lost caches."""

from __future__ import annotations

import json
import shutil
import signal

import pytest
from crash_runs import METRICS, WHOLE, codes, fault, rows, scores

LEVELS = list(range(0, 240, 4))


@pytest.fixture
def score(crash_server, tmp_path):
    """``score(data, run, ...)``: the finished command; see :meth:`crash_server.CrashServer.start`."""

    def go(data, run, *more, metrics=METRICS, **options):
        words = ("score", data, "-o", run, "--batch-size", 4, "--no-cache", "--no-report", *more)
        return crash_server.run(*words, *(("--metrics", metrics) if metrics else ()), **options)

    return go


def levels(run):
    return scores(run, "fake_level")


@pytest.mark.parametrize("how", ["term", "int"])
def test_an_orderly_stop_says_how_to_go_on(score, grey_set, tmp_path, how):
    data, run = grey_set(LEVELS), tmp_path / "run"
    stopped = score(data, run, faults=[fault("genmeter_fakes.encoders:_Fake.encode", how, nth=5)])
    assert stopped.code == 130, stopped.stderr
    assert "run the same command to go on" in stopped.stderr
    assert not (run / "samples.jsonl").exists()
    again = score(data, run)
    assert again.code == 0, again.stderr
    assert "going on with an earlier run" in again.stderr
    assert len((run / "samples.jsonl").read_text().splitlines()) == len(LEVELS)


@pytest.mark.parametrize(
    ("lethal", "restarts"),
    [
        ({"encode": [40]}, 3),
        ({"encode": [36, 40]}, 4),  # of one batch
        ({"encode": [40, 200]}, 6),  # of two
        ({"decode": [40]}, 4),
        ({"decode": [40, 200]}, 6),
        ({"encode": [120], "decode": [40]}, 7),
    ],
)
def test_what_takes_the_process_down_costs_itself_and_a_bounded_number_of_restarts(
    score, grey_set, tmp_path, lethal, restarts
):
    data, run = grey_set(LEVELS), tmp_path / "run"
    ends = []
    while not ends or ends[-1].code == -signal.SIGKILL:
        assert len(ends) <= restarts, "an endless loop of restarts"
        ends.append(score(data, run, faults=[("lethal", lethal)]))
    assert ends[-1].code == 0, ends[-1].stderr
    bad = sorted(LEVELS.index(level) for levels_ in lethal.values() for level in levels_)
    assert codes(run, "fake_level") == dict.fromkeys(bad, "internal")
    assert [s for i, s in enumerate(levels(run)) if i not in bad] == [v for i, v in enumerate(LEVELS) if i not in bad]
    for row in (rows(run, "fake_level")[i] for i in bad):
        assert "took the process down" in row["error"]["message"]
        assert "please report it" in row["error"]["hint"]
    # What took it down is tried again by the next run of the command, and is found cured.
    assert score(data, run).code == 0
    assert levels(run) == LEVELS


def test_other_settings_are_refused_by_name(score, grey_set, tmp_path):
    data, run = grey_set([10, 20]), tmp_path / "run"
    assert score(data, run).code == 0
    refused = score(data, run, "--candidate", "first")
    assert refused.code == 2
    assert "candidate was 'all', now 'first'" in refused.stderr
    assert "--fresh" in refused.stderr
    data.write_text(data.read_text() + data.read_text().splitlines()[0].replace("s0", "s9") + "\n")
    refused = score(data, run)
    assert refused.code == 2
    assert "the input's content" in refused.stderr
    assert score(data, run, "--fresh").code == 0
    assert len((run / "samples.jsonl").read_text().splitlines()) == 3
    # Batch size, workers and failures allowed are no settings.
    assert score(data, run, "--workers", 1, "--max-failed", 5).code == 0


def test_a_metric_may_be_added(score, grey_set, tmp_path):
    data, run = grey_set([10, 20]), tmp_path / "run"
    assert score(data, run, metrics="fake_level").code == 0
    assert score(data, run, metrics="fake_level,fake_pair").code == 0
    assert levels(run) == [10.0, 20.0]
    assert scores(run, "fake_pair") == [90.0, 80.0]


def test_what_a_second_attempt_may_cure_is_tried_again(score, grey_set, tmp_path):
    data, run = grey_set([10, 20, 30]), tmp_path / "run"
    broken = data.parent / "out/0.png"
    good = broken.read_bytes()
    broken.write_bytes(good[:50])
    (data.parent / "out/1.png").rename(data.parent / "later.png")
    assert score(data, run).code == 0
    assert codes(run, "fake_level") == {0: "decode_failed", 1: "not_found"}
    (data.parent / "later.png").rename(data.parent / "out/1.png")
    score(data, run)
    assert levels(run) == [None, 20.0, 30.0]
    broken.write_bytes(good)
    score(data, run)
    assert levels(run) == [10.0, 20.0, 30.0], "a repaired file is another file"


def test_a_lost_cache_and_lost_outputs_do_not_break_a_resume(crash_server, grey_set, tmp_path):
    data, run, env = grey_set([10, 20, 30]), tmp_path / "run", {"GENMETER_CACHE": tmp_path / "cache"}
    words = ("score", data, "-o", run, "--metrics", METRICS, "--no-report")
    assert crash_server.run(*words, env=env).code == 0
    before = (run / "samples.jsonl").read_bytes()
    shutil.rmtree(tmp_path / "cache")
    for name in WHOLE:
        (run / name).unlink()
    again = crash_server.run(*words, env=env)
    assert again.code == 0, again.stderr
    assert (run / "samples.jsonl").read_bytes() == before


def test_fresh_never_removes_what_is_not_a_run(score, grey_set, tmp_path):
    data = grey_set([10])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("years of work")
    refused = score(data, tmp_path / "mine", "--fresh")
    assert refused.code == 2
    assert "nothing was removed" in refused.stderr
    assert (tmp_path / "mine/thesis.tex").exists()


def test_a_finished_run_with_the_samples_own_metrics_writes_the_same_again(score, grey_set, tmp_path):
    data, run = grey_set([10, 20]), tmp_path / "run"
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    lines[0]["eval_config"] = {"metrics": ["fake_pair", "fake_level"]}
    lines[1]["eval_config"] = {"metrics": ["fake_level", "no_such"]}
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert score(data, run, metrics=None).code == 0
    before = {name: (run / name).read_bytes() for name in ("samples.jsonl", "summary.json")}
    assert b'"variant":"difference"' in before["samples.jsonl"]
    (run / "samples.jsonl").unlink()
    assert score(data, run, metrics=None).code == 0
    assert {name: (run / name).read_bytes() for name in before} == before
    config = tmp_path / "run.yaml"
    config.write_text("metrics: {fake_level: {alpha: drop}}\n")
    refused = score(data, run, "--config", config, metrics=None)
    assert refused.code == 2
    assert "fake_level was mean" in refused.stderr
