"""The plug-in in the real framework. ``make test-gage GAGE=<checkout>``; elsewhere these tests say why they skip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import genmeter
from genmeter.integrations.gage.names import manifest_root

HERE = Path(__file__).resolve().parent
CHECKOUT = os.environ.get("GAGE", "")
pytestmark = pytest.mark.skipif(
    not (Path(CHECKOUT) / "run.py").is_file() or not CHECKOUT,
    reason="no checkout of GAGE: make test-gage GAGE=<checkout>",
)
COUNT = 24
BROKEN = 5


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures with captions, one of them broken, and the samples with and without predictions."""
    from PIL import Image

    from genmeter.synth.draw import draw
    from genmeter.synth.scene import make_scene
    from genmeter.synth.words import caption

    folder = tmp_path_factory.mktemp("gage-media")
    plain, made = [], []
    for index in range(COUNT):
        scene = make_scene(index)
        Image.fromarray(draw(scene, 96, 96)).save(folder / f"p{index}.png")
        Image.fromarray(draw(make_scene(index + 1), 96, 96)).save(folder / f"r{index}.png")
        sample: dict[str, Any] = {
            "schema_version": "v1",
            "id": f"p{index}",
            "task_type": "text-to-image",
            "messages": [{"role": "user", "content": [{"type": "text", "text": caption(scene)}]}],
            "references": [{"answer": [{"type": "image_url", "image_url": {"url": f"r{index}.png"}}]}],
        }
        plain.append(sample)
        content = [{"type": "image_url", "image_url": {"url": f"p{index}.png"}}]
        entry = {"index": 0, "message": {"role": "assistant", "content": content}}
        made.append({**sample, "predict_result": [entry]})
    (folder / f"p{BROKEN}.png").write_bytes(b"\x89PNG\r\n\x1a\nno picture")
    for name, samples in (("plain.jsonl", plain), ("made.jsonl", made)):
        (folder / name).write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return folder


def run(media: Path, out: Path, input_name: str, *configs: str) -> dict[str, Any]:
    """Run configurations in one process under strict discovery."""
    roots = [HERE, HERE.parent / "fakes"]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, roots)),
        "GAGE_EVAL_DISCOVERY_MANIFEST_ROOTS": str(manifest_root()),
        "GAGE_EVAL_DISCOVERY_STRICT": "1",
        "GAGE_EVAL_DEBUG_PREPROCESS": "1",
        "GAGE_TEST_INPUT": str(media / input_name),
        "GAGE_TEST_MEDIA": str(media),
    }
    files = [str(HERE / "runs" / name) for name in configs]
    command = [sys.executable, str(HERE / "run_twice.py"), CHECKOUT, str(out), *files]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert said["statuses"] == [0] * len(configs), done.stdout[-3000:] + done.stderr[-3000:]
    return said


def records(out: Path, number: int = 0) -> dict[str, Any]:
    lines = (out / f"run{number}" / "samples.jsonl").read_text().splitlines()
    return {record["sample"]["id"]: record for record in map(json.loads, lines)}


def summary(out: Path, number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / f"run{number}" / "summary.json").read_text())
    return found


def direct(media: Path, out: Path, *metrics: str) -> dict[str, Any]:
    """Entries of a run of genmeter itself, by sample and metric."""
    result = genmeter.score(media / "made.jsonl", metrics, out=out, device="cpu", media_root=str(media))
    return {row["id"]: row["eval_result"]["metrics"] for row in result.samples}


def test_by_the_names_of_the_manifest_twice_in_one_process(media: Path, tmp_path: Path) -> None:
    run(media, tmp_path / "out", "plain.jsonl", "plugin.yaml", "plugin.yaml")
    expected = direct(media, tmp_path / "direct", "clipscore@tiny-clip", "lpips")
    for number in (0, 1):
        found = records(tmp_path / "out", number)
        assert len(found) == COUNT
        for identity, record in found.items():
            for metric, name in (("clipscore", "clipscore@tiny-clip"), ("by_path", "lpips")):
                score = expected[identity][name]["score"]
                said = record["metrics"][metric]
                if identity == f"p{BROKEN}":
                    assert score is None
                    assert said["values"] == {}
                    assert said["metadata"]["reason"] == "decode_failed"
                else:
                    assert said["values"][name] == pytest.approx(score, abs=1e-6)
                assert said["metadata"]["source"] == "judge"
            assert "error" not in record["judge_output"]
        means = {m["metric_id"]: m for m in summary(tmp_path / "out", number)["metrics"]}
        scores = [entry["lpips"]["score"] for entry in expected.values() if entry["lpips"]["score"] is not None]
        raw = means["by_path"]["raw_values"]
        assert next(iter(raw.values())) == pytest.approx(sum(scores) / len(scores), abs=1e-6)


def test_media_that_were_made_before_and_a_set_metric(media: Path, tmp_path: Path) -> None:
    run(media, tmp_path / "out", "made.jsonl", "made_before.yaml")
    expected = direct(media, tmp_path / "direct", "clipscore@tiny-clip")
    for identity, record in records(tmp_path / "out").items():
        score = expected[identity]["clipscore@tiny-clip"]["score"]
        values = record["metrics"]["clip"]["values"]
        assert values == {} if score is None else values["clipscore@tiny-clip"] == pytest.approx(score, abs=1e-6)
    result = genmeter.score(
        media / "made.jsonl", ["fake_spread"], out=tmp_path / "sets", device="cpu", media_root=str(media)
    )
    found = summary(tmp_path / "out")["genmeter"]["metrics"]["fake_spread"]
    assert found["score"] == pytest.approx(result.summary["metrics"]["fake_spread"]["score"], rel=1e-9)


def test_batches_are_shared(media: Path, tmp_path: Path) -> None:
    said = run(media, tmp_path / "out", "plain.jsonl", "batches.yaml")
    (stats,) = said["stats"]
    assert stats["samples"] == COUNT
    assert stats["mean_batch"] > 1
    failed = [i for i, record in records(tmp_path / "out").items() if not record["metrics"]["clipscore"]["values"]]
    assert failed == [f"p{BROKEN}"]
