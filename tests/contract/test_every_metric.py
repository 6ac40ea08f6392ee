"""What holds for every installed metric, found by its folder: a new one gets all of it for free.

Samples offer every role in every modality. A metric that has a tiny network runs on it, since that ships with the
package; another runs where its weights can be had. Metrics of one modality share their runs.
"""

from __future__ import annotations

import math
import random
from contextlib import contextmanager

import contract_media as media
import numpy as np
import pytest
from contract_runs import CASES, all_close, close, code, parametrize

from genmeter.registry import list_metrics


def usable(case):
    """Indices of samples whose media are whole, one for each reference."""
    by_reference = {}
    for index in range(media.COUNT[case.modality]):
        if index not in (media.DAMAGED, media.MISSING):
            by_reference.setdefault(index % media.REFERENCES[case.modality], index)
    return list(by_reference.values())


def test_every_metric_is_here():
    assert {case.metric for case in CASES} == {spec.id for spec in list_metrics()} - {"fake_broken"}


# --- what a run says ------------------------------------------------------------------------------------------------


@parametrize()
def test_one_bad_sample_costs_itself_and_scores_keep_to_their_range(case, lab):
    found = lab.base().of(case.metric)
    codes = {key: code(entry) for key, entry in found.items() if entry["score"] is None}
    damaged, missing = media.FAULTS[case.modality]
    assert set(codes) == {f"s{media.DAMAGED}", f"s{media.MISSING}"}
    assert codes[f"s{media.DAMAGED}"] in damaged
    assert codes[f"s{media.MISSING}"] in missing
    low, high = case.variant.range
    for key, entry in found.items():
        if key not in codes:
            assert math.isfinite(entry["score"])
            assert low is None or entry["score"] >= low - 1e-6
            assert high is None or entry["score"] <= high + 1e-6
            assert {item["role"] for item in entry["inputs"]} >= {"prediction"}
            assert all(item["digest"].startswith("sha256:") for item in entry["inputs"])
            assert entry["variant"] == case.variant.label
    values = [entry["score"] for entry in found.values() if entry["score"] is not None]
    assert (len(set(values)) == 1) if case.spec.scope == "set" else len(set(values)) > 1


@parametrize(identity=True)
def test_what_is_compared_with_itself_has_the_claimed_value(case, lab):
    """Prediction and reference are the same files; each network sees equal halves."""
    lines = []
    for index in usable(case):
        own = media.sample(case.modality, index)
        same = ["the same"] if case.modality == "text" else [media.name(case.modality, "ref", index)]
        lines.append(media.sample(case.modality, index, outputs=same, references=same) | {"id": own["id"]})
    found = lab.run("identity", lines, store="base").of(case.metric)
    claimed = case.spec.claims.identity
    usual = [e["score"] for e in lab.base().of(case.metric).values() if e["score"] is not None]
    apart = max(abs(value - claimed) for value in usual)
    allowed = max(1e-6 if case.spec.scope == "sample" else 0.0, 1e-5 * apart)
    assert apart > 10 * allowed, "unlike is unlike"
    for key, entry in found.items():
        assert code(entry) is None, entry
        assert entry["score"] == pytest.approx(claimed, abs=allowed), key
        if case.modality != "text":
            assert case.spec.scope == "set" or "identical" in entry["flags"]


@parametrize(symmetric=True)
def test_prediction_and_reference_may_change_places(case, lab):
    pairs = []
    for index in usable(case):
        if case.modality == "text":
            pairs.append((index, f"{index} things", f"{index - index % 2} things"))
        else:
            pairs.append((index, media.name(case.modality, "out", index), media.name(case.modality, "ref", index)))
    there = [media.sample(case.modality, i, outputs=[out], references=[ref]) for i, out, ref in pairs]
    back = [media.sample(case.modality, i, outputs=[ref], references=[out]) for i, out, ref in pairs]
    one = lab.run("there", there, store="base").of(case.metric)
    all_close(case, one, lab.run("back", back, store="base").of(case.metric))
    assert all(entry["score"] is not None for entry in one.values())


# --- how a run is made ----------------------------------------------------------------------------------------------


@parametrize()
def test_equal_bytes_whatever_the_workers_and_the_store(case, lab):
    again = lab.run("again", workers=4)
    assert again.lines == lab.base().lines
    assert again.encoded == lab.base().encoded


@parametrize()
def test_everything_at_once(case, lab):
    """Another order, other batches, threads and workers, and neighbours that fail."""
    lines = [*lab.lines(), *_neighbours(case)]
    random.Random(6).shuffle(lines)
    settings = {"batch_size": 3, "threads": 2, "workers": 3}
    all_close(case, lab.run("at-once", lines, **settings).of(case.metric), lab.base().of(case.metric))


@pytest.mark.parametrize("size", [1, 2, 7, 16])
@parametrize(wide=True)
def test_batch_size(case, lab, size):
    all_close(case, lab.run(f"batch-{size}", batch_size=size).of(case.metric), lab.base().of(case.metric))


@parametrize(wide=True)
def test_thread_count(case, lab):
    all_close(case, lab.run("threads", threads=2).of(case.metric), lab.base().of(case.metric))


@parametrize(wide=True)
def test_order_of_the_samples(case, lab):
    lines = lab.lines()
    random.Random(5).shuffle(lines)
    all_close(case, lab.run("shuffled", lines).of(case.metric), lab.base().of(case.metric))


@parametrize(wide=True)
def test_neighbours_that_fail(case, lab):
    """They share the references of others, so that the reference set of a set metric stays what it is."""
    around = _neighbours(case)
    lines = [part for index, line in enumerate(lab.lines()) for part in (line, around[index % len(around)])]
    all_close(case, lab.run("neighbours", lines).of(case.metric), lab.base().of(case.metric))


@parametrize(scope="sample")
def test_other_neighbours(case, lab):
    """A set metric is about its neighbours; a sample's score is its own."""
    few = lab.run("few", lab.lines()[media.FEW.start : media.FEW.stop], store="half").of(case.metric)
    usual = lab.base().of(case.metric)
    all_close(case, few, {key: usual[key] for key in few})


@parametrize()
def test_a_metric_alone_and_in_company(case, lab):
    alone = lab.run(f"alone-{case.metric}", metrics=[case.metric], store="base")
    assert alone.of(case.metric) == lab.base().of(case.metric)


def _neighbours(case):
    """Samples, and lines that are none, that cannot be scored."""
    broken = [
        media.sample(case.modality, index, identity=f"-{index}", outputs=[url])
        for index, url in ((0, "not there.png"), (2, "samples.jsonl"), (1, "../elsewhere.png"))
        if case.modality != "text"
    ]
    empty = media.sample(case.modality, 0, identity="-none") | {"predict_result": []}
    other = media.sample("image" if case.modality == "text" else "text", 0, identity="-other")
    return [*broken, empty, other, "{", "[]", '{"id": "-bare"}']


# --- stores and repetition ------------------------------------------------------------------------------------------


@parametrize()
def test_a_warm_store(case, lab):
    lab.base()
    warm = lab.run("warm", store="base")
    assert warm.of(case.metric) == lab.base().of(case.metric)
    assert warm.encoded == 0


@parametrize()
def test_a_half_warm_store(case, lab):
    first = lab.run("few", lab.lines()[media.FEW.start : media.FEW.stop], store="half")
    half = lab.run("half", store="half")
    all_close(case, half.of(case.metric), lab.base().of(case.metric))
    assert half.encoded == lab.base().encoded - first.encoded


@parametrize()
def test_duplicates_agree_and_are_encoded_once(case, lab):
    """A set counts predictions with multiplicity, so it is compared with itself alone."""
    lines = lab.lines()
    twice = lines + [{**line, "id": f"twice-{line['id']}"} for line in lines]
    lab.base()
    store = "base" if case.slow else None  # where encoding is slow, what the usual run left is enough
    doubled = lab.run("twice", twice, store=store)
    found = doubled.of(case.metric)
    for line in lines:
        assert found[line["id"]] == found[f"twice-{line['id']}"]
    assert doubled.encoded == (0 if store else lab.base().encoded)
    if case.spec.scope == "sample":
        all_close(case, {line["id"]: found[line["id"]] for line in lines}, lab.base().of(case.metric))


# --- candidates and references --------------------------------------------------------------------------------------


def _arranged(case, outs, refs, identity):
    """One sample with these candidates and references, all of one shape."""
    if case.modality == "text":
        outputs, references = [f"{i} things" for i in outs], [f"{i} things" for i in refs]
    else:
        outputs = [media.name(case.modality, "out", i) for i in outs]
        references = [media.name(case.modality, "ref", i) for i in refs]
    return media.sample(case.modality, 0, identity=identity, outputs=outputs, references=references)


@parametrize(scope="sample")
def test_the_order_of_candidates_and_references_permutes_the_details(case, lab):
    lines = [
        _arranged(case, (0, 2, 6), (0, 2), "both"),
        _arranged(case, (6, 0, 2), (0, 2), "candidates"),
        _arranged(case, (0, 2, 6), (2, 0), "references"),
        _arranged(case, (0,), (0, 2), "first"),
    ]
    found = lab.run("arranged", lines, store="base").of(case.metric)
    assert [code(entry) for entry in found.values()] == [None] * 4
    close(case, found["both"], found["candidates"])
    close(case, found["both"], found["references"])
    values = [item["score"] for item in found["both"]["detail"]["per_candidate"]]
    moved = [item["score"] for item in found["candidates"]["detail"]["per_candidate"]]
    assert moved == pytest.approx([values[2], values[0], values[1]], rel=1e-5, abs=1e-6)
    assert found["both"]["score"] == pytest.approx(math.fsum(values) / 3)
    close(case, found["first"], {"score": values[0]})
    for one, two in zip(*(found[k]["detail"]["per_candidate"] for k in ("both", "references")), strict=True):
        per = one.get("detail", {}).get("per_reference")
        if per is not None:
            assert two["detail"]["per_reference"] == pytest.approx(per[::-1], rel=1e-5, abs=1e-6)
            reduced = {"min": min, "max": max, "mean": lambda v: math.fsum(v) / len(v)}[case.spec.reduce_references]
            assert one["score"] == pytest.approx(reduced(per))


@parametrize(scope="set")
def test_the_order_of_candidates_and_references_leaves_a_set_alone(case, lab):
    sets = []
    for name, outs, refs in (("one", (0, 2, 6), (0, 1, 2)), ("other", (6, 0, 2), (2, 0, 1))):
        lines = [_arranged(case, outs, refs, "all")]
        sets.append(lab.run(f"set-{name}", lines, store="base").of(case.metric))
    assert code(sets[0]["all"]) is None
    all_close(case, *sets)


@parametrize(scope="sample")
def test_a_candidate_that_comes_twice_scores_twice(case, lab):
    lines = [_arranged(case, (0, 0), (0,), "twice"), _arranged(case, (0,), (0,), "once")]
    found = lab.run("repeated", lines, store="base").of(case.metric)
    twice, once = found["twice"], found["once"]
    assert twice["score"] == once["score"]
    assert [item["score"] for item in twice["detail"]["per_candidate"]] == [once["score"]] * 2


# --- in memory ------------------------------------------------------------------------------------------------------


@parametrize()
def test_the_engine_agrees_with_the_run_directory(case, lab):
    """Entry by entry; a set metric has no value before its set is complete, and says so."""
    lines = lab.lines()[:1] if case.spec.scope == "set" else lab.lines()
    usual = lab.base().of(case.metric)
    results = lab.memo(f"engine {len(lines)}", lambda: lab.engine(lines, workers=2))
    for line, result in zip(lines, results, strict=True):
        assert result.sample == line
        found = result.eval_result["metrics"][case.metric]
        if case.spec.scope == "set":
            assert code(found) == "set_pending"
        elif code(found):  # a run hashes a failed pair's other half as well, for its snapshot
            assert {**found, "inputs": 0} == {**usual[line["id"]], "inputs": 0}
        else:
            assert found == usual[line["id"]]


# --- in somebody's process ------------------------------------------------------------------------------------------


@contextmanager
def _default_device(name):
    import torch

    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def _default_dtype(dtype):
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _matmul_precision(word):
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(word)
    try:
        yield
        assert torch.get_float32_matmul_precision() == word
    finally:
        torch.set_float32_matmul_precision(before)


def _callers():
    """Settings of torch that a program around the engine may have made."""
    import torch

    return {
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        "default dtype": lambda: _default_dtype(torch.bfloat16),
        "default device": lambda: _default_device("meta"),
        "matmul precision": lambda: _matmul_precision("medium"),
        "gradients": torch.enable_grad,
        "anomaly": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    }


@parametrize(scope="sample")
def test_what_the_caller_has_set_in_torch(case, lab):
    import torch

    lines = [line for line in lab.lines() if line["id"] in ("s0", "s2")]
    usual = lab.memo("callers", lambda: lab.engine(lines))
    for name, setting in _callers().items():

        def score(setting=setting):
            before = torch.get_rng_state(), random.getstate(), np.random.get_state()[2]
            with setting():
                results = lab.engine(lines)
            after = torch.get_rng_state(), random.getstate(), np.random.get_state()[2]
            assert torch.equal(before[0], after[0]), "the caller's random numbers are its own"
            assert before[1:] == after[1:]
            return results

        for one, two in zip(usual, lab.memo(f"caller {name}", score), strict=True):
            entries = [result.eval_result["metrics"][case.metric] for result in (one, two)]
            assert code(entries[0]) is None
            assert entries[0] == entries[1], name
