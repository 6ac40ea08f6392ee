"""Order, batch size, neighbours, workers, paths and stores never change a score; equal runs write equal bytes."""

from __future__ import annotations

import base64
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import genmeter

METRICS = ["fake_level", "fake_pair", "fake_match", "fake_gap"]


@pytest.fixture
def mixed_set(tmp_path):
    """48 samples of three sizes, with duplicates, shared references and a few that cannot be scored."""
    rng = np.random.default_rng(7)
    folder = tmp_path / "data"
    folder.mkdir()
    lines = []
    for index in range(48):
        size = [(24, 24), (24, 32), (40, 24)][index % 3]
        pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"o{index}.png")
        Image.fromarray(255 - pixels).save(folder / f"r{index % 12}-{index % 3}.png")
        lines.append(
            {
                "id": f"s{index}",
                "prompt": "ab" * (index % 5 + 1),
                "output": f"o{index - index % 8 if index % 11 == 0 else index}.png",
                "reference": f"r{index % 12}-{index % 3}.png",
                "task_type": "text-to-image",
            }
        )
    (folder / "o5.png").write_bytes((folder / "o5.png").read_bytes()[:60])
    (folder / "o9.png").unlink()
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def rows(run):
    """Everything that is said of each sample, by id, but for what names the run."""
    return {line["id"]: line["eval_result"]["metrics"] for line in run.samples}


def run(path, out, **settings):
    return genmeter.score(path, METRICS, out=out, report=False, **settings)


def test_equal_runs_write_equal_bytes(mixed_set, tmp_path, control):
    first = run(mixed_set, tmp_path / "a", cache=False)
    second = run(mixed_set, tmp_path / "b", cache=False, workers=5)
    third = run(mixed_set, tmp_path / "c", cache=False, workers=1)
    for other in (second, third):
        assert (other.run_dir / "samples.jsonl").read_bytes() == (first.run_dir / "samples.jsonl").read_bytes()
    assert first.run["run_id"] == second.run["run_id"]


@pytest.mark.parametrize("batch_size", [1, 2, 7, 16])
def test_batch_size(mixed_set, tmp_path, control, batch_size):
    whole = rows(run(mixed_set, tmp_path / "a", cache=False))
    control.reset()
    assert rows(run(mixed_set, tmp_path / "b", cache=False, batch_size=batch_size)) == whole
    assert max(n for _, n in control.calls) == batch_size


def test_order_of_the_input(mixed_set, tmp_path, control):
    whole = run(mixed_set, tmp_path / "a", cache=False)
    lines = mixed_set.read_text().splitlines()
    random.Random(3).shuffle(lines)
    shuffled = mixed_set.parent / "shuffled.jsonl"
    shuffled.write_text("\n".join(lines) + "\n")
    other = run(shuffled, tmp_path / "b", cache=False)
    assert rows(other) == rows(whole)
    assert [line["id"] for line in other.samples] == [json.loads(line)["id"] for line in lines]
    assert other.run["snapshot"] == whole.run["snapshot"], "the same evaluation set"


def test_neighbours(mixed_set, tmp_path, control):
    whole = rows(run(mixed_set, tmp_path / "a", cache=False))
    few = mixed_set.parent / "few.jsonl"
    few.write_text("\n".join(mixed_set.read_text().splitlines()[3:6]) + "\n")
    for identity, metrics in rows(run(few, tmp_path / "b", cache=False)).items():
        for name in ("fake_level", "fake_pair", "fake_match"):
            assert metrics[name] == whole[identity][name]


def test_store_off_cold_half_warm_and_warm(mixed_set, tmp_path, control):
    off = run(mixed_set, tmp_path / "off", cache=False)
    half = mixed_set.parent / "half.jsonl"
    half.write_text("\n".join(mixed_set.read_text().splitlines()[::2]) + "\n")
    run(half, tmp_path / "half")
    control.reset()
    half_warm = run(mixed_set, tmp_path / "rest")
    again = len(control.calls)
    warm = run(mixed_set, tmp_path / "warm")
    assert rows(half_warm) == rows(warm) == rows(off)
    assert len(control.calls) == again, "a warm run encodes nothing"


def test_a_warm_run_puts_nothing_into_the_store_again(mixed_set, tmp_path, control):
    def shards():
        return sorted(Path(os.environ["GENMETER_CACHE"]).rglob("*.safetensors"))

    run(mixed_set, tmp_path / "cold")
    before = shards()
    assert before
    run(mixed_set, tmp_path / "warm")  # the set metric keeps its own copy in the run, not a second one in the store
    assert shards() == before
    assert list((tmp_path / "warm/features").rglob("*.safetensors"))


def test_no_shared_store_with_no_cache(make_set, tmp_path, control):
    path = make_set([1, 2])
    genmeter.score(path, ["fake_level"], out=tmp_path / "a", report=False, cache=False)
    control.reset()
    genmeter.score(path, ["fake_level"], out=tmp_path / "b", report=False)
    assert sum(n for _, n in control.calls) == 2


def test_a_file_that_changes_under_its_path_is_scored_anew(make_set, tmp_path, control, scores):
    path = make_set([10, 20])
    genmeter.score(path, ["fake_level"], out=tmp_path / "a", report=False)
    size = (path.parent / "out/1.png").stat().st_size
    Image.fromarray(np.full((20, 20, 3), 30, np.uint8)).save(path.parent / "out/1.png")
    assert (path.parent / "out/1.png").stat().st_size == size
    again = genmeter.score(path, ["fake_level"], out=tmp_path / "a", report=False)
    assert scores(again, "fake_level") == [10.0, 30.0]
    fresh = genmeter.score(path, ["fake_level"], out=tmp_path / "b", report=False)
    assert scores(fresh, "fake_level") == [10.0, 30.0]


def test_path_uri_bytes_array_and_image_are_one_image(tmp_path, control):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    for name, options in (("a b é.png", {}), ("a.bmp", {}), ("a.webp", {"lossless": True}), ("a.tiff", {})):
        Image.fromarray(pixels).save(tmp_path / name, **options)
    data = (tmp_path / "a b é.png").read_bytes()
    forms = [
        "a b é.png",
        str(tmp_path / "a b é.png"),
        (tmp_path / "a b é.png").as_uri(),
        "data:image/png;base64," + base64.b64encode(data).decode(),
        "data:image/png;base64," + base64.b64encode(data).decode().rstrip("="),
        "a.bmp",
        "a.webp",
        "a.tiff",
        data,
        pixels,
        Image.fromarray(pixels),
    ]
    with genmeter.Engine(["fake_level"], media_root=str(tmp_path)) as engine:
        results = list(engine.score({"id": str(i), "prompt": "p", "output": form} for i, form in enumerate(forms)))
    assert [result.errors for result in results] == [{}] * len(forms)
    assert {result.scores["fake_level"] for result in results} == {float(np.float32(pixels.mean()))}


def test_the_engine_agrees_with_a_run(mixed_set, tmp_path, control):
    names = ["fake_level", "fake_pair", "fake_match"]
    whole = {
        line["id"]: line["eval_result"]["metrics"]
        for line in genmeter.score(mixed_set, names, out=tmp_path / "a", report=False).samples
    }
    samples = [json.loads(line) for line in mixed_set.read_text().splitlines()]
    with genmeter.Engine(names, media_root=str(mixed_set.parent)) as engine:
        for given, result in zip(samples, engine.score(iter(samples)), strict=True):
            assert result.id == given["id"]
            assert result.sample is given
            found = result.eval_result["metrics"]
            for name in names:
                theirs = whole[result.id][name]
                assert {k: v for k, v in found[name].items() if k != "error"} == {
                    k: v for k, v in theirs.items() if k != "error"
                }
                assert (found[name].get("error") or {}).get("code") == (theirs.get("error") or {}).get("code")


def test_no_sample_raises_in_the_engine(tmp_path, control):
    bad = [{}, {"id": "x"}, 7, None, {"id": "n", "prompt": "p", "output": 3}, {"id": "e", "prompt": "p", "output": b""}]
    bad += [{"id": "big", "prompt": "p", "output": np.zeros((4, 4, 3), np.float32)}]
    good = {"id": "g", "prompt": "p", "output": np.full((4, 4, 3), 9, np.uint8)}
    with genmeter.Engine(["fake_level"]) as engine:
        results = list(engine.score([*bad, good]))
    assert len(results) == len(bad) + 1
    assert all(result.errors for result in results[:-1])
    assert results[-1].scores == {"fake_level": 9.0}
