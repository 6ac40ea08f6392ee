"""The engine is unkillable: stopped at any step, by any signal, a run goes on and ends as if nothing had been."""

from __future__ import annotations

import random
import signal
import time

import pytest
from crash_runs import BATCH, Case, encodes, fault, items
from crash_server import wait_until


@pytest.fixture(scope="module")
def case(crash_server, crash_data, tmp_path_factory):
    """120 samples in windows of 32 lines, on encoders whose every feature depends on the batch it was in."""
    faults = [("small_windows", {"lines": 32}), ("neighbours_count", {})]
    return Case(crash_server, crash_data(120), tmp_path_factory.mktemp("case"), more=(), faults=faults)


@pytest.fixture(scope="module")
def long_case(crash_server, crash_data, tmp_path_factory):
    """120 samples in one window, on encoders that are exact."""
    return Case(crash_server, crash_data(120), tmp_path_factory.mktemp("long-case"))


def kill_often(case, number, count, seed, name):
    """Kill runs of one input, going on with each until it ends, till so many signals have hit one."""
    rng = random.Random(seed)
    kills = rounds = 0
    while kills < count:
        rounds += 1
        folder, log, hits = f"{name}-{rounds}", case.folder / f"{name}-{rounds}.log", 0
        while kills + hits < count:
            child = case.start(folder, log=log, env={"GENMETER_FAKE_DELAY": "0.004"})
            # Every other process gets on by two batches at least: what dies three times on one batch is given up.
            if hits % 2:
                wait_for_batches(log, 2 + rng.randrange(8), child)
                time.sleep(rng.uniform(0, 0.008))
            else:
                time.sleep(rng.uniform(0, 0.25))
            child.kill(number)
            if child.code == 0:
                break
            assert "Traceback" not in child.stderr
            assert child.code in ({-number} if number == signal.SIGKILL else {130, -number}), child.stderr
            hits += 1
        case.finish(folder, log=log)
        assert items(log) <= case.items + BATCH * hits, "a kill costs the batch in flight and nothing else"
        kills += hits


def wait_for_batches(log, count, child):
    seen = len(encodes(log)) + count
    wait_until(lambda: len(encodes(log)) >= seen, child)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
@pytest.mark.parametrize("count", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_moments(long_case, number, count):
    kill_often(long_case, number, count, seed=1000 * count + number, name=f"{number}-{count}")


# Where a process may die: what is called, what its arguments look like, before or after the call, which of the calls.
STEPS = {
    "settings are stored": ("sql", "INTO meta", "after", 2),
    "a batch is noted": ("sql", "INTO inflight", "before", 3),
    "a batch begins": ("genmeter_fakes.encoders:_Fake.encode", "", "before", 9),
    "a batch is encoded": ("genmeter_fakes.encoders:_Fake.encode", "", "after", 9),
    "features before their commit": ("sql", "INTO feature", "after", 9),
    "cells before their commit": ("sql", "INTO cell", "after", 9),
    "before a commit": ("sql", "COMMIT", "before", 23),
    "after a commit": ("sql", "COMMIT", "after", 24),
    "lines are noted": ("sql", "INTO line", "before", 2),
    "a window is through": ("sql", "INTO line", "after", 2),
    "before a shard": ("genmeter.engine.store:FeatureStore.add", "", "before", 3),
    "a shard is half there": ("os:fsync", "", "before", 3),
    "a shard has no name yet": ("os:replace", ".safetensors", "before", 4),
    "a shard is not sealed": ("os:replace", ".safetensors", "after", 4),
    "before sealing": ("sql", "DELETE FROM feature", "before", 2),
    "after sealing": ("sql", "DELETE FROM feature", "after", 2),
    "sets are computed": ("genmeter.engine.run:finish_set", "", "before", 1),
    "samples.jsonl begins": ("genmeter.engine.writer:LineWriter.__enter__", "", "after", 1),
    "samples.jsonl is half there": ("genmeter.engine.writer:LineWriter.write", "", "after", 60),
    "samples.jsonl has no name yet": ("os:replace", "samples.jsonl", "before", 1),
    "samples.jsonl is there": ("os:replace", "samples.jsonl", "after", 1),
    "run.json has no name yet": ("os:replace", "run.json", "before", 1),
    "run.json is there": ("os:replace", "run.json", "after", 1),
    "summary.json has no name yet": ("os:replace", "summary.json", "before", 1),
    "summary.json is there": ("os:replace", "summary.json", "after", 1),
    "the report has no name yet": ("os:replace", "report.html", "before", 1),
    "the report is there": ("os:replace", "report.html", "after", 1),
}


def step(name, do):
    at, match, when, nth = STEPS[name]
    return fault(at, do, match, when, nth)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("do", ["kill", *(pytest.param(do, marks=pytest.mark.slow) for do in ("term", "int"))])
def test_stopped_at_a_step(case, name, do):
    folder = f"{do}-{name.replace(' ', '-')}"
    log = case.folder / f"{folder}.log"
    child = case.start(folder, log=log, faults=[step(name, do)])
    assert child.code == (-signal.SIGKILL if do == "kill" else 130), "the step is never reached"
    assert "Traceback" not in child.stderr
    case.finish(folder, log=log)
    assert items(log) <= case.items + BATCH
