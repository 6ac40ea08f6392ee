"""Folders as benchmarks lay them out, and ``--match``: rebuilt here, read back as samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from genmeter.inputs.source import open_source


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def samples(root: Path, **options: Any) -> dict[str, tuple[str | None, list[str], list[str]]]:
    """Prompt, outputs and references of each sample, by id."""
    found = {}
    for line in open_source([root], **options):
        assert line.error is None, line.error
        assert line.record is not None
        record = line.record
        outputs = record["output"] if isinstance(record["output"], list) else [record["output"]]
        references = record.get("reference") or []
        names = [Path(r).name for r in ([references] if isinstance(references, str) else references)]
        found[record["id"]] = (record.get("prompt"), outputs, names)
    return found


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    root = tmp_path / "outputs"
    root.mkdir()
    return root


def test_geneval(outputs: Path) -> None:
    for index, (prompt, tag) in enumerate(
        (("a photo of a bench", "single_object"), ("a photo of two cats", "counting"))
    ):
        folder = f"{index:05d}"
        touch(outputs, *(f"{folder}/samples/{n:04d}.png" for n in range(4)), f"{folder}/grid.png")
        (outputs / folder / "metadata.jsonl").write_text(json.dumps({"tag": tag, "include": [], "prompt": prompt}))
    found = samples(outputs)
    assert found["00001"] == ("a photo of two cats", [f"00001/samples/{n:04d}.png" for n in range(4)], [])
    source = open_source([outputs])
    assert any("geneval: 8 outputs of 2 prompts" in note for note in source.notes)
    record = next(iter(source)).record
    assert record is not None
    assert record["data_tag"] == {"tag": "single_object"}
    assert samples(outputs, layout="geneval") == found


def test_t2i_compbench(outputs: Path) -> None:
    touch(outputs, "a red apple and a green bench_000000.png", "a blue cat_000001.png", "a blue cat_000002.png")
    assert samples(outputs) == {
        "a blue cat": ("a blue cat", ["a blue cat_000001.png", "a blue cat_000002.png"], []),
        "a red apple and a green bench": (
            "a red apple and a green bench",
            ["a red apple and a green bench_000000.png"],
            [],
        ),
    }


def test_vbench(outputs: Path) -> None:
    touch(outputs, *(f"a person is walking-{n}.mp4" for n in range(5)), "a well-lit room-0.mp4")
    found = samples(outputs)
    assert [len(names) for _, names, _ in found.values()] == [5, 1]
    assert found["a well-lit room"][0] == "a well-lit room"


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_imagefolder(outputs: Path, kind: str) -> None:
    touch(outputs, "train/1.png", "train/2.png", "train/3.png")
    rows = [{"file_name": f"train/{n}.png", "text": f'the "{n}", one', "label": n} for n in (1, 2)]
    if kind == "csv":
        lines = ["file_name,text,label", *(f'train/{n}.png,"the ""{n}"", one",{n}' for n in (1, 2))]
        (outputs / "metadata.csv").write_text("\n".join(lines))
    else:
        (outputs / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert samples(outputs) == {f"train/{n}": (f'the "{n}", one', [f"train/{n}.png"], []) for n in (1, 2)}
    assert any("1 files left out" in note and "train/3.png" in note for note in open_source([outputs]).notes)
    assert len(samples(outputs, layout="none")) == 3


def test_audioldm_lists(outputs: Path, tmp_path: Path) -> None:
    touch(outputs, "Y1.wav", "Y2.wav", "Y3.wav")
    file = tmp_path / "test.json"
    entries = [{"wav": f"/data/audiocaps/Y{n}.wav", "caption": f"rain {n}", "labels": "/m/0"} for n in (1, 2, 4)]
    file.write_text(json.dumps({"data": entries}))
    assert samples(outputs, prompts=file)["Y2"] == ("rain 2", ["Y2.wav"], [])
    notes = " ".join(open_source([outputs], prompts=file).notes)
    assert "2 of 3 outputs have a prompt" in notes
    assert "1 of 3 prompts have no output" in notes


def test_a_folder_of_its_own_kind_is_no_layout(outputs: Path) -> None:
    touch(outputs, "a_000000.png", "img-1.png", "cat and dog_000001.jpg")
    assert set(samples(outputs)) == {"a_000000", "img-1", "cat and dog_000001"}
    with pytest.raises(ValueError, match=r"vbench: expected videos named .* found for example 'a_000000"):
        open_source([outputs], layout="vbench")
    with pytest.raises(ValueError, match="geneval, imagefolder"):
        open_source([outputs], layout="mine")


def test_match_by_id_makes_candidates(outputs: Path, tmp_path: Path) -> None:
    touch(outputs, "cat_0.png", "cat_1.png", "dog_0.png", "run_7.png", "sub/bird-0.png")
    touch(tmp_path / "references", "cat.jpg", "dog.jpg", "cow.jpg")
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"id": "cat", "prompt": "a cat"}, {"id": "run_7", "prompt": "seventh"}, {"id": "fish", "prompt": "f"}]
    prompts.write_text("\n".join(map(json.dumps, rows)))
    options = {"match": "id", "prompts": prompts, "references": tmp_path / "references"}
    assert samples(outputs, **options) == {
        "cat": ("a cat", ["cat_0.png", "cat_1.png"], ["cat.jpg"]),
        "dog": (None, ["dog_0.png"], ["dog.jpg"]),
        "run_7": ("seventh", ["run_7.png"], []),
        "bird-0": (None, ["sub/bird-0.png"], []),
    }
    notes = " ".join(open_source([outputs], **options).notes)  # type: ignore[arg-type]
    assert "2 of 4 samples have a prompt (2 not" in notes
    assert "1 of 3 prompts have no output, the first: 'fish'" in notes
    assert "1 of 3 references have no output, the first: 'cow'" in notes


def test_match_by_prompt(outputs: Path, tmp_path: Path) -> None:
    touch(outputs, "A_red_apple,_on_a_table_0.png", "a-red-apple on a table_1.png", "a_blue_cat.png")
    file = tmp_path / "prompts.txt"
    file.write_text("A red apple, on a table!\na blue cat\na dog\n")
    found = samples(outputs, match="prompt", prompts=file)
    assert {prompt: len(names) for prompt, names, _ in found.values()} == {
        "A red apple, on a table!": 2,
        "a blue cat": 1,
    }
    alone = samples(outputs, match="prompt")
    assert "a blue cat" in {prompt for prompt, _, _ in alone.values()}


def test_match_by_expression(outputs: Path, tmp_path: Path) -> None:
    touch(outputs, "run1/img_0007_seed3.png", "run2/img_0007_seed4.png", "run1/img_0008_seed3.png", "notes/cover.png")
    touch(tmp_path / "references", "gt_0007.png", "gt_0009.png")
    options: dict[str, Any] = {"match": r"_([0-9]{4})", "references": tmp_path / "references"}
    assert samples(outputs, **options) == {
        "0007": (None, ["run1/img_0007_seed3.png", "run2/img_0007_seed4.png"], ["gt_0007.png"]),
        "0008": (None, ["run1/img_0008_seed3.png"], []),
    }
    assert any("1 files left out" in note and "cover" in note for note in open_source([outputs], **options).notes)


@pytest.mark.parametrize(
    ("match", "words"),
    [
        ("([", "regular expression"),
        ("no_group", "one group"),
        ("(a)(b)", "found 2"),
        ("(nowhere)", "gives no key"),
    ],
)
def test_what_cannot_match_says_what_was_tried(outputs: Path, match: str, words: str) -> None:
    touch(outputs, "cat_0.png")
    with pytest.raises(ValueError, match=words):
        open_source([outputs], match=match)


def test_nothing_matched_shows_both_sides(outputs: Path, tmp_path: Path) -> None:
    touch(outputs, "cat_0.png")
    touch(tmp_path / "references", "hound.png")
    with pytest.raises(ValueError, match=r"'cat_0\.png' gives 'cat_0'.*'hound'"):
        open_source([outputs], match="id", references=tmp_path / "references")


def test_options_that_do_not_fit(outputs: Path, tmp_path: Path) -> None:
    touch(outputs, "a b-0.mp4")
    (tmp_path / "s.jsonl").write_text('{"id": "a", "output": "a.png"}\n')
    with pytest.raises(ValueError, match="--match is for a folder"):
        open_source([tmp_path / "s.jsonl"], match="id")
    with pytest.raises(ValueError, match="leave --match out"):
        open_source([outputs], match="id", layout="vbench")
    with pytest.raises(ValueError, match="leave --prompts and --references out"):
        open_source([outputs], layout="vbench", references=tmp_path)


def test_references_may_move_without_another_digest(outputs: Path, tmp_path: Path) -> None:
    touch(outputs, "cat_0.png", "cat_1.png")
    for place in ("here", "there"):
        touch(tmp_path / place, "cat.png")
    first, second = (open_source([outputs], match="id", references=tmp_path / place) for place in ("here", "there"))
    assert first.digest == second.digest


def test_damaged_lists_are_named(outputs: Path) -> None:
    touch(outputs, "00000/samples/0000.png")
    (outputs / "00000/metadata.jsonl").write_text('{"prompt": ')
    with pytest.raises(ValueError, match=r"00000/metadata\.jsonl: a line is"):
        open_source([outputs])
