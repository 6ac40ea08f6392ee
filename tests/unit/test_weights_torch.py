"""The reader of torch checkpoints gives what torch.load gives, for plain tensors, without torch."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genmeter.errors import GenmeterError
from genmeter.weights.torch_reader import read_checkpoint

torch = pytest.importorskip("torch")

FORMATS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "stream"])


def saved(value: Any, zipped: bool) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=zipped)
    return stream.getvalue()


def refused(data: bytes) -> GenmeterError:
    with pytest.raises(GenmeterError) as caught:
        read_checkpoint(io.BytesIO(data))
    assert caught.value.code == "weights_mismatch"
    return caught.value


@FORMATS
def test_equals_torch_load(zipped: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    base = torch.randn(6, 8, generator=generator)
    state = OrderedDict(
        plain=base,
        transposed=base.t(),
        sliced=base[1:5:2, 3:],
        scalar=torch.tensor(3.5),
        empty=torch.zeros(0, 4),
        expanded=torch.ones(1, 4).expand(3, 4),
        double=base.double(),
        half=base.half(),
        bf16=base.bfloat16(),
        long=torch.arange(5),
        int32=torch.arange(5, dtype=torch.int32),
        int16=torch.arange(5, dtype=torch.int16),
        int8=torch.arange(5, dtype=torch.int8),
        uint8=torch.arange(5, dtype=torch.uint8),
        boolean=torch.tensor([True, False]),
        parameter=torch.nn.Parameter(base[:2].clone()),
    )
    found = read_checkpoint(io.BytesIO(saved({"epoch": 3, "state_dict": state}, zipped)))
    assert found["epoch"] == 3
    assert list(found["state_dict"]) == list(state)
    for name, tensor in state.items():
        expected = (tensor.float() if name == "bf16" else tensor).detach().numpy()
        assert found["state_dict"][name].dtype == expected.dtype, name
        assert found["state_dict"][name].shape == expected.shape, name
        np.testing.assert_array_equal(found["state_dict"][name], expected)


@FORMATS
def test_state_dict_of_a_module_keeps_its_keys(zipped: bool) -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    found = read_checkpoint(io.BytesIO(saved(module.state_dict(), zipped)))
    assert list(found) == list(module.state_dict())
    np.testing.assert_array_equal(found["0.weight"], module[0].weight.detach().numpy())


@FORMATS
def test_numpy_scalars_in_a_checkpoint_load(zipped: bool) -> None:
    found = read_checkpoint(io.BytesIO(saved({"epoch": np.float64(1), "state_dict": {}}, zipped)))
    assert found == {"epoch": 1.0, "state_dict": {}}


class _Touch:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


@FORMATS
def test_a_hostile_checkpoint_runs_nothing(tmp_path: Path, zipped: bool) -> None:
    marker = tmp_path / "marker"
    error = refused(saved({"state_dict": {"w": torch.zeros(2)}, "x": _Touch(marker)}, zipped))
    assert not marker.exists()
    assert "safetensors" in (error.hint or "")


@FORMATS
def test_modules_are_refused(zipped: bool) -> None:
    refused(saved(torch.nn.Linear(2, 2), zipped))


@pytest.mark.parametrize("name", ["alex", "vgg", "squeeze"])
def test_the_published_heads(name: str) -> None:
    """Real files in the old format, saved from a CUDA device."""
    lpips = pytest.importorskip("lpips")
    path = Path(lpips.__file__).parent / "weights" / "v0.1" / f"{name}.pth"
    expected = torch.load(path, map_location="cpu", weights_only=True)
    with path.open("rb") as stream:
        found = read_checkpoint(stream)
    assert list(found) == list(expected)
    for key in expected:
        np.testing.assert_array_equal(found[key], expected[key].numpy())


def test_no_torch_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    path.write_bytes(saved({"w": torch.arange(3.0)}, True))
    code = (
        "import sys; from genmeter.weights.torch_reader import read_checkpoint\n"
        f"print(read_checkpoint(open({str(path)!r}, 'rb'))['w'].tolist(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[0.0, 1.0, 2.0] False"


@FORMATS
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_truncations_and_damage_are_typed_errors(zipped: bool) -> None:
    data = saved(OrderedDict(w=torch.arange(12.0).reshape(3, 4), b=torch.zeros(3)), zipped)
    for cut in range(0, len(data), 7):
        refused(data[:cut])
    rng = np.random.default_rng(1)
    for _ in range(1500):
        damaged = bytearray(data)
        for position in rng.integers(0, len(data), 2):
            damaged[position] = rng.integers(0, 256)
        with contextlib.suppress(GenmeterError):
            read_checkpoint(io.BytesIO(bytes(damaged)))


@pytest.mark.parametrize("text", [b"", b"<!DOCTYPE html><title>404</title>", b"{}", b"weights", b"\x80\x02}."])
def test_other_files_are_typed_errors(text: bytes) -> None:
    error = refused(text)
    assert "404" not in error.message
    assert "page" in error.message or not text.startswith(b"<")


def _rewritten(data: bytes, change: Any, compress: bool = False) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w") as new:
        for info in old.infolist():
            content = change(info.filename, old.read(info))
            new.writestr(info.filename, content, zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED)
    return stream.getvalue()


def test_a_compressed_archive_is_refused() -> None:
    data = saved({"w": torch.zeros(1 << 20)}, True)
    refused(_rewritten(data, lambda name, content: content, compress=True))
    read_checkpoint(io.BytesIO(_rewritten(data, lambda name, content: content)))


class _Hostile:
    def __init__(self, *args: Any) -> None:
        self.args = args

    def __reduce__(self) -> tuple[Any, ...]:
        return torch._utils._rebuild_tensor_v2, (*self.args, False, OrderedDict())


class _Writer(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return ("storage", torch.FloatStorage, "0", "cpu", 4) if value is torch.FloatTensor else None


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("size", [(1 << 30,), (1 << 15, 1 << 15), (5,)])
def test_shapes_beyond_the_storage_are_refused(size: tuple[int, ...], step: int) -> None:
    """As a hostile writer would: sizes that no storage holds, with strides of zero and of one."""
    pickled, stream = io.BytesIO(), io.BytesIO()
    _Writer(pickled, protocol=2).dump({"w": _Hostile(torch.FloatTensor, 0, size, (step,) * len(size))})
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a/data.pkl", pickled.getvalue())
        archive.writestr("a/data/0", struct.pack("<4f", 1, 2, 3, 4))
    tracemalloc.start()
    try:
        if size == (5,) and step == 0:
            assert read_checkpoint(io.BytesIO(stream.getvalue()))["w"].tolist() == [1.0] * 5
        else:
            refused(stream.getvalue())
        assert tracemalloc.get_traced_memory()[1] < 4e6
    finally:
        tracemalloc.stop()
