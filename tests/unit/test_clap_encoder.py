"""The CLAP encoder: sounds and texts in, unit vectors out, whoever shares the batch; and what it refuses to load."""

from __future__ import annotations

from pathlib import Path

import clap_nets
import laion_reference
import numpy as np
import pytest

from genmeter.contract import AudioMedia, ImageMedia, MediaEncoder, Prepared
from genmeter.encoders.clap import ClapEncoder
from genmeter.encoders.clap.windows import RATE, SAMPLES
from genmeter.encoders.registry import create_encoder, list_encoders
from genmeter.errors import GenmeterError
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
