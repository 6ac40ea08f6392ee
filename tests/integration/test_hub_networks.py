"""Whole downloads of CLIP networks with random weights: what arrives computes what was published."""

from __future__ import annotations

import gc
import hashlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_server import Hub, lock_file, serving

from genmeter.weights.clip import TOKENIZER
from genmeter.weights.load import load_tensors
from genmeter.weights.lock import get_entry, load_lock
from genmeter.weights.manager import ensure

torch = pytest.importorskip("torch")
open_clip = pytest.importorskip("open_clip")
pytest.importorskip("huggingface_hub")
FILE = "open_clip_model.safetensors"
SMALL = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 16, "head_width": 32},
    "text_cfg": {"context_length": 77, "vocab_size": 50, "width": 32, "heads": 2, "layers": 2},
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    torch.set_num_threads(1)
    with serving() as made:
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        yield made


def network(architecture: str, quick_gelu: bool = False) -> Any:
    torch.manual_seed(7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if architecture == "small":
            return open_clip.model.CLIP(**SMALL, quick_gelu=quick_gelu).eval()
        return open_clip.create_model(architecture, pretrained=None, force_quick_gelu=quick_gelu).eval()


def features(model: Any) -> list[np.ndarray]:
    size = model.visual.image_size
    side = size[0] if isinstance(size, tuple) else size
    generator = torch.Generator().manual_seed(3)
    image = torch.rand((1, 3, side, side), generator=generator)
    ids = torch.randint(1, 40, (1, model.context_length), generator=generator)
    with torch.inference_mode():
        return [model.encode_image(image).numpy(), model.encode_text(ids).numpy()]


def filled(model: Any, tensors: dict[str, np.ndarray]) -> Any:
    """The network with these values and no others: every parameter must be there, and nothing else."""
    assert set(tensors) == {name for name, _ in model.named_parameters()}
    values = {name: torch.from_numpy(array).float() for name, array in tensors.items()}
    model.load_state_dict(values, strict=False)
    return model


def published(model: Any) -> bytes:
    """As open_clip publishes: the whole state_dict as safetensors."""
    from safetensors.torch import save

    return bytes(save({name: tensor.contiguous() for name, tensor in model.state_dict().items()}))


def archived(model: Any) -> bytes:
    """As OpenAI publishes: a TorchScript archive with matrices in float16."""
    open_clip.model.convert_weights_to_lp(model, torch.float16)
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(model), stream)
    return stream.getvalue()


def through_the_hub(
    folder: Path, hub: Hub, files: dict[str, bytes], converter: str, *, resume: bool = False
) -> dict[str, np.ndarray]:
    hub.files = dict(files)
    hub.piece = max(2048, len(files[FILE]) >> 8)
    if resume:
        hub.cut = lambda n: len(files[FILE]) // 2 if n == 1 else None
    path = ensure(get_entry("tiny", lock_file(folder, files, converter=converter)), siblings=())
    assert len(hub.transfers) == len(files) + resume
    tensors = load_tensors(path)
    path.unlink()  # pytest keeps its folders, and these are large.
    return tensors


@pytest.mark.parametrize(
    "architecture",
    [
        "small",
        pytest.param("ViT-B-32", marks=pytest.mark.slow),
        pytest.param("ViT-B-16", marks=pytest.mark.slow),
        pytest.param("ViT-L-14", marks=pytest.mark.slow),
    ],
)
def test_open_clips_own_files(tmp_path: Path, empty_home: Path, hub: Hub, architecture: str) -> None:
    model = network(architecture)
    wanted, data = features(model), published(model)
    del model
    tensors = through_the_hub(tmp_path, hub, {FILE: data}, "open_clip", resume=True)
    found = features(filled(network(architecture), tensors))
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "architecture",
    ["small", pytest.param("ViT-B-32", marks=pytest.mark.slow), pytest.param("ViT-L-14-336", marks=pytest.mark.slow)],
)
def test_openais_archives(tmp_path: Path, empty_home: Path, hub: Hub, architecture: str) -> None:
    data = archived(network(architecture, quick_gelu=True))
    tensors = through_the_hub(tmp_path, hub, {FILE: data}, "openai_jit")
    assert tensors["visual.conv1.weight"].dtype == np.float16
    halved = network(architecture, quick_gelu=True)
    open_clip.model.convert_weights_to_lp(halved, torch.float16)
    wanted = features(halved.float())
    found = features(filled(network(architecture, quick_gelu=True), tensors))
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_siglip2_and_its_tokenizer(tmp_path: Path, empty_home: Path, hub: Hub) -> None:
    pytest.importorskip("timm")
    words = b'{"version": "1.0"}'
    model = network("ViT-B-16-SigLIP2")
    wanted, data = features(model), published(model)
    del model
    gc.collect()
    tensors = through_the_hub(tmp_path, hub, {FILE: data, "tokenizer.json": words}, "open_clip_tokenizer")
    assert tensors.pop(TOKENIZER).tobytes() == words
    found = features(filled(network("ViT-B-16-SigLIP2"), tensors))
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_pins_that_ship_hold_against_other_weights(
    empty_home: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default network's real pin: random weights of the same size do not pass for it."""
    from genmeter.errors import GenmeterError

    entry = load_lock()["clip-openai-vit-b-32"]
    part = entry.sources[0].parts[0]
    by_hand = empty_home / "downloads" / part.file
    by_hand.parent.mkdir()
    with by_hand.open("wb") as stream:
        stream.truncate(part.bytes)  # As long as the real one, and sparse.
    with pytest.raises(GenmeterError) as caught:
        ensure(entry, offline=True, siblings=())
    assert caught.value.code == "weights_mismatch"
    assert part.sha256 in caught.value.message
    assert str(by_hand) in caught.value.message
    digest = hashlib.sha256()
    for _ in range(part.bytes >> 20):
        digest.update(bytes(1 << 20))
    digest.update(bytes(part.bytes & ((1 << 20) - 1)))
    assert digest.hexdigest() in caught.value.message
