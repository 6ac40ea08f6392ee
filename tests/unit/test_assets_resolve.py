"""Where assets are found, and the bytes and digests of what was found."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from genmeter.assets.load import load
from genmeter.assets.resolve import Resolver, shorten
from genmeter.config import Policy
from genmeter.errors import GenmeterError

POLICY = Policy()


def fails(code: str, value: object, *roots: Path, policy: Policy = POLICY) -> GenmeterError:
    with pytest.raises(GenmeterError) as caught:
        load(Resolver(policy, roots).resolve(value), policy)
    assert caught.value.code == code
    return caught.value


def read(value: object, *roots: Path) -> bytes:
    return load(Resolver(POLICY, roots).resolve(value), POLICY).data


@pytest.mark.parametrize(
    "name",
    ["a.png", "my cat é.png", "100%.png", "a%20b.png", "a#b?c.png", "a:b.png", "ab:cd.png", " x ", "猫.png", "-"],
)
def test_names_are_taken_as_written_and_uris_are_decoded(tmp_path, name) -> None:
    (tmp_path / name).write_bytes(b"x")
    location = Resolver(POLICY, [tmp_path]).resolve(name)
    assert location == (name, "file", str(tmp_path.resolve() / name), None)
    for value in (name, tmp_path / name, str(tmp_path / name), (tmp_path / name).as_uri()):
        assert read(value, tmp_path) == b"x"


def test_the_forms_of_file_uris(tmp_path) -> None:
    (tmp_path / "a b.png").write_bytes(b"x")
    for value in (f"file:{tmp_path}/a%20b.png", f"file://localhost{tmp_path}/a%20b.png", f"file://{tmp_path}/a b.png"):
        assert read(value, tmp_path) == b"x"


def test_relative_paths_try_the_roots_in_order(tmp_path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    (second / "a.png").write_bytes(b"second")
    assert read("a.png", first, second) == b"second"
    (first / "a.png").write_bytes(b"first")
    assert read("a.png", first, second) == b"first"
    assert read("../second/a.png", first, second) == b"second"
    assert read("./a.png", second) == b"second"


def test_what_is_missing_names_the_roots_and_what_to_do(tmp_path) -> None:
    error = fails("not_found", "no/such.png", tmp_path)
    assert error.asset == "no/such.png"
    assert str(tmp_path.resolve()) in error.message
    assert "--media-root" in (error.hint or "")
    fails("not_found", "", tmp_path)
    fails("not_found", "x" * 5000 + ".png", tmp_path)
    (tmp_path / "file").write_bytes(b"x")
    fails("not_found", "file/below.png", tmp_path)
    fails("not_found", "a.png", tmp_path / "no such root")


def test_what_lies_outside_names_the_root_that_would_admit_it(tmp_path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.png").write_bytes(b"x")
    error = fails("forbidden", str(tmp_path / "data" / "a.png"), tmp_path / "root")
    assert f"--media-root {tmp_path.resolve() / 'data'}" in (error.hint or "")
    assert read(str(tmp_path / "data" / "a.png"), tmp_path / "root", tmp_path / "data") == b"x"


@pytest.mark.parametrize("scheme", ["s3", "gs", "hf", "az"])
def test_object_stores_say_what_is_missing(scheme) -> None:
    assert "--media-root" in (fails("extra_missing", f"{scheme}://bucket/a.png").hint or "")


def test_hosts_are_off_unless_listed() -> None:
    error = fails("forbidden", "https://cdn.example.com/a.png?token=hunter2")
    assert "--allow-host cdn.example.com" in (error.hint or "")
    assert "hunter2" not in str(error.to_dict())
    policy = Policy(allow_hosts=("cdn.example.com",))
    location = Resolver(policy, []).resolve("https://cdn.example.com/a.png")
    assert (location.kind, location.path, location.uri) == ("http", None, "https://cdn.example.com/a.png")


def test_a_senseless_host_is_a_usage_error_at_once() -> None:
    with pytest.raises(ValueError, match="allow_hosts"):
        Resolver(Policy(allow_hosts=("cdn.example.com", "exa mple.com")), [])


PAYLOAD = bytes(range(256)) + b"?>"
PLAIN = base64.b64encode(PAYLOAD).decode()


@pytest.mark.parametrize(
    "uri",
    [
        f"data:image/png;base64,{PLAIN}",
        f"data:image/png;base64,{PLAIN.rstrip('=')}",
        f"data:image/png;charset=x;base64,{base64.urlsafe_b64encode(PAYLOAD).decode()}",
        f"data:;base64,{PLAIN[:40]}\n {PLAIN[40:]}",
        f"DATA:image/png;BASE64,{PLAIN}",
        "data:image/png;base64," + PLAIN.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D"),
        "data:," + "".join(f"%{byte:02x}" for byte in PAYLOAD),
    ],
)
def test_data_uris(uri) -> None:
    blob = load(Resolver(POLICY, []).resolve(uri), POLICY)
    assert blob.data == PAYLOAD
    assert blob.digest == hashlib.sha256(PAYLOAD).digest()
    assert (blob.size, blob.mtime_ns, blob.media) == (len(PAYLOAD), None, None)


@pytest.mark.parametrize(
    ("uri", "code"),
    [
        ("data:image/png;base64,", "empty_media"),
        ("data:,", "empty_media"),
        ("data:image/png;base64", "decode_failed"),
        ("data:image/png;base64,AAA*", "decode_failed"),
        ("data:image/png;base64,AAAAA", "decode_failed"),
        ("data:image/png;base64,AA==AA", "decode_failed"),
        ("data:image/png;base64,é", "decode_failed"),
    ],
)
def test_damaged_data_uris(uri, code) -> None:
    fails(code, uri)


def test_a_data_uri_is_shown_without_its_content() -> None:
    uri = f"data:image/png;base64,{PLAIN * 50}"
    location = Resolver(POLICY, []).resolve(uri)
    assert location.payload == uri
    assert len(location.uri) < 80
    assert location.uri.startswith("data:image/png;base64,...")
    assert fails("decode_failed", uri + "*").asset == shorten(uri + "*")
    assert len(shorten("data:" + "x" * 10_000)) < 120
    assert len(shorten("y" * 10_000)) < 260


def test_base64_without_its_head_gets_a_hint(tmp_path) -> None:
    error = fails("not_found", "iVBORw0KGgo" + "A" * 4000, tmp_path)
    assert "data:image/png;base64" in (error.hint or "")


def test_a_blob_of_a_file(tmp_path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(PAYLOAD)
    os.utime(path, ns=(1, 1_700_000_000_123_456_789))
    blob = load(Resolver(POLICY, [tmp_path]).resolve("a.bin"), POLICY)
    assert blob[:5] == (PAYLOAD, hashlib.sha256(PAYLOAD).digest(), len(PAYLOAD), 1_700_000_000_123_456_789, None)
    assert blob[5:] == ((), ())


def test_limits_are_read_from_the_size_before_the_content(tmp_path) -> None:
    with open(tmp_path / "huge.png", "wb") as file:
        file.truncate(1 << 40)  # sparse: a reader that does not look first runs out of memory
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "ten.png").write_bytes(b"0123456789")
    error = fails("too_large", "huge.png", tmp_path)
    assert str(1 << 40) in error.message
    assert error.asset == "huge.png"
    fails("empty_media", "empty.png", tmp_path)
    assert fails("too_large", "ten.png", tmp_path, policy=Policy(max_bytes=9)).code == "too_large"
    small = Policy(max_bytes=10)
    assert load(Resolver(small, [tmp_path]).resolve("ten.png"), small).size == 10
    fails("too_large", f"data:;base64,{PLAIN}", policy=small)
    fails("too_large", "data:," + "a" * 11, policy=small)
    fails("too_large", b"a" * 11, policy=small)


def test_a_file_that_changes_while_it_is_read(tmp_path, monkeypatch) -> None:
    path = tmp_path / "a.png"
    location = None
    real = os.read

    def grow(descriptor: int, size: int) -> bytes:
        data = real(descriptor, size)
        with open(path, "ab") as file:
            file.write(b"more")
        return data

    def shrink(descriptor: int, size: int) -> bytes:
        os.truncate(path, 2)
        return real(descriptor, size)

    def touch(descriptor: int, size: int) -> bytes:
        os.utime(path, ns=(5, 5))
        return real(descriptor, size)

    for change in (grow, shrink, touch):
        path.write_bytes(b"0123456789")
        location = Resolver(POLICY, [tmp_path]).resolve("a.png")
        monkeypatch.setattr(os, "read", change)
        with pytest.raises(GenmeterError) as caught:
            load(location, POLICY)
        monkeypatch.setattr(os, "read", real)
        assert caught.value.code == "changed_during_run"
    path.unlink()
    with pytest.raises(GenmeterError) as caught:
        load(location, POLICY)
    assert (caught.value.code, caught.value.asset) == ("not_found", "a.png")


def test_short_reads_are_put_together(tmp_path, monkeypatch) -> None:
    (tmp_path / "a.bin").write_bytes(PAYLOAD)
    real = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: real(descriptor, min(size, 7)))
    assert read("a.bin", tmp_path) == PAYLOAD


def test_objects_in_memory() -> None:
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    for value in (b"abc", bytearray(b"abc"), memoryview(b"abc")):
        blob = load(Resolver(POLICY, []).resolve(value), POLICY)
        assert (blob.data, blob.digest, blob.media) == (b"abc", hashlib.sha256(b"abc").digest(), None)
    array = load(Resolver(POLICY, []).resolve(pixels), POLICY)
    image = load(Resolver(POLICY, []).resolve(Image.fromarray(pixels)), POLICY)
    assert array.media is not None
    assert (array.media.pixels == pixels).all()
    assert array.digest == image.digest
    assert len(array.digest) == 32
    assert array.digest != load(Resolver(POLICY, []).resolve(pixels.reshape(5, 4, 3)), POLICY).digest
    assert array.digest != load(Resolver(POLICY, []).resolve(pixels[:, ::-1]), POLICY).digest
    pixels[0, 0] = 255
    assert array.media.pixels[0, 0].tolist() == [0, 1, 2]
    assert Resolver(POLICY, []).resolve(pixels).kind == "memory"
    fails("empty_media", b"")
    for value in (None, 7, {"url": "x"}, object()):
        fails("unsupported_media", value)


@pytest.mark.parametrize(
    ("array", "code"),
    [
        (np.zeros((3, 8, 9), np.uint8), "unsupported_media"),
        (np.zeros((8, 9, 3), np.int64), "unsupported_media"),
        (np.zeros((8, 9, 3), bool), "unsupported_media"),
        (np.full((8, 9, 3), 200.0), "unsupported_media"),
        (np.full((8, 9, 3), 0.5), "unsupported_media"),
        (np.full((8, 9, 3), np.nan, np.float32), "unsupported_media"),
        (np.zeros((0, 9, 3), np.uint8), "empty_media"),
        (np.zeros((2000, 2000), np.uint8), "too_large"),
    ],
)
def test_arrays_that_are_no_images(array, code) -> None:
    fails(code, array, policy=Policy(max_pixels=1_000_000))


def test_arrays_of_other_types() -> None:
    def pixels(array: np.ndarray) -> np.ndarray:
        media = load(Resolver(POLICY, []).resolve(array), POLICY).media
        assert media is not None
        return media.pixels

    assert pixels(np.full((2, 2), 7, np.uint8)).tolist() == [[[7, 7, 7]] * 2] * 2
    assert pixels(np.full((2, 2, 1), 8, np.uint8))[0, 0].tolist() == [8, 8, 8]
    assert pixels(np.full((2, 2, 3), 257 * 9, np.uint16))[0, 0].tolist() == [9, 9, 9]
    assert pixels(np.full((2, 2, 4), 9, np.uint8)).shape == (2, 2, 4)
