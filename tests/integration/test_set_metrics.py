"""Sets in a run: membership, groups, own references, clusters, stored reference sets, and what is said of them."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from genmeter_fakes.encoders import control as fakes_control
from PIL import Image

import genmeter
from genmeter.contract import AudioMedia
from genmeter.engine.reference import ReferenceSet
from genmeter.engine.reference_run import make_reference
from genmeter.engine.session import merged_config
from genmeter.errors import GenmeterError
from genmeter.inputs.source import open_source
from genmeter.stats import frechet_distance

METRIC = "fake_spread"


@pytest.fixture(autouse=True)
def _calm():
    fakes_control.reset()
    yield
    fakes_control.reset()


@pytest.fixture
def pictures(tmp_path):
    """``pictures(name, colours)``: one-colour images in a folder; the colour is the feature. Returns paths."""

    def make(name, colours):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        paths = []
        for index, colour in enumerate(np.asarray(colours, dtype=np.uint8)):
            Image.fromarray(np.full((6, 6, 3), colour, np.uint8)).save(folder / f"{index}.png")
            paths.append(f"{name}/{index}.png")
        return paths

    return make


def colours(count, seed):
    return np.random.default_rng(seed).integers(0, 256, (count, 3))


def lines_of(outputs, references, **more):
    lines = []
    for index, (output, reference) in enumerate(zip(outputs, references, strict=True)):
        line = {"id": f"s{index}", "prompt": f"prompt {index}", "output": output, "reference": reference}
        line.update({key: values[index] for key, values in more.items()})
        lines.append({key: value for key, value in line.items() if value is not None})
    return lines


@pytest.fixture
def score(tmp_path):
    """``score(lines, metrics=..., **settings)``: the finished run."""
    count = iter(range(100))

    def run(lines, metrics=METRIC, out=None, **settings):
        path = tmp_path / f"samples-{next(count)}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        out = out or tmp_path / f"run-{path.stem}"
        return genmeter.score(path, metrics and [metrics], out=out, report=False, device="cpu", **settings)

    return run


def entries(run, metric=METRIC):
    return [line["eval_result"]["metrics"][metric] for line in run.samples]


# Membership.


def test_the_whole_row(pictures, score):
    ours, theirs = colours(60, 1), colours(60, 2)
    run = score(lines_of(pictures("out", ours), pictures("ref", theirs)))
    found = entries(run)
    assert len({entry["score"] for entry in found}) == 1
    assert found[0]["score"] == pytest.approx(frechet_distance(ours, theirs), rel=1e-5)
    detail = found[4]["detail"]
    assert detail["n_prediction"] == detail["n_reference"] == detail["n_distinct"] == 60
    assert detail["interval"] == {"method": "delete_a_group_jackknife", "groups": 40}
    assert detail["feature_distance"] == pytest.approx(np.linalg.norm(ours[4] - theirs[4].astype(float)), rel=1e-5)
    assert detail["influence_method"] == "leave_one_out"
    assert sum(entry["detail"]["influence"] for entry in found) == pytest.approx(0.0, abs=1e-6)
    assert found[4]["set"] == "all"
    assert "low_sample_count" in found[4]["flags"]
    metric = run.summary["metrics"][METRIC]
    assert metric["score"] == found[0]["score"]
    assert metric["interval95"] == detail["interval95"]
    assert metric["detail"]["bias_corrected"] == detail["bias_corrected"]
    assert {"influence", "feature_distance"}.isdisjoint(metric["detail"])
    assert metric["mean"] is None


def test_candidates_count_each_and_references_once(pictures, score):
    ours, theirs = colours(9, 1), colours(4, 2)
    outputs, references = pictures("out", ours), pictures("ref", theirs)
    lines = [
        {"id": "two", "prompt": "a", "output": [outputs[0], outputs[1]], "reference": [references[0], references[1]]},
        {"id": "same", "prompt": "b", "output": outputs[0], "reference": references[0]},
        *lines_of(outputs[2:5], [references[2], references[2], references[3]]),
    ]
    found = entries(score(lines))
    expected = frechet_distance(ours[[0, 1, 0, 2, 3, 4]], theirs)
    assert found[0]["score"] == pytest.approx(expected, rel=1e-5)
    assert found[0]["detail"]["n_prediction"] == 6
    assert found[0]["detail"]["n_distinct"] == 5
    assert found[0]["detail"]["n_reference"] == 4
    assert "duplicate_predictions" in found[0]["flags"]
    both = found[0]["detail"]["per_candidate"]
    assert [part["index"] for part in both] == [0, 1]
    assert both[0]["feature_distance"] == pytest.approx(np.linalg.norm(ours[0] - theirs[0].astype(float)), rel=1e-5)
    assert both[1]["feature_distance"] == pytest.approx(np.linalg.norm(ours[1] - theirs[0].astype(float)), rel=1e-5)


def test_a_reference_counts_where_its_prediction_fails_and_the_other_way_round(pictures, score, tmp_path):
    ours, theirs = colours(6, 1), colours(6, 2)
    outputs, references = pictures("out", ours), pictures("ref", theirs)
    (tmp_path / outputs[2]).write_bytes(b"")
    (tmp_path / references[4]).write_bytes(b"nothing")
    found = entries(score(lines_of(outputs, references)))
    value = frechet_distance(np.delete(ours, 2, 0), np.delete(theirs, 4, 0))
    assert found[0]["score"] == pytest.approx(value, rel=1e-5)
    assert found[2]["score"] is None
    assert found[2]["error"]["code"] == "empty_media"
    assert found[0]["detail"]["n_prediction"] == found[0]["detail"]["n_reference"] == 5
    assert found[0]["detail"]["references_failed"] == {"unsupported_media": 1}
    assert "feature_distance" in found[3]["detail"]
    assert "feature_distance" not in found[4]["detail"], "its reference could not be read"


def test_a_failed_reference_is_tried_again(pictures, score, tmp_path):
    outputs, references = pictures("out", colours(5, 1)), pictures("ref", colours(5, 2))
    kept = (tmp_path / references[1]).read_bytes()
    (tmp_path / references[1]).unlink()
    lines = lines_of(outputs, references)
    first = entries(score(lines, out=tmp_path / "run"))
    assert first[0]["detail"]["references_failed"] == {"not_found": 1}
    (tmp_path / references[1]).write_bytes(kept)
    again = entries(score(lines, out=tmp_path / "run"))
    assert again[0]["detail"]["n_reference"] == 5
    assert "references_failed" not in again[0]["detail"]
    assert again == entries(score(lines))


def test_other_candidates_stay_in_the_set(pictures, score, tmp_path):
    outputs, references = pictures("out", colours(6, 1)), pictures("ref", colours(6, 2))
    (tmp_path / outputs[5]).write_bytes(b"")
    lines = lines_of(outputs[:5], references[:5])
    lines[0]["output"] = [outputs[0], outputs[5]]
    found = entries(score(lines))
    assert found[0]["error"]["code"] == "empty_media"
    assert [part["index"] for part in found[0]["detail"]["per_candidate"]] == [0]
    assert found[1]["detail"]["n_prediction"] == 5


def test_too_few_and_nothing_to_compare_with(pictures, score):
    outputs, references = pictures("out", colours(3, 1)), pictures("ref", colours(3, 2))
    for lines, code in (
        (lines_of(outputs[:1], references[:1]), "too_few_samples"),
        (lines_of(outputs[:1] * 1, references[:1]), "too_few_samples"),
        (lines_of(outputs, [None] * 3), "no_reference"),
    ):
        run = score(lines)
        assert {entry["error"]["code"] for entry in entries(run)} == {code}
        assert {entry["score"] for entry in entries(run)} == {None}
        assert run.summary["metrics"][METRIC]["n"]["failed"] == {code: len(lines)}
        assert run.exit_code == 3
    found = entries(score(lines_of(outputs[:2], references[:2])))
    assert all(entry["score"] >= 0 and "low_sample_count" in entry["flags"] for entry in found)


def test_a_default_metric_without_any_reference_is_skipped(pictures, score, monkeypatch):
    monkeypatch.setattr("genmeter.registry.DEFAULTS", {"text-to-image": (METRIC, "fake_level")})
    run = score(lines_of(pictures("out", colours(4, 1)), [None] * 4), metrics=None)
    n = run.summary["metrics"][METRIC]["n"]
    assert (n["skipped"], n["n_failed"]) == (4, 0)
    assert {entry["error"]["code"] for entry in entries(run)} == {"not_applicable"}
    assert run.summary["metrics"]["fake_level"]["n"]["scored"] == 4


def test_order_workers_and_resume_change_no_byte_of_the_set(pictures, score, tmp_path):
    lines = lines_of(pictures("out", colours(50, 1)), pictures("ref", colours(50, 2)))
    one = {line["id"]: line["eval_result"]["metrics"] for line in score(lines).samples}
    shuffled = [lines[i] for i in np.random.default_rng(0).permutation(50)]
    two = {line["id"]: line["eval_result"]["metrics"] for line in score(shuffled, workers=3).samples}
    assert one == two
    assert one == {line["id"]: line["eval_result"]["metrics"] for line in score(lines, cache=False).samples}


def test_large_sets_are_mapped(pictures, score, monkeypatch):
    lines = lines_of(
        pictures("out", colours(30, 1)), pictures("ref", colours(30, 2)), data_tag=[{"k": i % 2} for i in range(30)]
    )
    plain = score(lines, group_by=["data_tag.k"])
    monkeypatch.setattr("genmeter.engine.gather._IN_MEMORY", 0)
    mapped = score(lines, group_by=["data_tag.k"])
    assert entries(mapped) == entries(plain)
    assert not list(mapped.run_dir.glob("features/**/*.f32"))


# Groups.


def test_groups_use_their_own_references(pictures, score):
    ours, theirs = colours(30, 1), colours(30, 2)
    styles = [{"style": "ab"[i % 2]} for i in range(30)]
    run = score(lines_of(pictures("out", ours), pictures("ref", theirs), data_tag=styles), group_by=["data_tag.style"])
    group = run.summary["metrics"][METRIC]["groups"]["data_tag.style"]
    for name, part in (("a", slice(0, None, 2)), ("b", slice(1, None, 2))):
        assert group[name]["score"] == pytest.approx(frechet_distance(ours[part], theirs[part]), rel=1e-5)
        assert group[name]["detail"]["n_prediction"] == group[name]["detail"]["n_reference"] == 15
        assert group[name]["n"]["scored"] == 15
        assert group[name]["interval95"] == group[name]["detail"]["interval95"]
    assert run.summary["metrics"][METRIC]["score"] == pytest.approx(frechet_distance(ours, theirs), rel=1e-5)
    own = entries(run)[1]["detail"]["groups"]["data_tag.style"]
    assert set(own) == {"b"}
    assert own["b"]["score"] == group["b"]["score"]
    assert "influence" in own["b"]


def test_sets_of_metadata_are_never_pooled_unasked(pictures, score):
    ours, theirs = colours(20, 1), colours(20, 2)
    parts = [{"set": "core" if i < 12 else "extra"} for i in range(20)]
    lines = lines_of(pictures("out", ours), pictures("ref", theirs), metadata=parts)
    run = score(lines)
    metric = run.summary["metrics"][METRIC]
    assert [entry["set"] for entry in entries(run)] == ["core"] * 12 + ["extra"] * 8
    assert metric["score"] is None
    core, extra = frechet_distance(ours[:12], theirs[:12]), frechet_distance(ours[12:], theirs[12:])
    assert metric["sets"]["core"]["score"] == pytest.approx(core, rel=1e-5)
    assert metric["sets"]["extra"]["score"] == pytest.approx(extra, rel=1e-5)
    assert metric["groups"]["metadata.set"]["extra"]["detail"]["n_reference"] == 8
    assert any("--group-by all" in note for note in run.summary["notes"])
    asked = score(lines, group_by=["all"]).summary["metrics"][METRIC]
    assert asked["score"] == pytest.approx(frechet_distance(ours, theirs), rel=1e-5)
    assert asked["sets"]["core"]["score"] == metric["sets"]["core"]["score"]
    assert asked["detail"]["n_prediction"] == 20


def test_one_value_of_metadata_set_is_the_whole(pictures, score):
    lines = lines_of(pictures("out", colours(4, 1)), pictures("ref", colours(4, 2)), metadata=[{"set": "core"}] * 4)
    assert {entry["set"] for entry in entries(score(lines))} == {"all"}


def test_a_group_too_small_says_so_and_costs_nothing_else(pictures, score):
    styles = [{"style": "rare" if i == 0 else "usual"} for i in range(10)]
    lines = lines_of(pictures("out", colours(10, 1)), pictures("ref", colours(10, 2)), data_tag=styles)
    run = score(lines, group_by=["data_tag.style"])
    group = run.summary["metrics"][METRIC]["groups"]["data_tag.style"]
    assert group["rare"]["score"] is None
    assert group["rare"]["error"]["code"] == "too_few_samples"
    assert group["usual"]["score"] > 0
    assert all(entry["score"] is not None for entry in entries(run))


def test_too_many_groups_are_left_out(pictures, score, monkeypatch):
    monkeypatch.setattr("genmeter.engine.sets.MOST", 3)
    lines = lines_of(
        pictures("out", colours(8, 1)), pictures("ref", colours(8, 2)), data_tag=[{"k": i} for i in range(8)]
    )
    run = score(lines, group_by=["data_tag.k"])
    assert "groups" not in entries(run)[0]["detail"]
    assert entries(run)[0]["score"] is not None


# Clusters.


def test_outputs_of_one_prompt_leave_together(pictures, score):
    values = colours(40, 1)
    lines = lines_of(pictures("out", values), pictures("ref", colours(40, 2)))
    alone = entries(score(lines))[0]["detail"]
    for index, line in enumerate(lines):
        line["prompt"] = f"prompt {index // 8}"
    together = entries(score(lines))[0]["detail"]
    assert alone["interval"]["groups"] == 40
    assert together["interval"]["groups"] == 5
    assert together["interval95"] != alone["interval95"]
    for line in lines:
        line["metadata"] = {"author": line["id"][-1]}
    assert entries(score(lines, cluster_by="metadata.author"))[0]["detail"]["interval"]["groups"] == 10


# Windows.


@pytest.fixture
def sounds(tmp_path, monkeypatch):
    """``sounds(name, clips)``: clips of levels as files; each level is a window. Returns paths."""
    from genmeter.assets.workers import DecodePool

    def decode(self, blob, modality, requests):
        return [AudioMedia(np.frombuffer(blob.data, dtype="<f4"), 4)] * len(requests)

    monkeypatch.setattr(DecodePool, "decode", decode)

    def make(name, clips):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for index, clip in enumerate(clips):
            (folder / f"{index}.wav").write_bytes(np.asarray(clip, dtype="<f4").repeat(4).tobytes())
        return [f"{name}/{index}.wav" for index in range(len(clips))]

    return make


def clips(count, seed):
    rng = np.random.default_rng(seed)
    return [rng.random(1 + index % 3).astype("<f4") for index in range(count)]


def test_windows_are_rows_and_files_are_samples(sounds, score):
    ours, theirs = clips(12, 1), clips(12, 2)
    lines = lines_of(sounds("out", ours), sounds("ref", theirs))
    lines[0]["output"] = [lines[0]["output"], lines[1]["output"]]  # one file twice, once as a second candidate
    for line in lines:
        line["task_type"] = "text-to-audio"
    found = entries(score(lines, "fake_sounds"), "fake_sounds")
    rows = [np.concatenate(side)[:, None] for side in ([*ours, ours[1]], theirs)]
    assert found[0]["score"] == pytest.approx(frechet_distance(*rows), rel=1e-5)
    detail = found[5]["detail"]
    assert (detail["n_prediction"], detail["files_prediction"], detail["n_distinct"]) == (26, 13, 12)
    assert (detail["n_reference"], detail["files_reference"]) == (24, 12)
    assert "duplicate_predictions" in found[0]["flags"]
    assert detail["feature_distance"] == pytest.approx(abs(ours[5].mean() - theirs[5].mean()), rel=1e-4)
    without = frechet_distance(np.concatenate([*ours[:5], *ours[6:], ours[1]])[:, None], rows[1])
    parts = [part["detail"].get("influence") for part in found[1:]]
    parts += [part["influence"] for part in found[0]["detail"]["per_candidate"]]
    assert len(parts) == 13
    assert sum(parts) == pytest.approx(0.0, abs=1e-9)
    others = [
        12 * (frechet_distance(*rows) - frechet_distance(np.delete(rows[0], mine, 0), rows[1])) for mine in spans(ours)
    ]
    assert detail["influence"] == pytest.approx(12 * (frechet_distance(*rows) - without) - np.mean(others), abs=1e-6)


def spans(ours):
    """The rows of each file, the repeated one last."""
    ends = np.cumsum([len(clip) for clip in [*ours, ours[1]]])
    return [np.arange(end - len(clip), end) for end, clip in zip(ends, [*ours, ours[1]], strict=True)]


def test_windows_of_a_stored_set(sounds, score, reference):
    ours, theirs = clips(12, 1), clips(12, 2)
    lines = lines_of(sounds("out", ours), sounds("ref", theirs))
    for line in lines:
        line["task_type"] = "text-to-audio"
    path, made = reference(lines, metrics="fake_sounds")
    assert (made[0].files, made[0].rows) == (12, 24)
    direct, stored = (
        entries(score(lines, "fake_sounds", **how), "fake_sounds") for how in ({}, {"reference_set": str(path)})
    )
    assert [entry["score"] for entry in stored] == [entry["score"] for entry in direct]
    assert stored[4]["detail"]["files_reference"] == 12
    assert stored[4]["detail"]["feature_distance"] == direct[4]["detail"]["feature_distance"]


# Stored reference sets.


@pytest.fixture
def reference(tmp_path):
    """``reference(input, out, **how)``: make a reference set of a file of lines or a folder."""

    def make(given, out="ref.safetensors", metrics=METRIC, side="auto", moments=False, **settings):
        if isinstance(given, list):
            path = tmp_path / "given.jsonl"
            path.write_text("".join(json.dumps(line) + "\n" for line in given))
            given = path
        config = merged_config(None, metrics, {"device": "cpu", **settings})
        made = make_reference(open_source([str(given)]), tmp_path / out, config, side=side, moments=moments)
        return tmp_path / out, made

    return make


def test_a_stored_set_gives_what_the_references_give(pictures, score, reference):
    ours, theirs = colours(40, 1), colours(40, 2)
    outputs, references = pictures("out", ours), pictures("ref", theirs)
    lines = lines_of(outputs, references)
    direct = score(lines)
    path, made = reference(lines)
    assert [(entry.files, entry.rows, entry.width, entry.side, entry.failed) for entry in made] == [
        (40, 40, 3, "references", {})
    ]
    stored = score(lines_of(outputs, [None] * 40), reference_set=str(path))
    for one, two in zip(entries(direct), entries(stored), strict=True):
        assert two["score"] == one["score"]
        assert two["detail"]["influence"] == pytest.approx(one["detail"]["influence"], rel=1e-9)
        assert "feature_distance" not in two["detail"]
    # Where the samples still have references, theirs is found again in the stored set.
    both = score(lines, reference_set=str(path))
    assert entries(both)[3]["detail"]["feature_distance"] == entries(direct)[3]["detail"]["feature_distance"]
    about = stored.run["metrics"][METRIC]["reference_set"]
    assert (about["kind"], about["n"], about["files"]) == ("features", 40, 40)
    assert "|r:" in stored.summary["metrics"][METRIC]["signature"]
    assert "|r:" not in direct.summary["metrics"][METRIC]["signature"]


def test_groups_are_compared_with_the_whole_stored_set(pictures, score, reference):
    ours, theirs = colours(12, 1), colours(30, 2)
    outputs, references = pictures("out", ours), pictures("ref", theirs)
    path, _ = reference(lines_of([None] * 30, references))
    styles = [{"style": "ab"[i % 2]} for i in range(12)]
    run = score(lines_of(outputs, [None] * 12, data_tag=styles), reference_set=str(path), group_by=["data_tag.style"])
    group = run.summary["metrics"][METRIC]["groups"]["data_tag.style"]
    assert group["a"]["score"] == pytest.approx(frechet_distance(ours[::2], theirs), rel=1e-5)
    assert group["b"]["detail"]["n_reference"] == 30


def test_moments_are_enough_for_a_frechet_distance(pictures, score, reference):
    ours, theirs = colours(40, 1), colours(40, 2)
    lines = lines_of(pictures("out", ours), pictures("ref", theirs))
    path, _ = reference(lines, moments=True)
    held = ReferenceSet(path)
    assert held.entries[0]["kind"] == "moments"
    run = score(lines, reference_set=str(path))
    assert entries(run)[0]["score"] == pytest.approx(frechet_distance(ours, theirs), rel=1e-5)
    assert entries(run)[0]["detail"]["interval"]["reference"] == "fixed"


def test_what_a_reference_set_says_of_itself(pictures, reference, tmp_path):
    folder = tmp_path / "refs"
    pictures("refs", [[10, 20, 30], [40, 50, 60], [40, 50, 60]])
    path, made = reference(folder)
    assert [(entry.side, entry.files) for entry in made] == [("outputs", 2)], "equal files are one"
    [about] = ReferenceSet(path).entries
    assert about["n"] == about["files"] == 2
    assert about["metrics"] == [METRIC]
    assert about["model"] == "fake_pixels"
    assert about["weights"] == "digest-of-fake_pixels"
    assert about["precision"] == "exact"
    assert about["view"] == {"alpha": "white"}
    assert len(about["fingerprint"]) == 64
    assert about["digest"].startswith("sha256:")
    again, _ = reference(folder, out="again.safetensors")
    assert again.read_bytes() == path.read_bytes()
    assert not list(tmp_path.glob(".*.run")), "nothing is left beside it"


def test_metrics_on_one_encoder_share_an_entry(pictures, reference):
    path, made = reference(lines_of([None] * 3, pictures("ref", colours(3, 2))), metrics=f"{METRIC},fake_gap")
    assert [entry.metrics for entry in made] == [(METRIC, "fake_gap")]
    assert len(ReferenceSet(path).entries) == 1


def test_references_or_outputs(pictures, reference):
    ours, theirs = pictures("out", colours(5, 1)), pictures("ref", colours(3, 2))
    lines = lines_of(ours[:3], theirs)
    assert reference(lines)[1][0].side == "references"
    assert reference(lines, side="outputs")[1][0].files == 3
    assert reference(lines_of(ours, [None] * 5))[1][0].files == 5
    with pytest.raises(GenmeterError, match="at least 2 files"):
        reference(lines_of(ours, [None] * 5), side="references")
    with pytest.raises(ValueError, match="--from"):
        reference(lines, side="both")


def test_damaged_references_are_counted(pictures, reference, tmp_path):
    theirs = pictures("ref", colours(4, 2))
    (tmp_path / theirs[1]).write_bytes(b"")
    _, made = reference(lines_of([None] * 4, theirs))
    assert made[0].files == 3
    assert made[0].failed == {"empty_media": 1}
    (tmp_path / theirs[2]).write_bytes(b"")
    (tmp_path / theirs[3]).write_bytes(b"")
    with pytest.raises(GenmeterError, match="empty_media 3") as error:
        reference(lines_of([None] * 4, theirs))
    assert error.value.code == "too_few_samples"


def test_many_references_without_outputs_are_no_reason_to_stop(pictures, reference):
    theirs = pictures("ref", np.stack([np.arange(250)] * 3, axis=1))
    assert reference(lines_of([None] * 250, theirs))[1][0].files == 250


def change(path, **changes):
    """The same reference set with other provenance."""
    from genmeter.engine.reference import SCHEMA, _mapped
    from genmeter.weights.safefile import write_safetensors

    metadata, tensors = _mapped(path)
    entries = json.loads(metadata["entries"])
    entries[0].update(changes)
    other = path.with_name("other.safetensors")
    with open(other, "wb") as file:
        write_safetensors(
            file, {k: np.array(v) for k, v in tensors.items()}, {"schema": SCHEMA, "entries": json.dumps(entries)}
        )
    return other


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": "0" * 64}, "weights: 000000000000..., now digest-of-fake_pixels"),
        ({"view": {"alpha": "drop"}}, 'view: {"alpha":"drop"}, now {"alpha":"white"}'),
        ({"precision": "fast"}, "precision: fast, now exact"),
        ({"preprocessing": "older"}, "preprocessing: older, now fake_pixels-1"),
        ({"model": "other"}, "network: other, now fake_pixels"),
        ({"code": 7}, "encoder version: 7, now 1"),
        ({"encoder": "clip"}, "holds nothing for fake_spread, only features of fake_spread"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_scored(pictures, score, reference, tmp_path, changes, message):
    lines = lines_of(pictures("out", colours(4, 1)), pictures("ref", colours(4, 2)))
    path, _ = reference(lines)
    with pytest.raises(ValueError, match="--reference-set") as error:
        score(lines, out=tmp_path / "refused", reference_set=str(change(path, **changes)))
    assert message in str(error.value)
    assert not (tmp_path / "refused").exists()


def test_another_device_or_decoder_is_said_and_not_refused(pictures, score, reference):
    from genmeter.engine.run import Observer

    class Ears(Observer):
        def __init__(self):
            self.heard = []

        def note(self, message):
            self.heard.append(message)

    lines = lines_of(pictures("out", colours(4, 1)), pictures("ref", colours(4, 2)))
    path, _ = reference(lines)
    ears = Ears()
    run = score(lines, reference_set=str(change(path, device="cuda")), observer=ears)
    assert any("kind of device (cuda, now cpu)" in note for note in ears.heard)
    assert entries(run)[0]["score"] is not None


@pytest.mark.parametrize("content", [b"", b"no such thing", b"\x08\0\0\0\0\0\0\0{}      ", None])
def test_a_file_that_is_no_reference_set(pictures, score, tmp_path, content):
    path = tmp_path / "ref.safetensors"
    if content is not None:
        path.write_bytes(content)
    lines = lines_of(pictures("out", colours(2, 1)), pictures("ref", colours(2, 2)))
    with pytest.raises(ValueError, match=f"--reference-set {path}"):
        score(lines, reference_set=str(path))


def test_a_cut_file_is_refused(pictures, score, reference):
    lines = lines_of(pictures("out", colours(4, 1)), pictures("ref", colours(4, 2)))
    path, _ = reference(lines)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match="damaged"):
        score(lines, reference_set=str(path))


def test_a_metric_that_compares_no_sets(pictures, reference):
    with pytest.raises(ValueError, match="fake_level does not compare sets"):
        reference(lines_of([None] * 3, pictures("ref", colours(3, 2))), metrics="fake_level")
    with pytest.raises(GenmeterError, match="no metric"):
        reference(lines_of([None] * 3, pictures("ref", colours(3, 2))), metrics="no_such")


def test_a_run_is_not_mixed_with_another_reference_set(pictures, score, reference, tmp_path):
    lines = lines_of(pictures("out", colours(4, 1)), pictures("ref", colours(4, 2)))
    one, _ = reference(lines)
    other, _ = reference(lines[:3], out="other.safetensors")
    score(lines, out=tmp_path / "run", reference_set=str(one))
    with pytest.raises(ValueError, match="reference_set was"):
        score(lines, out=tmp_path / "run", reference_set=str(other))


def test_metrics_that_samples_chose_are_told_in_their_rows(pictures, score, reference):
    lines = lines_of(pictures("out", colours(4, 1)), pictures("ref", colours(4, 2)))
    path, _ = reference(lines)
    for line in lines:
        line["eval_config"] = {"metrics": [METRIC, "fake_level"]}
        line["schema_version"] = "v1"
    run = score(lines, metrics=None, reference_set=str(change(path, precision="fast")))
    assert {entry["error"]["code"] for entry in entries(run)} == {"no_reference"}
    assert "precision: fast" in entries(run)[0]["error"]["message"]
    assert all(entry["score"] is not None for entry in entries(run, "fake_level"))


# The commands.


def command(*words, cwd, env):
    return subprocess.run(
        [sys.executable, "-m", "genmeter.cli.main", *words], cwd=cwd, env=env, capture_output=True, text=True
    )


def test_commands(pictures, tmp_path, command_env):
    from pathlib import Path

    env = {**command_env, "PYTHONPATH": str(Path(__file__).resolve().parent.parent / "fakes")}
    outputs = pictures("out", colours(6, 1))
    pictures("refs", colours(6, 2))
    (tmp_path / "s.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines_of(outputs, [None] * 6)))
    made = command("reference", "refs", "--metrics", METRIC, "-o", "ref.safetensors", cwd=tmp_path, env=env)
    assert made.returncode == 0, made.stderr
    assert f"{METRIC}: features of 6 outputs, 3 wide" in made.stdout
    scored = command(
        "score",
        "s.jsonl",
        "--metrics",
        METRIC,
        "--reference-set",
        "ref.safetensors",
        "-o",
        "run",
        cwd=tmp_path,
        env=env,
    )
    assert scored.returncode == 0, scored.stderr
    assert "corrected" in scored.stdout
    assert "N 6 and 6" in scored.stdout
    summary = command("summary", "run", cwd=tmp_path, env=env)
    assert "N 6 and 6" in summary.stdout
    bad = command(
        "score", "s.jsonl", "--metrics", METRIC, "--reference-set", "s.jsonl", "-o", "x", cwd=tmp_path, env=env
    )
    assert bad.returncode == 2
    assert "is no reference set" in bad.stderr
    one = command("reference", "refs", "--metrics", "fake_level", "-o", "x.safetensors", cwd=tmp_path, env=env)
    assert one.returncode == 2
    assert "does not compare sets" in one.stderr
