"""Damaged files: a typed error or the very pixels of the whole file, never grey ones."""

from __future__ import annotations

import io
import random
import warnings

import numpy as np
import pytest
from PIL import Image

from genmeter.assets.image import decode_image
from genmeter.config import Policy
from genmeter.errors import GenmeterError

POLICY = Policy()
CODES = {"decode_failed", "unsupported_media", "empty_media", "too_large", "extra_missing"}


def picture(height: int = 96, width: int = 128) -> Image.Image:
    rng = np.random.default_rng(7)
    y, x = np.mgrid[0:height, 0:width]
    waves = np.stack([128 + 90 * np.sin(x / 9), y * 2, x + y], axis=-1)
    return Image.fromarray((waves + rng.integers(0, 12, waves.shape)).clip(0, 255).astype(np.uint8))


def encode(image: Image.Image, name: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, name, **options)
    return buffer.getvalue()


def outcome(data: bytes, whole: np.ndarray) -> str:
    """``same``, ``other`` or the code of the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            pixels = decode_image(data, POLICY).pixels
        except GenmeterError as error:
            return error.code
    return "same" if np.array_equal(pixels, whole) else "other"


KINDS = [
    ("JPEG", {}),
    ("JPEG", {"progressive": True}),
    ("JPEG", {"restart_marker_rows": 1}),
    ("JPEG", {"subsampling": 0, "optimize": True, "quality": 95}),
    ("PNG", {}),
    ("GIF", {}),
    ("BMP", {}),
    ("WEBP", {}),
    ("WEBP", {"lossless": True}),
    ("TIFF", {}),
    ("TIFF", {"compression": "tiff_lzw"}),
    ("TIFF", {"compression": "tiff_adobe_deflate"}),
    ("TIFF", {"compression": "jpeg"}),
    ("AVIF", {}),
]


@pytest.mark.parametrize(("name", "options"), KINDS, ids=lambda value: str(value))
def test_a_file_cut_anywhere_is_an_error_or_the_whole_picture(name, options) -> None:
    data = encode(picture(), name, **options)
    whole = decode_image(data, POLICY).pixels
    size = len(data)
    cuts = sorted({*range(40), size // 2, *range(size - 40, size), *range(0, size, max(1, size // 60))})
    found = {cut: outcome(data[:cut], whole) for cut in cuts}
    assert [cut for cut, word in found.items() if word == "other"] == []
    assert found[size // 2] == "decode_failed"


def test_a_small_png_cut_at_every_byte() -> None:
    data = encode(picture(24, 24), "PNG")
    whole = decode_image(data, POLICY).pixels
    words = [outcome(data[:cut], whole) for cut in range(len(data))]
    assert "other" not in words
    assert set(words[len(data) - 12 :]) <= {"same", "decode_failed"}
    assert words[0] == "empty_media"


@pytest.mark.parametrize("options", [{}, {"optimize": True}, {"restart_marker_rows": 1}, {"subsampling": 0}])
def test_a_jpeg_with_an_end_marker_behind_the_cut(options) -> None:
    """libjpeg fills the missing part with mid grey and only warns."""
    data = encode(picture(), "JPEG", **options)
    whole = decode_image(data, POLICY).pixels
    start = data.index(b"\xff\xda") + 14
    # Within the last coded unit nothing is left to be filled: cuts of the last few bytes cannot be told.
    for cut in range(start, len(data) - 120, 13):
        assert outcome(data[:cut] + b"\xff\xd9", whole) == "decode_failed", cut


def test_a_progressive_jpeg_with_an_end_marker_behind_the_cut() -> None:
    data = encode(picture(), "JPEG", progressive=True)
    whole = decode_image(data, POLICY).pixels
    last_scan = data.rindex(b"\xff\xda")
    for cut in range(data.index(b"\xff\xda") + 14, last_scan, 13):
        assert outcome(data[:cut] + b"\xff\xd9", whole) == "decode_failed", cut


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_rows": 1}, {"quality": 95}])
def test_a_jpeg_whose_tail_is_zeros(options) -> None:
    """What a download leaves that reserved its space and stopped."""
    data = encode(picture(), "JPEG", **options)
    whole = decode_image(data, POLICY).pixels
    for cut in range(20, len(data), 31):
        assert outcome(data[:cut] + bytes(len(data) - cut), whole) in ("decode_failed", "unsupported_media")


def test_a_jpeg_that_lost_restart_intervals() -> None:
    data = encode(picture(), "JPEG", restart_marker_rows=1)
    whole = decode_image(data, POLICY).pixels
    first, third = data.index(b"\xff\xd0"), data.index(b"\xff\xd2")
    assert outcome(data[:first] + data[third:], whole) == "decode_failed"
    assert outcome(data[: first + 2] + bytes(third - first - 2) + data[third:], whole) == "decode_failed"


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_rows": 1}, {"optimize": True}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("size", [(8, 8), (17, 33), (64, 64), (1, 1), (200, 3)])
def test_whole_jpegs_that_look_cut_are_read(mode, size, options) -> None:
    """Mid grey to the last pixel, by intention."""
    for value in (127, 128, 129):
        data = encode(Image.new("L", size, value).convert(mode), "JPEG", **options)
        assert decode_image(data, POLICY).pixels.shape == (size[1], size[0], 3)
        assert decode_image(data + b"trailing bytes \xff\xd9", POLICY).pixels.shape == (size[1], size[0], 3)


def test_a_png_with_flipped_bits_is_never_scored() -> None:
    data = encode(picture(64, 64), "PNG")
    whole = decode_image(data, POLICY).pixels
    generator = random.Random(1)
    for _ in range(150):
        changed = bytearray(data)
        changed[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        assert outcome(bytes(changed), whole) != "other"


def test_flips_in_the_last_bytes_of_a_png() -> None:
    """Behind the last row Pillow no longer looks, so the checksum inside the compressed data is never compared."""
    noise = np.random.default_rng(0).integers(0, 255, (200, 200, 3), dtype=np.uint8)
    data = encode(Image.fromarray(noise // 4 * 4), "PNG", compress_level=9)
    whole = decode_image(data, POLICY).pixels
    end = data.index(b"IEND") - 8
    for at in range(end - 64, end):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            assert outcome(bytes(changed), whole) == "decode_failed"


@pytest.mark.parametrize(("name", "options"), KINDS, ids=lambda value: str(value))
def test_noise_in_a_file_raises_nothing_untyped(name, options) -> None:
    data = encode(picture(32, 32), name, **options)
    whole = decode_image(data, POLICY).pixels
    generator = random.Random(2)
    for _ in range(60):
        changed = bytearray(data)
        for _ in range(generator.randrange(1, 12)):
            changed[generator.randrange(len(data))] = generator.randrange(256)
        assert outcome(bytes(changed), whole) in CODES | {"same", "other"}


def test_messages_do_not_quote_the_file() -> None:
    data = bytearray(encode(picture(32, 32), "PNG"))
    at = data.index(b"IDAT")
    data[at : at + 4] = b"S3CR"
    with pytest.raises(GenmeterError) as caught:
        decode_image(bytes(data), POLICY)
    assert "S3CR" not in str(caught.value.to_dict())
    assert "PNG" in caught.value.message


def test_no_bytes() -> None:
    with pytest.raises(GenmeterError) as caught:
        decode_image(b"", POLICY)
    assert caught.value.code == "empty_media"
