"""Loading CLAP: whose definitions run, what is refused by name, and what loaded towers must answer."""

from __future__ import annotations

import builtins
import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import clap_nets
import laion_reference
import numpy as np
import pytest

from genmeter.contract import AudioMedia
from genmeter.encoders.clap import ClapEncoder, probe
from genmeter.encoders.clap.architectures import architecture
from genmeter.encoders.clap.mel import MelRecipe, transform
from genmeter.encoders.clap.towers import ClapTowers
from genmeter.encoders.clap.windows import RATE, SAMPLES
from genmeter.encoders.registry import create_encoder, encoder_spec
from genmeter.errors import GenmeterError
from genmeter.weights.clap import FRONT_END
from genmeter.weights.load import load_tensors
from genmeter.weights.lock import ModelEntry, get_entry

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("one_torch_thread")
LOADERS = [
    pytest.param("laion_clap", marks=pytest.mark.skipif(laion_reference.folder() is None, reason="no laion-clap")),
    "transformers_clap",
]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clap")
    return clap_nets.save(clap_nets.random_tensors(clap_nets.entry()), folder / "w.safetensors")


def make(entry: ModelEntry, path: Path | None = None) -> ClapEncoder:
    def fetch() -> Path:
        assert path is not None, "nothing may be fetched here"
        return path

    encoder = create_encoder("clap", entry, fetch)
    assert isinstance(encoder, ClapEncoder)
    return encoder


def second() -> AudioMedia:
    return AudioMedia(np.random.default_rng(0).normal(0, 0.2, RATE).astype(np.float32), RATE)


def refused(entry: ModelEntry, path: Path, code: str = "weights_mismatch") -> GenmeterError:
    with pytest.raises(GenmeterError) as caught:
        make(entry, path).load("cpu", "exact")
    assert caught.value.code == code
    return caught.value


# --- which loader runs, and that it is said ----------------------------------------------------------------------


def test_the_loader_is_part_of_the_identity() -> None:
    found = {loader: encoder_spec("clap", clap_nets.entry(loader)) for loader in ("laion_clap", "transformers_clap")}
    assert found["laion_clap"].preprocessing.endswith("-laion_clap")
    assert found["transformers_clap"].preprocessing.endswith("-transformers")
    heads = {spec.preprocessing.rpartition("-")[0] for spec in found.values()}
    assert len(heads) == 1


@pytest.mark.parametrize("there", [True, False])
def test_laions_definitions_run_where_they_are_installed(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find(name: str, *rest: Any) -> Any:
        return (object() if there else None) if name == "laion_clap" else real(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    backend: Any = make(clap_nets.entry())._backend
    assert backend.loader == ("laion_clap" if there else "transformers")


def test_a_broken_install_is_said_and_not_passed_over(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from genmeter.encoders.clap import laion

    if laion_reference.folder() is None:
        pytest.skip("laion-clap is not installed")
    real = builtins.__import__

    def broken(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "torchlibrosa":
            raise ImportError("No module named 'torchlibrosa'")
        return real(name, *rest, **more)

    laion._htsat.cache_clear()
    for name in [name for name in sys.modules if name.startswith(laion._PACKAGE)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", broken)
    try:
        assert "torchlibrosa" in refused(clap_nets.entry("laion_clap"), weights, "extra_missing").message
    finally:
        monkeypatch.undo()
        laion._htsat.cache_clear()
    make(clap_nets.entry("transformers_clap"), weights).load("cpu", "exact")


def test_loading_opens_no_socket_and_leaves_the_generators_alone(weights: Path) -> None:
    """Cases B23 and B14: nothing is asked of a hub, and nothing is drawn."""
    script = (
        "import sys, socket, numpy as np\n"
        f"sys.path.insert(0, {str(Path(clap_nets.__file__).parent)!r})\n"
        "def refuse(event, args):\n"
        "    if event in ('socket.connect', 'socket.getaddrinfo', 'socket.gethostbyname'): raise SystemExit(9)\n"
        "sys.addaudithook(refuse)\n"
        "import torch, clap_nets\n"
        "from pathlib import Path\n"
        "from genmeter.encoders.clap import ClapEncoder\n"
        "from genmeter.contract import AudioMedia\n"
        "before = torch.get_rng_state().sum(), np.random.get_state()[1].sum()\n"
        "for loader in sys.argv[2:]:\n"
        "    encoder = ClapEncoder(clap_nets.entry(loader), lambda: Path(sys.argv[1]))\n"
        "    encoder.load('cpu', 'exact')\n"
        "    x = np.random.default_rng(0).normal(0, .1, 48000 * 30).astype('f4')\n"
        "    encoder.encode([encoder.prepare(AudioMedia(x, 48000), {})])\n"
        "    encoder.encode([encoder.prepare('a dog', {})])\n"
        "assert before == (torch.get_rng_state().sum(), np.random.get_state()[1].sum())\n"
        "assert 'laion_clap' not in sys.modules\n"
    )
    loaders = ["transformers_clap"] + ([] if laion_reference.folder() is None else ["laion_clap"])
    command = [sys.executable, "-c", script, str(weights), *loaders]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


# --- what it refuses to load -------------------------------------------------------------------------------------


@pytest.mark.parametrize("loader", LOADERS)
def test_weights_of_another_architecture_are_named(loader: str, tmp_path: Path) -> None:
    entry, tensors = clap_nets.entry(loader), clap_nets.random_tensors(clap_nets.entry())
    name = "audio_branch.layers.1.blocks.1.attn.qkv.weight"
    for changed, said in (
        ({k: v for k, v in tensors.items() if k != name}, f"missing {name}"),
        ({**tensors, "audio_branch.layers.9.x": np.ones(1, np.float32)}, "not expected audio_branch.layers.9.x"),
        ({**tensors, name: tensors[name][:-1]}, f"{name} (95, 32) for (96, 32)"),
        ({**tensors, name: tensors[name].astype(np.int32)}, name),
    ):
        message = refused(entry, clap_nets.save(changed, tmp_path / "w.safetensors")).message
        assert said in message
    fused = clap_nets.entry(loader, fusion=True)
    message = refused(fused, clap_nets.save(tensors, tmp_path / "w.safetensors")).message
    assert "fusion_model" in message


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_checkpoint_of_another_spectrogram_is_refused(index: int, tmp_path: Path) -> None:
    tensors = clap_nets.random_tensors(clap_nets.entry())
    right, wrong = transform(MelRecipe()), transform(MelRecipe(high=8000.0))
    ours = dict(zip(FRONT_END, right, strict=True))
    make(clap_nets.entry(), clap_nets.save({**tensors, **ours}, tmp_path / "w.safetensors")).load("cpu", "exact")
    ours[FRONT_END[index]] = wrong[2] if index == 2 else right[index][:, :, ::-1].copy() * 0.9
    message = refused(clap_nets.entry(), clap_nets.save({**tensors, **ours}, tmp_path / "w.safetensors")).message
    assert FRONT_END[index] in message


def test_weights_without_their_tokenizer_fail_by_name(tmp_path: Path) -> None:
    """Case B23: a file that is missing is named, at once."""
    path = clap_nets.save(clap_nets.random_tensors(clap_nets.entry()), tmp_path / "w.safetensors", tokenizer=False)
    encoder = make(clap_nets.entry(), path)
    assert encoder.prepare(second(), {}).arrays[0].shape == (1, SAMPLES)
    with pytest.raises(GenmeterError, match=r"vocab\.json") as caught:
        encoder.prepare("a dog", {})
    assert caught.value.code == "weights_mismatch"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"architecture": "HTSAT-large"}, "unknown_metric"),
        ({"loader": "laion"}, "unknown_metric"),
        ({"extra": {"text_config": {}}}, "weights_mismatch"),
        ({"extra": {"context_length": None}}, "weights_mismatch"),
        ({"extra": {"embed_dim": "512"}}, "weights_mismatch"),
        ({"preprocessing": {"fusion": None}}, "weights_mismatch"),
    ],
)
def test_an_entry_that_says_too_little_is_refused(change: dict[str, Any], code: str) -> None:
    with pytest.raises(GenmeterError) as caught:
        make(clap_nets.entry(**change))
    assert caught.value.code == code


def test_published_architectures_have_published_sizes() -> None:
    """158 M parameters for HTSAT-tiny with RoBERTa, as laion_clap prints; HTSAT-base is larger."""
    counts = {}
    for model in ("clap-630k-audioset-best", "clap-music-audioset"):
        from genmeter.encoders.clap.huggingface import TransformersNetwork

        how = architecture(get_entry(model), False, 64)
        with torch.device("meta"):
            network = TransformersNetwork(how)
        counts[model] = sum(part.numel() for parts in network.places().values() for part in parts)
    assert counts["clap-630k-audioset-best"] == pytest.approx(153.5e6, rel=0.01)
    assert counts["clap-music-audioset"] == pytest.approx(194e6, rel=0.01)


# --- the probe ---------------------------------------------------------------------------------------------------


def broken_weights(tmp_path: Path, **factors: float) -> Path:
    """Weights with some tensors scaled: a tower that tells nothing apart."""
    tensors = clap_nets.random_tensors(clap_nets.entry())
    for fragment, factor in factors.items():
        for name in tensors:
            if fragment in name:
                tensors[name] = (tensors[name] * np.float32(factor)).astype(np.float32)
    return clap_nets.save(tensors, tmp_path / "broken.safetensors")


@pytest.mark.parametrize("loader", LOADERS)
def test_b05_texts_that_all_come_out_alike_are_refused(loader: str, tmp_path: Path) -> None:
    """As larger_clap_music does (cosine 0.9993): a text tower whose pooler hardly moves."""
    path = broken_weights(tmp_path, **{"pooler.dense.weight": 1e-3})
    message = refused(clap_nets.entry(loader), path, "model_probe_failed").message
    assert "unrelated texts come out alike" in message


def test_sounds_that_all_come_out_alike_are_refused(tmp_path: Path) -> None:
    path = broken_weights(tmp_path, **{"patch_embed.proj.weight": 0.0})
    assert "unlike sounds" in refused(clap_nets.entry(), path, "model_probe_failed").message


def test_weights_with_nan_in_them_are_refused(tmp_path: Path) -> None:
    path = broken_weights(tmp_path, **{"audio_projection.0.weight": np.nan})
    assert "not finite" in refused(clap_nets.entry(), path, "model_probe_failed").message


def test_stored_answers_are_held(weights: Path) -> None:
    backend = ClapTowers(clap_nets.entry("transformers_clap"), lambda: weights, "transformers")
    backend.load(load_tensors(weights), "cpu", False)
    found = probe.ask(backend)
    good = {"audio_text": found.media_text.tolist(), "text_text": found.text_text.tolist()}
    make(clap_nets.entry(extra={"probe": good}), weights).load("cpu", "exact")
    for key in good:
        off = {**good, key: [good[key][0] + 0.01, *good[key][1:]]}
        assert key in refused(clap_nets.entry(extra={"probe": off}), weights, "model_probe_failed").message
        short = {**good, key: good[key][1:]}
        assert "stores" in refused(clap_nets.entry(extra={"probe": short}), weights, "model_probe_failed").message
    other = {"texts": ["rain", "a dog", "music", "waves"], **good}
    assert "differ" in refused(clap_nets.entry(extra={"probe": other}), weights, "model_probe_failed").message


def test_the_probes_sounds_are_the_same_on_every_machine() -> None:
    tone, hiss = probe.sounds()
    assert tone.dtype == np.int16
    assert np.abs(tone.astype(int)).max() < 3200
    assert np.abs(hiss.astype(int)).max() > 32000
    assert abs(np.corrcoef(hiss[:-1], hiss[1:])[0, 1]) < 0.05
    assert hashlib.sha256(probe.sounds().astype("<i2").tobytes()).hexdigest()[:16] == "8c8bd77461ff3c31"
