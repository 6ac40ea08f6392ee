"""CLIP checkpoints to canonical tensors: OpenAI's TorchScript archives, open_clip's files, and what is neither."""

from __future__ import annotations

import contextlib
import io
import pickle
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save, save_file

from genmeter.errors import GenmeterError
from genmeter.weights.clip import TOKENIZER
from genmeter.weights.convert import convert
from genmeter.weights.digest import tensors_digest

torch = pytest.importorskip("torch")
Tensors = dict[str, np.ndarray]


def openai_shaped(layers: int = 2) -> Any:
    """A tiny CLIP of open_clip with OpenAI's mix of dtypes and the numbers that OpenAI stored beside the weights."""
    open_clip = pytest.importorskip("open_clip")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = open_clip.model.CLIP(
        embed_dim=16,
        vision_cfg={"image_size": 32, "layers": layers, "width": 64, "patch_size": 16, "head_width": 32},
        text_cfg={"context_length": 12, "vocab_size": 50, "width": 32, "heads": 2, "layers": layers},
        quick_gelu=True,
    ).eval()
    open_clip.model.convert_weights_to_lp(model, torch.float16)
    for name, number in (("input_resolution", 32), ("context_length", 12), ("vocab_size", 50)):
        if hasattr(model, name):
            delattr(model, name)
        model.register_buffer(name, torch.tensor(number))
    return model


def expected_tensors(model: Any) -> Tensors:
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


def jit_bytes(module: Any) -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(module, stream)
    return stream.getvalue()


def scripted(model: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(model)


def traced(model: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        example = {"encode_text": torch.zeros((1, 12), dtype=torch.long)}
        return torch.jit.trace_module(model, example, check_trace=False)


@pytest.fixture(scope="module")
def archive() -> bytes:
    return jit_bytes(scripted(openai_shaped()))


def read(data: bytes) -> Tensors:
    return convert("openai_jit", {"weights": io.BytesIO(data)})


def refused(data: bytes, converter: str = "openai_jit") -> GenmeterError:
    with pytest.raises(GenmeterError) as caught:
        convert(converter, {"weights": io.BytesIO(data)})
    assert caught.value.code == "weights_mismatch"
    return caught.value


@pytest.mark.parametrize("form", [scripted, traced])
def test_the_tensors_of_an_archive_are_the_models_parameters(form: Callable[[Any], Any]) -> None:
    model = openai_shaped()
    tensors, expected = read(jit_bytes(form(model))), expected_tensors(model)
    assert set(tensors) == set(expected)
    for name, array in expected.items():
        assert tensors[name].dtype == array.dtype
        assert tensors[name].shape == array.shape
        np.testing.assert_array_equal(tensors[name], array)
    assert {array.dtype.name for array in tensors.values()} == {"float16", "float32"}
    assert tensors["visual.conv1.weight"].dtype == np.float16  # The checkpoint's own; who loads it decides.
    assert not {"attn_mask", "input_resolution", "context_length", "vocab_size"} & set(tensors)


def test_the_tensors_load_into_open_clip(archive: bytes) -> None:
    """Canonical names are those of open_clip's own state_dict, buffers aside."""
    model = openai_shaped().float()
    values = {name: torch.from_numpy(array.astype("f4")) for name, array in read(archive).items()}
    missing, unexpected = model.load_state_dict(values, strict=False)
    assert unexpected == []
    assert set(missing) <= {"attn_mask", "input_resolution", "context_length", "vocab_size"}


def test_an_archive_of_many_blocks() -> None:
    model = openai_shaped(layers=11)  # Block 10 comes before block 2 in the order of names.
    assert tensors_digest(read(jit_bytes(scripted(model)))) == tensors_digest(expected_tensors(model))


READER = """
import builtins, sys
real = builtins.__import__
def guard(name, *args, **kwargs):
    if name.split(".")[0] == "torch":
        raise AssertionError("torch is imported")
    return real(name, *args, **kwargs)
builtins.__import__ = guard
from genmeter.weights.convert import convert
def watch(event, args):
    if event in ("exec", "compile", "os.system", "subprocess.Popen") or event.startswith("socket."):
        raise AssertionError(event)
convert("openai_jit", {"weights": open(sys.argv[1], "rb")})
sys.addaudithook(watch)
print(len(convert("openai_jit", {"weights": open(sys.argv[1], "rb")})))
"""


def test_reading_needs_no_torch_and_runs_no_code(tmp_path: Path, archive: bytes) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(archive)
    done = subprocess.run([sys.executable, "-c", READER, str(path)], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str(len(read(archive))), done.stderr


def rewritten(archive: bytes, change: Callable[[dict[str, bytes]], None], compress: int = zipfile.ZIP_STORED) -> bytes:
    with zipfile.ZipFile(io.BytesIO(archive)) as source:
        members = {info.filename: source.read(info) for info in source.infolist()}
    change(members)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compress) as target:
        for name, data in members.items():
            target.writestr(name, data)
    return stream.getvalue()


def member(members: dict[str, bytes], ending: str) -> str:
    return next(name for name in members if name.endswith(ending))


def test_the_code_of_an_archive_does_not_matter(archive: bytes) -> None:
    def strip(members: dict[str, bytes]) -> None:
        for name in [name for name in members if "/code/" in name]:
            members[name] = b"import os; os.abort()"

    assert tensors_digest(read(rewritten(archive, strip))) == tensors_digest(read(archive))


class _Touch:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        import os

        return os.mkdir, (self.path,)


def test_a_hostile_archive_runs_nothing(tmp_path: Path, archive: bytes) -> None:
    marker = tmp_path / "marker"
    for payload in ({"visual": _Touch(str(marker))}, _Touch(str(marker))):

        def poison(members: dict[str, bytes], payload: object = payload) -> None:
            members[member(members, "/data.pkl")] = pickle.dumps(payload, protocol=2)

        assert "mkdir" in refused(rewritten(archive, poison)).message
    assert not marker.exists()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "html": lambda data: b"<!DOCTYPE html><html></html>",
    "no storage": lambda data: rewritten(data, lambda members: members.pop(member(members, "/data/3")) and None),
    "short storage": lambda data: rewritten(data, lambda m: m.update({member(m, "/data/3"): b"\0\0"})),
    "half pickle": lambda data: rewritten(data, lambda m: m.update({member(m, "/data.pkl"): b"\x80\x02}"})),
    "compressed": lambda data: rewritten(data, lambda members: None, zipfile.ZIP_DEFLATED),
    "big-endian": lambda data: rewritten(data, lambda m: m.update({member(m, "/byteorder"): b"big"})),
    "a plain zip": lambda data: rewritten(data, lambda m: [m.pop(n) for n in list(m) if n.endswith(".pkl")] and None),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_typed(archive: bytes, damage: str) -> None:
    refused(DAMAGES[damage](archive))


def test_damage_anywhere_is_typed_or_harmless(archive: bytes) -> None:
    """Bytes of the pickle changed at random: typed errors or tensors, never anything else."""
    with zipfile.ZipFile(io.BytesIO(archive)) as source:
        name = next(n for n in source.namelist() if n.endswith("/data.pkl"))
        good = source.read(name)
    rng = np.random.default_rng(0)
    for _ in range(60):
        bad = bytearray(good)
        for at in rng.integers(0, len(bad), 3):
            bad[at] = rng.integers(0, 256)
        data = rewritten(archive, lambda members, bad=bad: members.update({name: bytes(bad)}))  # type: ignore[misc]
        with contextlib.suppress(GenmeterError):
            read(data)


def test_another_network_is_refused() -> None:
    class Other(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer4 = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer4(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = jit_bytes(torch.jit.trace(Other(), torch.zeros(1, 2)))
    message = refused(data).message
    assert "layer4" in message
    assert "missing" in message


def test_a_missing_or_extra_tensor_is_named() -> None:
    for change, said in (
        (lambda model: delattr(model.visual.transformer.resblocks[1], "ln_2"), "visual.transformer.resblocks.1.ln_2"),
        (lambda model: model.visual.register_parameter("extra", torch.nn.Parameter(torch.ones(1))), "visual.extra"),
        (lambda model: delattr(model, "logit_scale"), "logit_scale"),
    ):
        model = openai_shaped()
        change(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            holder = torch.jit.trace_module(_Bag(model), {"forward": (torch.zeros(1),)}, check_trace=False)
        assert said in refused(jit_bytes(holder)).message


class _Bag(torch.nn.Module):  # type: ignore[misc]
    """Saves a model whose own code would no longer run."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        for name, child in model.named_children():
            self.add_module(name, child)
        for name, parameter in model.named_parameters(recurse=False):
            self.register_parameter(name, parameter)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_a_checkpoint_of_torch_save_is_no_archive() -> None:
    stream = io.BytesIO()
    torch.save({"logit_scale": torch.ones(())}, stream)
    assert "missing" in refused(stream.getvalue()).message


def towers() -> Tensors:
    rng = np.random.default_rng(1)
    return {
        "logit_scale": np.array(4.6, "f4"),
        "visual.trunk.w": rng.standard_normal((3, 5)).astype("f4"),
        "text.w": rng.standard_normal(7).astype("f2"),
    }


def test_buffers_of_open_clip_are_left_out(tmp_path: Path) -> None:
    buffers = {"attn_mask": np.zeros((3, 3), "f4"), "text.transformer.embeddings.position_ids": np.arange(5)}
    save_file({**towers(), **buffers}, tmp_path / "m.safetensors")
    with (tmp_path / "m.safetensors").open("rb") as on_disk:
        from_disk = convert("open_clip", {"weights": on_disk})
    in_memory = convert("open_clip", {"weights": io.BytesIO(save({**towers(), **buffers}))})
    assert tensors_digest(from_disk) == tensors_digest(in_memory) == tensors_digest(towers())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (save({"visual.w": np.ones(1, "f4")}), "logit_scale"),
        (save({"logit_scale": np.ones(1, "f4")}), "visual"),
        (save({**towers(), "visual.q": np.ones(3, "i1")}), "visual.q is int8"),
        (save(towers())[:-3], "no whole safetensors"),
        (b"<!DOCTYPE html>", "no whole safetensors"),
        (b"", "no whole safetensors"),
        ((1 << 60).to_bytes(8, "little") + b"{}", "no whole safetensors"),
    ],
)
def test_what_is_no_clip_of_open_clip(data: bytes, said: str, tmp_path: Path) -> None:
    assert said in refused(data, "open_clip").message
    (tmp_path / "m").write_bytes(data)
    with (tmp_path / "m").open("rb") as stream, pytest.raises(GenmeterError, match=said):
        convert("open_clip", {"weights": stream})


def test_a_tokenizer_is_one_more_tensor() -> None:
    words = '{"model": "猫"}'.encode()
    parts = {"weights": io.BytesIO(save(towers())), "tokenizer": io.BytesIO(words)}
    tensors = convert("open_clip_tokenizer", parts)
    assert tensors.pop(TOKENIZER).tobytes() == words
    assert tensors_digest(tensors) == tensors_digest(towers())
    for bad in (b"<!DOCTYPE html>", b"", b"version https://git-lfs"):
        parts = {"weights": io.BytesIO(save(towers())), "tokenizer": io.BytesIO(bad)}
        with pytest.raises(GenmeterError, match=TOKENIZER):
            convert("open_clip_tokenizer", parts)
