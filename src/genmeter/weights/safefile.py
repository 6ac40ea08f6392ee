"""Reading and writing safetensors files tensor by tensor: a network of 4 GB needs its own memory once, not thrice."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from genmeter.errors import GenmeterError

_NAMES = {
    **{f"float{8 * n}": f"F{8 * n}" for n in (2, 4, 8)},
    **{f"int{8 * n}": f"I{8 * n}" for n in (1, 2, 4, 8)},
    **{f"uint{8 * n}": f"U{8 * n}" for n in (1, 2, 4, 8)},
    "bool": "BOOL",
}


def write_safetensors(stream: BinaryIO, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write tensors in the safetensors format: header length, header, then each tensor little-endian in C order.

    Raises:
        ValueError: A tensor has a dtype that the format does not know.
    """
    # Wider types first, so that every tensor is aligned to its type however odd the length of those before it.
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in order:
        array = tensors[name]
        dtype = _NAMES.get(array.dtype.name)
        if dtype is None:
            raise ValueError(f"{name} is {array.dtype}, which safetensors does not hold")
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    head = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    head += b" " * (-len(head) % 8)
    stream.write(len(head).to_bytes(8, "little") + head)
    for name in order:
        little = np.ascontiguousarray(tensors[name], dtype=tensors[name].dtype.newbyteorder("<"))
        stream.write(little.reshape(-1).view(np.uint8).data)


class _Tensors(Mapping[str, np.ndarray]):
    """The tensors of an open file, each read when it is asked for and kept by nobody."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._names = list(file.keys())

    def __getitem__(self, name: str) -> np.ndarray:
        array: np.ndarray = self._file.get_tensor(name)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@contextmanager
def open_safetensors(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """The tensors of a file, read one at a time while the block runs.

    Raises:
        SafetensorError, OSError, ValueError, KeyError, TypeError: The file is missing, damaged, or of another format.
    """
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        yield _Tensors(file)


def read_safetensors(stream: BinaryIO) -> dict[str, np.ndarray]:
    """All tensors of an open safetensors file; one on the disk is mapped, so that it is not in memory twice.

    Raises:
        GenmeterError: ``weights_mismatch`` when it is no whole safetensors file of plain numbers.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    name = getattr(stream, "name", None)
    try:
        if isinstance(name, str) and os.path.isfile(name):
            with open_safetensors(Path(name)) as tensors:
                return dict(tensors)
        return dict(load(stream.read()))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise GenmeterError(
            "weights_mismatch", f"the file is no whole safetensors file ({type(error).__name__})", "fetch it again"
        ) from None
