"""Digests of tensors and files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np


def tensors_digest(tensors: Mapping[str, np.ndarray]) -> str:
    """SHA-256 (hex) over the canonical tensors, whatever file or byte order they came from.

    For each name in sorted order: one line of JSON ``["name","dtype",[shape]]``, then the values as
    little-endian bytes in C order. Dtype, shape and name are part of it, so two different sets of
    tensors never share the digest of one another.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = tensors[name]
        head = json.dumps([name, array.dtype.newbyteorder("=").name, list(array.shape)], separators=(",", ":"))
        digest.update(head.encode("utf-8") + b"\n")
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(little.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes. Raises ``OSError``."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
