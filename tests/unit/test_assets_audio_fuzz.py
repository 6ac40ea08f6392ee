"""Damaged sound files of every container: media or a typed error, in time, and never the end of a decoder."""

from __future__ import annotations

import time

import numpy as np
import pytest
import sound_files as files

from genmeter.assets.load import Blob
from genmeter.assets.workers import DecodePool
from genmeter.config import Policy
from genmeter.contract import AudioMedia
from genmeter.errors import GenmeterError

DEADLINE_S = 10.0
EACH = 24
KINDS = [*files.ENCODED, "wav", "wav-s24", "wav-f32", "rf64"]
EXPECTED = {"decode_failed", "unsupported_media", "empty_media", "too_large", "non_finite", "out_of_memory"}


def whole(kind: str) -> bytes:
    if kind in files.ENCODED:
        return files.encoded_kind(kind, files.mixed, 0.6)
    after = files.chunk(b"LIST", b"INFOISFT\x04\0\0\0abcd")
    sample_format = {"wav": "s16", "wav-s24": "s24", "wav-f32": "f32", "rf64": "s16"}[kind]
    return files.wav(files.mixed(44100, 0.6), 44100, sample_format, after=after, large=kind == "rf64")


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """One kind of damage: flipped bytes in the header or anywhere, a cut, extreme fields, a piece taken out."""
    out = bytearray(data)
    head = min(len(out), 400)
    how = rng.integers(6)
    if how == 0:
        for place in rng.integers(0, head, rng.integers(1, 8)):
            out[place] = rng.integers(256)
    elif how == 1:
        for place in rng.integers(0, len(out), rng.integers(1, 30)):
            out[place] = rng.integers(256)
    elif how == 2:
        del out[rng.integers(1, len(out)) :]
    elif how == 3:
        place = rng.integers(0, head - 4)
        out[place : place + 4] = [b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f"][rng.integers(4)]
    elif how == 4:
        start = rng.integers(1, len(out))
        del out[start : start + rng.integers(1, len(out))]
    else:
        start = rng.integers(0, len(out))
        out[start:start] = rng.integers(0, 256, rng.integers(1, 64), dtype=np.uint8).tobytes()
    return bytes(out)


def attack(kind: str, seed: int, count: int) -> None:
    data = whole(kind)
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    with DecodePool(Policy(decode_timeout_s=DEADLINE_S, max_seconds=60, decode_memory=2 * 10**9), 1) as pool:
        [sound] = pool.decode(Blob(data, bytes(32), len(data), None), "audio", [{"rate": 48000}])
        assert isinstance(sound, AudioMedia)
        pids = pool.pids
        for turn in range(count):
            broken = damaged(data, rng)
            began = time.monotonic()
            [found] = pool.decode(Blob(broken, bytes(32), len(broken), None), "audio", [{"rate": 48000}])
            assert time.monotonic() - began < DEADLINE_S + 5, turn
            if isinstance(found, GenmeterError):
                assert found.code in EXPECTED, (turn, str(found))
                assert "crashed" not in found.message, (turn, str(found))
                pids = pool.pids if found.code == "out_of_memory" else pids
            else:
                assert np.isfinite(found.samples).all()
                assert np.abs(found.samples).max() <= 1.0
                assert found.rate == 48000
        assert pool.pids == pids or not pids, "the decoder lived through all of it"


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(kind) -> None:
    attack(kind, 0, EACH)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_more_damaged_files(kind) -> None:
    attack(kind, 1, 20 * EACH)
