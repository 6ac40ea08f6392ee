"""Content is told by its bytes."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from genmeter.assets.decode import decode
from genmeter.assets.load import Blob
from genmeter.assets.sniff import IMAGE_FORMATS, kind
from genmeter.config import Policy
from genmeter.errors import GenmeterError


@pytest.mark.parametrize("name", sorted(IMAGE_FORMATS))
def test_what_pillow_writes_is_recognised(name) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(buffer, name)
    assert kind(buffer.getvalue()) == ("image", name)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"RIFF\0\0\0\0WAVEfmt ", ("audio", "WAV")),
        (b"RIFF\0\0\0\0AVI LIST", ("video", "AVI")),
        (b"fLaC\0\0\0\x22", ("audio", "FLAC")),
        (b"ID3\x04\0\0\0\0\0\0", ("audio", "MP3")),
        (b"\xff\xfb\x90\x64", ("audio", "MP3")),
        (b"\xff\xf1\x50\x80", ("audio", "AAC")),
        (b"ID3\x04\0\0\0\0\0\x02..fLaC\0\0\0\x22", ("audio", "FLAC")),
        (b"ID3\x04\0\0\0\0\x10\0..", ("audio", "MP3")),
        (b"FORM\0\0\0\x40AIFFCOMM", ("audio", "AIFF")),
        (b"FORM\0\0\0\x40AIFCFVER", ("audio", "AIFF")),
        (b"FORM\0\0\0\x40ILBMBMHD", ("unknown", "an IFF file")),
        (b"RF64\xff\xff\xff\xffWAVEds64", ("audio", "WAV")),
        (b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb", ("audio", "W64")),
        (b"caff\0\x01\0\0desc", ("audio", "CAF")),
        (b".snd\0\0\0\x18", ("audio", "AU")),
        (b"wvpk\0\0\0\0", ("audio", "WavPack")),
        (b"#!AMR\n", ("audio", "AMR")),
        ((b"G" + b"\0" * 187) * 3, ("video", "MPEG-TS")),
        (b"OggS\0\x02" + b"\0" * 22 + b"\x01\x1eOpusHead", ("audio", "Ogg")),
        (b"OggS\0\x02" + b"\0" * 22 + b"\x01\x2a\x80theora", ("video", "Ogg video")),
        (b"\x1aE\xdf\xa3", ("video", "Matroska/WebM")),
        (b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom", ("video", "MP4")),
        (b"\0\0\0\x14ftypqt  \0\0\0\0qt  ", ("video", "QuickTime")),
        (b"\0\0\0\x18ftypM4A \0\0\0\0M4A mp42", ("audio", "M4A")),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", ("image", "HEIC")),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf", ("image", "AVIF")),
        (b"\0\0\0\x1cftypavis\0\0\0\0avisavifmsf1", ("image", "AVIF")),
        (b"II+\0\x08\0\0\0", ("image", "TIFF")),
        (b"\0\0\0\x0cJXL \r\n\x87\n", ("image", "JPEG XL")),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', ("image", "SVG")),
        (b'<?xml version="1.0"?>\n<svg/>', ("image", "SVG")),
        (b"\n <!DOCTYPE HTML><html></html>", ("text", "an HTML page")),
        (b"\xef\xbb\xbf<html lang='en'>", ("text", "an HTML page")),
        (b'{"error": "AccessDenied"}', ("text", "a JSON document")),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", ("text", "an XML document")),
        (b"a red cat", ("text", "plain text")),
        ("ein gr\u00fcner Hund \u732b".encode() * 100, ("text", "plain text")),
        (b" \n\t", ("text", "only white space")),
        (b"BM is how this text begins", ("text", "plain text")),
        (b"\x93NUMPY\x01\0", ("unknown", "a numpy array file")),
        (b"\0" * 64, ("unknown", "content of an unknown kind")),
        (b"", ("text", "only white space")),
        (b"\x89", ("unknown", "content of an unknown kind")),
    ],
)
def test_other_kinds(data, expected) -> None:
    assert kind(data) == expected


def test_every_prefix_of_every_format_is_answered() -> None:
    for name in sorted(IMAGE_FORMATS):
        buffer = io.BytesIO()
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(buffer, name)
        for length in range(64):
            assert isinstance(kind(buffer.getvalue()[:length]), tuple)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"<html>secret-token</html>", "HTML"),
        (b'{"token": "secret-token"}', "JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:secret-token\nsize 12\n", "git lfs pull"),
        (b"secret-token", "plain text"),
        (b"RIFF\0\0\0\0WAVEfmt ", r"audio \(WAV\)"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC"),
        (b"\x93NUMPY\x01\0", "numpy"),
    ],
)
def test_what_is_no_image_is_named_and_not_quoted(data, words) -> None:
    with pytest.raises(GenmeterError, match=words) as caught:
        decode(Blob(data, b"\0" * 32, len(data), None), "image", Policy())
    assert caught.value.code == "unsupported_media"
    assert "secret-token" not in str(caught.value.to_dict())
