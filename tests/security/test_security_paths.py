"""A path in the data must not read a file that its owner did not put under a media root."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from genmeter.assets.load import load
from genmeter.assets.resolve import Resolver
from genmeter.config import Policy
from genmeter.errors import GenmeterError

POLICY = Policy()
SECRET = b"secret-1597534862"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """``root/`` with a file, ``root-other/`` beside it, and a secret outside."""
    (tmp_path / "root" / "sub").mkdir(parents=True)
    (tmp_path / "root-other").mkdir()
    (tmp_path / "root" / "a.png").write_bytes(b"inside")
    (tmp_path / "root-other" / "b.png").write_bytes(SECRET)
    (tmp_path / "secret.png").write_bytes(SECRET)
    return tmp_path


def refused(root: Path, value: object, *codes: str) -> GenmeterError:
    with pytest.raises(GenmeterError) as caught:
        load(Resolver(POLICY, [root]).resolve(value), POLICY)
    assert caught.value.code in (codes or ("forbidden",))
    assert SECRET.decode() not in str(caught.value.to_dict())
    return caught.value


@pytest.mark.parametrize(
    "value",
    [
        "/etc/passwd",
        "/etc/shadow",
        "/etc/no-such-file",
        "/proc/self/environ",
        "/proc/self/fd/0",
        "/dev/zero",
        "/dev/stdin",
        "file:///etc/passwd",
        "file:/etc/passwd",
        "file://localhost/etc/passwd",
        "file:///%65tc/passwd",
        "file://evil.example/etc/passwd",
        "FILE:///etc/passwd",
        "../secret.png",
        "sub/../../secret.png",
        "./../secret.png",
        "../root-other/b.png",
        "..",
        "../",
        "/",
        "sub/../..",
        "a\0.png",
        "a.png\0",
        "file:///etc/pass%00wd",
    ],
)
def test_everything_outside_the_root_is_forbidden(tree, value) -> None:
    error = refused(tree / "root", value)
    assert "root:" not in str(error)


def test_encoded_dots_in_a_file_uri_are_decoded_before_the_check(tree) -> None:
    root = tree / "root"
    refused(root, f"file://{root}/..%2fsecret.png")
    refused(root, f"file://{root}/%2e%2e/secret.png")
    refused(root, "..%2fsecret.png", "not_found")  # a plain path is taken as it is written


def test_a_sibling_whose_name_begins_like_the_root_is_outside(tree) -> None:
    refused(tree / "root", str(tree / "root-other" / "b.png"))


def test_links_are_followed_before_the_check(tree) -> None:
    root = tree / "root"
    (root / "out.png").symlink_to(tree / "secret.png")
    (root / "dir").symlink_to(tree)
    (root / "chain.png").symlink_to(root / "out.png")
    (root / "in.png").symlink_to(root / "a.png")
    for name in ("out.png", "dir/secret.png", "chain.png", str(root / "out.png")):
        error = refused(root, name)
        assert "--media-root" in (error.hint or "")
    assert load(Resolver(POLICY, [root]).resolve("in.png"), POLICY).data == b"inside"
    (root / "loop.png").symlink_to(root / "loop.png")
    refused(root, "loop.png", "forbidden", "not_found")
    (root / "gone.png").symlink_to(root / "nothing.png")
    refused(root, "gone.png", "not_found")


def test_a_root_that_is_a_link_admits_what_it_leads_to(tree) -> None:
    link = tree / "link"
    link.symlink_to(tree / "root")
    for value in ("a.png", str(link / "a.png"), str(tree / "root" / "a.png")):
        assert load(Resolver(POLICY, [link]).resolve(value), POLICY).data == b"inside"


def test_only_regular_files_are_read(tree) -> None:
    root = tree / "root"
    os.mkfifo(root / "pipe.png")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(root)  # socket paths have a short limit
        try:
            listener.bind("socket.png")
        finally:
            os.chdir(here)
        for name, word in (("pipe.png", "pipe"), ("socket.png", "socket"), ("sub", "folder"), (".", "folder")):
            assert word in refused(root, name).message


def test_devices_are_not_read_even_when_a_root_holds_them() -> None:
    for name in ("zero", "null", "tty"):
        refused(Path("/dev"), name)


def test_a_file_swapped_after_the_check_is_not_followed(tree) -> None:
    root = tree / "root"
    location = Resolver(POLICY, [root]).resolve("a.png")
    (root / "a.png").unlink()
    (root / "a.png").symlink_to(tree / "secret.png")
    with pytest.raises(GenmeterError) as caught:
        load(location, POLICY)
    assert caught.value.code == "forbidden"
    (root / "a.png").unlink()
    os.mkfifo(root / "a.png")
    with pytest.raises(GenmeterError) as caught:
        load(location, POLICY)  # must not block
    assert caught.value.code == "forbidden"


def test_a_folder_turned_into_a_link_does_not_escape_through_the_cache(tree) -> None:
    root = tree / "root"
    (root / "sub" / "secret.png").write_bytes(b"inside too")
    resolver = Resolver(POLICY, [root])
    assert load(resolver.resolve("sub/secret.png"), POLICY).data == b"inside too"
    (root / "sub" / "secret.png").unlink()
    (root / "sub").rmdir()
    (root / "sub").symlink_to(tree)
    with pytest.raises(GenmeterError) as caught:
        load(resolver.resolve("sub/secret.png"), POLICY)
    assert caught.value.code in ("forbidden", "not_found")


def test_whether_an_outside_file_exists_is_not_told(tree) -> None:
    there = refused(tree / "root", str(tree / "secret.png"))
    missing = refused(tree / "root", str(tree / "missing.png"))
    assert there.message == missing.message


def test_no_root_admits_nothing(tree) -> None:
    for value in ("a.png", str(tree / "root" / "a.png")):
        with pytest.raises(GenmeterError) as caught:
            Resolver(POLICY, []).resolve(value)
        assert caught.value.code in ("forbidden", "not_found")
