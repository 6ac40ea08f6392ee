"""Our own writer of safetensors files: what others read is what was given, and memory holds a network once."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from genmeter.errors import GenmeterError
from genmeter.weights.digest import tensors_digest
from genmeter.weights.load import file_digest
from genmeter.weights.safefile import read_safetensors, write_safetensors


def odd() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {
        "words": np.frombuffer("猫 and bytes".encode(), np.uint8),
        "scale": np.array(4.6, "f4"),
        "empty": np.zeros((0, 3), "f4"),
        "half": rng.standard_normal((3, 5)).astype("f2"),
        "wide": rng.standard_normal(7),
        "swapped": rng.standard_normal((2, 3)).astype(">f4"),
        "strided": rng.standard_normal((6, 4)).astype("f4")[::2, ::-1],
        "flags": np.array([True, False, True]),
        "名": np.arange(3),
    }
    return tensors


def written(path: Path, tensors: dict[str, np.ndarray], **metadata: str) -> Path:
    with path.open("wb") as stream:
        write_safetensors(stream, tensors, metadata)
    return path


def test_others_read_what_was_written(tmp_path: Path) -> None:
    tensors = odd()
    path = written(tmp_path / "w.safetensors", tensors, model="m", digest="d")
    found = load_file(path)
    assert set(found) == set(tensors)
    for name, array in tensors.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype.newbyteorder("=")
        assert found[name].shape == array.shape
    with safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"model": "m", "digest": "d"}
    assert file_digest(path) == tensors_digest(tensors)
    with path.open("rb") as stream:
        assert tensors_digest(read_safetensors(stream)) == tensors_digest(tensors)
    assert tensors_digest(read_safetensors(io.BytesIO(path.read_bytes()))) == tensors_digest(tensors)


def test_torch_reads_what_was_written(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch

    found = load_torch(written(tmp_path / "w.safetensors", odd()))
    assert found["half"].dtype == torch.float16
    np.testing.assert_array_equal(found["wide"].numpy(), odd()["wide"])


def test_every_tensor_is_aligned_and_bytes_repeat(tmp_path: Path) -> None:
    tensors = odd()
    data = written(tmp_path / "a", tensors).read_bytes()
    assert data == written(tmp_path / "b", dict(reversed(tensors.items()))).read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    for name, entry in json.loads(data[8 : 8 + length]).items():
        assert (8 + length + entry["data_offsets"][0]) % tensors[name].dtype.itemsize == 0


def test_what_the_format_does_not_hold(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="complex"):
        written(tmp_path / "w", {"z": np.zeros(2, "c8")})


@pytest.mark.parametrize("cut", [1, 8, 40, 200])
def test_half_a_file_has_no_digest(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path / "w.safetensors", odd())
    path.write_bytes(path.read_bytes()[:-cut])
    assert file_digest(path, fresh=True) == ""
    with path.open("rb") as stream, pytest.raises(GenmeterError, match="no whole safetensors"):
        read_safetensors(stream)


MEMORY = """
import resource, sys
from pathlib import Path
import numpy as np
from genmeter.weights.load import file_digest
from genmeter.weights.safefile import write_safetensors
path = Path(sys.argv[1])
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
tensors = {f"t{i}": np.ones(4 << 20, "f4") for i in range(12)}
before = peak()
with path.open("wb") as stream:
    write_safetensors(stream, tensors, {})
del tensors
file_digest(path)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts pages as Linux does")
def test_writing_and_hashing_take_no_second_copy(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "w")], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(done.stdout) < 100 << 20  # Of 201 MB of tensors.
