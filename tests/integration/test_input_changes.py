"""An input that changes under a run: lines and results never get mixed up, and nothing half right is published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import genmeter
from genmeter.api import Observer
from genmeter.inputs.lines import InputChanged
from genmeter.inputs.source import open_source


def rewrite(path: Path, change: Any) -> None:
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


CHANGES = {
    "swapped": lambda lines: lines.reverse(),
    "one id": lambda lines: lines[1].update(id="other"),
    "made bad": lambda lines: lines[1].update(prompt=3),
    "cut": lambda lines: lines.pop(),
    "one before": lambda lines: lines.insert(0, {"id": "new", "output": "out/0.png"}),
}


class At(Observer):
    """Does something at one moment of a run."""

    def __init__(self, moment: str, action: Any) -> None:
        setattr(self, moment, lambda *args: action())


def score(data: Path, out: Path, **options: Any) -> Any:
    return genmeter.score(data, ["fake_level"], out=out, report=False, cache=False, device="cpu", **options)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_source_says_at_the_end_of_a_pass_that_it_is_another_one(grey_set: Any, change: Any) -> None:
    path = grey_set([10, 20, 30])
    source = open_source([path])
    assert source.count == 3
    assert [line.sample["id"] for line in source if line.sample] == ["s0", "s1", "s2"]
    rewrite(path, change)
    for known in (None, lambda index: True):
        with pytest.raises(InputChanged, match=r"changed while it was being scored.*--fresh"):
            list(source.lines(known))


def test_known_lines_are_not_checked_again(grey_set: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from genmeter.schema import forms

    path = grey_set([10, 20, 30])
    rewrite(path, lambda lines: [line.update(metadata={"by": "hand"}) for line in lines] + [lines[2].update(prompt=3)])
    source = open_source([path])
    first = list(source)
    checked: list[str] = []
    real = forms._checked
    monkeypatch.setattr(forms, "_checked", lambda sample: checked.append(sample["id"]) or real(sample))
    again = list(source.lines(lambda index: index == 0))
    assert again[:2] == first[:2]
    assert str(again[2].error) == str(first[2].error) != "None"
    assert checked == ["s1"]  # of the third it is known before that its prompt is none


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_while_rows_are_written(grey_set: Any, tmp_path: Path, change: Any) -> None:
    """Every cell is right by then, so that the run goes on when the file is as it was."""
    path, out = grey_set([10, 20, 30]), tmp_path / "run"
    before = path.read_text("utf-8")
    with pytest.raises(ValueError, match="changed while it was being scored"):
        score(path, out, observer=At("writing", lambda: rewrite(path, change)))
    assert not (out / "samples.jsonl").exists()
    assert not (out / "summary.json").exists()
    with pytest.raises(ValueError, match="the input's content"):
        score(path, out)
    path.write_text(before, "utf-8")
    assert score(path, out).summary["metrics"]["fake_level"]["mean"] == 20


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_while_it_was_scored(grey_set: Any, tmp_path: Path, change: Any) -> None:
    """Some cells may be those of other lines, so nothing is built on them even when the file is as it was."""
    path, out = grey_set([10, 20, 30]), tmp_path / "run"
    before = path.read_text("utf-8")
    with pytest.raises(ValueError, match="changed while it was being scored"):
        score(path, out, observer=At("started", lambda: rewrite(path, change)))
    assert not (out / "samples.jsonl").exists()
    path.write_text(before, "utf-8")
    with pytest.raises(ValueError, match="--fresh"):
        score(path, out)
    assert score(path, out, fresh=True).summary["metrics"]["fake_level"]["mean"] == 20


def test_lines_that_are_added_meanwhile_are_left_out(grey_set: Any, tmp_path: Path) -> None:
    path, out = grey_set([10, 20, 30]), tmp_path / "run"

    def add() -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"id": "late", "output": "out/0.png"}) + "\n")

    result = score(path, out, observer=At("started", add))
    assert [sample["id"] for sample in result.samples] == ["s0", "s1", "s2"]
