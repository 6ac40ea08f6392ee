"""report.html: whole, safe, small, and never broken by a missing file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reporting_runs import HOSTILE, image, picture_run, row, run_json, scored, write_run

from genmeter.report import charts
from genmeter.report.gather import BEST, WORST, Extremes, gather
from genmeter.report.html import write_report


class Page(HTMLParser):
    """Collects tags and attributes, and checks that what is opened is closed."""

    VOID = frozenset({"meta", "img", "br", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return picture_run(tmp_path_factory.mktemp("run"), 40)


@pytest.fixture(scope="module")
def text(run: Path) -> str:
    return write_report(run).read_text(encoding="utf-8")


def test_the_page_is_whole_and_asks_nobody(text: str) -> None:
    page = Page(text)
    assert page.open == []
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "iframe", "object", "embed", "form", "base"}
    for tag, attrs in page.tags:
        assert "style" not in attrs, tag
        assert not [name for name in attrs if name.startswith("on")], tag
        for name in ("src", "href", "srcset", "poster", "xlink:href"):
            value = attrs.get(name)
            assert value is None or value.startswith(("data:image/jpeg;base64,", "#")), (tag, name)
    assert "url(" not in text
    assert "@import" not in text


def test_the_content_policy_allows_the_page_and_nothing_else(text: str) -> None:
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1])
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy


def test_what_samples_say_is_text(text: str) -> None:
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_it_shows_numbers_reasons_and_pictures(run: Path, text: str) -> None:
    data = gather(run)
    metric = data.summary["metrics"]["lpips"]
    assert metric["signature"] in text
    for needed in (
        "decode_failed",
        "size_mismatch",
        "write it again",
        "alpha_composited",
        "450.6",
        "141.9",
        "run.json",
    ):
        assert needed in text, needed
    assert text.count("<img ") == 2 * 2 * (WORST + BEST)
    assert text.count('<svg class="chart"') == 2
    assert data.summary["snapshot"] in text


def test_worst_and_best_are_the_extremes(run: Path) -> None:
    data = gather(run)
    scores = np.sort(data.values["lpips"])
    found = data.extremes["lpips"]
    assert [s.score for s in found.worst] == list(scores[::-1][:WORST]), "of a distance the largest is worst"
    assert [s.score for s in found.best] == list(scores[:BEST])
    influences = np.sort(data.values["fvd"])
    assert [s.score for s in data.extremes["fvd"].worst] == list(influences[::-1][:WORST])


def test_higher_is_better_turns_them_round_and_small_runs_do_not_repeat(tmp_path: Path) -> None:
    clip = {**run_json()["metrics"]["lpips"], "higher_is_better": True}
    rows = [row(i, {**scored(i / 10), "higher_is_better": True}) for i in range(14)]
    data = gather(write_run(tmp_path / "a", rows, run_json(metrics={"lpips": clip})))
    assert [s.score for s in data.extremes["lpips"].worst] == [i / 10 for i in range(WORST)]
    assert [s.score for s in data.extremes["lpips"].best] == [1.3, 1.2]


def test_equal_scores_keep_the_first_lines_and_the_heap_stays_small() -> None:
    from genmeter.analysis.reader import Record

    found = Extremes(False)
    for line in range(1, 5001):
        found.add(0.5, Record(line, {}, {"id": str(line)}, {}), {})
    assert [s.line for s in found.worst] == list(range(1, WORST + 1))
    assert sum(len(heap) for heap in found._heaps) <= WORST + BEST


def one_picture(tmp_path: Path, **changes: Any) -> Path:
    digest = image(tmp_path / "out.png", 1)
    item = {"role": "prediction", "path": "output", "digest": digest, **changes}
    rows = [row(0, scored(0.5, inputs=[item]), output=changes.get("value", "out.png"))]
    return write_run(tmp_path / "run", rows, run_json(media_roots=[str(tmp_path)]))


def test_a_picture_is_shown(tmp_path: Path) -> None:
    assert write_report(one_picture(tmp_path)).read_text().count("<img ") == 1
    assert "<img " not in write_report(tmp_path / "run", thumbnails=False).read_text()


@pytest.mark.parametrize("trouble", ["gone", "changed", "outside", "link", "no digest", "not an image", "http", "fifo"])
def test_no_picture_rather_than_a_wrong_one_or_a_crash(tmp_path: Path, trouble: str) -> None:
    inside = tmp_path / "media"
    picture = inside / "out.png"
    digest = image(picture, 1)
    value: Any = "out.png"
    if trouble == "gone":
        picture.unlink()
    elif trouble == "changed":
        image(picture, 2)
    elif trouble == "outside":
        digest = image(tmp_path / "secret.png", 3)
        value = "../secret.png"
    elif trouble == "link":
        digest = image(tmp_path / "secret.png", 3)
        picture.unlink()
        picture.symlink_to(tmp_path / "secret.png")
    elif trouble == "no digest":
        digest = ""
    elif trouble == "not an image":
        picture.write_text("<html>not found</html>")
        digest = "sha256:" + hashlib.sha256(picture.read_bytes()).hexdigest()
    elif trouble == "http":
        value = "https://example.invalid/x.png"
    elif trouble == "fifo":
        import os

        picture.unlink()
        os.mkfifo(picture)
    item = {"role": "prediction", "path": "output", "digest": digest}
    rows = [row(0, scored(0.5, inputs=[item]), output=value)]
    folder = write_run(tmp_path / "run", rows, run_json(media_roots=[str(inside)]))
    text = write_report(folder).read_text()
    assert "<img " not in text
    assert "not shown" in text


def test_pictures_are_few_and_small(tmp_path: Path) -> None:
    from genmeter.report.thumbs import Thumbnails

    digest = image(tmp_path / "big.png", 1, (1200, 900))
    thumbs = Thumbnails([tmp_path], count=3)
    made = [thumbs.make("big.png", digest) for _ in range(5)]
    assert [bool(uri) for uri, _ in made] == [True] * 3 + [False] * 2
    assert len(made[0][0]) < 30_000
    assert Thumbnails([tmp_path], total=0).make("big.png", digest)[0] == ""


def test_a_run_without_scores_or_run_json(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [row(0, {"score": None, "error": {"code": "not_found", "message": "gone"}})])
    text = write_report(folder).read_text()
    assert "no score" in text
    assert not re.search(r"\bnan\b", text.lower())
    write_report(write_run(tmp_path / "b", []))
    with pytest.raises(ValueError, match="no such run"):
        write_report(tmp_path / "nowhere")


def test_where_it_is_written(tmp_path: Path, run: Path) -> None:
    assert write_report(run, tmp_path / "x" / "y.html").name == "y.html"
    assert write_report(run, tmp_path).name == "report.html"
    assert not list(tmp_path.glob(".*.tmp"))


def test_size_does_not_grow_with_the_run(tmp_path: Path) -> None:
    def size(count: int) -> int:
        rows = [row(i, scored((i * 7919 % 1000) / 1000)) for i in range(count)]
        return write_report(write_run(tmp_path / str(count), rows, run_json())).stat().st_size

    assert size(4000) < 1.15 * size(400)


def test_a_long_run_json_is_cut(tmp_path: Path) -> None:
    run = run_json(config={"x": [HOSTILE] * 20_000})
    assert write_report(write_run(tmp_path / "a", [row(0, scored(0.5))], run)).stat().st_size < 400_000


@pytest.mark.parametrize(
    "values",
    [
        [0.5],
        [0.5] * 100,
        [0.0, 0.0],
        [1e-300, 2e-300],
        [-1e308, 1e308],
        [1.0, 1.0 + 1e-15],
        list(np.random.default_rng(0).normal(size=5000)),
        [0.0] * 1000 + [1e9],
    ],
)
def test_charts_of_any_values(values: list[float]) -> None:
    x = np.array(values)
    counts, _ = charts.bins(x)
    assert counts.sum() == len(x)
    assert len(counts) <= 40
    drawn = str(charts.histogram(x, float(x.mean()), None, "x"))
    assert "nan" not in drawn
    assert "inf" not in drawn
    Page(drawn)


def test_ticks_are_round_and_inside() -> None:
    for low, high in ((0.0, 1.0), (-27.3, 24.4), (0.0123, 0.0129), (1e5, 3e6)):
        found = charts.ticks(low, high)
        assert 3 <= len(found) <= 11
        assert all(low - 1e-9 * abs(low) <= t <= high + 1e-9 * abs(high) for t in found)


def test_run_json_is_shown_as_it_is(run: Path, text: str) -> None:
    shown = html.unescape(re.search(r"<pre>(.*?)</pre>", text, re.DOTALL)[1])
    assert json.loads(shown) == json.loads((run / "run.json").read_text())
