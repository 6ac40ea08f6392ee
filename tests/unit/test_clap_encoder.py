"""The CLAP encoder: sounds and texts in, unit vectors out, whoever shares the batch; and what it refuses to load."""

from __future__ import annotations

import builtins
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clap_nets
import laion_reference
import numpy as np
import pytest

from genmeter.contract import AudioMedia, ImageMedia, MediaEncoder, Prepared
from genmeter.encoders.clap import ClapEncoder, probe
from genmeter.encoders.clap.architectures import architecture
from genmeter.encoders.clap.mel import MelRecipe, transform
from genmeter.encoders.clap.towers import ClapTowers
from genmeter.encoders.clap.windows import RATE, SAMPLES
from genmeter.encoders.registry import create_encoder, encoder_spec, list_encoders
from genmeter.errors import GenmeterError
from genmeter.weights.clap import FRONT_END
from genmeter.weights.lock import ModelEntry, get_entry

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
LOADERS = [
    pytest.param("laion_clap", marks=pytest.mark.skipif(laion_reference.folder() is None, reason="no laion-clap")),
    "transformers_clap",
]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clap_nets.save(
        clap_nets.random_tensors(clap_nets.entry()), tmp_path_factory.mktemp("clap") / "w.safetensors"
    )


@pytest.fixture(scope="module")
def fused_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tensors = clap_nets.random_tensors(clap_nets.entry(fusion=True))
    return clap_nets.save(tensors, tmp_path_factory.mktemp("clap") / "fused.safetensors")


def make(entry: ModelEntry, path: Path | None = None) -> ClapEncoder:
    def fetch() -> Path:
        assert path is not None, "nothing may be fetched here"
        return path

    encoder = create_encoder("clap", entry, fetch)
    assert isinstance(encoder, ClapEncoder)
    return encoder


@pytest.fixture(scope="module")
def small(weights: Path) -> ClapEncoder:
    encoder = make(clap_nets.entry(), weights)
    encoder.load("cpu", "exact")
    return encoder


@pytest.fixture(scope="module")
def fused(fused_weights: Path) -> ClapEncoder:
    encoder = make(clap_nets.entry(fusion=True), fused_weights)
    encoder.load("cpu", "exact")
    return encoder


def noise(seconds: float, seed: int = 0, level: float = 0.2) -> AudioMedia:
    count = round(seconds * RATE)
    samples = np.random.default_rng(seed).normal(0, level, count) * np.linspace(0.1, 1, count)
    return AudioMedia(samples.astype(np.float32), RATE)


def values(encoder: ClapEncoder, batch: list[Prepared]) -> np.ndarray:
    return np.concatenate([feature.values for feature in encoder.encode(batch)])


def refused(entry: ModelEntry, path: Path, code: str = "weights_mismatch") -> GenmeterError:
    with pytest.raises(GenmeterError) as caught:
        make(entry, path).load("cpu", "exact")
    assert caught.value.code == code
    return caught.value


# --- what it returns ---------------------------------------------------------------------------------------------


def test_features_have_the_shape_the_contract_states(small: ClapEncoder) -> None:
    [sound] = small.encode([small.prepare(noise(24.5), {})])
    [text] = small.encode([small.prepare("a dog barks", {})])
    assert sound.values.shape == (3, 32)
    assert sound.weights == pytest.approx([10, 10, 4.5])
    assert sound.detail == {"seconds": 24.5, "windows": 3}
    assert text.values.shape == (1, 32)
    assert text.weights.tolist() == [1.0]
    assert text.detail == {"text_tokens": 5}
    for feature in (sound, text):
        assert feature.values.dtype == np.float32
        assert np.linalg.norm(feature.values.astype(np.float64), axis=1) == pytest.approx(1, abs=1e-6)
        assert feature.flags == ()


def test_it_is_registered_and_says_what_decoding_must_deliver(small: ClapEncoder) -> None:
    assert "clap" in list_encoders()
    assert isinstance(small, MediaEncoder)
    assert small.decoding({}) == {"rate": 48000}


def test_windows_of_a_long_clip_are_the_clips_of_ten_seconds(small: ClapEncoder) -> None:
    long = noise(23.0)
    pieces = [long._replace(samples=long.samples[i : i + SAMPLES]) for i in range(0, len(long.samples), SAMPLES)]
    together = values(small, [small.prepare(long, {})])
    alone = np.concatenate([values(small, [small.prepare(piece, {})]) for piece in pieces])
    assert np.abs(together - alone).max() <= 1e-6


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("fusion", [False, True], ids=["unfused", "fusion"])
def test_neighbours_order_and_batch_size_do_not_matter(
    loader: str, fusion: bool, weights: Path, fused_weights: Path
) -> None:
    encoder = make(clap_nets.entry(loader, fusion=fusion), fused_weights if fusion else weights)
    encoder.load("cpu", "exact")
    view = {"long": "fusion"} if fusion else {}
    lengths = (12.0, 12.0, 12.0) if fusion else (3.0, 10.0, 0.001, 21.0, 10.0)
    sounds = [encoder.prepare(noise(seconds, i), view) for i, seconds in enumerate(lengths)]
    captions = ["a dog barks", "rain falls", "slow piano music", "they're far away"]
    texts = [encoder.prepare(text, {}) for text in captions]
    assert len({item.bucket for item in texts}) == 1
    for items in (sounds, texts):
        alone = [encoder.encode([item])[0].values for item in items]
        for order in (range(len(items)), reversed(range(len(items)))):
            index = list(order)
            found = encoder.encode([items[i] for i in index])
            for i, feature in zip(index, found, strict=True):
                assert np.abs(feature.values - alone[i]).max() <= 1e-6
        again = encoder.encode(items)
        assert all(np.array_equal(a.values, b.values) for a, b in zip(again, encoder.encode(items), strict=True))


def test_padding_of_texts_does_not_matter(small: ClapEncoder) -> None:
    short = small.prepare("a dog barks", {})
    padded = np.full((1, 77), 1, np.int64)
    padded[:, : short.arrays[0].shape[1]] = short.arrays[0]
    assert np.abs(values(small, [short]) - values(small, [short._replace(arrays=(padded,))])).max() <= 1e-6


def test_a_special_token_within_a_text_ends_nothing(small: ClapEncoder) -> None:
    whole = values(small, [small.prepare("a dog</s> barks", {})])
    cut = values(small, [small.prepare("a dog</s>", {})])
    assert np.abs(whole - cut).max() > 1e-3


def test_long_clips_pass_in_pieces_of_the_same_numbers(small: ClapEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [small.prepare(noise(45.0, 3), {}), small.prepare(noise(2.0, 4), {})]
    expected = values(small, items)
    monkeypatch.setattr("genmeter.encoders.clap.encoder._CPU_BYTES", 1)
    assert np.abs(values(small, items) - expected).max() <= 1e-6


def test_fusion_makes_one_vector_of_a_long_clip_and_none_of_a_short_one(fused: ClapEncoder) -> None:
    long, short = noise(25.0), noise(6.0)
    assert values(fused, [fused.prepare(long, {"long": "fusion"})]).shape == (1, 32)
    assert values(fused, [fused.prepare(long, {})]).shape == (3, 32)
    views = [fused.prepare(short, {"long": way}) for way in ("fusion", "windows")]
    assert np.array_equal(values(fused, [views[0]]), values(fused, [views[1]]))
    later = long._replace(samples=np.concatenate([long.samples[:-RATE], 0 * long.samples[-RATE:]]))
    change = np.abs(
        values(fused, [fused.prepare(long, {"long": "fusion"})])
        - values(fused, [fused.prepare(later, {"long": "fusion"})])
    )
    assert change.max() > 1e-4, "the end of a long clip must be heard"


def test_silence_and_the_shortest_clips_have_finite_features(small: ClapEncoder) -> None:
    """Case B18."""
    for media in (
        AudioMedia(np.zeros(3 * RATE, np.float32), RATE),
        AudioMedia(np.array([0.5], np.float32), RATE),
        AudioMedia(np.full(240, -1.0, np.float32), RATE),
        noise(0.005),
    ):
        [feature] = small.encode([small.prepare(media, {})])
        assert np.isfinite(feature.values).all()
        assert np.linalg.norm(feature.values) == pytest.approx(1, abs=1e-5)


def test_flags_of_texts(small: ClapEncoder) -> None:
    assert small.prepare("a dog barks", {}).flags == ()
    assert small.prepare("一只狗在雨中叫", {}).flags == ("prompt_language",)
    long = small.prepare("word " * 300, {})
    assert long.flags == ("text_truncated",)
    assert long.arrays[0].shape == (1, 77)
    assert long.detail["text_tokens"] > 300
    prefixed = small.prepare("dog", {"prefix": "a "})
    assert np.array_equal(prefixed.arrays[0], small.prepare("a dog", {}).arrays[0])


def test_what_is_no_sound_and_no_text_is_refused(small: ClapEncoder) -> None:
    with pytest.raises(GenmeterError, match="takes audio") as caught:
        small.prepare(ImageMedia(np.zeros((4, 4, 3), np.uint8)), {})
    assert caught.value.code == "unsupported_media"
    with pytest.raises(RuntimeError, match="load"):
        make(clap_nets.entry()).encode([])


def test_a_feature_that_is_not_finite_is_a_typed_error(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = make(clap_nets.entry(), weights)
    encoder.load("cpu", "exact")
    item = encoder.prepare(noise(1.0), {})
    for bad in (np.nan, np.inf, 0.0):
        monkeypatch.setattr(encoder._backend, "encode_audio", lambda rows, bad=bad: np.full((len(rows), 32), bad, "f4"))
        with pytest.raises(GenmeterError) as caught:
            encoder.encode([item])
        assert caught.value.code == "non_finite"


def test_bytes_per_item_grow_with_what_they_stand_for(small: ClapEncoder) -> None:
    tiny, base = (make(get_entry(f"clap-{name}")) for name in ("630k-audioset-best", "music-audioset"))
    window = (SAMPLES,)
    assert small.bytes_per_item(window) < tiny.bytes_per_item(window) < base.bytes_per_item(window) < 200 << 20
    assert tiny.bytes_per_item((16,)) < tiny.bytes_per_item((77,)) < 20 << 20
    fused = make(get_entry("clap-630k-audioset-fusion-best"))
    assert fused.bytes_per_item((60 * RATE,)) > 2 * fused.bytes_per_item(window)


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
    assert encoder.prepare(noise(1.0), {}).arrays[0].shape == (1, SAMPLES)
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
    from genmeter.weights.load import load_tensors

    backend.load(load_tensors(weights), "cpu", False)
    found = probe.ask(backend)
    good = {"audio_text": found.audio_text.tolist(), "text_text": found.text_text.tolist()}
    make(clap_nets.entry(extra={"probe": good}), weights).load("cpu", "exact")
    for key in good:
        off = {**good, key: [good[key][0] + 0.01, *good[key][1:]]}
        assert key in refused(clap_nets.entry(extra={"probe": off}), weights, "model_probe_failed").message
        short = {**good, key: good[key][1:]}
        assert "stores" in refused(clap_nets.entry(extra={"probe": short}), weights, "model_probe_failed").message
    other = {"texts": ["rain", "a dog", "music", "waves"], **good}
    assert "differ" in refused(clap_nets.entry(extra={"probe": other}), weights, "model_probe_failed").message


def test_the_probes_sounds_are_the_same_on_every_machine() -> None:
    import hashlib

    tone, hiss = probe.sounds()
    assert tone.dtype == np.int16
    assert np.abs(tone.astype(int)).max() < 3200
    assert np.abs(hiss.astype(int)).max() > 32000
    assert abs(np.corrcoef(hiss[:-1], hiss[1:])[0, 1]) < 0.05
    assert hashlib.sha256(probe.sounds().astype("<i2").tobytes()).hexdigest()[:16] == "8c8bd77461ff3c31"
