"""The tables people read and paste."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from reporting_runs import CLIP, FVD, HOSTILE, LPIPS, failed, picture_run, row, run_json, scored

from genmeter.analysis.summary import SummaryBuilder, summarize_run
from genmeter.report.tables import FORMATS, print_summary, render
from genmeter.report.text import clean, decimals, format_mean, format_range, format_value


def build(rows: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    builder = SummaryBuilder(run_json(**changes))
    for item in rows:
        builder.add(item["eval_result"], item)
    return builder.build()


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return summarize_run(picture_run(tmp_path_factory.mktemp("run"), 30))


def test_the_table_says_what_a_newcomer_needs(summary: dict[str, Any]) -> None:
    text = render([summary])
    metric = summary["metrics"]["lpips"]
    for needed in (
        "lpips",
        "alex-v0.1",
        "lower",
        format_mean(metric["mean"], metric["interval95"]),
        f"{metric['n']['scored']} of 31",
        "decode_failed",
        "write it again",
        "line 5, id edit-0004",
        "alpha_composited",
        "450.6",
        metric["signature"],
        summary["metrics"]["fvd"]["signature"],
    ):
        assert needed in text, needed


def test_the_table_fits_80_columns_and_signatures_stay_whole(summary: dict[str, Any]) -> None:
    text = render([summary])
    assert max(len(line) for line in text.splitlines() if "genmeter:" not in line) <= 80
    long = build(
        [row(0, scored(0.5))], metrics={"clipscore@openai-vit-l-14/torchmetrics": {**CLIP, "variant": "v" * 60}}
    )
    text = render([long])
    assert max(len(line) for line in text.splitlines() if "genmeter:" not in line) <= 80
    assert long["metrics"]["clipscore@openai-vit-l-14/torchmetrics"]["signature"] in text


def test_nothing_that_comes_from_samples_reaches_the_terminal_raw() -> None:
    bad = failed("not_found", f"no {HOSTILE}\r\n[bold]x[/bold]", asset=HOSTILE, hint=HOSTILE)
    rows = [row(0, bad, data_tag={HOSTILE: HOSTILE}), row(1, scored(0.5), data_tag={HOSTILE: "b"})]
    rows[0]["id"] = HOSTILE
    found = build(rows, name=HOSTILE)
    for fmt in FORMATS:
        if fmt == "json":
            continue  # JSON escapes control characters itself
        text = render([found], fmt)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "\r" not in text
    assert "[bold]x[/bold]" in render([found]), "markup of others is shown, not obeyed"


def test_all_failed_shows_no_number() -> None:
    text = render([build([row(i, failed("weights_unavailable")) for i in range(3)])])
    assert "no score" in text
    assert "0 of 3" in text
    assert "genmeter models fetch" in text
    assert "nan" not in text.lower()
    assert "0.0" not in text.replace("alex-v0.1", "").replace("v:0.1.0", "")


def test_several_runs_side_by_side(summary: dict[str, Any]) -> None:
    other = build([row(0, scored(0.5))], name="flux", snapshot="sha256:other")
    text = render([summary, other])
    assert "sdxl" in text
    assert "flux" in text
    assert "cannot be compared" in text
    assert "cannot be compared" not in render([other, other])


def test_a_plain_terminal_gets_plain_signs(summary: dict[str, Any]) -> None:
    from rich.console import Console

    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="strict")
    print_summary(summary, Console(file=stream, width=80), run_dir="runs/é")
    stream.flush()
    text = raw.getvalue().decode("ascii")
    assert "+/-" in text
    assert "\x1b" not in text


def test_csv_is_complete_and_exact(summary: dict[str, Any]) -> None:
    rows = list(csv.DictReader(io.StringIO(render([summary], "csv"))))
    first = next(r for r in rows if r["metric"] == "lpips" and not r["group"])
    metric = summary["metrics"]["lpips"]
    assert float(first["value"]) == metric["mean"]
    assert float(first["interval95_low"]) == metric["interval95"][0]
    assert int(first["n_failed"]) == metric["n"]["n_failed"]
    assert "decode_failed=" in first["failed"]
    assert {r["bucket"] for r in rows if r["group"] == "data_tag.difficulty" and r["metric"] == "lpips"} == {"0", "1"}
    fvd = next(r for r in rows if r["metric"] == "fvd")
    assert float(fvd["value"]) == 450.6


def test_csv_holds_no_formula() -> None:
    found = build([row(0, scored(0.5), data_tag={"t": "=cmd|' /C calc'!A0"})], name="@SUM(A1)")
    cells = [cell for line in csv.reader(io.StringIO(render([found], "csv"))) for cell in line]
    assert not [cell for cell in cells if cell[:1] in ("=", "@", "+")]


def test_csv_of_a_metric_without_scores_is_empty_not_zero() -> None:
    (only,) = [
        r for r in csv.DictReader(io.StringIO(render([build([row(0, failed("not_found"))])], "csv"))) if not r["group"]
    ]
    assert only["value"] == only["sem"] == only["median"] == ""


def test_json_is_the_summary(summary: dict[str, Any]) -> None:
    assert json.loads(render([summary], "json")) == summary
    several = json.loads(render([summary, summary], "json"))
    assert several["runs"] == [summary, summary]


def test_markdown_and_latex_escape_names() -> None:
    found = build([row(0, scored(0.5)), row(1, scored(0.7))], name="a|b_c & 50% #1 \\input{x} <b>")
    markdown = render([found, found], "md")
    table = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    assert "\\<b\\>" in markdown
    latex = render([found, found], "latex")
    assert r"a|b\_c \& 50\% \#1 \textbackslash{}input\{x\}" in latex
    assert r"lpips $\downarrow$" in latex
    assert "% genmeter:lpips|" in latex


def test_groups_that_were_asked_for_are_shown_even_when_large() -> None:
    rows = [row(i, scored(i / 100), data_tag={"many": f"bucket-{i % 30:02d}"}) for i in range(60)]
    builders = [SummaryBuilder(run_json(), group_by) for group_by in ((), ("data_tag.many",))]
    for builder in builders:
        for item in rows:
            builder.add(item["eval_result"], item)
    silent, asked = (render([builder.build()]) for builder in builders)
    assert "bucket-07" not in silent
    assert "More groups in summary.json: data_tag.many" in silent
    assert "bucket-07" in asked


def test_an_unknown_format_is_refused(summary: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected one of"):
        render([summary], "xml")


@pytest.mark.parametrize(
    ("mean", "interval", "expected"),
    [
        (0.23104, [0.2268, 0.2352], "0.2310 ± 0.0042"),
        (450.63, [400.0, 501.26], "451 ± 51"),
        (0.5, None, "0.5000"),
        (0.0, [0.0, 0.0], "0.0000 ± 0.0000"),
        (1e-7, [0.9e-7, 1.1e-7], "0.000000 ± 0.000000"),
        (None, None, ""),
        (12345.6, [12000, 12691.2], "12346 ± 346"),
        (0.36, [-4.63, 5.35], "0.36 ± 4.99"),
        (1e-9, [-0.1, 0.1], "0.0000 ± 0.1000"),
    ],
)
def test_means_are_rounded_to_what_the_interval_supports(mean: Any, interval: Any, expected: str) -> None:
    assert format_mean(mean, interval) == expected


def test_small_words() -> None:
    assert format_value(None) == ""
    assert format_value(1234.5678) == "1235"
    assert decimals(0.0, None) == 4
    assert [format_range(r) for r in ([0, None], [None, 1], [0, 2.5], [None, None], None)] == [
        "0 and up",
        "up to 1",
        "0 to 2.5",
        "",
        "",
    ]
    assert clean("a\x1b[31mb\u200bc\nd") == "a[31mbc d"
    assert clean("x" * 400, 10) == "x" * 9 + "…"


def test_every_code_has_advice() -> None:
    from genmeter.errors import CODES
    from genmeter.report.text import ADVICE

    assert set(ADVICE) == set(CODES)


def test_set_metrics_of_the_wrong_size_are_told(tmp_path: Path) -> None:
    entry = {**scored(10.0, variant=FVD["variant"], scope="set", set="all"), "flags": ["bias_dominates"]}
    found = build([row(0, entry, "fvd")], metrics={"fvd": FVD, "lpips": LPIPS})
    text = " ".join(render([found]).split())
    assert "equal N" in text
    assert "does not apply" in text, "a metric that no sample asked for is not passed over in silence"


@pytest.mark.parametrize("fmt", ["table", "md", "latex"])
def test_runs_over_different_sets_are_not_comparable_and_say_so(fmt: str) -> None:
    def text(*summaries: dict[str, Any]) -> str:
        return " ".join(render(summaries, fmt).split())

    one, other = build([row(0, scored(0.5))]), build([row(0, failed("not_found"))], name="b")
    assert "cannot be compared" not in text(one, other)
    other["snapshot"] = "sha256:" + "f" * 64
    assert "their means cannot be compared" in text(one, other)
    assert re.search(r"b: lpips: nothing could be scored", text(one, other)), "a note says which run it is about"
