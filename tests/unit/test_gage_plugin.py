"""The plug-in for GAGE against a stand-in of the framework's contract."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import genmeter
from genmeter.integrations.gage import names
from genmeter.integrations.gage.settings import MEDIA_ROOT, read_settings
from genmeter.integrations.gage.verdicts import judge, values_of, verdict

CONTRACT = Path(__file__).resolve().parent.parent / "fakes" / "gage_contract"


@pytest.fixture
def framework(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in, importable for one test; the plug-in's modules that need it are imported anew."""
    monkeypatch.syspath_prepend(str(CONTRACT))
    for name in [name for name in sys.modules if name.partition(".")[0] == "gage_eval"]:
        monkeypatch.delitem(sys.modules, name)
    for part in ("judge", "adapter", "metrics", "summary", "registered"):
        monkeypatch.delitem(sys.modules, f"genmeter.integrations.gage.{part}", raising=False)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "gage_eval"]:
        sys.modules.pop(name)
    for part in ("judge", "adapter", "metrics", "summary", "registered"):
        sys.modules.pop(f"genmeter.integrations.gage.{part}", None)


@pytest.fixture
def media(tmp_path: Path) -> Path:
    """Grey pictures g0.png to g7.png, and one file that is no picture."""
    for level in range(8):
        Image.fromarray(np.full((8, 8, 3), 30 * level, np.uint8)).save(tmp_path / f"g{level}.png")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nno picture")
    return tmp_path


def image(name: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": name}}


def sample(identity: str, *outputs: str, **more: Any) -> dict[str, Any]:
    """A sample as the framework holds it."""
    return {
        "schema_version": "v1",
        "id": identity,
        "task_type": "text-to-image",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "grey"}]}],
        "references": [{"answer": [image("g0.png")]}],
        "predict_result": [
            {"index": i, "message": {"role": "assistant", "content": [image(name)]}} for i, name in enumerate(outputs)
        ],
        **more,
    }


def settings(media: Path, *metrics: str, **more: Any) -> Any:
    return read_settings(
        {"metrics": list(metrics) or ["fake_level"], "media_root": str(media), "device": "cpu", **more}
    )


def test_a_judge_says_what_a_direct_run_says(media: Path) -> None:
    one = sample("a", "g3.png")
    said = judge({"sample": one}, settings(media))
    with genmeter.Engine(metrics=["fake_level"], media_root=str(media), device="cpu") as engine:
        (direct,) = engine.score([one])
    assert said["status"] == "completed"
    assert said["metrics"] == direct.eval_result["metrics"]
    assert said["metrics"]["fake_level"]["score"] is not None
    assert "error" not in said


def test_the_answer_of_this_run_is_scored_and_the_sample_left_alone(media: Path) -> None:
    one = sample("a")
    before = json.dumps(one)
    for output in (
        {"answer": "g3.png"},
        {"answer": "g3.png", "message": {"role": "assistant", "content": [image("g3.png")]}},
        {"message": {"role": "assistant", "content": [{"type": "text", "text": "g3.png"}]}},
    ):
        said = judge({"sample": one, "model_output": output}, settings(media))
        expected = judge({"sample": sample("a", "g3.png")}, settings(media))
        assert said["metrics"]["fake_level"]["score"] == expected["metrics"]["fake_level"]["score"], output
        flags = said["metrics"]["fake_level"].get("flags", [])
        assert ("prediction_from_text" in flags) == ("message" in output and "answer" not in output), output
    assert json.dumps(one) == before


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({}, "bad_sample"),
        ({"sample": None}, "bad_sample"),
        ({"sample": [1]}, "bad_sample"),
        ({"sample": {"id": "x"}}, "bad_sample"),
        ({"sample": sample("x", "broken.png")}, "decode_failed"),
        ({"sample": sample("x", "nowhere.png")}, "not_found"),
        ({"sample": sample("x", "/etc/hostname.png")}, None),
        ({"sample": sample("x"), "model_output": {}}, "no_prediction"),
        ({"sample": sample("x"), "model_output": {"answer": ["no", {"path": 1}]}}, None),
    ],
)
def test_trouble_is_data(media: Path, payload: Any, code: str | None) -> None:
    """Nothing raises, and no key ``error`` stands at the top, which would end the sample and the run."""
    said = judge(payload, settings(media))
    assert said["status"] == "failed"
    assert not said.get("error")
    assert code is None or said["failure"]["code"] == code
    assert said["failure"]["message"]
    json.dumps(said, allow_nan=False)


def test_a_judge_is_never_late(media: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never: Future[Any] = Future()
    with monkeypatch.context() as patch:
        patch.setattr(genmeter.Engine, "submit", lambda *args, **options: never)
        began = time.monotonic()
        said = judge({"sample": sample("a", "g1.png")}, settings(media, deadline_s=0.2))
    assert time.monotonic() - began < 5
    assert said["status"] == "failed"
    assert said["failure"]["code"] == "timed_out"
    assert never.cancelled()


def test_the_samples_own_choice_of_metrics(media: Path) -> None:
    one = sample("a", "g1.png", eval_config={"metrics": ["fake_gap"]})
    both = settings(media, "fake_level", "fake_gap")
    assert list(judge({"sample": one}, both)["metrics"]) == ["fake_gap"]
    everything = settings(media, "fake_level", "fake_gap", eval_config="ignore")
    assert sorted(judge({"sample": one}, everything)["metrics"]) == ["fake_gap", "fake_level"]
    none = judge({"sample": {**one, "eval_config": {"metrics": ["bleu"]}}}, both)
    assert none["status"] == "skipped"
    assert none["metrics"] == {}


def test_calls_of_many_threads_share_batches(media: Path) -> None:
    from genmeter.integrations.gage.engines import engine_for

    chosen = settings(media, "fake_level", batch_size=16)
    samples = [sample(str(i), f"g{i % 8}.png") for i in range(64)]
    gate = threading.Barrier(32)

    def call(one: dict[str, Any]) -> dict[str, Any]:
        if int(one["id"]) < 32:
            gate.wait(20)
        return judge({"sample": one}, chosen)

    with ThreadPoolExecutor(32) as threads:
        said = list(threads.map(call, samples))
    assert [s["status"] for s in said] == ["completed"] * 64
    assert engine_for(chosen).stats()["mean_batch"] > 1
    alone = judge({"sample": samples[5]}, chosen)
    assert alone["metrics"] == said[5]["metrics"]


def test_equal_settings_share_one_engine(media: Path) -> None:
    from genmeter.integrations.gage.engines import engine_for

    one, same, other = settings(media), settings(media), settings(media, "fake_gap")
    assert engine_for(one) is engine_for(same)
    assert engine_for(one) is not engine_for(other)


@pytest.mark.parametrize(
    ("params", "word"),
    [
        ({"metrics": 7}, "metrics"),
        ({"metrics": ["clipscore"], "devise": "cpu"}, "device"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"deadline_s": "soon"}, "deadline_s"),
        ({"eval_config": "perhaps"}, "eval_config"),
        ({"sets": "yes"}, "sets"),
        ({"precision": "double"}, "precision"),
    ],
)
def test_a_wrong_parameter_is_named_when_the_run_is_set_up(params: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        read_settings(params)


def test_media_roots_from_the_environment(monkeypatch: pytest.MonkeyPatch, media: Path) -> None:
    monkeypatch.setenv(MEDIA_ROOT, str(media))
    assert judge({"sample": sample("a", "g1.png")}, read_settings({"metrics": "fake_level"}))["status"] == "completed"
    assert read_settings({"metrics": "fake_level", "media_root": "/x"}).config.media_root == "/x"


def test_values_are_numbers_or_reasons() -> None:
    entry = {"score": 0.5, "variant": "v", "higher_is_better": False, "flags": ["silent"]}
    values, about = values_of("m", entry)
    assert values == {"m": 0.5}
    assert about["higher_is_better"] is False
    assert about["flags"] == ["silent"]
    for entry in (
        {"score": None, "error": {"code": "not_applicable", "message": "x"}},
        {"score": None, "error": {"code": "decode_failed", "message": "x"}},
        {"score": float("nan")},
        {"score": None},
        None,
    ):
        values, about = values_of("m", entry)
        assert values == {}
        assert about["status"] in ("skipped", "failed")
        assert about["reason"]


def test_a_pending_set_is_no_failure() -> None:
    entry = {"score": None, "error": {"code": "set_pending", "message": "later"}}
    said = verdict({"metrics": {"fvd": entry}, "overall": {"score": None}})
    assert said["status"] == "completed"
    assert values_of("fvd", entry)[1]["status"] == "skipped"


def test_metric_and_judge_agree(framework: None, media: Path) -> None:
    from gage_eval.metrics.base import MetricContext, MetricSpec

    from genmeter.integrations.gage.judge import GenmeterJudge
    from genmeter.integrations.gage.metrics import Metric, named

    params = {"media_root": str(media), "device": "cpu"}
    one = sample("a", "g2.png")
    said = GenmeterJudge(metrics=["fake_level"], **params).invoke({"sample": one, "implementation": "genmeter"})
    for made in (
        named("fake_level")(MetricSpec("level", "fake_level", params)),
        Metric(MetricSpec("x", "genmeter...:Metric", {**params, "metric": "fake_level"})),
        Metric(MetricSpec("fake_level", "", params)),
    ):
        read = made.compute(MetricContext("a", one, {}, said))
        asked = made.compute(MetricContext("a", one, {}, {}))
        assert read.values == asked.values == {"fake_level": said["metrics"]["fake_level"]["score"]}
        assert (read.metadata["source"], asked.metadata["source"]) == ("judge", "engine")
        foreign = {"judge": {"model": "gpt"}, "metrics": {"fake_level": {"score": 0.99}}}
        assert made.compute(MetricContext("a", one, {}, foreign)).metadata["source"] == "engine"


def test_the_adapter_is_awaited(framework: None, media: Path) -> None:
    from genmeter.integrations.gage.adapter import GenmeterAdapter

    adapter = GenmeterAdapter("mm", "judge_model", metrics=["fake_level"], media_root=str(media), device="cpu")
    said = asyncio.run(adapter.ainvoke({"sample": sample("a", "g2.png")}, None))
    assert said["status"] == "completed"
    with pytest.raises(ValueError, match="metrics_form"):
        GenmeterAdapter("mm", metrics_form="sample")


def test_set_metrics_over_the_finished_run(framework: None, media: Path, tmp_path: Path) -> None:
    from genmeter.integrations.gage.engines import forget_settings
    from genmeter.integrations.gage.judge import GenmeterJudge
    from genmeter.integrations.gage.summary import GenmeterSets

    forget_settings()
    made = GenmeterJudge(metrics=["fake_spread", "fake_level"], media_root=str(media), device="cpu")
    samples = [sample(str(i), f"g{i}.png") for i in range(6)]
    for one in samples:
        said = made.invoke({"sample": one})
        assert said["metrics"]["fake_spread"]["error"]["code"] == "set_pending"
    records = [{"sample": {**one, "_gage_source_index": i}} for i, one in enumerate(samples)]
    records.append(records[0])  # a run that was repeated holds it twice
    cache = SimpleNamespace(run_dir=tmp_path / "run", iter_samples=lambda: reversed(records))
    found = GenmeterSets().generate(cache)
    lines = tmp_path / "direct.jsonl"
    lines.write_text("".join(json.dumps(one) + "\n" for one in samples))
    direct = genmeter.score(lines, ["fake_spread"], out=tmp_path / "direct", media_root=str(media), device="cpu")
    assert found is not None
    assert found["genmeter"]["metrics"]["fake_spread"]["score"] == direct.summary["metrics"]["fake_spread"]["score"]
    assert GenmeterSets().generate(cache) is None  # nobody has asked since


def test_the_manifest_lists_what_is_registered(framework: None) -> None:
    from gage_eval.registry import registry

    file = json.loads((names.manifest_root() / "plugins" / "genmeter.json").read_text())
    assert file == names.manifest(), "run genmeter.integrations.gage.names.write_manifest()"
    import genmeter.integrations.gage.registered  # noqa: F401

    assert {(e["kind"], e["name"]) for e in file["entries"]} == set(registry.entries)
    assert ("metrics", "clipscore") in registry.entries
    assert ("metrics", "exact_match") not in registry.entries


def test_modules_for_import_paths_register_nothing(framework: None) -> None:
    from gage_eval.registry import registry

    registry.frozen = True
    import genmeter.integrations.gage.adapter
    import genmeter.integrations.gage.judge
    import genmeter.integrations.gage.metrics
    import genmeter.integrations.gage.summary  # noqa: F401

    assert registry.entries == {}


def test_the_command_prints_the_folder() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "genmeter.cli.main", "gage-manifests"], capture_output=True, text=True, check=True
    )
    assert (Path(done.stdout.strip()) / "plugins" / "genmeter.json").is_file()
