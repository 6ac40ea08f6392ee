"""Reading converted weights, and checking that a file holds the tensors its name and models.lock promise."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from genmeter.errors import GenmeterError
from genmeter.weights.digest import tensors_digest
from genmeter.weights.safefile import open_safetensors

# What this process has hashed already: path -> (stat signature, tensor digest).
_hashed: dict[str, tuple[tuple[int, ...], str]] = {}


def load_tensors(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a safetensors file by name, in memory, C-contiguous and writable.

    Raises:
        GenmeterError: ``weights_unavailable`` when there is no such file, ``weights_mismatch`` when it
            is not a whole safetensors file.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(path)
    except FileNotFoundError:
        raise GenmeterError(
            "weights_unavailable", f"{path} does not exist", "fetch it with `genmeter models fetch`"
        ) from None
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise GenmeterError(
            "weights_mismatch",
            f"{path} is not a whole safetensors file ({type(error).__name__})",
            "fetch it again with `genmeter models fetch`",
        ) from None


def load_bytes(path: Path, names: Sequence[str]) -> list[bytes | None]:
    """Files that stand among the tensors of a weights file as (n,) uint8, and nothing else of it.

    Args:
        path: A safetensors file.
        names: Names of the tensors.

    Returns:
        The bytes of each; None where there is no such tensor, or it is no list of bytes.

    Raises:
        GenmeterError: ``weights_mismatch`` when it is no safetensors file, or cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    found: list[bytes | None] = []
    try:
        with safe_open(path, framework="numpy") as file:
            there = set(file.keys())
            for name in names:
                array = file.get_tensor(name) if name in there else None
                if array is None or array.dtype != np.uint8 or array.ndim != 1:
                    found.append(None)
                else:
                    found.append(array.tobytes())
    except (SafetensorError, OSError) as error:
        raise GenmeterError(
            "weights_mismatch", f"{path} cannot be read ({type(error).__name__})", "run `genmeter models verify`"
        ) from None
    return found


def file_digest(path: Path, *, fresh: bool = False) -> str:
    """The tensor digest (hex) of a weights file; empty when it is missing, damaged or unreadable.

    The whole file is read and hashed, once a process for as long as its size, times and inode stay
    (``fresh=True`` hashes it again): a file that was good yesterday is not trusted today.
    """
    try:
        stat = os.stat(path)
    except OSError:
        return ""
    signature = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
    known = _hashed.get(str(path))
    if known and known[0] == signature and not fresh:
        return known[1]
    from safetensors import SafetensorError

    try:
        with open_safetensors(path) as tensors:
            digest = tensors_digest(tensors)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        return ""
    _hashed[str(path)] = (signature, digest)
    return digest
