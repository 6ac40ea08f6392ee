"""The tiny CLIP that ships: its tokenizer, its backend, and what it must tell apart on scenes it never saw."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from genmeter.contract import ImageMedia
from genmeter.encoders.clip import ClipEncoder, tiny_tokens
from genmeter.encoders.clip.tiny import TinyClipBackend
from genmeter.encoders.clip.tiny_tokens import CONTEXT_LENGTH, END, PAD, START, TinyTokenizer, pieces
from genmeter.errors import GenmeterError
from genmeter.synth.draw import draw
from genmeter.synth.scene import Group, Scene, make_scene
from genmeter.synth.words import caption
from genmeter.weights.digest import tensors_digest
from genmeter.weights.load import load_tensors
from genmeter.weights.lock import get_entry

pytestmark = pytest.mark.usefixtures("one_torch_thread")

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = ROOT / "src/genmeter/encoders/clip/tiny-clip.safetensors"
UNSEEN = range(12_000, 12_256)


@pytest.fixture(scope="module")
def encoder() -> ClipEncoder:
    loaded = ClipEncoder(get_entry("tiny-clip"), lambda: WEIGHTS)
    loaded.load("cpu", "exact")
    return loaded


@pytest.fixture(scope="module")
def pictures(encoder: ClipEncoder) -> np.ndarray:
    return images(encoder, [make_scene(seed) for seed in UNSEEN])


def images(encoder: ClipEncoder, scenes: list[Scene], width: int = 256, height: int = 256) -> np.ndarray:
    media = [ImageMedia(draw(scene, width, height)) for scene in scenes]
    return rows(encoder, [encoder.prepare(m, {"alpha": "white"}) for m in media])


def texts(encoder: ClipEncoder, sentences: list[str]) -> np.ndarray:
    return rows(encoder, [encoder.prepare(s, {"prefix": ""}) for s in sentences])


def rows(encoder: ClipEncoder, prepared: list) -> np.ndarray:
    features = [f for i in range(0, len(prepared), 32) for f in encoder.encode(prepared[i : i + 32])]
    return np.concatenate([f.values for f in features])


# --- texts to ids -----------------------------------------------------------------------------------------------------


def test_words_and_characters() -> None:
    assert pieces("Two RED circles,左边有三个圆环。 ｃａｆé 12") == [
        *("two", "red", "circles", ",", "左", "边", "有", "三", "个", "圆", "环", "。", "café", "1", "2")
    ]


def test_start_end_and_padding() -> None:
    tokens = TinyTokenizer()("a red circle")
    assert tokens.ids.shape == (CONTEXT_LENGTH,)
    assert tokens.ids.dtype == np.int64
    assert (tokens.ids[0], tokens.ids[4], tokens.count, tokens.truncated) == (START, END, 5, False)
    assert (tokens.ids[5:] == PAD).all()
    assert len(set(tokens.ids[:5])) == 5


@pytest.mark.parametrize(("words", "truncated"), [(62, False), (63, True), (5000, True)])
def test_long_texts_keep_the_end_token(words: int, truncated: bool) -> None:
    tokens = TinyTokenizer()("red " * words)
    assert (tokens.ids[-1], tokens.count, tokens.truncated) == (END, words + 2, truncated)
    assert (tokens.ids == END).sum() == 1


@pytest.mark.parametrize(
    "text",
    ["", " \n\t", "\x00", "\ud800", "🦊🦊", "ελληνικά", "한국어", "café", "العربية", "x" * 100_000, "䨻龘", "1e309"],
)
def test_any_text_has_ids(text: str) -> None:
    tokens = TinyTokenizer()(text)
    assert tokens.ids.min() >= 0
    assert tokens.ids.max() < tiny_tokens.SIZE
    assert np.array_equal(tokens.ids, TinyTokenizer()(text).ids)


def test_vocabulary_has_no_word_twice() -> None:
    assert len(set(tiny_tokens.VOCABULARY)) == len(tiny_tokens.VOCABULARY)
    assert all(pieces(word) == [word] for word in tiny_tokens.VOCABULARY)
    # Ids are part of the weights.
    assert tiny_tokens.piece_id("a") == 3
    assert load_tensors(WEIGHTS)["text.tokens.weight"].shape[0] == tiny_tokens.SIZE


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_word_of_the_captions_is_known(language: str) -> None:
    for seed in range(400):
        for piece in pieces(caption(make_scene(seed), language)):
            assert tiny_tokens.piece_id(piece) < tiny_tokens.SIZE - tiny_tokens.BUCKETS, piece


# --- the weights and their backend ------------------------------------------------------------------------------------


def test_the_file_is_small_and_what_the_lock_says() -> None:
    assert WEIGHTS.stat().st_size <= 6_000_000
    tensors = load_tensors(WEIGHTS)
    assert {array.dtype for array in tensors.values()} == {np.dtype(np.float16)}
    assert all(np.isfinite(array).all() for array in tensors.values())
    assert tensors_digest(tensors) == get_entry("tiny-clip").digest


@pytest.mark.parametrize("change", ["missing", "left over", "misshapen"])
def test_other_tensors_are_refused_by_name(change: str) -> None:
    tensors = load_tensors(WEIGHTS)
    name = "image.hidden.bias"
    if change == "missing":
        del tensors[name]
    elif change == "left over":
        name = "image.more.bias"
        tensors[name] = np.zeros(3, np.float16)
    else:
        tensors[name] = tensors[name][:-1]
    with pytest.raises(GenmeterError, match=name) as error:
        TinyClipBackend(get_entry("tiny-clip")).load(tensors, "cpu", False)
    assert error.value.code == "weights_mismatch"


def test_another_architecture_is_refused() -> None:
    with pytest.raises(GenmeterError, match="tiny-clip-v9"):
        TinyClipBackend(replace(get_entry("tiny-clip"), architecture="tiny-clip-v9"))


def test_zeroed_weights_do_not_pass_the_probe(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    tensors = load_tensors(WEIGHTS)
    tensors["text.projection.weight"] = tensors["text.projection.weight"] * 0
    save_file(tensors, tmp_path / "broken.safetensors")
    with pytest.raises(GenmeterError) as error:
        ClipEncoder(get_entry("tiny-clip"), lambda: tmp_path / "broken.safetensors").load("cpu", "exact")
    assert error.value.code == "model_probe_failed"


def test_features(encoder: ClipEncoder) -> None:
    image = encoder.encode([encoder.prepare(ImageMedia(draw(make_scene(0), 100, 60)), {"alpha": "white"})])[0]
    text = encoder.encode([encoder.prepare("a red circle", {"prefix": "A photo depicts "})])[0]
    for feature in (image, text):
        assert feature.values.shape == (1, get_entry("tiny-clip").extra["embed_dim"])
        assert feature.values.dtype == np.float32
        assert np.linalg.norm(feature.values) == pytest.approx(1, abs=1e-6)
        assert "not_comparable" in feature.flags
    assert text.detail["text_tokens"] == 8


def test_neither_batch_nor_order_moves_a_feature(encoder: ClipEncoder) -> None:
    scenes = [make_scene(seed) for seed in range(48)]
    sentences = [caption(scene, ("en", "zh")[i % 2]) for i, scene in enumerate(scenes)]
    together = images(encoder, scenes, 64, 64), texts(encoder, sentences)
    alone = (
        np.concatenate([images(encoder, [scene], 64, 64) for scene in scenes]),
        np.concatenate([texts(encoder, [sentence]) for sentence in sentences]),
    )
    assert np.abs(together[0] - alone[0]).max() < 1e-6
    assert np.abs(together[1] - alone[1]).max() < 1e-6
    again = images(encoder, scenes, 64, 64), texts(encoder, sentences)
    assert np.array_equal(again[0], together[0])
    assert np.array_equal(again[1], together[1])


def test_half_precision_is_near(encoder: ClipEncoder) -> None:
    half = TinyClipBackend(get_entry("tiny-clip"))
    half.load(load_tensors(WEIGHTS), "cpu", True)
    scenes = [make_scene(seed) for seed in range(8)]
    pixels = np.concatenate(
        [encoder.prepare(ImageMedia(draw(s, 96, 96)), {"alpha": "white"}).arrays[0] for s in scenes]
    )
    ids = np.stack([half.tokenizer()(caption(s)).ids for s in scenes])
    for found, exact in (
        (half.encode_images(pixels), images(encoder, scenes, 96, 96)),
        (half.encode_texts(ids), texts(encoder, [caption(s) for s in scenes])),
    ):
        assert found.dtype == np.float32
        assert (found * exact).sum(axis=1) / np.linalg.norm(found, axis=1) == pytest.approx(np.ones(8), abs=2e-3)


# --- what it tells apart ----------------------------------------------------------------------------------------------


def separation(cosine: np.ndarray) -> float:
    own, other = np.diagonal(cosine), cosine[~np.eye(len(cosine), dtype=bool)]
    return float((own[:, None] > other[None]).mean())


@pytest.mark.parametrize("language", ["en", "zh"])
def test_finds_the_caption_of_a_picture(encoder: ClipEncoder, pictures: np.ndarray, language: str) -> None:
    found = texts(encoder, [caption(make_scene(seed), language) for seed in UNSEEN])
    cosine = pictures @ found.T
    index = np.arange(len(cosine))
    assert (cosine.argmax(axis=1) == index).mean() >= 0.85
    assert (cosine.argmax(axis=0) == index).mean() >= 0.85
    assert separation(cosine) >= 0.995


@pytest.mark.parametrize(("width", "height"), [(256, 192), (128, 256), (96, 96), (512, 512)])
def test_any_size_of_picture(encoder: ClipEncoder, width: int, height: int) -> None:
    scenes = [make_scene(seed) for seed in UNSEEN[:64]]
    cosine = images(encoder, scenes, width, height) @ texts(encoder, [caption(scene) for scene in scenes]).T
    assert (cosine.argmax(axis=1) == np.arange(64)).mean() >= 0.85


def test_both_languages_mean_the_same(encoder: ClipEncoder) -> None:
    scenes = [make_scene(seed) for seed in UNSEEN]
    english, chinese = (texts(encoder, [caption(s, language) for s in scenes]) for language in ("en", "zh"))
    assert ((english @ chinese.T).argmax(axis=1) == np.arange(len(scenes))).mean() >= 0.85


RED_CIRCLE = Scene((Group("circle", "red", "plain", "large", 1, "left"),), "white", "plain", 5)
BLUE_STARS = Scene((Group("star", "blue", "plain", "large", 3, "centre"),), "yellow", "plain", 6)
BOTH = Scene(
    (Group("ring", "green", "striped", "large", 2, "top"), Group("square", "black", "plain", "large", 1, "bottom")),
    "pink",
    "plain",
    7,
)


@pytest.mark.parametrize(
    ("scene", "true", "false"),
    [
        (RED_CIRCLE, "a red circle", "a blue circle"),
        (RED_CIRCLE, "a red circle on the left", "a red circle on the right"),
        (RED_CIRCLE, "on the left there is a big red disc", "on the left there is a big green star"),
        (RED_CIRCLE, "A photo depicts a red circle on a white background", "A photo depicts four blue rings on black"),
        (RED_CIRCLE, "左边有一个红色的圆形", "右边有一个红色的圆形"),
        (RED_CIRCLE, "一个红色的圆", "一个绿色的圆"),
        (BLUE_STARS, "three blue stars", "three red stars"),
        (BLUE_STARS, "three blue stars", "two green hexagons"),
        (BLUE_STARS, "yellow background", "purple background"),
        (BLUE_STARS, "中间有三个蓝色五角星", "中间有三个绿色五角星"),
        (BLUE_STARS, "黄色背景", "紫色背景"),
        (BOTH, "green striped rings above a black square", "white dotted stars above a red triangle"),
        (BOTH, "a black square at the bottom", "a black square at the top"),
        (BOTH, "上面是绿色圆环，下面是黑色正方形", "上面是红色圆环，下面是白色正方形"),
    ],
)
def test_captions_of_a_part(encoder: ClipEncoder, scene: Scene, true: str, false: str) -> None:
    image = images(encoder, [scene, replace(scene, seed=1), replace(scene, seed=2)])
    right, wrong = (image @ texts(encoder, [true, false]).T).mean(axis=0)
    assert right > wrong + 0.05


LEAST_RIGHT = {
    "colour": 0.95,
    "count": 0.95,
    "size": 0.95,
    "place": 0.95,
    "background": 0.95,
    "swap": 0.95,
    # Its weak sides, as the card says.
    "shape": 0.68,
    "background_texture": 0.68,
    "texture": 0.52,
}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_one_wrong_field_mostly_loses(
    encoder: ClipEncoder, pictures: np.ndarray, claims: ModuleType, language: str
) -> None:
    assert set(LEAST_RIGHT) == set(claims.FIELDS)
    for number, (field, least) in enumerate(LEAST_RIGHT.items()):
        rng = np.random.default_rng(number)
        which, true, false = [], [], []
        for row, seed in enumerate(UNSEEN):
            table = claims.table_of(make_scene(seed))
            wrong = claims.spoil(claims.Claim(table, True), table, rng, field)
            if wrong is not None:
                which.append(row)
                true.append(caption(make_scene(seed), language))
                false.append(caption(claims.scene_of(wrong.table), language))
        assert len(which) > 80, field
        right = (pictures[which] * texts(encoder, true)).sum(axis=1)
        wrong = (pictures[which] * texts(encoder, false)).sum(axis=1)
        assert (right > wrong).mean() >= least, field


def test_text_outside_its_world_does_not_break_it(encoder: ClipEncoder) -> None:
    sentences = ["", "🦊", "an orange cat asleep on a sofa", "the stock market fell", "\ud800", "سلام", "red " * 500]
    found = texts(encoder, sentences)
    assert np.isfinite(found).all()
    # And words it does not know do not hide those that it knows.
    clean, noisy = "two large red crosses on the left", "zebra two large red frobnicated crosses on the left"
    other = "four small blue stars on the right"
    a, b, c = texts(encoder, [clean, noisy, other])
    assert a @ b > a @ c + 0.2


# --- the training script ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "scripts"))
    yield importlib.import_module("train_tiny_clip")
    sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture(scope="module")
def claims(script: ModuleType) -> ModuleType:
    return sys.modules["tiny_clip_captions"]


def test_a_scene_survives_its_table(claims: ModuleType) -> None:
    for seed in range(100):
        scene = make_scene(seed)
        assert claims.scene_of(claims.table_of(scene)) == replace(scene, seed=0)


def test_claims_hold_and_spoilt_ones_do_not(claims: ModuleType) -> None:
    rng = np.random.default_rng(0)
    spoilt = dict.fromkeys(claims.FIELDS, 0)
    for seed in range(400):
        table = claims.table_of(make_scene(seed))
        loose = claims.loosen(table, rng)
        full = claims.Claim(table, True)
        for claim in (full, loose):
            assert claims.holds(claim.table[None], table[None])[0, 0]
            for field in claims.FIELDS:
                wrong = claims.spoil(claim, table, rng, field)
                if wrong is not None:
                    spoilt[field] += 1
                    assert not claims.holds(wrong.table[None], table[None])[0, 0]
                    if wrong.full:
                        assert claims.say(wrong, "zh", np.random.default_rng(1)) != claims.say(
                            claim, "zh", np.random.default_rng(1)
                        )
    assert min(spoilt.values()) > 50


def test_holds_knows_groups_from_one_another(claims: ModuleType) -> None:
    table = claims.table_of(BOTH)
    swapped = table.copy()
    swapped[[claims.COLOUR, claims.WIDTH + claims.COLOUR]] = table[[claims.WIDTH + claims.COLOUR, claims.COLOUR]]
    reordered = np.concatenate([table[6:12], table[:6], table[12:]])
    many = table.copy()
    many[claims.COUNT] = claims.MANY
    one = table.copy()
    one[claims.WIDTH + claims.COUNT] = claims.MANY
    found = claims.holds(np.stack([table, reordered, swapped, many, one]), table[None])[0]
    assert found.tolist() == [True, True, False, True, False]


def test_training_words_are_known(claims: ModuleType) -> None:
    rng = np.random.default_rng(3)
    for seed in range(300):
        claim = claims.loosen(claims.table_of(make_scene(seed)), rng)
        for language in ("en", "zh"):
            for piece in pieces(claims.say(claim, language, rng)):
                assert tiny_tokens.piece_id(piece) < tiny_tokens.SIZE - tiny_tokens.BUCKETS, piece


def test_training_leaves_evaluation_scenes_alone(script: ModuleType, claims: ModuleType) -> None:
    assert max(UNSEEN) < script.HELD_OUT_SEEDS < script.TRAINING_SEEDS
    _, tables = script.pool_of(300)
    assert len(tables) == 300
    held_out = {claims.table_of(make_scene(seed)).tobytes() for seed in range(script.HELD_OUT_SEEDS)}
    assert not held_out & {table.tobytes() for table in tables}


def test_mirrored_pictures_have_mirrored_words(script: ModuleType, claims: ModuleType) -> None:
    scene = replace(RED_CIRCLE, seed=3)
    pixels = np.repeat(script.render(scene, 96, 96)[None], 64, axis=0)
    tables = np.repeat(claims.table_of(scene)[None], 64, axis=0)
    changed, words = script.augment(pixels, tables, np.random.default_rng(0))
    said = {claims.PLACES[row[claims.PLACE]] for row in words}
    assert said == {"left", "right"}
    for picture, row in zip(changed, words, strict=True):
        # White has all of blue, red has little.
        darker = picture[:, :48, 2].mean() < picture[:, 48:, 2].mean()
        assert darker == (claims.PLACES[row[claims.PLACE]] == "left")


def test_training_is_reproducible(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(script, "HELD_OUT_SEEDS", 10)
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    try:
        for file in files:
            arguments = ["train", "--out", str(file), "--steps", "2", "--batch", "8", "--pool", "16"]
            monkeypatch.setattr(sys, "argv", ["train_tiny_clip.py", *arguments])
            script.main()
    finally:
        torch.use_deterministic_algorithms(False)
    assert files[0].read_bytes() == files[1].read_bytes()
    untrained = load_tensors(files[0])
    assert {k: v.shape for k, v in untrained.items()} == {k: v.shape for k, v in load_tensors(WEIGHTS).items()}
