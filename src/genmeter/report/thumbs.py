"""Pictures and players for the report: small, few, and only of files that are still what was scored."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from genmeter.analysis.columns import mapping
from genmeter.config import Policy
from genmeter.contract import AudioMedia, Decoding, Media, Modality, VideoMedia

if TYPE_CHECKING:
    from genmeter.assets.load import Blob
    from genmeter.assets.workers import DecodePool

SIDE = 176
_QUALITY = 80
# Larger files are not opened for the sake of a small picture.
_POLICY = Policy(max_pixels=64_000_000, max_bytes=128_000_000, decode_timeout_s=20)


class Asset(NamedTuple):
    """What the page shows of one asset.

    Attributes:
        kind: ``image``, ``audio``, ``video``, or empty where there is nothing to show.
        src: A ``data:`` URI.
        poster: A ``data:`` URI of a video's first frame.
        note: Why nothing is shown, or what of it is left out.
    """

    kind: str = ""
    src: str = ""
    poster: str = ""
    note: str = ""


class Thumbnails:
    """Makes ``data:`` URIs of assets under the media roots; never contacts a host, never raises. A context manager.

    A file is shown only when its SHA-256 is the one that the score was computed from: a picture beside a number must
    be the picture the number is about.

    Args:
        roots: Media roots; nothing outside is opened.
        count: Most assets in one report.
        total: Most bytes of encoded pictures and players in one report.
    """

    def __init__(self, roots: Sequence[Path], count: int = 400, total: int = 12_000_000) -> None:
        from genmeter.assets.resolve import Resolver

        self._resolver = Resolver(_POLICY, roots)
        self._left, self._bytes = count, total
        self._made: dict[str, Asset] = {}
        self._pool: DecodePool | None = None

    def __enter__(self) -> Thumbnails:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def show(self, value: str, digest: str) -> Asset:
        """What the page shows of an asset: its path or URI as the sample wrote it, and the digest that was scored."""
        key = f"{digest}\0{value}"
        known = self._made.get(key)
        if known is not None and not known.src:
            return known
        if self._left <= 0 or self._bytes <= 0:
            return Asset(note="not shown: the report holds enough of them")
        if known is None:
            known = self._made[key] = self._draw(value, digest)
        if known.src:
            self._left -= 1
            self._bytes -= len(known.src) + len(known.poster)
        return known

    def _draw(self, value: str, digest: str) -> Asset:
        from genmeter.assets import sniff
        from genmeter.assets.load import load
        from genmeter.errors import GenmeterError

        try:
            location = self._resolver.resolve(value)
            if location.kind not in ("file", "data"):
                return Asset(note="not shown: not a local file")
            blob = load(location, _POLICY)
            if blob.digest.hex() != digest.removeprefix("sha256:"):
                return Asset(note="not shown: the file is no longer the one that was scored")
            kind, _ = sniff.kind(blob.data)
            if kind == "audio":
                return self._sound(blob)
            return self._video(blob) if kind == "video" else _image(blob)
        except GenmeterError as error:
            return Asset(note=f"not shown: {error.code}")
        except Exception as error:  # a picture must never cost the report
            return Asset(note=f"not shown: {type(error).__name__}")

    def _sound(self, blob: Blob) -> Asset:
        from genmeter.report.players import RATE, encode_sound

        src, note = encode_sound(cast(AudioMedia, self._decoded(blob, "audio", {"rate": RATE})))
        return Asset("audio", src, "", note)

    def _video(self, blob: Blob) -> Asset:
        from genmeter.report.players import FRAMES, encode_video

        media = cast(VideoMedia, self._decoded(blob, "video", {"spread": FRAMES}))
        src, note = encode_video(media)
        return Asset("video", src, _encode(media.frames[0]), note)

    def _decoded(self, blob: Blob, modality: Modality, request: Decoding) -> Media:
        from genmeter.assets.workers import DecodePool
        from genmeter.errors import GenmeterError

        if self._pool is None:
            self._pool = DecodePool(_POLICY, 1)
        [found] = self._pool.decode(blob, modality, [request])
        if isinstance(found, GenmeterError):
            raise found
        return found


def _image(blob: Blob) -> Asset:
    from genmeter.assets.image import decode_image

    return Asset("image", _encode(decode_image(blob.data, _POLICY).rgb("white")))


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
