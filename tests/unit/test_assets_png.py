"""Plain PNGs go straight to the decompressor: the same pixels and the same errors as through Pillow's file plugin."""

from __future__ import annotations

import io
import random
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from genmeter.assets import image, png
from genmeter.config import Policy
from genmeter.errors import GenmeterError

POLICY = Policy(max_pixels=10_000)
MODES = {"L": 1, "RGB": 3, "RGBA": 4}


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def parts(data: bytes) -> list[tuple[bytes, bytes]]:
    found, at = [], 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        found.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    return found


def rebuilt(data: bytes, stream: bytes, size: int = 1 << 20) -> bytes:
    """The same file with another compressed stream, in IDAT chunks of at most ``size`` bytes, checksums right."""
    pieces = [chunk(b"IDAT", stream[at : at + size]) for at in range(0, max(len(stream), 1), size)]
    header = next(chunk(name, content) for name, content in parts(data) if name == b"IHDR")
    return data[:8] + header + b"".join(pieces) + chunk(b"IEND", b"")


def stream_of(data: bytes) -> bytes:
    return b"".join(content for name, content in parts(data) if name == b"IDAT")


def saved(mode: str, width: int, height: int, seed: int = 0, **options: object) -> tuple[np.ndarray, bytes]:
    pixels = np.random.default_rng(seed).integers(1, 256, (height, width, MODES[mode]), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if mode == "L" else pixels).save(buffer, "PNG", **options)
    return pixels, buffer.getvalue()


def outcome(data: bytes) -> tuple[object, ...]:
    try:
        media = image.decode_image(data, POLICY)
    except GenmeterError as error:
        return error.code, error.message
    return media.pixels.shape, media.pixels.tobytes(), media.flags, dict(media.detail)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each decoding took the short way."""
    log: list[bool] = []
    real = png.decode_plain

    def watched(*args: object) -> object:
        found = real(*args)  # type: ignore[arg-type]
        log.append(found is not None)
        return found

    monkeypatch.setattr(png, "decode_plain", watched)
    return log


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", [0, 6])
def test_plain_files_take_the_short_way(taken: list[bool], mode: str, level: int) -> None:
    pixels, data = saved(mode, 37, 23, compress_level=level)
    expected = pixels.repeat(3, axis=2) if mode == "L" else pixels
    for file in (data, data + b"trailing", rebuilt(data, stream_of(data), 100)):
        media = image.decode_image(file, POLICY)
        assert np.array_equal(media.pixels, expected)
        assert media.pixels.flags.c_contiguous
        assert media.detail == {"format": "PNG", "mode": mode, "width": 37, "height": 23}
    assert taken == [True] * 3


def test_metadata_is_left_out_and_noted(taken: list[bool]) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("parameters", "a cat" * 100)
    pixels, data = saved("RGB", 9, 9, pnginfo=info, icc_profile=b"profile")
    media = image.decode_image(data, POLICY)
    assert np.array_equal(media.pixels, pixels)
    assert media.detail["icc_profile"] is True
    assert taken == [True]


def test_what_pixels_depend_on_goes_the_long_way(taken: list[bool]) -> None:
    exif = Image.Exif()
    exif[274] = 6
    for options in ({"exif": exif}, {"transparency": (7, 7, 7)}):
        outcome(saved("RGB", 8, 5, **options)[1])
    buffer = io.BytesIO()
    Image.new("P", (4, 4)).save(buffer, "PNG")
    outcome(buffer.getvalue())
    assert taken == []
    buffer = io.BytesIO()
    Image.new("I;16", (4, 4)).save(buffer, "PNG")
    outcome(buffer.getvalue())
    assert outcome(saved("RGB", 101, 100)[1])[0] == "too_large"
    assert taken == [False, False]


@pytest.mark.parametrize("seed", range(8))
def test_damage_is_judged_alike_on_both_ways(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    used = 0
    for turn in range(60):
        _, data = saved(chance.choice(sorted(MODES)), chance.randrange(1, 40), chance.randrange(1, 40), turn)
        stream = stream_of(data)
        broken = bytearray(stream)
        broken[chance.randrange(len(stream))] ^= 1 << chance.randrange(8)
        header = bytearray(data)
        header[chance.randrange(16, 29)] = chance.randrange(256)
        header[29:33] = struct.pack(">I", zlib.crc32(header[12:29]))
        at = chance.randrange(len(data))
        flipped = bytearray(data)
        flipped[max(at, 8)] ^= 1 << chance.randrange(8)
        size = chance.choice([1, 7, 100, 1 << 20])
        for file in (
            data[:at],
            bytes(flipped),
            bytes(header),
            rebuilt(data, bytes(broken), size),
            rebuilt(data, stream[: chance.randrange(len(stream))], size),
            rebuilt(data, stream + b"more", size),
            rebuilt(data, zlib.compress(zlib.decompress(stream) + bytes(chance.randrange(1, 300))), size),
        ):
            short = outcome(file)
            with monkeypatch.context() as patch:
                patch.setattr(png, "decode_plain", lambda *args: None)
                long = outcome(file)
            used += short[0] not in ("decode_failed",)
            # A header that asks for more rows than there are is caught on the short way alone.
            assert short == long or "ends before the picture" in str(short[1])
    assert used > 60


@pytest.mark.parametrize("rows", [0, 1, 15])
@pytest.mark.parametrize("size", [5, 1 << 20])
def test_a_stream_that_ends_early_is_damage(rows: int, size: int) -> None:
    """Pillow leaves the missing rows black and says nothing."""
    _, data = saved("RGB", 16, 16)
    raw = zlib.decompress(stream_of(data))
    cut = rebuilt(data, zlib.compress(raw[: rows * 49]), size)
    assert outcome(cut)[0] == "decode_failed"


def test_black_at_the_bottom_is_no_damage() -> None:
    for height in (1, 300):
        buffer = io.BytesIO()
        Image.new("RGBA", (33, height)).save(buffer, "PNG")
        shape, pixels, *_ = outcome(buffer.getvalue())
        assert shape == (height, 33, 4)
        assert not any(pixels)  # type: ignore[call-overload]
