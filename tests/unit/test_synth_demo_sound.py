"""The text-to-audio part of the demo data: every case on disk is what its line says it is."""

from __future__ import annotations

import json
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genmeter.synth import sounds
from genmeter.synth.demo import write_demo
from genmeter.synth.sound import render
from genmeter.synth.sound_scene import SoundScene, make_sound
from genmeter.synth.sounds import CASES, RATE, SECONDS
from genmeter.synth.wav import read_wav
from genmeter.synth.words_sound import caption

Line = dict[str, Any]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Line]]:
    path = write_demo(tmp_path_factory.mktemp("demo"), n=len(CASES), tasks=["text-to-audio"])
    return path.parent, [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def url(line: Line, role: str) -> str:
    content = {"reference": line["references"][0]["answer"], "output": line["predict_result"][0]["message"]["content"]}
    return str(content[role][0]["audio_url"]["url"])


def text(line: Line) -> str:
    return str(line["messages"][0]["content"][0]["text"])


def asked(index: int) -> SoundScene:
    """The sound that the prompt of a line describes."""
    seed = 600_011 + index
    while CASES[index].match == "order" and len(make_sound(seed).events) == 1:
        seed += 100_003
    return make_sound(seed)


def by_match(demo: tuple[Path, list[Line]], *matches: str) -> list[tuple[int, Path, Line]]:
    folder, lines = demo
    return [
        (i, folder / url(line, "output"), line) for i, line in enumerate(lines) if line["data_tag"]["match"] in matches
    ]


def test_samples_follow_the_standard(demo: tuple[Path, list[Line]]) -> None:
    folder, lines = demo
    assert len({line["id"] for line in lines}) == len(CASES)
    for index, line in enumerate(lines):
        case = CASES[index]
        assert (line["schema_version"], line["task_type"]) == ("v1", "text-to-audio")
        assert line["eval_config"] == {"metrics": ["clapscore", "clap_a"]}
        assert line["data_tag"] == {"match": case.match, "strength": case.strength, "language": case.language}
        assert text(line) == ("" if case.match == "no_prompt" else caption(asked(index), case.language))
        assert url(line, "output").startswith("outputs/")
        samples, rate = read_wav(folder / url(line, "reference"))
        assert (samples.shape, rate) == ((round(RATE * SECONDS), 1), RATE)
        # Another take: the same description, not the same samples.
        take = render(replace(asked(index), seed=asked(index).seed + 800_003), RATE, SECONDS)
        assert np.abs(samples[:, 0] - take).max() < 1e-4
    assert {case.language for case in CASES if case.strength == "good"} == {"en", "zh"}
    assert {case.strength for case in CASES} == {"good", "mild", "strong", "wrong", "broken"}


def test_good_outputs_are_the_sound_asked_for(demo: tuple[Path, list[Line]]) -> None:
    rates = set()
    for index, path, _ in by_match(demo, "matching", "no_prompt"):
        case = CASES[index]
        samples, rate = read_wav(path)
        assert (rate, samples.shape[1]) == (case.rate, case.channels)
        assert np.abs(samples - render(asked(index), case.rate, SECONDS)[:, None]).max() < 1e-4
        rates.add((case.rate, case.channels))
    assert len(rates) >= 5
    assert (44_100, 2) in rates


def test_damaged_outputs_are_damaged_more_or_less(demo: tuple[Path, list[Line]]) -> None:
    found = by_match(demo, *sounds.DEGRADATIONS)
    assert {line["data_tag"]["strength"] for _, _, line in found} == {"mild", "strong"}
    for index, path, _ in found:
        samples, rate = read_wav(path)
        assert np.abs(samples[:, 0] - render(asked(index), rate, SECONDS)).mean() > 1e-4


def test_wrong_outputs_are_intact_sounds_of_something_else(demo: tuple[Path, list[Line]]) -> None:
    for index, path, line in by_match(demo, "unrelated", "one_field", "order"):
        match, scene = line["data_tag"]["match"], asked(index)
        other = sounds.shown(scene, match)
        assert other.events != scene.events
        if match == "order":
            assert other.events == scene.events[::-1]
            assert len(other.events) == 2
        samples, rate = read_wav(path)
        assert np.abs(samples[:, 0] - render(other, rate, SECONDS)).max() < 1e-4
    ((_, path, _),) = by_match(demo, "silence")
    assert not read_wav(path)[0].any()


def test_broken_outputs_cannot_be_read(demo: tuple[Path, list[Line]]) -> None:
    ((_, path, _),) = by_match(demo, "truncated")
    with wave.open(str(path)) as file:
        assert file.getnframes() == round(RATE * SECONDS)
        assert len(file.readframes(file.getnframes())) < 0.7 * 2 * file.getnframes()
    ((_, path, _),) = by_match(demo, "empty")
    assert path.read_bytes() == b""
    ((_, path, _),) = by_match(demo, "missing")
    assert not path.exists()


def test_equal_arguments_write_equal_files(tmp_path: Path) -> None:
    folders = [write_demo(tmp_path / name, n=8, tasks=["text-to-audio"]).parent for name in ("a", "b")]
    names = sorted(p.relative_to(folders[0]) for p in folders[0].rglob("*") if p.is_file())
    assert len(names) > 16
    assert all((folders[0] / name).read_bytes() == (folders[1] / name).read_bytes() for name in names)
    other = write_demo(tmp_path / "c", n=8, seed=1, tasks=["text-to-audio"])
    assert other.read_bytes() != (folders[0] / "samples.jsonl").read_bytes()
