"""report.html: whole, safe, small, and never broken by a missing file."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import re
import wave
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
    assert not names & {"link", "iframe", "object", "embed", "form", "base"}
    assert [attrs for tag, attrs in page.tags if tag == "script"] == [{}], "one script, in the page itself"
    for tag, attrs in page.tags:
        assert "style" not in attrs, tag
        assert not [name for name in attrs if name.startswith("on")], tag
        for name in ("src", "href", "srcset", "poster", "xlink:href"):
            value = attrs.get(name)
            allowed = ("data:image/jpeg;base64,", "data:audio/", "data:video/", "#")
            assert value is None or value.startswith(allowed), (tag, name)
    assert "url(" not in text
    assert "@import" not in text


def test_the_content_policy_allows_the_page_and_nothing_else(text: str) -> None:
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1])
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        [content] = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_what_samples_say_is_text(text: str) -> None:
    assert text.count("<script") == 1
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
    gallery = len(data.gallery())
    assert 36 <= gallery < 40, "a run of 40 is not shown whole; its ends are"
    shown = 2 * 2 * (WORST + BEST) + sum(len(sample.every) for sample in data.gallery())
    assert text.count("<img ") + text.count('class="missing"') == shown
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
    assert write_report(one_picture(tmp_path)).read_text().count("<img ") == 2, "among the worst, and in the gallery"
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
    made = [thumbs.show("big.png", digest) for _ in range(5)]
    assert [bool(shown.src) for shown in made] == [True] * 3 + [False] * 2
    assert len(made[0].src) < 30_000
    assert Thumbnails([tmp_path], total=0).show("big.png", digest).src == ""


def gallery_of(text: str) -> list[dict[str, str | None]]:
    return [attrs for _, attrs in Page(text).tags if "data-line" in attrs]


def test_the_gallery_has_every_score_to_sort_by(run: Path, text: str) -> None:
    data = gather(run)
    shots = gallery_of(text)
    assert [int(shot["data-line"] or 0) for shot in shots] == [shown.line for shown in data.gallery()]
    names = list(data.summary["metrics"])
    for shot, shown in zip(shots, data.gallery(), strict=True):
        for index, name in enumerate(names):
            score = shown.scores.get(name, "bad_line")
            found = shot.get(f"data-m{index}")
            assert (found is None) == isinstance(score, str), "no score, nothing to sort by"
            assert found is None or float(found) == score
    assert "decode_failed" in {score for shown in data.gallery() for score in shown.scores.values()}


def test_the_gallery_is_a_bounded_cross_section_and_the_same_each_time(tmp_path: Path) -> None:
    rows = [row(i, scored(i / 1000)) for i in range(2000)]
    folder = write_run(tmp_path / "a", rows, run_json())
    first, second = gather(folder).gallery(), gather(folder).gallery()
    assert [s.line for s in first] == [s.line for s in second]
    assert {2000, 1999, 1998, 1, 2, 3} <= {s.line for s in first}, "the ends of the metric"
    assert len(first) == 36 + 6
    middle = [s.line for s in first if 3 < s.line < 1998]
    assert 700 < float(np.mean(middle)) < 1300, "drawn from all of the run"


def tone(path: Path, seconds: float = 1.0, rate: int = 16_000) -> str:
    values = (np.sin(np.arange(int(seconds * rate)) * 0.2) * 9000).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(values.tobytes())
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def played(uri: str) -> np.ndarray:
    """What a browser would get: the first stream of a data: URI, decoded."""
    import av

    with av.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as file:
        return np.concatenate([frame.to_ndarray().ravel() for frame in file.decode(file.streams[0])])


def test_sounds_are_played_and_long_ones_say_what_is_left_out(tmp_path: Path) -> None:
    from genmeter.report.thumbs import Thumbnails

    short, long = tone(tmp_path / "short.wav"), tone(tmp_path / "long.wav", 15.0)
    with Thumbnails([tmp_path]) as thumbs:
        one, two = thumbs.show("short.wav", short), thumbs.show("long.wav", long)
    assert (one.kind, one.note) == ("audio", "")
    assert np.std(played(one.src)) == pytest.approx(9000 / 32768 / np.sqrt(2), rel=0.1)
    assert two.note == "the first 12 of 15 s"
    assert 12 * 32_000 <= len(played(two.src)) < 12.3 * 32_000
    assert len(two.src) < 200_000


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


@pytest.mark.parametrize("size", [(64, 96), (31, 47), (1, 1), (300, 400)])
def test_video_frames_become_a_small_clip_that_lasts_as_long(size: tuple[int, int]) -> None:
    import av

    from genmeter.contract import VideoMedia
    from genmeter.report.players import encode_video

    grey = np.linspace(40, 200, 12).astype(np.uint8)
    frames = np.broadcast_to(grey[:, None, None, None], (12, *size, 3)).copy()
    media = VideoMedia(frames, np.arange(12) / 6, (), {"frames_total": 120, "duration_s": 2.0})
    src, note = encode_video(media)
    assert note == "12 of 120 frames"
    with av.open(io.BytesIO(base64.b64decode(src.partition(",")[2]))) as file:
        found = [frame.to_ndarray(format="gray") for frame in file.decode(video=0)]
        assert float(file.duration) / av.time_base == pytest.approx(2.0, abs=0.2)
    assert len(found) == 12
    assert max(found[0].shape) <= 208
    np.testing.assert_allclose([f.mean() for f in found], grey, atol=16)
