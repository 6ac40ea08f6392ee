"""Sets in a run: membership, groups, own references, clusters, windows, and what is said of them."""

from __future__ import annotations

import jsonschema
import numpy as np
import pytest
from set_runs import METRIC, clips, colours, entries, lines_of

from genmeter.analysis.schemas import json_schema
from genmeter.analysis.summary import summarize_run
from genmeter.report.html import write_report
from genmeter.report.tables import FORMATS, render
from genmeter.stats import frechet_distance

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


@pytest.mark.parametrize("group_by", [[], ["data_tag.style"], ["data_tag.style", "all"]])
def test_what_is_written_keeps_to_the_schemas(pictures, score, group_by):
    styles = [{"style": "ab"[i % 2]} for i in range(12)]
    parts = [{"set": "core" if i < 8 else "extra"} for i in range(12)]
    lines = lines_of(pictures("out", colours(12, 1)), pictures("ref", colours(12, 2)), data_tag=styles, metadata=parts)
    run = score(lines, group_by=group_by)
    jsonschema.validate(run.summary, json_schema("summary"))
    jsonschema.validate(run.run, json_schema("run"))
    for line in run.samples:
        jsonschema.validate(line["eval_result"], json_schema("eval_result"))
    assert summarize_run(run.run_dir) == run.summary, "the rows alone say it all"
    for fmt in FORMATS:
        assert METRIC in render([run.summary], fmt)
    write_report(run.run_dir)
    assert "no score" not in (run.run_dir / "report.html").read_text()


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


def test_a_set_alone_is_no_reason_to_stop(pictures, score):
    """More samples than it takes to give up where everything fails alike."""
    levels = np.stack([np.arange(230)] * 3, axis=1)
    outputs = pictures("out", levels)
    run = score(lines_of(outputs, outputs[1:] + outputs[:1]))
    assert entries(run)[0]["score"] == pytest.approx(0.0, abs=1e-6)
    assert run.summary["metrics"][METRIC]["n"]["scored"] == 230
