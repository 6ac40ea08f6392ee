"""The demo data: every case on disk is what its line says it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from genmeter.synth.demo import write_demo
from genmeter.synth.edits import CASES, HEIGHT, WIDTH


def read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Samples by line, and how many lines are no JSON."""
    samples, bad = [], 0
    for line in path.read_bytes().decode("utf-8").rstrip("\n").split("\n"):
        try:
            samples.append(json.loads(line))
        except json.JSONDecodeError:
            bad += 1
    return samples, bad


def url(sample: dict[str, Any], role: str) -> str:
    content = {
        "input": sample["messages"][0]["content"],
        "reference": sample["references"][0]["answer"],
        "output": sample["predict_result"][0]["message"]["content"],
    }[role]
    return str(next(f["image_url"]["url"] for f in content if f["type"] == "image_url"))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    path = write_demo(tmp_path_factory.mktemp("demo"), tasks=["image-to-image"])
    samples, bad = read(path)
    assert len(samples) + bad == 24
    assert bad == 1
    return path.parent, {f"{s['data_tag']['strength']}/{s['data_tag']['degradation']}": s for s in samples}


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB")).astype(int)


def test_samples_follow_the_standard(demo: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    folder, samples = demo
    assert len({s["id"] for s in samples.values()}) == 23
    for sample in samples.values():
        assert sample["schema_version"] == "v1"
        assert sample["task_type"] == "image-to-image"
        assert "eval_config" not in sample
        assert "eval_result" not in sample
        for role, part in (("input", "inputs"), ("reference", "references"), ("output", "outputs")):
            assert Path(url(sample, role)).parts[0] == part
        for role in ("input", "reference"):
            assert pixels(folder / url(sample, role)).shape == (HEIGHT, WIDTH, 3)


def test_good_outputs_are_close_to_their_reference(demo: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    folder, samples = demo
    for detail in ("nearly", "exif", "rgba"):
        sample = samples[f"good/{detail}"]
        difference = np.abs(pixels(folder / url(sample, "output")) - pixels(folder / url(sample, "reference")))
        assert difference.mean() < 2, detail
    same = samples["good/identical"]
    assert (folder / url(same, "output")).read_bytes() == (folder / url(same, "reference")).read_bytes()


def test_strong_damage_is_more_than_mild(demo: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    folder, samples = demo
    for kind in ("blur", "noise", "jpeg", "colour", "downscale"):
        mild, strong = (
            np.abs(pixels(folder / url(s, "output")) - pixels(folder / url(s, "reference"))).mean()
            for s in (samples[f"mild/{kind}"], samples[f"strong/{kind}"])
        )
        assert 0 < mild < strong, kind


def test_special_files_are_special(demo: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    folder, samples = demo

    def output(case: str) -> Path:
        return folder / url(samples[case], "output")

    with Image.open(output("good/exif")) as image:
        assert image.getexif()[0x0112] == 6
        assert image.size == (HEIGHT, WIDTH)
    with Image.open(output("good/rgba")) as image:
        assert image.mode == "RGBA"
        assert image.getchannel("A").getextrema()[0] < 255
    assert pixels(output("broken/size")).shape != (HEIGHT, WIDTH, 3)
    assert output("broken/empty").read_bytes() == b""
    assert output("broken/html").read_bytes().lstrip().lower().startswith(b"<!doctype html")
    assert not output("broken/missing").exists()
    with Image.open(output("broken/truncated")) as image, pytest.raises((OSError, SyntaxError)):
        image.load()
    unedited = samples["wrong/unedited"]
    assert np.array_equal(pixels(output("wrong/unedited")), pixels(folder / url(unedited, "input")))


def test_equal_arguments_write_equal_files_over_old_ones(tmp_path: Path) -> None:
    first = write_demo(tmp_path / "a")
    (tmp_path / "b" / "outputs").mkdir(parents=True)
    for name in ("edit-0012.png", "edit-0003.png"):
        (tmp_path / "b" / "outputs" / name).write_bytes(b"left over")
    second = write_demo(tmp_path / "b")
    files = [sorted(p.relative_to(f.parent) for p in f.parent.rglob("*") if p.is_file()) for f in (first, second)]
    assert files[0] == files[1]
    assert all((first.parent / name).read_bytes() == (second.parent / name).read_bytes() for name in files[0])


def test_seeds_and_lengths(tmp_path: Path) -> None:
    edits = ["image-to-image"]
    short = write_demo(tmp_path / "short", n=3, tasks=edits)
    other = write_demo(tmp_path / "other", n=3, seed=1, tasks=edits)
    long = write_demo(tmp_path / "long", n=len(CASES) + 5, tasks=edits)
    assert short.read_text().splitlines() == long.read_text().splitlines()[:3]
    assert short.read_text() != other.read_text()
    samples, bad = read(long)
    assert len(samples) + bad == len(CASES) + 5
    assert len({url(s, "output") for s in samples}) == len(samples)


def test_pictures_follow_their_captions_or_do_not(tmp_path: Path) -> None:
    from genmeter.synth import pictures
    from genmeter.synth.draw import draw
    from genmeter.synth.scene import make_scene
    from genmeter.synth.words import caption

    path = write_demo(tmp_path, n=len(pictures.CASES), tasks=["text-to-image"])
    samples, bad = read(path)
    assert bad == 0
    for index, (case, sample) in enumerate(zip(pictures.CASES, samples, strict=True)):
        scene = make_scene(300_007 + index)
        text = sample["messages"][0]["content"][0]["text"]
        output = path.parent / sample["predict_result"][0]["message"]["content"][0]["image_url"]["url"]
        assert text == ("" if case.match == "no_prompt" else caption(scene, case.language))
        if case.match == "truncated":
            with Image.open(output) as image, pytest.raises((OSError, SyntaxError)):
                image.load()
            continue
        difference = np.abs(pixels(output) - draw(scene, WIDTH, HEIGHT)).mean()
        assert (difference == 0) == (case.match in ("matching", "no_prompt")), case
    assert {case.language for case in pictures.CASES if case.match == "matching"} == {"en", "zh"}


def test_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="n must be"):
        write_demo(tmp_path, n=0)
    with pytest.raises(ValueError, match=r"'text-to-smell'.*image-to-image"):
        write_demo(tmp_path, tasks=["text-to-smell"])
