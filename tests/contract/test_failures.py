"""One bad item costs itself: whatever an encoder does, its neighbours keep their scores and the reason is typed."""

from __future__ import annotations

import pytest

import genmeter
from genmeter.engine.core import StoppedEarly
from genmeter.errors import GenmeterError

LEVELS = list(range(0, 240, 10))


def outcome(run, metric="fake_level"):
    """Score, or the error's code, of each line."""
    entries = [line["eval_result"]["metrics"][metric] for line in run.samples]
    return [entry["score"] if entry["score"] is not None else entry["error"]["code"] for entry in entries]


def expected(bad, code):
    return [code if level == bad else float(level) for level in LEVELS]


@pytest.fixture
def score_levels(make_set, tmp_path, control):
    def score(**settings):
        return genmeter.score(make_set(LEVELS), ["fake_level"], out=tmp_path / "run", report=False, **settings)

    return score


def test_nan_is_an_error_of_its_sample(score_levels, control):
    control.nan_at = 50
    run = score_levels()
    assert outcome(run) == expected(50, "non_finite")
    assert run.summary["metrics"]["fake_level"]["n"]["failed"] == {"non_finite": 1}


def test_an_exception_is_an_error_of_its_sample(score_levels, control):
    control.raise_at = 70
    run = score_levels()
    assert outcome(run) == expected(70, "internal")


@pytest.mark.parametrize("most", [1, 4, 7])
def test_out_of_memory_halves_until_it_fits(score_levels, control, most):
    control.most = most
    run = score_levels(batch_size=16)
    assert outcome(run) == [float(level) for level in LEVELS]
    assert max(n for _, n in control.calls) == 16
    assert min(n for _, n in control.calls) <= most


def test_out_of_memory_alone_is_a_typed_error_on_the_cpu(score_levels, control):
    control.most = 0
    run = score_levels()
    assert set(outcome(run)) == {"out_of_memory"}
    assert run.exit_code == 3
    assert run.summary["metrics"]["fake_level"]["mean"] is None


@pytest.fixture
def fake_card(monkeypatch):
    """Runs take place on ``cuda:0``, which is the fakes' word for it."""
    from genmeter.engine import device, run, session

    monkeypatch.setattr(run, "resolve_device", lambda wanted: "cuda:0")
    monkeypatch.setattr(session, "resolve_device", lambda wanted: "cuda:0")
    monkeypatch.setattr(device, "memory_budget", lambda place: 1 << 30)
    monkeypatch.setattr(device, "release_cached_memory", lambda place: None)


def test_out_of_memory_alone_on_a_gpu_falls_back_to_the_cpu(score_levels, control, fake_card):
    control.oom_on_cuda = True
    result = score_levels()
    assert outcome(result) == [float(level) for level in LEVELS]
    assert control.devices == ["cuda:0", "cpu"]


def test_what_fell_back_to_the_cpu_never_answers_for_the_card(score_levels, control, fake_card, tmp_path):
    control.oom_on_cuda = True
    first = score_levels()
    control.reset()
    samples = tmp_path / "set/samples.jsonl"
    again = genmeter.score(samples, ["fake_level"], out=tmp_path / "again", report=False)
    assert sum(n for _, n in control.calls) == len(LEVELS), "the shared cache holds none of it"
    assert outcome(again) == outcome(first)
    control.reset()
    genmeter.score(samples, ["fake_level"], out=tmp_path / "third", report=False)
    assert control.calls == [], "what the card made is there"


def test_weights_that_cannot_be_had_are_said_on_every_sample(score_levels, control):
    control.load_error = GenmeterError("weights_unavailable", "not here", "fetch them")
    run = score_levels()
    assert set(outcome(run)) == {"weights_unavailable"}
    control.load_error = None
    run = genmeter.score(run.run_dir.parent / "set/samples.jsonl", ["fake_level"], out=run.run_dir, report=False)
    assert outcome(run) == [float(level) for level in LEVELS], "the same command tries again"


def test_a_run_whose_first_samples_all_fail_alike_stops(make_set, tmp_path, control):
    path = make_set([1] * 3)
    lines = path.read_text().replace("out/", "elsewhere/").splitlines()
    path.write_text("\n".join(lines * 100) + "\n")
    with pytest.raises(StoppedEarly) as stop:
        genmeter.score(path, ["fake_level"], out=tmp_path / "run", report=False)
    assert stop.value.error["code"] == "not_found"
    assert 200 <= stop.value.lines < 300
    assert not (tmp_path / "run/samples.jsonl").exists()
    # 199 failures are no reason to stop
    path.write_text("\n".join((lines * 100)[:199]) + "\n")
    run = genmeter.score(path, ["fake_level"], out=tmp_path / "short", report=False)
    assert run.summary["metrics"]["fake_level"]["n"]["failed"] == {"not_found": 199}


def test_one_scored_sample_is_enough_to_go_on(make_set, tmp_path, control):
    path = make_set([1])
    good = path.read_text()
    path.write_text(good + good.replace("out/", "elsewhere/") * 250)
    run = genmeter.score(path, ["fake_level"], out=tmp_path / "run", report=False)
    assert run.summary["metrics"]["fake_level"]["n"]["n_failed"] == 250


def test_a_metric_that_cannot_be_imported_costs_its_own_scores(make_set, tmp_path, control):
    run = genmeter.score(make_set([10, 20]), ["fake_broken", "fake_level"], out=tmp_path / "run", report=False)
    assert outcome(run, "fake_broken") == ["extra_missing"] * 2
    assert outcome(run, "fake_level") == [10.0, 20.0]
    [first, _] = list(run.samples)
    assert "a_package_that_nobody_has" in first["eval_result"]["metrics"]["fake_broken"]["error"]["message"]
