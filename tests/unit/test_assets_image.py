"""Pixels of every kind of file against what was written into it."""

from __future__ import annotations

import contextlib
import io
import struct
import threading
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from genmeter.assets.image import decode_image, from_object, webp_size
from genmeter.assets.pixels import shorts_to_bytes, upright
from genmeter.config import Policy
from genmeter.contract import ImageMedia
from genmeter.errors import GenmeterError

POLICY = Policy()
SMOOTH = np.stack(
    [
        np.add.outer(np.arange(48) * 2, np.arange(64)),
        np.add.outer(np.arange(48), np.arange(64) * 3),
        np.full((48, 64), 90),
    ],
    axis=-1,
).astype(np.uint8)


def encode(image: Image.Image | np.ndarray, name: str, **options: object) -> bytes:
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    buffer = io.BytesIO()
    image.save(buffer, name, **options)
    return buffer.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(rows: list[bytes], width: int, depth: int, colour: int, *, before: bytes = b"", after: bytes = b"") -> bytes:
    """A PNG by hand: any depth and colour type, with chunks before and after the image data."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, len(rows), depth, colour, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
    return b"\x89PNG\r\n\x1a\n" + header + before + pixels + after + chunk(b"IEND", b"")


def pack(levels: np.ndarray, depth: int) -> bytes:
    bits = (levels[:, None] >> np.arange(depth)[::-1]) & 1
    return np.packbits(bits.reshape(-1).astype(np.uint8)).tobytes()


def tiff(
    pixels: np.ndarray, photometric: int, extra: int | None = None, sample_format: int = 1, order: str = "<"
) -> bytes:
    """A TIFF by hand, one strip: for the kinds that Pillow reads and does not write."""
    height, width, channels = pixels.shape
    data = pixels.astype(pixels.dtype.newbyteorder(order)).tobytes()
    bits = pixels.dtype.itemsize * 8
    tags = [(256, 4, [width]), (257, 4, [height]), (258, 3, [bits] * channels), (259, 3, [1]), (262, 3, [photometric])]
    tags += [(273, 4, [0]), (277, 3, [channels]), (278, 4, [height]), (279, 4, [len(data)])]
    tags += [(338, 3, [extra])] if extra is not None else []
    tags += [(339, 3, [sample_format] * channels)]
    size = {3: "H", 4: "I"}
    at = 8 + 2 + 12 * len(tags) + 4
    entries, outside = b"", b""
    for tag, kind, values in tags:
        payload = struct.pack(f"{order}{len(values)}{size[kind]}", *values)
        if len(payload) > 4:
            entries += struct.pack(order + "HHII", tag, kind, len(values), at + len(outside))
            outside += payload
        else:
            entries += struct.pack(order + "HHI", tag, kind, len(values)) + payload.ljust(4, b"\0")
    start = at + len(outside)
    entries = entries.replace(
        struct.pack(order + "HHII", 273, 4, 1, 0), struct.pack(order + "HHII", 273, 4, 1, start), 1
    )
    magic = b"II" if order == "<" else b"MM"
    head = magic + struct.pack(order + "HI", 42, 8) + struct.pack(order + "H", len(tags))
    return head + entries + struct.pack(order + "I", 0) + outside + data


def decode(data: bytes, policy: Policy = POLICY) -> ImageMedia:
    media = decode_image(data, policy)
    assert media.pixels.dtype == np.uint8
    assert media.pixels.ndim == 3
    assert media.pixels.shape[2] in (3, 4)
    assert media.pixels.flags.c_contiguous
    assert (media.detail["height"], media.detail["width"]) == media.pixels.shape[:2]
    return media


def fails(code: str, data: bytes, policy: Policy = POLICY) -> GenmeterError:
    with pytest.raises(GenmeterError) as caught:
        decode_image(data, policy)
    assert caught.value.code == code
    return caught.value


LOSSLESS = [
    ("PNG", {}),
    ("BMP", {}),
    ("TIFF", {}),
    ("TIFF", {"compression": "tiff_lzw"}),
    ("TIFF", {"compression": "tiff_adobe_deflate"}),
    ("WEBP", {"lossless": True}),
]


@pytest.mark.parametrize(("name", "options"), LOSSLESS)
def test_lossless_formats_give_the_bytes_that_were_written(name, options) -> None:
    media = decode(encode(SMOOTH, name, **options))
    assert np.array_equal(media.pixels, SMOOTH)
    assert media.flags == ()
    assert media.detail["format"] == name


@pytest.mark.parametrize(("name", "limit"), [("JPEG", 4), ("WEBP", 12), ("AVIF", 6), ("GIF", 40)])
def test_lossy_formats_come_close_and_equal_pillow(name, limit) -> None:
    data = encode(SMOOTH, name, **({} if name == "GIF" else {"quality": 95}))
    media = decode(data)
    with Image.open(io.BytesIO(data)) as image:
        assert np.array_equal(media.pixels, np.asarray(image.convert("RGB")))
    assert np.abs(media.pixels.astype(int) - SMOOTH).mean() < limit


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_exif_orientation(name, orientation) -> None:
    """The case of a phone photo: a blue picture with a red bar at the left and a green one on top of its right half."""
    stored = np.zeros((48, 64, 3), np.uint8)
    stored[..., 2] = 200
    stored[:, :16] = (200, 0, 0)
    stored[:8, 32:] = (0, 200, 0)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options: dict[str, object] = {"exif": exif}
    if name == "TIFF":
        options = {"tiffinfo": {0x0112: orientation}}
    elif name != "PNG":
        options |= {"quality": 100, "lossless": True} if name == "WEBP" else {"quality": 100}
    data = encode(stored, name, **options)
    media = decode(data)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    assert np.array_equal(media.pixels, expected)
    assert media.pixels.shape[:2] == ((64, 48) if orientation >= 5 else (48, 64))
    if orientation == 6:  # turned clockwise: the left bar is on top
        assert media.pixels[4, 8, 0] > 150
        assert media.pixels[60, 24, 2] > 150


def test_upright_matches_the_standard() -> None:
    """Where the first row and column of the stored picture are seen, from TIFF 6.0, page 36."""
    stored = np.arange(6, dtype=np.uint8).reshape(2, 3, 1)
    seen = {
        2: [[2, 1, 0], [5, 4, 3]],
        3: [[5, 4, 3], [2, 1, 0]],
        4: [[3, 4, 5], [0, 1, 2]],
        5: [[0, 3], [1, 4], [2, 5]],
        6: [[3, 0], [4, 1], [5, 2]],
        7: [[5, 2], [4, 1], [3, 0]],
        8: [[2, 5], [1, 4], [0, 3]],
    }
    for orientation, expected in seen.items():
        assert upright(stored, orientation)[..., 0].tolist() == expected


def exif_block(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes().removeprefix(b"Exif\0\0")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (chunk(b"eXIf", exif_block(6)), b""),
        (b"", chunk(b"eXIf", exif_block(6))),
        (chunk(b"iTXt", b'XML:com.adobe.xmp\0\0\0\0\0<x:xmpmeta tiff:Orientation="6"/>'), b""),
        (chunk(b"iCCP", b"p\0\0" + zlib.compress(b"x")) + chunk(b"eXIf", exif_block(6)), b""),
    ],
    ids=["before the data", "after the data", "XMP", "behind a profile"],
)
def test_orientation_in_png_chunks(before, after) -> None:
    rows = [bytes([10, 20, 30]), bytes([40, 50, 60])]
    media = decode(png(rows, 3, 8, 0, before=before, after=after))
    assert media.pixels[..., 0].tolist() == [[40, 10], [50, 20], [60, 30]]
    assert media.detail["orientation"] == 6


def test_damaged_exif_does_not_lose_the_picture() -> None:
    for block in (b"", b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0" + b"\xff" * 40, b"garbage"):
        assert decode(encode(SMOOTH, "JPEG", exif=block)).pixels.shape == SMOOTH.shape


# Transparency.


def test_hidden_colour_is_kept_apart_by_alpha() -> None:
    red, blue = (np.zeros((64, 64, 4), np.uint8) for _ in range(2))
    red[..., 0], blue[..., 2] = 255, 255
    one, two = decode(encode(red, "PNG")), decode(encode(blue, "PNG"))
    assert one.transparent
    assert np.array_equal(one.rgb("white"), np.full((64, 64, 3), 255))
    assert np.array_equal(one.rgb("white"), two.rgb("white"))
    assert one.rgb("drop")[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("options", [{"transparency": 1}, {"transparency": bytes([255, 0, 255])}])
def test_transparent_palette_entries(options) -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([10, 20, 30, 255, 0, 0, 40, 50, 60])
    image.putdata([0, 1, 2])
    media = decode(encode(image, "PNG", **options))
    assert media.pixels[0].tolist() == [[10, 20, 30, 255], [255, 0, 0, 0], [40, 50, 60, 255]]
    assert decode(encode(image, "GIF", transparency=1)).pixels[0, :, 3].tolist() == [255, 0, 255]
    assert decode(encode(image, "PNG")).pixels.shape == (1, 3, 3)


def test_partly_transparent_palette() -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([10, 20, 30, 255, 0, 0, 40, 50, 60])
    image.putdata([0, 1, 2])
    assert decode(encode(image, "PNG", transparency=bytes([255, 0, 7]))).pixels[0, :, 3].tolist() == [255, 0, 7]


@pytest.mark.parametrize("name", ["PNG", "TIFF"])
def test_grey_with_alpha(name) -> None:
    image = Image.new("LA", (2, 1), (9, 0))
    image.putpixel((1, 0), (9, 255))
    assert decode(encode(image, name)).pixels[0].tolist() == [[9, 9, 9, 0], [9, 9, 9, 255]]


@pytest.mark.parametrize("name", ["PNG", "TIFF", "WEBP"])
def test_rgba_is_kept_to_the_byte(name) -> None:
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (12, 17, 4), dtype=np.uint8)
    options = {"lossless": True, "exact": True} if name == "WEBP" else {}
    assert np.array_equal(decode(encode(pixels, name, **options)).pixels, pixels)


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_transparent_grey_at_every_depth(depth) -> None:
    levels = np.arange(16) % (1 << depth)
    row = levels.astype(">u2").tobytes() if depth == 16 else pack(levels, depth)
    media = decode(png([row], 16, depth, 0, before=chunk(b"tRNS", struct.pack(">H", 1))))
    assert np.array_equal(media.pixels[0, :, 3] == 0, levels == 1)
    white = (1 << depth) - 1
    assert np.array_equal(media.pixels[0, :, 0], np.rint(levels * 255 / white))


@pytest.mark.parametrize("depth", [8, 16])
def test_transparent_colour_at_both_depths(depth) -> None:
    key = (0x12, 0x34, 0x56) if depth == 8 else (0x1201, 0x3402, 0x5603)
    near = (0x12, 0x34, 0x57) if depth == 8 else (0x1201, 0x3402, 0x5604)  # in 16 bits: the same high bytes
    code = "BBB" if depth == 8 else "HHH"
    row = struct.pack(">" + code * 2, *key, *near)
    media = decode(png([row], 2, depth, 2, before=chunk(b"tRNS", struct.pack(">HHH", *key))))
    assert media.pixels[0, :, 3].tolist() == [0, 255]
    assert media.pixels[0, 0, :3].tolist() == [0x12, 0x34, 0x56]


def test_premultiplied_alpha_is_undone() -> None:
    pixels = np.zeros((2, 2, 4), np.uint8)
    pixels[...] = (100, 50, 25, 128)
    pixels[0, 0] = 0
    media = decode(tiff(pixels, 2, extra=1))
    assert np.abs(media.pixels[1, 1].astype(int) - (199, 99, 49, 128)).max() <= 1
    assert media.pixels[0, 0, 3] == 0
    straight = decode(tiff(pixels, 2, extra=2))
    assert straight.pixels[1, 1].tolist() == [100, 50, 25, 128]
    unspecified = decode(tiff(pixels, 2, extra=0))
    assert unspecified.pixels.shape == (2, 2, 3)


@pytest.mark.parametrize("mode", ["RGBa", "La", "PA", "LA", "RGBA", "RGBX", "HSV", "YCbCr", "CMYK", "LAB", "1", "P"])
def test_pillow_images_in_memory_in_every_mode(mode) -> None:
    source = Image.new("RGBA" if mode[-1] in "aA" else "RGB", (9, 7), (200, 30, 60))
    base = source.convert("LA").convert("La") if mode == "La" else source
    image = base if mode == "La" else (source.convert("P").convert("PA") if mode == "PA" else source.convert(mode))
    media = from_object(image, POLICY)
    has_alpha = mode in ("RGBa", "La", "PA", "LA", "RGBA")
    assert media.pixels.shape == (7, 9, 4 if has_alpha else 3)
    if mode not in ("La", "LA", "1", "P", "PA"):
        assert np.abs(media.pixels[3, 3, :3].astype(int) - (200, 30, 60)).max() <= 3


# More than eight bits, floats, integers.


def test_sixteen_to_eight_bits_rounds_for_every_value() -> None:
    values = np.arange(65536, dtype=np.uint16)
    assert np.array_equal(shorts_to_bytes(values), np.rint(values / 257.0))
    assert np.array_equal(values, np.arange(65536))


@pytest.mark.parametrize(("colour", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_sixteen_bit_png(colour, channels) -> None:
    values = np.random.default_rng(colour).integers(0, 65536, (11, 13, channels), dtype=np.uint16)
    rows = [row.astype(">u2").tobytes() for row in values]
    expected = np.rint(values / 257.0).astype(np.uint8)
    index = {1: [0, 0, 0], 2: [0, 0, 0, 1], 3: [0, 1, 2], 4: [0, 1, 2, 3]}[channels]
    assert np.array_equal(decode(png(rows, 13, 16, colour)).pixels, expected[..., index])


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("photometric", "channels", "extra"), [(1, 1, None), (2, 3, None), (2, 4, 2)])
def test_sixteen_bit_tiff(order, photometric, channels, extra) -> None:
    values = np.random.default_rng(channels).integers(0, 65536, (11, 13, channels), dtype=np.uint16)
    expected = np.rint(values / 257.0).astype(np.uint8)
    pixels = decode(tiff(values, photometric, extra, order=order)).pixels
    assert np.array_equal(pixels, np.repeat(expected, 3, axis=2) if channels == 1 else expected)


def test_sixteen_bit_grey_of_a_library_user() -> None:
    values = np.linspace(0, 65535, 48, dtype=np.uint16).reshape(6, 8)
    expected = np.rint(values / 257.0)
    for data in (encode(values, "PNG"), encode(values, "TIFF"), encode(values, "TIFF", compression="tiff_lzw")):
        assert np.array_equal(decode(data).pixels[..., 0], expected)
    # Mode I with values of the 16-bit range is what older Pillow made of such files.
    assert np.array_equal(decode(encode(values.astype(np.int32), "TIFF")).pixels[..., 1], expected)
    assert np.array_equal(from_object(Image.fromarray(values.astype(np.int32)), POLICY).pixels[..., 2], expected)


@pytest.mark.parametrize("values", [[0, 70_000], [-1, 500], [0, 200]])
def test_integers_of_an_unknown_scale_are_refused(values) -> None:
    array = np.full((4, 4), values[0], np.int32)
    array[0, 0] = values[1]
    assert str(values[1]) in fails("unsupported_media", encode(array, "TIFF")).message


def test_floats_in_zero_to_one_are_scaled() -> None:
    values = np.linspace(0, 1, 256, dtype=np.float32).reshape(16, 16)
    assert np.array_equal(decode(encode(values, "TIFF")).pixels[..., 0].ravel(), np.arange(256))
    assert np.array_equal(decode(encode(values + np.float32(0.001), "TIFF")).pixels[..., 0].ravel()[-1], 255)


def test_other_floats_are_refused() -> None:
    values = np.full((4, 4), 0.5, np.float32)
    values[1, 1] = 200
    assert "200" in fails("unsupported_media", encode(values, "TIFF")).message
    values[1, 1] = -0.5
    fails("unsupported_media", encode(values, "TIFF"))
    for odd in (np.nan, np.inf, -np.inf):
        values[1, 1] = odd
        fails("non_finite", encode(values, "TIFF"))


# Colour spaces.


@pytest.mark.parametrize("name", ["JPEG", "TIFF"])
def test_cmyk(name) -> None:
    rgb = np.zeros((16, 16, 3), np.uint8)
    rgb[:] = (200, 30, 60)
    image = Image.fromarray(rgb).convert("CMYK")
    media = decode(encode(image, name, **({"quality": 100} if name == "JPEG" else {})))
    assert np.abs(media.pixels.astype(int) - rgb).max() <= 2
    white = decode(encode(Image.new("CMYK", (16, 16), (0, 0, 0, 0)), name))
    assert np.array_equal(white.pixels, np.full((16, 16, 3), 255))


def test_ycck_jpeg() -> None:
    """Adobe's way of storing CMYK: the inks as YCbCr, black inverted, transform 2 in the marker."""
    rgb = (200, 30, 60)
    inks = Image.new("RGB", (1, 1), tuple(255 - value for value in rgb)).convert("YCbCr").getpixel((0, 0))
    # Pillow inverts what it writes, so the components are given inverted; 0 stands for a stored 255, no black.
    image = Image.new("CMYK", (16, 16), (*(255 - value for value in inks), 0))
    data = encode(image, "JPEG", quality=100)
    at = data.index(b"Adobe") + 11
    media = decode(data[:at] + b"\2" + data[at + 1 :])
    assert media.detail["mode"] == "CMYK"
    assert np.abs(media.pixels.astype(int) - rgb).max() <= 3


@pytest.mark.parametrize("mode", ["YCbCr", "LAB"])
def test_other_colour_spaces_of_tiff(mode) -> None:
    data = encode(Image.new("RGB", (16, 16), (200, 30, 60)).convert(mode), "TIFF")
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
    except OSError:
        pytest.skip("this Pillow cannot read what it has written (YCbCr before 12)")
    assert np.abs(decode(data).pixels[5, 5].astype(int) - (200, 30, 60)).max() <= 3


@pytest.mark.parametrize("name", ["PNG", "BMP", "TIFF", "JPEG", "WEBP", "AVIF"])
def test_grey_has_three_equal_channels(name) -> None:
    grey = SMOOTH[..., 0]
    pixels = decode(encode(grey, name)).pixels
    assert pixels.shape == (48, 64, 3)
    assert np.abs(pixels.max(axis=2).astype(int) - pixels.min(axis=2)).max() <= (
        0 if name not in ("WEBP", "AVIF") else 3
    )


@pytest.mark.parametrize("name", ["PNG", "BMP", "TIFF"])
def test_one_bit(name) -> None:
    image = Image.fromarray(SMOOTH[..., 0] > 90)
    assert np.array_equal(decode(encode(image, name)).pixels[..., 2] == 255, SMOOTH[..., 0] > 90)


def test_an_embedded_profile_is_noted_and_not_applied() -> None:
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for name, options in (("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True})):
        media = decode(encode(SMOOTH, name, icc_profile=profile, **options))
        assert media.detail["icc_profile"] is True
        assert np.array_equal(media.pixels, SMOOTH)
    assert "icc_profile" not in decode(encode(SMOOTH, "PNG")).detail


# Animation.


@pytest.mark.parametrize("name", ["GIF", "WEBP", "PNG", "TIFF", "AVIF"])
def test_animated_files_give_their_first_frame_and_a_flag(name) -> None:
    frames = [Image.new("RGB", (32, 24), colour) for colour in ((250, 0, 0), (0, 250, 0), (0, 0, 250))]
    media = decode(encode(frames[0], name, save_all=True, append_images=frames[1:]))
    assert media.flags == ("animated_first_frame",)
    assert media.pixels.shape == (24, 32, 3)
    assert media.pixels[12, 16, 0] > 200
    assert media.pixels[12, 16, 1:].max() < 60
    assert decode(encode(frames[0], name, save_all=True)).flags == ()


def test_only_the_first_of_many_frames_is_decoded() -> None:
    frames = [Image.new("P", (64, 64), i % 7) for i in range(400)]
    for i, frame in enumerate(frames):
        frame.putpalette([i % 256, 0, 0] * 8)
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:], optimize=False)
    start = data[: len(data) // 2]
    assert decode(start).flags == ("animated_first_frame",)  # the rest is not even looked at
    assert np.array_equal(decode(start).pixels, decode(data).pixels)


# Size limits.

BOMB = (
    b"\x89PNG\r\n\x1a\n"
    + chunk(b"IHDR", struct.pack(">IIBBBBB", 20_000, 10_000, 8, 2, 0, 0, 0))
    + chunk(b"IDAT", zlib.compress(b"\0"))
    + chunk(b"IEND", b"")
)


def test_a_header_above_the_limit_is_refused_before_decoding() -> None:
    error = fails("too_large", BOMB)
    assert "20000x10000" in error.message
    assert "max_pixels" in (error.hint or "")


@pytest.mark.parametrize("name", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_the_limit_holds_for_every_format(name) -> None:
    data = encode(Image.new("RGB", (64, 48)), name)
    assert "64x48" in fails("too_large", data, Policy(max_pixels=64 * 48 - 1)).message
    assert decode(data, Policy(max_pixels=64 * 48)).pixels.shape == (48, 64, 3)


@pytest.mark.parametrize("name", ["WEBP", "GIF", "BMP", "TIFF", "JPEG"])
def test_huge_headers_of_every_format_are_refused(name) -> None:
    data = bytearray(encode(Image.new("RGB", (64, 48)), name))
    if name == "WEBP":
        data[26:30] = struct.pack("<HH", 16383, 16383)
    elif name == "GIF":
        data[6:10] = struct.pack("<HH", 65535, 65535)
    elif name == "BMP":
        data[18:26] = struct.pack("<ii", 60_000, 60_000)
    elif name == "JPEG":
        at = data.index(b"\xff\xc0")
        data[at + 5 : at + 9] = struct.pack(">HH", 65000, 65000)
    else:
        at = data.index(struct.pack("<HHI", 256, 4 if b"\x00\x01\x04\x00" in data else 3, 1))
        data[at + 2 : at + 12] = struct.pack("<HII", 4, 1, 4_000_000)
    fails("too_large", bytes(data))


def test_a_webp_canvas_is_not_allocated_before_its_size_is_checked(monkeypatch) -> None:
    from PIL import WebPImagePlugin

    data = encode(Image.new("RGB", (64, 48)), "WEBP")
    monkeypatch.setattr(WebPImagePlugin, "_webp", None)
    fails("too_large", data, Policy(max_pixels=64 * 48 - 1))


def test_webp_sizes() -> None:
    frames = [Image.new("RGB", (300, 17), (i, 0, 0)) for i in range(2)]
    for options in ({}, {"lossless": True}, {"icc_profile": b"x" * 9}, {"save_all": True, "append_images": frames[1:]}):
        assert webp_size(encode(frames[0], "WEBP", **options)) == (300, 17)
    assert webp_size(b"RIFF\0\0\0\0WEBPVP8X") is None
    assert webp_size(b"RIFF\0\0\0\0WEBPXXXX" + bytes(40)) is None


def test_pillows_own_limit_neither_counts_nor_changes(monkeypatch) -> None:
    large = {name: encode(Image.new("RGB", (300, 200)), name) for name in ("PNG", "JPEG", "BMP", "TIFF", "AVIF", "GIF")}
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    for data in large.values():
        assert decode(data).pixels.shape == (200, 300, 3)
    assert Image.MAX_IMAGE_PIXELS == 10_000
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    fails("too_large", BOMB)
    assert Image.MAX_IMAGE_PIXELS is None


@pytest.mark.filterwarnings("error")
def test_a_large_plain_image_is_read_without_a_warning() -> None:
    """9600 x 9600 is above the size at which Pillow warns, and below the default limit."""
    media = decode(png([bytes(1200)] * 9600, 9600, 1, 0))
    assert media.pixels.shape == (9600, 9600, 3)
    assert not media.pixels[::1000, ::1000].any()


def test_strips_are_fine() -> None:
    assert decode(encode(Image.new("RGB", (30_000, 1), (1, 2, 3)), "PNG")).pixels.shape == (1, 30_000, 3)
    assert decode(encode(Image.new("L", (1, 30_000), 9), "PNG")).pixels.shape == (30_000, 1, 3)


def test_bands_give_the_same_pixels(monkeypatch) -> None:
    from genmeter.assets import pixels

    monkeypatch.setattr(pixels, "_BAND_PIXELS", 1000)
    for image in (SMOOTH, SMOOTH[..., 0], np.dstack([SMOOTH, SMOOTH[..., 0]])):
        expected = image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2)
        assert np.array_equal(decode(encode(np.ascontiguousarray(image), "PNG")).pixels, expected)


@pytest.mark.parametrize("name", [b"iCCP", b"zTXt", b"iTXt"])
def test_compressed_metadata_is_never_inflated(name) -> None:
    """A chunk of 100 kB that inflates to 100 MB: the picture is read, the memory is not used."""
    import tracemalloc

    body = zlib.compress(b"\0" * 100_000_000, 9)
    payload = {b"iCCP": b"p\0\0", b"zTXt": b"k\0\0", b"iTXt": b"k\0\1\0\0\0"}[name] + body
    data = png([bytes([1, 2, 3])], 1, 8, 2, before=chunk(name, payload), after=chunk(name, payload))
    tracemalloc.start()
    media = decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert media.pixels.tolist() == [[[1, 2, 3]]]
    assert peak < 5_000_000


@pytest.mark.parametrize("keyword", [b"XML:com.adobe.xmp", b"Raw profile type exif"])
def test_a_bomb_where_an_orientation_may_stand_is_bounded(keyword) -> None:
    import tracemalloc

    payload = keyword + b"\0\0" + zlib.compress(b"\0" * 50_000_000, 9)
    data = png([bytes([1, 2, 3])], 1, 8, 2, before=chunk(b"zTXt", payload))
    tracemalloc.start()
    with contextlib.suppress(GenmeterError):
        decode(data)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_a_long_text_does_not_lose_the_picture() -> None:
    """Image generators write their workflow into the file; Pillow gives up above a megabyte of inflated text."""
    text = b'{"workflow": "' + b"node " * 400_000 + b'"}'
    for before in (chunk(b"iTXt", b"workflow\0\1\0\0\0" + zlib.compress(text)), chunk(b"tEXt", b"prompt\0" + text)):
        assert decode(png([bytes([1, 2, 3])], 1, 8, 2, before=before)).pixels.tolist() == [[[1, 2, 3]]]


# Process-wide state and threads.


def test_threads_decode_alike() -> None:
    files = [encode(SMOOTH, name) for name in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")] * 6
    expected = [decode(data).pixels for data in files]
    results: list[object] = [None] * len(files)

    def work(start: int) -> None:
        for i in range(start, len(files), 4):
            results[i] = decode_image(files[i], POLICY).pixels

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(a, b) for a, b in zip(results, expected, strict=True))


def test_a_shared_lazy_image_is_loaded_once(tmp_path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encode(SMOOTH, "PNG"))
    with Image.open(path) as image:
        results: list[np.ndarray] = []
        threads = [threading.Thread(target=lambda: results.append(from_object(image, POLICY).pixels)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 8
    assert all(np.array_equal(pixels, SMOOTH) for pixels in results)


def test_a_build_without_avif_says_so(monkeypatch) -> None:
    from PIL import features

    from genmeter.assets import image as module

    data = encode(SMOOTH, "AVIF")
    monkeypatch.setattr(features, "check", lambda name: False)
    monkeypatch.setattr(module, "_openers", {})
    error = fails("extra_missing", data)
    assert "AVIF" in error.message
    assert "11.3" in (error.hint or "")
