"""Images to pixels: upright sRGB bytes with straight alpha, or a typed reason why not.

Decisions that move numbers, all in one place:

- The format is told by content. EXIF (and XMP) orientation is applied. Embedded colour profiles are noted in
  ``detail["icc_profile"]`` and not applied, as in the published scripts that scores are compared with.
- 16-bit samples become 8-bit by ``round(v / 257)``; floats must lie in [0, 1] and become ``round(255 v)``; see
  :mod:`genmeter.assets.pixels`.
- An animated file gives its first frame and the flag ``animated_first_frame``.
- The size in the header is checked against ``policy.max_pixels`` before pixels are decoded. Pillow's own process-wide
  limit is neither changed nor relied on: files are opened through the format's class, which does not consult it.
"""

from __future__ import annotations

import io
import struct
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from genmeter.assets import integrity, png, sniff
from genmeter.assets.pixels import to_pixels, upright
from genmeter.assets.wide import sixteen_bit
from genmeter.contract import ImageMedia, Scalar
from genmeter.errors import GenmeterError

if TYPE_CHECKING:
    from PIL import Image

    from genmeter.assets.limits import PixelLimit

# In-memory PIL images may be one lazily loaded file shared by several samples; loading one is not thread-safe.
_shared_images = threading.Lock()
_ORIENTATION = 0x0112
_ORIENTATION_SOURCES = ("exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif")
_openers: dict[str, Any] = {}


def decode_image(data: bytes, policy: PixelLimit) -> ImageMedia:
    """Decode an encoded image. Thread-safe.

    Args:
        data: The whole file.
        policy: ``max_pixels`` bounds width x height.

    Returns:
        Pixels (H, W, 3), or (H, W, 4) when the file has an alpha channel or a transparent colour; uint8, read-only.
        ``detail`` holds ``format``, ``mode`` (as stored), ``width`` and ``height`` (upright), ``orientation`` when it
        is not 1, and ``icc_profile`` when one was ignored.

    Raises:
        GenmeterError: ``empty_media``, ``unsupported_media``, ``too_large``, ``decode_failed``, ``non_finite``,
            ``out_of_memory``.
    """
    if not data:
        raise GenmeterError("empty_media", "the asset holds no bytes")
    modality, name = sniff.kind(data)
    if name not in sniff.IMAGE_FORMATS:
        raise _not_an_image(modality, name)
    try:
        return _decode(data, name, policy)
    except GenmeterError:
        raise
    except MemoryError:
        raise GenmeterError(
            "out_of_memory",
            f"the {name} image does not fit into memory",
            "lower policy.max_pixels or use fewer workers",
        ) from None
    except Exception as error:
        raise _failure(error, name) from None


def from_object(value: Any, policy: PixelLimit) -> ImageMedia:
    """Pixels of an image that is already in memory.

    Args:
        value: A PIL image, or a numpy array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4): uint8, or uint16 (scaled by
            257).
        policy: ``max_pixels`` bounds width x height.

    Raises:
        GenmeterError: As :func:`decode_image`.
    """
    if isinstance(value, np.ndarray):
        from genmeter.assets.pixels import from_array

        pixels = from_array(value, policy)
        return ImageMedia(pixels, (), _detail("array", str(value.dtype), pixels))
    try:
        from PIL import Image
    except ImportError:
        Image = None  # type: ignore[assignment]
    if Image is None or not isinstance(value, Image.Image):
        raise GenmeterError("unsupported_media", f"expected an image, found {type(value).__name__}")
    name = value.format or "PIL image"
    try:
        with _shared_images:
            check_pixels(value.width, value.height, policy)
            value.load()
            return _finish(value, name, value.mode)
    except GenmeterError:
        raise
    except MemoryError:
        raise GenmeterError("out_of_memory", "the image does not fit into memory") from None
    except Exception as error:
        raise _failure(error, name) from None


def check_pixels(width: int, height: int, policy: PixelLimit) -> None:
    """Refuse an image above the limit. Raises ``too_large``, naming its size; ``empty_media`` for a side of 0."""
    if width <= 0 or height <= 0:
        raise GenmeterError("empty_media", f"the image is {width}x{height} pixels")
    if width * height > policy.max_pixels:
        raise GenmeterError(
            "too_large",
            f"the image is {width}x{height} = {width * height} pixels; the limit is {policy.max_pixels}",
            "raise policy.max_pixels if it is meant to be this large",
        )


def _decode(data: bytes, name: str, policy: PixelLimit) -> ImageMedia:
    source = data
    profile = False
    if name == "PNG":
        source, profile, pieces = integrity.scan_png(data)
        plain = png.decode_plain(source, pieces, policy.max_pixels) if pieces else None
        if pieces and plain is not None:
            media = _finish(plain, name, plain.mode, None, profile)
            # Black in the last place is cheap to see, and rare.
            if not media.pixels.item(-1) and not media.pixels[-1].any() and png.ends_early(plain, pieces):
                raise integrity.cut("the PNG's image data ends before the picture does")
            return media
    elif name == "WEBP":
        # Pillow allocates the canvas when it opens the file, before it tells the size.
        size = webp_size(data)
        if size is not None:
            check_pixels(*size, policy)
    image = _opener(name)(io.BytesIO(source))
    with image:
        check_pixels(image.width, image.height, policy)
        mode = image.mode
        wide = sixteen_bit(image, lambda: _opener(name)(io.BytesIO(source)))
        if wide is None:
            image.load()
        if name == "JPEG":
            integrity.check_jpeg(data, image)
        elif name == "PNG" and "transparency" in image.info:
            _scale_key(image, source[24])
        return _finish(image, name, mode, wide, profile)


def _finish(
    image: Image.Image, name: str, mode: str, wide: np.ndarray | None = None, profile: bool = False
) -> ImageMedia:
    """Pixels, orientation, flags and detail of a loaded image."""
    pixels = to_pixels(image, wide)
    orientation = _orientation(image, name)
    if orientation != 1:
        pixels = upright(pixels, orientation)
    flags = ("animated_first_frame",) if _animated(image) else ()
    detail = _detail(name, mode, pixels)
    if orientation != 1:
        detail["orientation"] = orientation
    if profile or image.info.get("icc_profile"):
        detail["icc_profile"] = True
    return ImageMedia(pixels, flags, detail)


def _scale_key(image: Image.Image, depth: int) -> None:
    """Bring PNG's transparent grey to the scale of the pixels: Pillow spreads 2 and 4 bits to 0..255, the key not."""
    key = image.info["transparency"]
    if image.mode == "L" and isinstance(key, int) and depth < 8:
        image.info["transparency"] = (key & (1 << depth) - 1) * (255 // ((1 << depth) - 1))


def _detail(name: str, mode: str, pixels: np.ndarray) -> dict[str, Scalar]:
    return {"format": name, "mode": mode, "width": int(pixels.shape[1]), "height": int(pixels.shape[0])}


def _animated(image: Image.Image) -> bool:
    try:
        return bool(getattr(image, "is_animated", False))
    except Exception:
        return True  # GIF looks for its second frame here, and found a damaged one


def _orientation(image: Image.Image, name: str) -> int:
    """EXIF orientation 1-8. TIFF gives 1: Pillow has applied its tag while loading."""
    if name == "TIFF" or not any(key in image.info for key in _ORIENTATION_SOURCES):
        return 1
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:
        return 1  # damaged metadata: viewers show such a file as it is stored
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def open_image(data: bytes, name: str, policy: PixelLimit) -> Any:
    """A Pillow image of a known format, not loaded; ``name`` is one of :data:`genmeter.assets.sniff.IMAGE_FORMATS`."""
    if name == "WEBP":
        # Pillow allocates the canvas when it opens the file, before it tells the size.
        size = webp_size(data)
        if size is not None:
            check_pixels(*size, policy)
    return _opener(name)(io.BytesIO(data))


def _opener(name: str) -> Any:
    opener = _openers.get(name)
    if opener is None:
        opener = _openers[name] = _find_opener(name)
    return opener


def _find_opener(name: str) -> Any:
    from importlib import import_module

    if name == "AVIF":
        from PIL import features

        if not features.check("avif"):
            raise GenmeterError(
                "extra_missing",
                "this build of Pillow cannot read AVIF",
                "install Pillow 11.3 or newer from a wheel, or convert the image to PNG",
            )
    if name == "WEBP":
        from PIL import features

        if not features.check("webp"):
            raise GenmeterError("extra_missing", "this build of Pillow cannot read WebP", "install Pillow from a wheel")
    if name == "TIFF":
        from genmeter.assets.tiff import TiffFile

        return TiffFile
    module, cls = {
        "JPEG": ("JpegImagePlugin", "JpegImageFile"),
        "PNG": ("PngImagePlugin", "PngImageFile"),
        "WEBP": ("WebPImagePlugin", "WebPImageFile"),
        "GIF": ("GifImagePlugin", "GifImageFile"),
        "BMP": ("BmpImagePlugin", "BmpImageFile"),
        "AVIF": ("AvifImagePlugin", "AvifImageFile"),
    }[name]
    return getattr(import_module(f"PIL.{module}"), cls)


def webp_size(data: bytes) -> tuple[int, int] | None:
    """Canvas width and height in pixels from a WebP header; ``None`` when it is damaged or of an unknown kind."""
    chunk = data[12:16]
    if chunk == b"VP8X" and len(data) >= 30:
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if chunk == b"VP8L" and len(data) >= 25:
        bits = int(struct.unpack_from("<I", data, 21)[0])
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if chunk == b"VP8 " and len(data) >= 30:
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


def _not_an_image(modality: str, name: str) -> GenmeterError:
    known = "JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF"
    if modality == "image":
        return GenmeterError("unsupported_media", f"{name} is not read; expected {known}", "convert the image to PNG")
    hint = None
    if "HTML" in name:
        hint = "the download probably returned an error page; fetch the file again"
    return GenmeterError(
        "unsupported_media", f"expected an image ({known}), found {sniff.describe(modality, name)}", hint
    )


def _failure(error: Exception, name: str) -> GenmeterError:
    """Pillow's exceptions as typed errors. Their texts may quote the file, so they are not passed on."""
    kind = type(error).__name__
    if kind in ("DecompressionBombError", "DecompressionBombWarning"):
        return GenmeterError(
            "too_large",
            f"the {name} image is above the limit that Pillow has for this format (PIL.Image.MAX_IMAGE_PIXELS)",
            "use a smaller image or another format",
        )
    text = str(error)
    if any(
        words in text for words in ("cannot handle", "unknown pixel mode", "unknown data organization", "Unsupported")
    ):
        return GenmeterError(
            "unsupported_media", f"this kind of {name} (its bit depth or channels) is not read", "convert it to PNG"
        )
    return GenmeterError(
        "decode_failed", f"the {name} data is damaged or cut short", "write or download the file again"
    )
