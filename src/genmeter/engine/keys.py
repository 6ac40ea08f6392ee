"""Content keys: what makes two units the same piece of work, whoever asks for it and wherever the file lies."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

from genmeter.contract import EncoderSpec, Modality, Precision, View


class Fingerprint(NamedTuple):
    """Identity of an encoder's numbers.

    Attributes:
        hex: SHA-256 in hex over tensor digest, preprocessing, code and decoder versions, precision and device kind.
        stable: Whether the tensors are known by digest; features without one are never shared between runs.
    """

    hex: str
    stable: bool


def fingerprint(spec: EncoderSpec, precision: Precision, device_kind: str, modality: Modality) -> Fingerprint:
    """Fingerprint of one encoder on one kind of device (``cpu`` or ``cuda``)."""
    parts = [
        "genmeter-features/1",
        spec.name,
        spec.model,
        spec.digest,
        spec.preprocessing,
        spec.version,
        decoder_version(modality),
        precision,
        device_kind,
    ]
    return Fingerprint(hashlib.sha256(json.dumps(parts).encode()).hexdigest(), bool(spec.digest))


@functools.cache
def decoder_version(modality: Modality) -> str:
    """Versions of the libraries that turn bytes of this modality into numbers."""
    if modality == "image":
        import PIL
        from PIL import features

        codecs = [f"{name}-{features.version(name)}" for name in ("jpg", "zlib", "webp", "libtiff", "avif")]
        return f"pillow-{PIL.__version__}+{'+'.join(codecs)}"
    if modality == "audio":
        from genmeter.assets.audio import version

        return version()
    if modality == "video":
        from genmeter.assets.video import version as video_version

        return video_version()
    return "none"


def view_id(view: View) -> str:
    """Canonical text of a view: sorted JSON."""
    return json.dumps(dict(view), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def unit_key(encoder: str, view: str, sources: Sequence[bytes]) -> bytes:
    """SHA-256 (32 bytes) of fingerprint, view and the digests of the sources, in order."""
    digest = hashlib.sha256(f"{encoder}\0{view}\0".encode())
    for source in sources:
        digest.update(source)
    return digest.digest()


def text_digest(text: str) -> bytes:
    """SHA-256 of a text's UTF-8 bytes; lone surrogates, which JSON allows, are kept apart rather than refused."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
