"""summary.json: what is counted, what is averaged, what is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from reporting_runs import CLIP, FVD, LPIPS, failed, picture_run, row, run_json, scored, write_run

from genmeter.analysis import summary as module
from genmeter.analysis.reader import iter_records, read_summary
from genmeter.analysis.schemas import json_schema
from genmeter.analysis.summary import SummaryBuilder, summarize_run


def summarize(rows: list[dict[str, Any]], run: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    builder = SummaryBuilder(run_json() if run is None else run, **options)
    for item in rows:
        builder.add(item["eval_result"], item)
    found = builder.build()
    jsonschema.validate(found, json_schema("summary"))
    json.dumps(found, allow_nan=False)
    return found


def test_failures_do_not_leave_the_denominator() -> None:
    """80 score 1, 10 score 0, 10 cannot be decoded: the mean says 0.889, and everything beside it says why."""
    rows = [row(i, scored(1.0)) for i in range(80)] + [row(i, scored(0.0)) for i in range(80, 90)]
    rows += [row(i, failed("decode_failed")) for i in range(90, 100)]
    metric = summarize(rows)["metrics"]["lpips"]
    assert metric["mean"] == pytest.approx(80 / 90)
    assert metric["n"] == {"total": 100, "scored": 90, "failed": {"decode_failed": 10}, "n_failed": 10, "skipped": 0}
    assert metric["coverage"] == 0.9
    assert metric["failures"]["decode_failed"]["n"] == 10
    assert metric["failures"]["decode_failed"]["examples"][0]["line"] == 91
    assert "|n:90|" in metric["signature"]


def test_all_failed_is_null_and_never_zero() -> None:
    found = summarize([row(i, failed("not_found")) for i in range(5)])
    metric = found["metrics"]["lpips"]
    assert metric["mean"] is metric["sem"] is metric["median"] is metric["interval95"] is None
    assert metric["quantiles"] == {"p05": None, "p95": None}
    assert metric["coverage"] == 0.0
    assert metric["n"]["failed"] == {"not_found": 5}
    assert any("nothing could be scored" in note for note in found["notes"])


def test_no_lines_at_all() -> None:
    metric = summarize([])["metrics"]["lpips"]
    assert metric["mean"] is None
    assert metric["coverage"] is None
    assert metric["n"]["total"] == 0


def test_every_line_is_counted_once() -> None:
    rows = [
        row(0, scored(0.1)),
        row(1, failed("not_applicable")),
        row(2, None),  # the sample did not ask for it
        row(3, {"score": None, "variant": "alex-v0.1"}),  # no reason given
        row(4, scored(float("nan"))),
        row(5, {"score": True, "variant": "alex-v0.1"}),
        {"eval_result": {"error": {"code": "bad_line", "message": "cut"}}, "id": None},
        row(7, scored(0.3, variant="vgg-v0.1")),
        row(8, scored(0.3)),
    ]
    found = summarize(rows)
    n = found["metrics"]["lpips"]["n"]
    assert n["total"] == 9
    assert n["scored"] == 2
    assert n["skipped"] == 2
    assert n["failed"] == {"internal": 3, "bad_line": 1, "non_finite": 1}
    assert n["scored"] + n["n_failed"] + n["skipped"] == n["total"]
    assert found["metrics"]["lpips"]["mean"] == pytest.approx(0.2)
    assert found["metrics"]["lpips"]["coverage"] == pytest.approx(2 / 7)
    assert found["samples"] == {"total": 9, "failed": {"bad_line": 1}}


@pytest.mark.parametrize("junk", [None, 3, "x", [], {"metrics": 3}, {"metrics": {"lpips": "x"}}, {"error": "x"}])
def test_junk_does_not_raise(junk: Any) -> None:
    builder = SummaryBuilder(run_json())
    builder.add(junk, {"data_tag": 3, "metadata": [], "task_type": 7, "id": {}})
    builder.add(junk, None)
    assert builder.build()["metrics"]["lpips"]["n"]["total"] == 2


def test_scores_of_others_are_not_summarised() -> None:
    item = row(0, scored(0.5))
    item["eval_result"]["metrics"]["bleu"] = {"score": 99.0}
    assert list(summarize([item])["metrics"]) == ["lpips"]


def test_without_run_json_metrics_are_found_and_variants_kept_apart() -> None:
    rows = [row(0, None), row(1, scored(0.5)), row(2, scored(0.9, variant="vgg-v0.1"))]
    metric = summarize(rows, {})["metrics"]["lpips"]
    assert metric["variant"] == "alex-v0.1"
    assert metric["mean"] == 0.5
    assert metric["n"] == {"total": 3, "scored": 1, "failed": {"internal": 1}, "n_failed": 1, "skipped": 1}


def test_signature_tells_measurements_apart() -> None:
    base = summarize([row(0, scored(0.5))])["metrics"]["lpips"]["signature"]
    assert base == "genmeter:lpips|m:alex-v0.1|c:none|p:exact|n:1|w:40d36571|s:ab12cd34|v:0.1.0"
    for change in (
        {"precision": "fast"},
        {"snapshot": "sha256:ffff0000"},
        {"version": "9.9.9"},
        {"metrics": {"lpips": {**LPIPS, "variant": "alex-v0.1,resize=256"}}},
        {"metrics": {"lpips": {**LPIPS, "convention": "other"}}},
        {"metrics": {"lpips": {**LPIPS, "encoders": {"pair": {"digest": "ffff"}}}}},
    ):
        other = summarize([], run_json(**change))["metrics"]["lpips"]["signature"].replace("n:0", "n:1")
        assert other != base, change
    clip = summarize([], run_json(metrics={"clipscore": CLIP}))["metrics"]["clipscore"]["signature"]
    assert clip.startswith("genmeter:clipscore|m:openai-vit-b-32|c:hessel2021|p:exact|n:0|w:bbbbbbbb|")
    hostile = run_json(snapshot=None, metrics={"a@b/c": {"variant": "x|n:9\n/y", "encoders": {}}})
    assert summarize([], hostile)["metrics"]["a@b/c"]["signature"] == (
        "genmeter:a|m:xn:9|c:y|p:exact|n:0|w:none|s:none|v:0.1.0"
    )


def test_groups_by_tags_task_type_and_set() -> None:
    rows = [
        row(0, scored(0.2), data_tag={"style": "photo", "deep": {"level": 1}}, metadata={"set": "representative"}),
        row(1, scored(0.4), data_tag={"style": "photo"}, metadata={"set": "supplementary"}),
        row(2, failed("not_found"), data_tag={"style": ["photo", "anime"]}, task_type="text-to-image"),
        row(3, scored(0.9)),
        {"id": None, "eval_result": {"error": {"code": "bad_line", "message": "cut"}}},
    ]
    found = summarize(rows)
    groups = found["metrics"]["lpips"]["groups"]
    assert set(groups) == {"data_tag.style", "data_tag.deep.level", "metadata.set", "task_type"}
    style = groups["data_tag.style"]
    assert list(style) == ["anime", "photo", "(none)"]
    assert style["photo"]["mean"] == pytest.approx(0.3)
    assert style["photo"]["n"] == {"total": 3, "scored": 2, "failed": {"not_found": 1}, "n_failed": 1, "skipped": 0}
    assert style["anime"]["mean"] is None
    assert style["(none)"]["n"]["total"] == 1, "a line that could not be read is in no bucket"
    assert groups["task_type"]["image-to-image"]["n"]["total"] == 3
    assert any("metadata.set" in note for note in found["notes"]), "sets are never pooled in silence"


def test_group_statistics_equal_those_of_the_part_alone() -> None:
    rng = np.random.default_rng(0)
    rows = [row(i, scored(float(rng.random())), data_tag={"k": i % 3}) for i in range(60)]
    whole = summarize(rows)["metrics"]["lpips"]["groups"]["data_tag.k"]["1"]
    alone = summarize([r for r in rows if r["data_tag"]["k"] == 1])["metrics"]["lpips"]
    for key in ("mean", "sem", "median", "quantiles", "interval95", "n", "coverage", "flags"):
        assert whole[key] == alone[key]


def test_a_field_with_too_many_values_is_named_not_expanded() -> None:
    rows = [row(i, scored(0.5), data_tag={"prompt": f"p{i}", "ok": i % 200}) for i in range(260)]
    found = summarize(rows)
    groups = found["metrics"]["lpips"]["groups"]
    assert "data_tag.prompt" not in groups
    assert len(groups["data_tag.ok"]) == 200
    assert "200" in found["groups_left_out"]["data_tag.prompt"]
    asked = summarize(rows, group_by=["data_tag.prompt", "nowhere"])
    assert len(asked["metrics"]["lpips"]["groups"]["data_tag.prompt"]) == 260
    assert "no sample" in asked["groups_left_out"]["nowhere"]


def test_fields_without_number_are_bounded() -> None:
    rows = [row(i, scored(0.5), data_tag={f"key{i}": 1}) for i in range(300)]
    found = summarize(rows)
    assert len(found["metrics"]["lpips"]["groups"]) <= module.MAX_KEYS
    assert "data_tag.*" in found["groups_left_out"]


def test_group_by_any_field() -> None:
    rows = [row(i, scored(i / 10), metadata={"source": {"model": "ab"[i % 2]}}) for i in range(4)]
    groups = summarize(rows, group_by=["metadata.source.model"])["metrics"]["lpips"]["groups"]
    assert groups["metadata.source.model"]["b"]["mean"] == pytest.approx(0.2)


def test_long_values_that_begin_alike_stay_apart() -> None:
    rows = [row(i, scored(0.5), data_tag={"t": "x" * 500 + str(i)}) for i in range(2)]
    assert len(summarize(rows)["metrics"]["lpips"]["groups"]["data_tag.t"]) == 2


def test_flags_are_counted() -> None:
    rows = [row(0, scored(0.1, flags=["identical", "alpha_composited"])), row(1, scored(0.1, flags=["identical"]))]
    rows += [row(2, scored(0.1))]
    assert summarize(rows)["metrics"]["lpips"]["flags"] == {"identical": 2, "alpha_composited": 1}


def with_reference(value: float, digest: str) -> dict[str, Any]:
    inputs = [
        {"role": "prediction", "path": "output", "digest": f"sha256:p{value}"},
        {"role": "reference", "path": "reference", "digest": digest},
    ]
    return scored(value, inputs=inputs)


def test_outputs_for_one_reference_are_one_cluster() -> None:
    rng = np.random.default_rng(1)
    base = rng.random(20)
    rows = [row(i, with_reference(float(base[i % 20] + 0.01 * rng.random()), f"r{i % 20}")) for i in range(100)]
    metric = summarize(rows)["metrics"]["lpips"]
    assert metric["interval"] == {"method": "clustered_t", "clusters": 20, "cluster_by": "inputs"}
    apart = summarize([row(i, scored(r["eval_result"]["metrics"]["lpips"]["score"])) for i, r in enumerate(rows)])
    assert apart["metrics"]["lpips"]["interval"] == {"method": "t", "clusters": 100}
    assert metric["sem"] > 1.8 * apart["metrics"]["lpips"]["sem"]
    assert metric["mean"] == apart["metrics"]["lpips"]["mean"]


def test_one_reference_for_all_still_has_an_interval() -> None:
    metric = summarize([row(i, with_reference(i / 10, "r")) for i in range(5)])["metrics"]["lpips"]
    assert metric["interval"] == {"method": "t", "clusters": 5}


def test_cluster_by_a_field() -> None:
    rows = [row(i, scored(i / 10), metadata={"prompt_id": i // 2}) for i in range(8)]
    rows += [row(8, scored(0.5))]
    metric = summarize(rows, cluster_by="metadata.prompt_id")["metrics"]["lpips"]
    assert metric["interval"] == {"method": "clustered_t", "clusters": 5, "cluster_by": "metadata.prompt_id"}


def test_a_set_metric_has_one_value() -> None:
    def entry(i: int) -> dict[str, Any]:
        detail = {"n_prediction": 3, "bias_corrected": 141.9, "interval95": [47.8, 236.0], "influence": float(i)}
        return {**scored(450.6, variant=FVD["variant"], scope="set", set="all"), "detail": detail}

    rows = [row(i, entry(i), "fvd") for i in range(3)] + [row(3, failed("decode_failed", variant=""), "fvd")]
    rows[3]["eval_result"]["metrics"]["fvd"]["variant"] = FVD["variant"]
    run = run_json(metrics={"fvd": FVD}, config={"thresholds": {"fvd": {"max": 400}}})
    found = summarize(rows, run)
    metric = found["metrics"]["fvd"]
    assert metric["score"] == 450.6
    assert metric["mean"] is None
    assert metric["interval95"] == [47.8, 236.0]
    assert metric["detail"] == {"n_prediction": 3, "bias_corrected": 141.9, "interval95": [47.8, 236.0]}
    assert metric["n"]["scored"] == 3
    assert metric["n"]["failed"] == {"decode_failed": 1}
    assert found["thresholds"] == {"fvd": {"min": None, "max": 400, "score": 450.6, "passed": False}}


def test_several_sets_are_not_pooled() -> None:
    entries = [
        {**scored(v, variant=FVD["variant"], scope="set", set=s), "detail": {"influence": 1.0}}
        for v, s in ((1.0, "a"), (1.0, "a"), (5.0, "b"))
    ]
    metric = summarize([row(i, e, "fvd") for i, e in enumerate(entries)], run_json(metrics={"fvd": FVD}))["metrics"][
        "fvd"
    ]
    assert metric["score"] is None
    assert {name: s["score"] for name, s in metric["sets"].items()} == {"a": 1.0, "b": 5.0}


def test_verdicts_are_counted_when_there_are_any() -> None:
    rows = [row(i, scored(0.5)) for i in range(3)]
    assert "overall" not in summarize(rows)
    rows[0]["eval_result"]["overall"]["passed"] = True
    rows[1]["eval_result"]["overall"]["passed"] = False
    assert summarize(rows)["overall"] == {"passed": 1, "failed": 1, "undecided": 1}


def test_prompts_in_another_language_are_the_first_thing_said() -> None:
    rows = [row(i, scored(0.5, flags=["prompt_language"] if i < 2 else [])) for i in range(10)]
    rows += [row(10 + i, failed("not_found")) for i in range(5)]
    assert "languages" in summarize(rows)["notes"][0]
    assert not any("languages" in note for note in summarize(rows[2:])["notes"])


def test_recomputed_from_disk_equals_what_was_built(tmp_path: Path) -> None:
    folder = picture_run(tmp_path / "run", 12)
    builder = SummaryBuilder(json.loads((folder / "run.json").read_text()))
    for record in iter_records(folder):
        builder.add(record.eval_result, record.sample)
    built = builder.build()
    assert summarize_run(folder) == built
    assert built["metrics"]["lpips"]["groups"]["task_type"].keys() == {"image-to-image"}, "the short form has a task"
    (folder / "summary.json").write_text(json.dumps(built))
    assert read_summary(folder) == built
    assert read_summary(folder / "summary.json") == built
    assert summarize_run(folder / "samples.jsonl")["metrics"]["lpips"]["mean"] == built["metrics"]["lpips"]["mean"]


def test_gage_records_hold_the_sample_inside(tmp_path: Path) -> None:
    inner = row(0, scored(0.5), data_tag={"style": "photo"})
    folder = write_run(tmp_path / "r", [{"task_id": "t", "sample": inner}], run_json())
    metric = summarize_run(folder)["metrics"]["lpips"]
    assert metric["mean"] == 0.5
    assert metric["groups"]["data_tag.style"]["photo"]["n"]["total"] == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such run"),
        ({}, "neither"),
        ({"samples.jsonl": "{\n"}, "line 1"),
        ({"samples.jsonl": "[1]\n"}, "line 1"),
    ],
)
def test_what_is_no_run_says_so(tmp_path: Path, content: dict[str, str] | None, message: str) -> None:
    folder = tmp_path / "r"
    if content is not None:
        folder.mkdir()
        for name, text in content.items():
            (folder / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_summary(folder)


def test_memory_stays_small() -> None:
    """No Python object is kept for a line: 50,000 lines cost the arrays and little else."""
    import tracemalloc

    builder = SummaryBuilder(run_json())
    tracemalloc.start()
    for i in range(50_000):
        inputs = [{"role": "reference", "digest": f"sha256:{i}"}]
        builder.add({"metrics": {"lpips": scored(0.5, inputs=inputs)}}, {"id": str(i), "data_tag": {"s": i % 7}})
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 50_000 * 60
