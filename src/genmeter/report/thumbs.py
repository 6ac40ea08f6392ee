"""Thumbnails for the report: small, few, and only of files that are still what was scored."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from genmeter.analysis.columns import mapping
from genmeter.config import Policy

SIDE = 176
_QUALITY = 80
# Larger files are not opened for the sake of a small picture.
_POLICY = Policy(max_pixels=64_000_000, max_bytes=128_000_000)


class Thumbnails:
    """Makes ``data:`` URIs of images under the media roots; never contacts a host, never raises.

    A file is shown only when its SHA-256 is the one that the score was computed from: a picture beside a number must
    be the picture the number is about.

    Args:
        roots: Media roots; nothing outside is opened.
        count: Most pictures in one report.
        total: Most bytes of encoded pictures in one report.
    """

    def __init__(self, roots: Sequence[Path], count: int = 240, total: int = 4_000_000) -> None:
        from genmeter.assets.resolve import Resolver

        self._resolver = Resolver(_POLICY, roots)
        self._left, self._bytes = count, total
        self._made: dict[str, tuple[str, str]] = {}

    def make(self, value: str, digest: str) -> tuple[str, str]:
        """A ``data:`` URI and an empty string, or an empty string and why there is no picture."""
        key = f"{digest}\0{value}"
        known = self._made.get(key)
        if known is not None and not known[0]:
            return known
        if self._left <= 0 or self._bytes <= 0:
            return "", "not shown: the report holds enough pictures"
        if known is None:
            known = self._made[key] = self._draw(value, digest)
        if known[0]:
            self._left -= 1
            self._bytes -= len(known[0])
        return known

    def _draw(self, value: str, digest: str) -> tuple[str, str]:
        from genmeter.assets.image import decode_image
        from genmeter.assets.load import load
        from genmeter.errors import GenmeterError

        try:
            location = self._resolver.resolve(value)
            if location.kind not in ("file", "data"):
                return "", "not shown: not a local file"
            blob = load(location, _POLICY)
            if blob.digest.hex() != digest.removeprefix("sha256:"):
                return "", "not shown: the file is no longer the one that was scored"
            return _encode(decode_image(blob.data, _POLICY).rgb("white")), ""
        except GenmeterError as error:
            return "", f"not shown: {error.code}"
        except Exception as error:  # a picture must never cost the report
            return "", f"not shown: {type(error).__name__}"


def media_roots(run: Mapping[str, Any], extra: Sequence[Path] = ()) -> list[Path]:
    """``extra``, then where the run found its files: its media roots, else the folders of its inputs and this one."""
    roots: list[Any] = []
    config = mapping(run.get("config"))
    for holder, key in ((run, "media_roots"), (run, "roots"), (config, "media_root")):
        roots += _strings(holder.get(key))
    if not roots:
        for key in ("inputs", "input", "files"):
            roots += [Path(name).parent if Path(name).suffix else Path(name) for name in _strings(run.get(key))]
        roots.append(Path.cwd())
    return [*extra, *dict.fromkeys(Path(root) for root in roots)]


def _strings(value: Any) -> list[str]:
    """Paths in a value that may be one, a list, or a list of objects that hold one."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return _strings(value.get("path") or value.get("file") or value.get("files") or value.get("roots"))
    return [text for item in value for text in _strings(item)] if isinstance(value, (list, tuple)) else []


def _encode(pixels: Any) -> str:
    """(H, W, 3) uint8 to a JPEG ``data:`` URI of at most SIDE pixels a side."""
    from PIL import Image

    image = Image.fromarray(pixels)
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS, reducing_gap=2.0)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=_QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode("ascii")
