"""The CLIP encoder: images and texts in, unit vectors out, whoever shares the batch; and what it refuses to load."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import clip_nets
import numpy as np
import pytest

from genmeter.contract import AudioMedia, ImageMedia, Prepared, VideoMedia
from genmeter.encoders import scripts
from genmeter.encoders.clip import ClipEncoder, preprocessing, probe
from genmeter.encoders.clip.backend import Tokens
from genmeter.encoders.registry import create_encoder, encoder_spec, list_encoders
from genmeter.encoders.twotower import unit as _unit
from genmeter.errors import GenmeterError
from genmeter.weights.load import load_tensors
from genmeter.weights.lock import ModelEntry, PartSpec, SourceSpec, load_lock

torch = pytest.importorskip("torch")
pytest.importorskip("open_clip")

pytestmark = pytest.mark.usefixtures("one_torch_thread")

WHITE = {"alpha": "white"}
PLAIN = {"prefix": ""}
FULL = 75  # tokens that fit beside start and end


def noise(height: int, width: int, seed: int = 0, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def make(entry: ModelEntry, path: Path | None = None) -> ClipEncoder:
    def fetch() -> Path:
        assert path is not None, "nothing may be fetched here"
        return path

    encoder = create_encoder("clip", entry, fetch)
    assert isinstance(encoder, ClipEncoder)
    return encoder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clip_nets.save(clip_nets.build(clip_nets.SMALL), tmp_path_factory.mktemp("clip") / "weights.safetensors")


@pytest.fixture(scope="module")
def small(checkpoint: Path) -> ClipEncoder:
    encoder = make(clip_nets.entry(), checkpoint)
    encoder.load("cpu", "exact")
    return encoder


@pytest.fixture
def unloaded() -> ClipEncoder:
    return make(clip_nets.entry())


def texts(encoder: ClipEncoder, *captions: str, view: Any = PLAIN) -> list[Prepared]:
    return [encoder.prepare(caption, view) for caption in captions]


def images(encoder: ClipEncoder, count: int, seed: int = 0) -> list[Prepared]:
    return [encoder.prepare(ImageMedia(noise(64 + i, 48, seed + i)), WHITE) for i in range(count)]


def values(encoder: ClipEncoder, batch: list[Prepared]) -> np.ndarray:
    return np.concatenate([feature.values for feature in encoder.encode(batch)])


def refused(entry: ModelEntry, path: Path | None = None, code: str = "weights_mismatch") -> GenmeterError:
    with pytest.raises(GenmeterError) as caught:
        make(entry, path).load("cpu", "exact")
    assert caught.value.code == code
    return caught.value


# --- what it returns ---------------------------------------------------------------------------------------------


def test_features_have_the_shape_the_contract_states(small: ClipEncoder) -> None:
    [image] = small.encode(images(small, 1))
    [text] = small.encode(texts(small, "a dog"))
    for feature in (image, text):
        assert feature.values.shape == (1, 256)
        assert feature.values.dtype == np.float32
        assert feature.weights.tolist() == [1.0]
        assert np.linalg.norm(feature.values[0].astype(np.float64)) == pytest.approx(1, abs=1e-6)
        assert feature.flags == ()
    assert text.detail == {"text_tokens": 4}


def test_frames_of_a_video_are_rows_and_equal_the_images(small: ClipEncoder) -> None:
    frames = np.stack([noise(40, 60, i) for i in range(5)])
    clip = small.prepare(VideoMedia(frames, np.arange(5.0)), WHITE)
    assert clip.arrays[0].shape == (5, 224, 224, 3)
    one = small.prepare(ImageMedia(frames[3]), WHITE)
    first, other = small.encode([clip, one])
    assert first.values.shape == (5, 256)
    assert first.weights.tolist() == [1.0] * 5
    assert np.abs(first.values[3] - other.values[0]).max() <= 1e-6


def test_images_and_texts_never_share_a_bucket(unloaded: ClipEncoder) -> None:
    image = unloaded.prepare(ImageMedia(noise(30, 30)), WHITE)
    buckets = {item.bucket for item in texts(unloaded, "a dog", "a " * 40, "a " * 300)}
    assert image.bucket not in buckets
    assert image.arrays[0].dtype == np.uint8
    assert all(item.arrays[0].dtype == np.int64 for item in texts(unloaded, "a", "b " * 90))


def test_what_is_no_image_and_no_text_is_refused(unloaded: ClipEncoder) -> None:
    for media, code in (
        (AudioMedia(np.zeros(10, np.float32), 48000), "unsupported_media"),
        (ImageMedia(np.zeros((0, 5, 3), np.uint8)), "empty_media"),
        (VideoMedia(np.zeros((0, 5, 5, 3), np.uint8), np.zeros(0)), "empty_media"),
    ):
        with pytest.raises(GenmeterError) as caught:
            unloaded.prepare(media, WHITE)
        assert caught.value.code == code


def test_encode_before_load_says_so(unloaded: ClipEncoder) -> None:
    with pytest.raises(RuntimeError, match="load"):
        unloaded.encode(texts(unloaded, "a dog"))


def test_spec_tells_two_recipes_apart() -> None:
    base = encoder_spec("clip", clip_nets.entry())
    assert base.name == "clip"
    assert base.languages == ("en",)
    assert "clip" in list_encoders()
    for other in (
        clip_nets.entry(preprocessing={"mean": [0.5, 0.5, 0.5]}),
        clip_nets.entry(preprocessing={"interpolation": "bilinear"}),
        clip_nets.entry(activation="quickgelu"),
        clip_nets.entry("ViT-S-32"),
    ):
        assert encoder_spec("clip", other).preprocessing != base.preprocessing


def test_describing_and_preparing_import_no_torch() -> None:
    code = (
        "import sys, numpy as np, clip_nets\n"
        "from genmeter.contract import ImageMedia\n"
        "from genmeter.encoders.registry import create_encoder\n"
        "e = create_encoder('clip', clip_nets.entry(), lambda: 1 / 0)\n"
        "e.prepare(ImageMedia(np.zeros((9, 9, 3), np.uint8)), {'alpha': 'white'})\n"
        "e.prepare('a dog', {'prefix': 'A photo depicts '}); e.bytes_per_item((224, 224, 3)); e.bytes_per_item((77,))\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    path = Path(clip_nets.__file__).parent
    assert subprocess.run([sys.executable, "-c", code], cwd=path, check=False).returncode == 0


def test_every_clip_entry_of_the_lock_can_be_described_and_agrees_with_its_architecture() -> None:
    found = 0
    for entry in load_lock().values():
        if entry.loader == "open_clip":
            encoder = make(entry)
            encoder._backend._check_statements()  # type: ignore[attr-defined]
            size = encoder.recipe.size
            assert encoder.bytes_per_item((size, size, 3)) > 2 * size * size * 3
            found += 1
    assert found == 0 or found >= 7


# --- texts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [FULL, FULL + 1, FULL + 2, 200, 600, 20000])
def test_a_long_text_keeps_its_end_token(unloaded: ClipEncoder, words: int) -> None:
    [item] = texts(unloaded, "x " * words)
    ids = item.arrays[0][0]
    assert ids.shape == (77,)
    assert ids[0] == 49406
    assert ids[-1] == 49407
    assert item.detail["text_tokens"] == words + 2
    assert item.flags == (("text_truncated",) if words > FULL else ())


def test_captions_past_the_limit_score_as_the_longest_that_fits(small: ClipEncoder) -> None:
    """Case B01: one word past the limit must not move the score, since the cut keeps the end token."""
    [image] = small.encode(images(small, 1))
    prepared = texts(small, *("x " * n for n in (74, 75, 76, 200)), "word " * 600)
    cosines = [float(small.encode([item])[0].values[0] @ image.values[0]) for item in prepared]
    assert max(abs(c - cosines[1]) for c in cosines[1:4]) <= 1e-6
    assert np.isfinite(cosines).all()
    assert [bool(item.flags) for item in prepared] == [False, False, True, True, True]
    # The cut that drops the end token would be seen: it pools somewhere else.
    ids = prepared[2].arrays[0].copy()
    ids[0, -1] = ids[0, -2]
    wrong = _unit(small._backend.encode_texts(ids))[0] @ image.values[0]
    assert abs(wrong - cosines[1]) > 1e-3


def test_prefix_is_part_of_the_text_and_not_of_its_language(unloaded: ClipEncoder) -> None:
    [bare] = texts(unloaded, "A photo depicts a dog")
    [prefixed] = texts(unloaded, "a dog", view={"prefix": "A photo depicts "})
    assert np.array_equal(bare.arrays[0], prefixed.arrays[0])
    [none] = texts(unloaded, "a dog", view={})
    assert none.detail["text_tokens"] == 4
    [chinese] = texts(unloaded, "狗", view={"prefix": "A photo depicts "})
    assert chinese.flags == ("prompt_language",)


@pytest.mark.parametrize(
    "text",
    ["", " ", "\x00", "\ud83d", "\ud83d\udc36", "a\u2028b", "<end_of_text>", "🐶" * 500, "x" * 100_000, "的" * 50_000],
)
def test_any_string_is_tokenized(small: ClipEncoder, text: str) -> None:
    [item] = texts(small, text)
    assert item.arrays[0][0, 0] == 49406
    [feature] = small.encode([item])
    assert np.isfinite(feature.values).all()


def test_short_texts_come_in_short_rows_and_give_what_long_rows_give(small: ClipEncoder) -> None:
    [short] = texts(small, "a dog on the grass")
    assert short.arrays[0].shape == (1, 16)
    padded = np.zeros((1, 77), np.int64)
    padded[:, :16] = short.arrays[0]
    whole = small._backend.encode_texts(padded)
    assert np.abs(small._backend.encode_texts(short.arrays[0]) - whole).max() <= 1e-5 * np.abs(whole).max()


def test_tokenizer_is_safe_in_threads(unloaded: ClipEncoder) -> None:
    captions = [f"picture {i} of a {word} {i * 7}" for i in range(60) for word in ("mountain", "bicycle")]
    expected = [item.arrays[0].tobytes() for item in texts(make(clip_nets.entry()), *captions)]
    results: dict[int, list[bytes]] = {}

    def work(index: int) -> None:
        results[index] = [item.arrays[0].tobytes() for item in texts(unloaded, *captions)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(results[i] == expected for i in range(6))


def test_the_word_cache_stays_bounded(unloaded: ClipEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genmeter.encoders.clip.bpe._CACHED_WORDS", 50)
    tokenizer = unloaded._backend.tokenizer()
    first = tokenizer("zebra").ids.tobytes()
    for i in range(300):
        tokenizer("w" + "".join(chr(97 + int(d)) for d in str(i)))
    assert len(tokenizer._cache) <= 50  # type: ignore[attr-defined]
    assert tokenizer("zebra").ids.tobytes() == first


# --- languages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "languages", "expected"),
    [
        ("a dog", ["en"], False),
        ("狗", ["en"], True),
        ("un chien près de la forêt", ["en"], False),
        ("🐶", ["en"], True),
        ("a dog 🐶🐶🐶", ["en"], False),
        ("كلب في الحديقة", ["en"], True),
        ("כלב", ["en"], True),
        ("собака", ["en"], True),
        ("犬がいる", ["en"], True),
        ("강아지", ["en"], True),
        ("a photo of 狗", ["en"], True),
        ("Schrödinger's ψ drawn on a blackboard", ["en"], False),
        ("ｆｕｌｌｗｉｄｔｈ", ["en"], False),
        ("𝓯𝓪𝓷𝓬𝔂 letters", ["en"], False),
        ("", ["en"], False),
        ("1234 !?", ["en"], False),
        ("狗", ["zh"], False),
        ("a dog", ["zh"], True),
        ("一只 dog", ["en", "zh"], False),
        ("狗", ["zh-Hans"], False),
        ("собака", ["en", "zh"], True),
        ("собака", ["mul"], False),
        ("狗", [], False),
        ("नमस्ते", ["hi"], False),
        ("สุนัข", ["en"], True),
    ],
)
def test_languages_are_told_by_their_scripts(text: str, languages: list[str], expected: bool) -> None:
    assert scripts.outside(text, languages) is expected


# --- images ------------------------------------------------------------------------------------------------------


def test_alpha_on_white_or_dropped(unloaded: ClipEncoder) -> None:
    pixels = np.zeros((50, 50, 4), np.uint8)
    pixels[..., 0] = 200
    pixels[:, 25:, 3] = 255
    white = unloaded.prepare(ImageMedia(pixels), WHITE)
    dropped = unloaded.prepare(ImageMedia(pixels), {"alpha": "drop"})
    assert white.flags == ("alpha_composited",)
    assert dropped.flags == ()
    assert white.arrays[0][0, 100, 10].tolist() == [255, 255, 255]
    assert dropped.arrays[0][0, 100, 10].tolist() == [0, 0, 0]
    assert white.arrays[0][0, 100, 210].tolist() == dropped.arrays[0][0, 100, 210].tolist() == [200, 0, 0]
    pixels[..., 3] = 255
    opaque = [unloaded.prepare(ImageMedia(pixels), {"alpha": alpha}) for alpha in ("white", "drop")]
    assert np.array_equal(opaque[0].arrays[0], opaque[1].arrays[0])
    assert opaque[0].flags == ()


def test_a_very_long_strip_does_not_fill_the_memory(unloaded: ClipEncoder) -> None:
    """Resized whole, the strip would be 224 pixels wide and 112 million high."""
    strip = np.repeat(np.arange(500_000, dtype=np.uint32)[:, None, None] * 255 // 500_000, 3, axis=2).astype(np.uint8)
    found = unloaded.prepare(ImageMedia(strip), WHITE).arrays[0]
    assert found.shape == (1, 224, 224, 3)
    assert set(np.unique(found)) <= {126, 127, 128}


def test_a_centre_resized_alone_is_the_centre(monkeypatch: pytest.MonkeyPatch) -> None:
    how = preprocessing.recipe(clip_nets.entry())
    y, x = np.mgrid[0:300, 0:900]
    smooth = np.stack([y // 2, x // 4, (x + y) // 8], axis=2).astype(np.uint8)
    for pixels in (smooth, smooth.transpose(1, 0, 2)):
        whole = preprocessing.prepare(ImageMedia(pixels), {}, how).arrays[0].astype(int)
        monkeypatch.setattr(preprocessing, "_MOST_PIXELS", 0)
        assert np.abs(preprocessing.prepare(ImageMedia(pixels), {}, how).arrays[0] - whole).max() <= 1
        monkeypatch.undo()


@pytest.mark.parametrize("key", ["size", "interpolation", "resize_mode", "mean", "std"])
def test_an_entry_that_leaves_its_preprocessing_unsaid_is_refused(key: str) -> None:
    assert key in refused(clip_nets.entry(preprocessing={key: None})).message


# --- batches -----------------------------------------------------------------------------------------------------


def test_neighbours_order_and_batch_size_do_not_move_a_feature(small: ClipEncoder) -> None:
    for items in (
        images(small, 16),
        texts(small, *(f"{i} dogs and {word}" for i in range(8) for word in ("a cat", "no cat"))),
    ):
        alone = np.concatenate([values(small, [item]) for item in items])
        for size in (2, 7, 16):
            together = np.concatenate([values(small, items[i : i + size]) for i in range(0, 16, size)])
            assert np.abs(together - alone).max() <= 1e-6
        assert np.abs(values(small, items[::-1])[::-1] - alone).max() <= 1e-6


def test_ten_copies_of_one_caption_are_one_feature(small: ClipEncoder) -> None:
    """Case B06."""
    found = values(small, texts(small, *["hey"] * 10))
    assert np.abs(found - found[0]).max() <= 1e-6


def test_equal_batches_give_equal_bytes_in_another_encoder(small: ClipEncoder, checkpoint: Path) -> None:
    again = make(clip_nets.entry(), checkpoint)
    again.load("cpu", "exact")
    for items in (images(small, 5), texts(small, "a dog", "two dogs", "three dogs")):
        assert values(small, items).tobytes() == values(again, items).tobytes()


def test_images_and_captions_of_unlike_size_run_together(small: ClipEncoder) -> None:
    """Case B07."""
    wide, tall = (small.prepare(ImageMedia(noise(*size)), WHITE) for size in ((48, 64), (64, 48)))
    assert wide.bucket == tall.bucket
    assert values(small, [wide, tall]).shape == (2, 256)
    captions = texts(small, "three word caption", "word " * 25)
    assert all(values(small, [item]).shape == (1, 256) for item in captions)


def test_a_batch_is_cut_into_passes(small: ClipEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    items = images(small, 5)
    whole = values(small, items)
    monkeypatch.setattr(ClipEncoder, "_rows_at_once", lambda self, shape, items: 2)
    assert np.abs(values(small, items) - whole).max() <= 1e-6


# --- half precision (case B03) -----------------------------------------------------------------------------------


def test_cosines_stay_within_one_whatever_precision_the_towers_ran_in() -> None:
    """A half-precision norm, or dot product, gives cosines above 1 or overflows; lengths are taken in float32."""
    rng = np.random.default_rng(0)
    features = (rng.standard_normal((4, 512)) * 30).astype(np.float16)
    unit = _unit(features)
    assert unit.dtype == np.float32
    assert np.abs(unit @ unit.T).max() <= 1 + 1e-6
    exact = features.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    assert np.abs(unit - exact).max() <= 1e-7
    # What the trap does: squares summed in float16 run over.
    with np.errstate(over="ignore"):
        total = np.float16(0)
        for value in features[0]:
            total = np.float16(total + value * value)
    assert not np.isfinite(total)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_very_long_and_very_short_vectors_still_have_a_direction(scale: float) -> None:
    base = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    assert np.abs(_unit(base * np.float32(scale)) - _unit(base)).max() <= 1e-6


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_a_vector_without_direction_is_an_error_and_no_number(
    small: ClipEncoder, monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    monkeypatch.setattr(small._backend, "encode_images", lambda pixels: np.full((len(pixels), 256), bad, np.float32))
    with pytest.raises(GenmeterError) as caught:
        small.encode(images(small, 1))
    assert caught.value.code == "non_finite"


# --- what is refused ---------------------------------------------------------------------------------------------


def edited(checkpoint: Path, folder: Path, change: Any) -> Path:
    from safetensors.numpy import save_file

    tensors = load_tensors(checkpoint)
    change(tensors)
    save_file(tensors, folder / "edited.safetensors")
    return folder / "edited.safetensors"


def test_tensors_must_be_those_of_the_architecture(checkpoint: Path, tmp_path: Path) -> None:
    def missing(tensors: dict[str, np.ndarray]) -> None:
        del tensors["visual.proj"]

    def extra(tensors: dict[str, np.ndarray]) -> None:
        tensors["visual.surprise"] = np.zeros(3, np.float32)

    def misshapen(tensors: dict[str, np.ndarray]) -> None:
        tensors["visual.proj"] = tensors["visual.proj"][:-1].copy()

    for change, words in (
        (missing, ("missing", "visual.proj")),
        (extra, ("not expected", "visual.surprise")),
        (misshapen, ("shape", "visual.proj")),
    ):
        error = refused(clip_nets.entry(), edited(checkpoint, tmp_path, change))
        assert all(word in error.message for word in words)
    error = refused(clip_nets.entry("ViT-B-32"), checkpoint)
    assert "more" in error.message


def test_stored_masks_and_half_precision_checkpoints_load(checkpoint: Path, tmp_path: Path, small: ClipEncoder) -> None:
    def old_style(tensors: dict[str, np.ndarray]) -> None:
        tensors["attn_mask"] = np.full((77, 77), np.nan, np.float32)
        tensors["logit_scale"] = tensors["logit_scale"].reshape(1)

    encoder = make(clip_nets.entry(), edited(checkpoint, tmp_path, old_style))
    encoder.load("cpu", "exact")
    items = images(small, 2)
    assert values(encoder, items).tobytes() == values(small, items).tobytes()

    def halve(tensors: dict[str, np.ndarray]) -> None:
        tensors.update({name: array.astype(np.float16) for name, array in tensors.items()})

    encoder = make(clip_nets.entry(), edited(checkpoint, tmp_path, halve))
    encoder.load("cpu", "exact")
    assert encoder._backend._model.visual.proj.dtype == torch.float32  # type: ignore[attr-defined]
    assert np.abs(values(encoder, items) - values(small, items)).max() < 1e-2


def test_activation_is_the_entrys_and_moves_the_features(checkpoint: Path, small: ClipEncoder) -> None:
    quick = make(clip_nets.entry(activation="quickgelu"), checkpoint)
    quick.load("cpu", "exact")
    items = images(small, 2)
    assert np.abs(values(quick, items) - values(small, items)).max() > 1e-4
    assert "activation" in refused(clip_nets.entry(extra={"activation": None})).message
    assert "activation" in refused(clip_nets.entry(activation="relu")).message


def test_activation_that_the_files_contradict_is_refused(checkpoint: Path) -> None:
    """Case B05: OpenAI's ViT-B/32 under plain GELU loads without complaint and is wrong."""
    sha256 = "40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af"
    openai = (SourceSpec("safetensors", (PartSpec("weights", "file", "ViT-B-32.pt", sha256),)),)
    error = refused(clip_nets.entry(sources=openai), checkpoint)
    assert "quickgelu" in error.message
    archive = (SourceSpec("openai_jit", (PartSpec("weights", "file", "other.pt"),)),)
    assert "quickgelu" in refused(clip_nets.entry(sources=archive), checkpoint).message
    assert "quickgelu" in refused(clip_nets.entry("ViT-B-32-quickgelu"), checkpoint).message
    laion = "ac4f8c4b88af6d963118cbf40ad93176d092abbedfcb752601ae1866352656e6"
    sources = (SourceSpec("open_clip", (PartSpec("weights", "hub", "open_clip_model.safetensors", laion),)),)
    assert "laion" in refused(clip_nets.entry(activation="quickgelu", sources=sources), checkpoint).message
    encoder = make(clip_nets.entry(activation="quickgelu", sources=openai), checkpoint)
    encoder.load("cpu", "exact")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"extra": {"context_length": 64}}, "context_length"),
        ({"extra": {"context_length": None}}, "context_length"),
        ({"preprocessing": {"size": 336}}, "size"),
        ({"extra": {"embed_dim": 512}}, "embed_dim"),
        ({"extra": {"half": "int8"}}, "half"),
    ],
)
def test_statements_that_the_architecture_contradicts_are_refused(
    checkpoint: Path, changes: dict[str, Any], word: str
) -> None:
    assert word in refused(clip_nets.entry(**changes), checkpoint).message


def test_unknown_architectures_and_loaders_name_the_nearest() -> None:
    assert "ViT-B-32" in refused(clip_nets.entry("ViT-B-23"), code="unknown_metric").message
    assert "open_clip" in refused(clip_nets.entry(loader="openclip"), code="unknown_metric").message
    refused(clip_nets.entry("coca_ViT-B-32"), code="unknown_metric")


# --- the probe ---------------------------------------------------------------------------------------------------


def test_a_text_tower_that_tells_nothing_apart_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    def collapse(tensors: dict[str, np.ndarray]) -> None:
        tensors["token_embedding.weight"] *= 1e-6

    error = refused(clip_nets.entry(), edited(checkpoint, tmp_path, collapse), code="model_probe_failed")
    assert "texts" in error.message


def test_an_image_tower_that_tells_nothing_apart_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    def collapse(tensors: dict[str, np.ndarray]) -> None:
        tensors["visual.conv1.weight"] *= 1e-6

    error = refused(clip_nets.entry(), edited(checkpoint, tmp_path, collapse), code="model_probe_failed")
    assert "images" in error.message


def test_weights_that_are_not_finite_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    def spoil(tensors: dict[str, np.ndarray]) -> None:
        tensors["ln_final.weight"][3] = np.nan

    error = refused(clip_nets.entry(), edited(checkpoint, tmp_path, spoil), code="model_probe_failed")
    assert "finite" in error.message


def test_stored_answers_catch_the_wrong_activation(checkpoint: Path, small: ClipEncoder) -> None:
    answers = probe.ask(small._backend, small.recipe)
    stored = {"image_text": answers.media_text.tolist(), "text_text": answers.text_text.tolist()}
    make(clip_nets.entry(extra={"probe": stored}), checkpoint).load("cpu", "exact")
    error = refused(
        clip_nets.entry(activation="quickgelu", extra={"probe": stored}), checkpoint, code="model_probe_failed"
    )
    assert "differ" in error.message
    refused(clip_nets.entry(extra={"probe": {"image_text": [0.1]}}), checkpoint, code="model_probe_failed")


def test_an_entry_may_bring_its_own_texts(checkpoint: Path) -> None:
    same = {"texts": ["a dog", "a dog", "a cat", "a cow"]}
    refused(clip_nets.entry(extra={"probe": same}), checkpoint, code="model_probe_failed")
    other = {"texts": ["a red circle", "four blue squares", "圆形", "no stars at all"]}
    make(clip_nets.entry(extra={"probe": other}), checkpoint).load("cpu", "exact")


def test_a_tiny_network_flags_every_feature(checkpoint: Path) -> None:
    encoder = make(clip_nets.entry(extra={"profile": "tiny"}), checkpoint)
    encoder.load("cpu", "exact")
    for items in (images(encoder, 1), texts(encoder, "a dog", "狗")):
        assert all("not_comparable" in feature.flags for feature in encoder.encode(items))
    assert encoder.encode(texts(encoder, "狗"))[0].flags == ("prompt_language", "not_comparable")


# --- tokenizers that come with the weights -----------------------------------------------------------------------


@pytest.fixture
def subwords(tmp_path: Path) -> ClipEncoder:
    from safetensors.numpy import save_file

    pytest.importorskip("tokenizers")
    data = np.frombuffer(clip_nets.make_tokenizer(), np.uint8)
    save_file({"tokenizer.json": data, "other": np.zeros(2, np.float32)}, tmp_path / "t.safetensors")
    return make(siglip(), tmp_path / "t.safetensors")


def siglip(**extra: Any) -> ModelEntry:
    preprocessing_ = {"resize_mode": "squash", "mean": [0.5] * 3, "std": [0.5] * 3}
    return clip_nets.entry(
        "ViT-B-16-SigLIP2", preprocessing=preprocessing_, extra={"context_length": 64, "languages": ["mul"], **extra}
    )


def test_a_stored_tokenizer_cuts_and_pads_by_the_entry_and_not_by_its_own_settings(subwords: ClipEncoder) -> None:
    [short] = texts(subwords, "A_Dog!")
    ids = short.arrays[0][0]
    assert ids.shape == (64,)
    assert int(short.detail["text_tokens"] or 0) == int((ids != 0).sum())
    assert ids[ids != 0][-1] == 1
    # Cleaned as the architecture says: lower case, no punctuation.
    [plain] = texts(subwords, "a dog")
    assert np.array_equal(plain.arrays[0], short.arrays[0])
    [long] = texts(subwords, "photo of a dog " * 200)
    assert long.flags == ("text_truncated",)
    assert long.arrays[0][0, -1] == 1
    assert int(long.detail["text_tokens"] or 0) > 600
    [chinese] = texts(subwords, "狗" * 100)
    assert chinese.flags == ("text_truncated",)


def test_an_end_token_that_the_file_does_not_add_can_be_stated() -> None:
    pytest.importorskip("tokenizers")
    from tokenizers import Tokenizer, processors

    from genmeter.encoders.clip.subwords import SubwordTokenizer

    tokenizer = Tokenizer.from_str(clip_nets.make_tokenizer().decode())
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    bare = SubwordTokenizer(tokenizer.to_str().encode(), 16, 0, "whitespace", "m", end=1)
    with_end = SubwordTokenizer(clip_nets.make_tokenizer(), 16, 0, "whitespace", "m", end=1)
    for text in ("a dog", "", "dog " * 50):
        one, other = bare(text), with_end(text)
        assert isinstance(one, Tokens)
        assert np.array_equal(one.ids, other.ids)
        assert one[1:] == other[1:]


def test_weights_without_their_tokenizer_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    from safetensors.numpy import save_file

    save_file({"tokenizer.json": np.frombuffer(b"{}", np.uint8)}, tmp_path / "bad.safetensors")
    for path in (checkpoint, tmp_path / "bad.safetensors"):
        with pytest.raises(GenmeterError) as caught:
            make(siglip(), path).prepare("a dog", PLAIN)
        assert caught.value.code == "weights_mismatch"
        assert "tokenizer" in caught.value.message


def test_a_text_tower_of_transformers_needs_its_configuration_stated() -> None:
    assert "text_config" in refused(clip_nets.entry("xlm-roberta-base-ViT-B-32")).message


def test_building_leaves_the_random_state_alone(checkpoint: Path) -> None:
    before = torch.random.get_rng_state()
    make(replace(clip_nets.entry(), id="other"), checkpoint).load("cpu", "exact")
    assert torch.equal(before, torch.random.get_rng_state())
