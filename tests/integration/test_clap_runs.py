"""CLAP scores of whole runs: files on disk to rows, by a small CLAP with random weights in place of the published one.

The numbers mean nothing; what is held to is that they are always the same ones, that they say what was heard, and that
what cannot be heard says why.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import clap_nets
import numpy as np
import pytest
import sound_files as files

import genmeter
from genmeter.contract import AudioMedia
from genmeter.encoders.clap import ClapEncoder
from genmeter.weights.digest import tensors_digest
from genmeter.weights.load import load_tensors
from genmeter.weights.lock import ModelEntry, PartSpec, SourceSpec

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
MODEL = "clap-630k-audioset-best"


def small_entry(path: Path) -> ModelEntry:
    """The small network under the name of the published one, from a file in place."""
    part = PartSpec("weights", "file", path.name, where={"path": str(path)})
    made = clap_nets.entry("transformers_clap", id=MODEL, label="630k-audioset-best")
    return replace(made, digest=tensors_digest(load_tensors(path)), sources=(SourceSpec("safetensors", (part,)),))


def use_small_network(path: Path, patch: Callable[[Any, str, Any], None]) -> None:
    """Let the engine find the small network where it looks for the published one."""
    from genmeter.engine import catalog

    entry = small_entry(path)
    patch(catalog, "get_entry", lambda model: entry if model == MODEL else pytest.fail(f"unexpected model {model}"))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clap_nets.save(
        clap_nets.random_tensors(clap_nets.entry()), tmp_path_factory.mktemp("clap") / "w.safetensors"
    )


@pytest.fixture(autouse=True)
def _small(weights: Path, empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    use_small_network(weights, monkeypatch.setattr)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def write(folder: Path, sounds: dict[str, bytes], **changes: Any) -> Path:
    lines = []
    for name, data in sounds.items():
        (folder / name).write_bytes(data)
        line = {"id": name, "task_type": "text-to-audio", "prompt": "a dog barks", "output": name, **changes}
        lines.append(line)
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def entries(run: Any, metric: str = "clapscore") -> list[dict[str, Any]]:
    return [line["eval_result"]["metrics"][metric] for line in run.samples]


def thirty_seconds() -> np.ndarray:
    """Case B14: 10 s of a tone, 10 s of noise, 10 s of silence."""
    noise = 0.2 * np.random.default_rng(0).standard_normal(480_000)
    return np.concatenate([files.tone(48000, 10.0, 440.0), noise.clip(-1, 1), np.zeros(480_000)])


SCRIPT = """
import sys
sys.path[:0] = sys.argv[4:]
import test_clap_runs, genmeter
from pathlib import Path
test_clap_runs.use_small_network(Path(sys.argv[1]), setattr)
genmeter.score(sys.argv[2], ["clapscore"], out=sys.argv[3], report=False, device="cpu", cache=False)
"""


def test_b14_thirty_seconds_score_the_same_every_time_and_in_every_process(tmp_path: Path, weights: Path) -> None:
    path = write(tmp_path, {"long.wav": files.wav(thirty_seconds())})
    seen = set()
    for turn in range(5):
        out = tmp_path / f"run{turn}"
        run = genmeter.score(path, ["clapscore"], out=out, report=False, device="cpu", cache=False)
        seen.add((out / "samples.jsonl").read_bytes())
    [entry] = entries(run)
    assert entry["detail"]["seconds"] == 30.0
    assert entry["detail"]["windows"] == 3
    per_window = entry["detail"]["per_window"]
    assert entry["score"] == pytest.approx(np.mean(per_window), abs=1e-12)
    assert np.ptp(per_window) > 0.01, "the windows must differ for this to show anything"
    assert "silent" not in entry.get("flags", [])
    folders = [str(Path(__file__).parent), str(Path(clap_nets.__file__).parent)]
    for turn in range(2):
        out = tmp_path / f"process{turn}"
        command = [sys.executable, "-c", SCRIPT, str(weights), str(path), str(out), *folders]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr[-2000:]
        seen.add((out / "samples.jsonl").read_bytes())
    assert len(seen) == 1


def test_the_score_is_the_cosine_of_what_the_encoder_gives(tmp_path: Path, weights: Path) -> None:
    samples = thirty_seconds()[: 48000 * 13]
    path = write(tmp_path, {"a.wav": files.wav(samples)})
    [entry] = entries(genmeter.score(path, ["clapscore"], out=tmp_path / "run", report=False, device="cpu"))
    encoder = ClapEncoder(small_entry(weights), lambda: weights)
    encoder.load("cpu", "exact")
    rounded = (np.round(samples * 32768).clip(-32768, 32767) / 32768).astype(np.float32)  # what the file holds
    [sound] = encoder.encode([encoder.prepare(AudioMedia(rounded, 48000), {})])
    [text] = encoder.encode([encoder.prepare("a dog barks", {})])
    cosine = sound.values.astype(np.float64) @ text.values[0].astype(np.float64)
    assert entry["score"] == pytest.approx((10 * cosine[0] + 3 * cosine[1]) / 13, abs=1e-6)
    assert entry["variant"] == "630k-audioset-best/windows"
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    used = run["metrics"]["clapscore"]["encoders"]["audio"]
    assert used["preprocessing"].endswith("-transformers"), "which network definitions ran must be recorded"
    assert used["view"] == {"long": "windows", "level": "asis"}


def test_b16_one_tone_at_many_rates(tmp_path: Path) -> None:
    rates = (8000, 16000, 22050, 44100, 48000, 96000)
    path = write(tmp_path, {f"{rate}.wav": files.wav(files.tone(rate), rate) for rate in rates})
    found = entries(genmeter.score(path, ["clapscore"], out=tmp_path / "run", report=False, device="cpu"))
    scores = [entry["score"] for entry in found]
    assert np.ptp(scores[1:]) < 0.005
    assert np.ptp(scores) < 0.02
    assert [entry["detail"]["source_rate"] for entry in found] == list(rates)
    assert ["band_limited" in entry.get("flags", []) for entry in found] == [True] + [False] * 5


def test_b18_silence_nothing_and_next_to_nothing(tmp_path: Path) -> None:
    sounds = {
        "silent.wav": files.wav(np.zeros(144_000)),
        "one.wav": files.wav(np.array([0.5])),
        "short.wav": files.wav(files.tone(48000, 0.005)),
        "header.wav": files.wav(np.zeros(0)),
        "empty.wav": b"",
    }
    path = write(tmp_path, sounds)
    found = entries(genmeter.score(path, ["clapscore"], out=tmp_path / "run", report=False, device="cpu"))
    for entry in found[:3]:
        assert np.isfinite(entry["score"])
    assert found[0]["flags"] == ["silent"]
    assert [entry["error"]["code"] for entry in found[3:]] == ["empty_media", "empty_media"]
    assert [entry["score"] for entry in found[3:]] == [None, None]


def test_several_captions_are_averaged_and_each_is_there(tmp_path: Path) -> None:
    captions = ["a dog barks", "slow piano music", "一只狗在雨中叫"]
    path = write(tmp_path, {"a.wav": files.wav(files.mixed(48000), 48000)}, prompt=captions)
    [entry] = entries(genmeter.score(path, ["clapscore"], out=tmp_path / "run", report=False, device="cpu"))
    each = entry["detail"]["per_prompt"]
    assert len(each) == 3
    assert len(set(each)) == 3
    assert entry["score"] == pytest.approx(np.mean(each), abs=1e-12)
    assert "prompt_language" in entry["flags"]


def test_clap_a_against_several_references_and_against_itself(tmp_path: Path) -> None:
    for name, hertz in (("r1.wav", 300.0), ("r2.wav", 2000.0)):
        (tmp_path / name).write_bytes(files.wav(files.tone(44100, 2.0, hertz), 44100))
    path = write(tmp_path, {"long.wav": files.wav(thirty_seconds())}, reference=["r1.wav", "r2.wav", "long.wav"])
    [entry] = entries(genmeter.score(path, ["clap_a"], out=tmp_path / "run", report=False, device="cpu"), "clap_a")
    each = entry["detail"]["per_reference"]
    assert each[2] == pytest.approx(1.0, abs=1e-9)
    assert max(each[:2]) < 1
    assert entry["score"] == pytest.approx(np.mean(each), abs=1e-12)
    assert "multi_reference" in entry["flags"]


def test_a_view_that_the_network_cannot_have_is_said(tmp_path: Path) -> None:
    path = write(tmp_path, {"a.wav": files.wav(files.tone(48000, 12.0))})
    metrics = {"clapscore": {"long": "fusion"}}
    run = genmeter.score(path, out=tmp_path / "run", report=False, device="cpu", config={"metrics": metrics})
    [entry] = entries(run)
    assert entry["error"]["code"] == "unknown_metric"
    assert "without feature fusion" in entry["error"]["message"]
