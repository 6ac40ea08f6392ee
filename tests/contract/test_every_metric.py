"""What holds for every installed metric, found by its folder: a new one gets all of it for free.

Samples offer every role in image and text; metrics that read other media have tests of their own. A metric that has a
tiny network runs on it, since that ships with the package.
"""

from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest
from PIL import Image

import genmeter
from genmeter.registry import list_metrics, parse_variant
from genmeter.weights.lock import get_entry
from genmeter.weights.manager import ensure

COUNT = 20


def readable(spec):
    """Whether a metric reads images of outputs, with or without texts beside them."""
    return all(
        need.modality == "image" or (need.modality == "text" and "prediction" not in need.roles)
        for need in spec.needs.values()
    )


METRICS = {spec.id: spec for spec in list_metrics() if readable(spec) and spec.id != "fake_broken"}
SAMPLE_METRICS = [name for name, spec in METRICS.items() if spec.scope == "sample"]


def with_weights(name):
    """The id of a metric, once its weights are there."""
    for model in set(parse_variant(name, profile="tiny").models.values()):
        ensure(get_entry(model))
    return name


@pytest.fixture(params=list(METRICS))
def metric(request, control):
    """Each metric."""
    return with_weights(request.param)


@pytest.fixture(params=SAMPLE_METRICS)
def sample_metric(request, control):
    """Each metric of sample scope: a set metric is about its neighbours."""
    return with_weights(request.param)


@pytest.fixture
def samples(tmp_path):
    """Samples that offer every role in image and text, of two sizes; one output is damaged, one is missing."""
    rng = np.random.default_rng(11)
    folder = tmp_path / "data"
    folder.mkdir()
    lines = []
    for index in range(COUNT):
        size = (48, 64) if index % 2 else (56, 56)
        clean = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        other = np.clip(clean.astype(int) + rng.integers(-60, 60, clean.shape), 0, 255).astype(np.uint8)
        for role, pixels in (("out", other), ("ref", clean), ("in", clean[::-1])):
            Image.fromarray(pixels).save(folder / f"{role}{index}.png")
        part = {"type": "image_url", "image_url": {"url": f"in{index}.png"}}
        text = {"type": "text", "text": f"a picture of {index} things"}
        answer = [
            {"type": "image_url", "image_url": {"url": f"ref{index}.png"}},
            {"type": "text", "text": f"{index} things"},
        ]
        lines.append(
            {
                "schema_version": "v1",
                "id": f"s{index}",
                "task_type": "image-to-image",
                "messages": [{"role": "user", "content": [part, text]}],
                "references": [{"answer": answer}],
                "metadata": {"source_prompt": "a picture", "target_prompt": f"a picture of {index} things"},
                "predict_result": [
                    {"index": 0, "message": {"role": "assistant", "content": [
                        {"type": "image_url", "image_url": {"url": f"out{index}.png"}}]}}
                ],
            }
        )  # fmt: skip
    (folder / "out3.png").write_bytes((folder / "out3.png").read_bytes()[:200])
    (folder / "out4.png").unlink()
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(path, out, metric, **settings):
    settings = {"cache": False, **settings}
    return genmeter.score(path, [metric], out=out, report=False, device="cpu", profile="tiny", **settings)


def entries(result, metric):
    return {line["id"]: line["eval_result"]["metrics"][metric] for line in result.samples}


def same(one, two):
    """Equal reasons, and scores within the stated tolerance: 1e-6 absolute, or 1e-5 relative for distances."""
    assert one.keys() == two.keys()
    for key, entry in one.items():
        other = two[key]
        assert (entry["score"] is None) == (other["score"] is None), key
        assert (entry.get("error") or {}).get("code") == (other.get("error") or {}).get("code")
        if entry["score"] is not None:
            # The direction of a short difference is known less well than the features it is made from.
            change = [value for name, value in entry.get("detail", {}).items() if name.endswith("_change")]
            assert math.isclose(entry["score"], other["score"], rel_tol=1e-5, abs_tol=1e-6 / min([1.0, *change])), key


def test_one_bad_sample_costs_itself(metric, samples, tmp_path):
    found = entries(run(samples, tmp_path / "a", metric), metric)
    codes = {key: entry["error"]["code"] for key, entry in found.items() if entry.get("error")}
    assert codes == {"s3": "decode_failed", "s4": "not_found"}
    low, high = parse_variant(metric, profile="tiny").range
    for key, entry in found.items():
        if key not in codes:
            assert math.isfinite(entry["score"])
            assert low is None or entry["score"] >= low - 1e-6
            assert high is None or entry["score"] <= high + 1e-6
            assert {item["role"] for item in entry["inputs"]} >= {"prediction"}
            assert all(item["digest"].startswith("sha256:") for item in entry["inputs"])


def test_equal_bytes_whatever_the_workers(metric, samples, tmp_path):
    one = run(samples, tmp_path / "a", metric, workers=1)
    two = run(samples, tmp_path / "b", metric, workers=4)
    assert (one.run_dir / "samples.jsonl").read_bytes() == (two.run_dir / "samples.jsonl").read_bytes()


def test_batch_size_and_order_do_not_matter(metric, samples, tmp_path):
    whole = entries(run(samples, tmp_path / "whole", metric), metric)
    for size in (1, 2, 7, 16):
        same(entries(run(samples, tmp_path / f"b{size}", metric, batch_size=size), metric), whole)
    lines = samples.read_text().splitlines()
    random.Random(5).shuffle(lines)
    shuffled = samples.with_name("shuffled.jsonl")
    shuffled.write_text("\n".join(lines) + "\n")
    same(entries(run(shuffled, tmp_path / "shuffled", metric), metric), whole)


def test_neighbours_do_not_matter(sample_metric, samples, tmp_path):
    metric = sample_metric
    whole = entries(run(samples, tmp_path / "whole", metric), metric)
    few = samples.with_name("few.jsonl")
    few.write_text("\n".join(samples.read_text().splitlines()[2:6]) + "\n")
    found = entries(run(few, tmp_path / "few", metric), metric)
    same(found, {key: whole[key] for key in found})


def test_a_warm_store_gives_the_same_rows(metric, samples, tmp_path):
    cold, warm = (run(samples, tmp_path / out, metric, cache=True) for out in ("cold", "warm"))
    assert entries(cold, metric) == entries(warm, metric)


def test_candidates_repeat_and_duplicates_agree(sample_metric, samples, tmp_path):
    metric = sample_metric
    line = json.loads(samples.read_text().splitlines()[0])
    line["predict_result"] *= 2
    again = {**line, "id": "again", "predict_result": line["predict_result"][:1]}
    path = samples.with_name("twice.jsonl")
    path.write_text(json.dumps(line) + "\n" + json.dumps(again) + "\n")
    found = entries(run(path, tmp_path / "twice", metric), metric)
    twice, once = found["s0"], found["again"]
    assert twice["score"] == once["score"]
    assert [item["score"] for item in twice["detail"]["per_candidate"]] == [once["score"]] * 2
