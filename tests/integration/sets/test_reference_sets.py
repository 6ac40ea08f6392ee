"""Reference sets on disk: made once, used by runs, refused where they do not fit."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from set_runs import METRIC, clips, colours, entries, lines_of

from genmeter.engine.reference import ReferenceSet
from genmeter.errors import GenmeterError
from genmeter.stats import frechet_distance


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

    env = {**command_env, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "fakes")}
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


@pytest.mark.parametrize("moments", [False, True])
def test_prompts_stay_clusters_against_a_stored_set(pictures, score, reference, moments):
    lines = lines_of(pictures("out", colours(40, 1)), [None] * 40)
    for index, line in enumerate(lines):
        line["prompt"] = f"prompt {index // 8}"
    path, _ = reference(lines_of([None] * 60, pictures("ref", colours(60, 2))), moments=moments)
    assert entries(score(lines, reference_set=str(path)))[0]["detail"]["interval"]["groups"] == 5
