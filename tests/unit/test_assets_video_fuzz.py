"""Damaged videos of every container: frames that are what they say they are, or a typed error, in time."""

from __future__ import annotations

import io
import time

import film_files as films
import numpy as np
import pytest
from PIL import Image

from genmeter.assets.load import Blob
from genmeter.assets.workers import DecodePool
from genmeter.config import Policy
from genmeter.contract import VideoMedia
from genmeter.errors import GenmeterError

DEADLINE_S = 10.0
EACH = 12
KINDS = list(films.KINDS)
EXPECTED = {"decode_failed", "unsupported_media", "empty_media", "too_large", "out_of_memory"}
REQUESTS = [{}, {"frames": 16}, {"spread": 4}]
# Zeros within one packet can be valid data; what then differs is small, or as much as one frame of it.
CODED_LOSS = 6


def damaged(data: bytes, rng: np.random.Generator) -> tuple[bytes, bool]:
    """Damage of one kind, and whether what is left of the frames can be compared: a stretch of zeros, or a cut."""
    out = bytearray(data)
    how = rng.integers(6)
    if how == 0:
        start = rng.integers(len(out) // 4, len(out) - 1)
        end = min(len(out), start + int(rng.integers(len(out) // 20, len(out) // 5)))
        out[start:end] = bytes(end - start)
    elif how == 1:
        del out[rng.integers(1, len(out)) :]
    elif how == 2:
        for place in rng.integers(0, len(out), rng.integers(1, 20)):
            out[place] = rng.integers(256)
    elif how == 3:
        for place in rng.integers(0, min(len(out), 600), rng.integers(1, 6)):
            out[place] = rng.integers(256)
    elif how == 4:
        start = rng.integers(1, len(out))
        del out[start : start + rng.integers(1, len(out))]
    else:
        start = rng.integers(0, min(len(out), 3000) - 4)
        out[start : start + 4] = [b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"][rng.integers(3)]
    return bytes(out), how < 2


def attack(kind: str, seed: int, count: int) -> None:
    data = films.film(kind, 100, 10, kind.startswith("mp4"))
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    with DecodePool(Policy(decode_timeout_s=DEADLINE_S, decode_memory=2 * 10**9), 1) as pool:
        [clean] = pool.decode(Blob(data, bytes(32), len(data), None), "video", [{}])
        assert isinstance(clean, VideoMedia)
        wrong = 0
        for turn in range(count):
            broken, comparable = damaged(data, rng)
            began = time.monotonic()
            found = pool.decode(Blob(broken, bytes(32), len(broken), None), "video", REQUESTS)
            assert time.monotonic() - began < DEADLINE_S + 5, turn
            for media in found:
                if isinstance(media, GenmeterError):
                    assert media.code in EXPECTED, (turn, str(media))
                    assert "crashed" not in media.message, (turn, str(media))
                    continue
                assert len(media.frames) == len(media.times) > 0
                assert media.frames.shape[0] <= media.detail["frames_total"]
                if comparable:
                    wrong += compare(media, clean)
        assert wrong <= count // EACH, f"{wrong} frames are not what they say they are"


def compare(media: VideoMedia, clean: VideoMedia) -> int:
    """How many frames differ from those that were shown at their times."""
    index = np.rint(media.times * films.FPS).astype(int)
    assert index.max() < len(clean.frames)
    off = np.abs(media.frames.astype(int) - clean.frames[index]).mean((1, 2, 3))
    return int((off > CODED_LOSS).sum())


def animated(name: str) -> bytes:
    buffer = io.BytesIO()
    first, *rest = (Image.fromarray(films.grey(index, (48, 32))) for index in range(20))
    first.save(buffer, name, save_all=True, append_images=rest, duration=40)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["GIF", "WEBP", "PNG", "AVIF"])
def test_damaged_animations(name) -> None:
    data = animated(name)
    rng = np.random.default_rng(0)
    with DecodePool(Policy(decode_timeout_s=DEADLINE_S, decode_memory=2 * 10**9), 1) as pool:
        for turn in range(40):
            broken, _ = damaged(data, rng)
            for media in pool.decode(Blob(broken, bytes(32), len(broken), None), "video", REQUESTS):
                if isinstance(media, GenmeterError):
                    assert media.code in EXPECTED, (turn, str(media))
                    assert "crashed" not in media.message, (turn, str(media))
                else:
                    assert len(media.frames) == len(media.times) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_videos(kind) -> None:
    attack(kind, 0, EACH)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_more_damaged_videos(kind) -> None:
    attack(kind, 1, 20 * EACH)
