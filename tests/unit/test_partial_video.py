"""A score over part of a video says how much of it was read: in its row, in the summary and in the table."""

from __future__ import annotations

import io
from typing import Any

import jsonschema
import pytest
from reporting_runs import CLIP, FVD, row, run_json

from genmeter.analysis.schemas import json_schema
from genmeter.analysis.summary import SummaryBuilder
from genmeter.report.tables import print_summary
from genmeter.report.text import format_frames


def entry(score: float, used: int | None, total: int | None, *, flagged: bool = True, **more: Any) -> dict[str, Any]:
    detail = {key: count for key, count in (("frames_used", used), ("frames_total", total)) if count is not None}
    flags = ["partial_video"] if flagged else []
    return {"score": score, "variant": "v", "higher_is_better": False, "detail": detail, "flags": flags, **more}


def summarize(entries: list[dict[str, Any]], name: str, spec: dict[str, Any]) -> dict[str, Any]:
    run = run_json(metrics={name: {**spec, "variant": "v"}})
    builder = SummaryBuilder(run)
    for index, found in enumerate(entries):
        line = row(index, found, name, task_type="text-to-video")
        builder.add(line["eval_result"], line)
    summary = builder.build()
    jsonschema.validate(summary, json_schema("summary"))
    return summary


def printed(summary: dict[str, Any]) -> str:
    from rich.console import Console

    out = io.StringIO()
    print_summary(summary, Console(file=out, width=120, markup=False, highlight=False))
    return out.getvalue()


def test_words_for_frames() -> None:
    assert format_frames({"used": [16, 16], "total": [121, 121]}) == "16 of 121 frames"
    assert format_frames({"used": [8, 8], "total": [16, 1440]}) == "8 of 16 to 1,440 frames"
    assert format_frames({"used": [7, 8], "total": [16, 16]}) == "7 to 8 of 16 frames"
    for nothing in (None, {}, {"used": [8, 8]}, []):
        assert format_frames(nothing) == ""


def test_the_table_prints_frames_of_a_set_metric() -> None:
    rows = [
        entry(450.6, 16, 121, scope="set", set="all", flags=["low_sample_count", "partial_video"]) for _ in range(3)
    ]
    for index, found in enumerate(rows):
        found["detail"] = {**found["detail"], "n_prediction": 3, "influence": float(index)}
    summary = summarize(rows, "fvd", FVD)
    metric = summary["metrics"]["fvd"]
    assert metric["frames"] == {"used": [16, 16], "total": [121, 121]}
    assert metric["detail"] == {"n_prediction": 3}, "what belongs to a file is not the set's"
    assert "16 of 121 frames" in printed(summary)


@pytest.mark.parametrize("last", [24, 400])
def test_videos_of_several_lengths(last: int) -> None:
    rows = [entry(0.3, 8, total) for total in (121, 40, last)] + [entry(0.3, 8, 8, flagged=False)]
    summary = summarize(rows, "clipscore", CLIP)
    assert summary["metrics"]["clipscore"]["frames"] == {"used": [8, 8], "total": [min(40, last), max(121, last)]}
    assert f"8 of {min(40, last)} to {max(121, last)} frames" in printed(summary)


def test_whole_videos_and_images_say_nothing() -> None:
    for rows in ([entry(0.3, 8, 8, flagged=False)], [entry(0.3, None, None, flagged=False)]):
        summary = summarize(rows, "clipscore", CLIP)
        assert "frames" not in summary["metrics"]["clipscore"]
        assert "frames" not in printed(summary)


def test_junk_in_a_detail_is_passed_over() -> None:
    rows = [entry(0.3, 8, 16), entry(0.3, None, None), {**entry(0.3, 1, 2), "detail": ["frames_used", 3]}]
    rows.append({**entry(0.3, 1, 2), "detail": {"frames_used": True, "frames_total": "9"}})
    assert summarize(rows, "clipscore", CLIP)["metrics"]["clipscore"]["frames"] == {"used": [8, 8], "total": [16, 16]}
