"""A stand-in for the encoder ``clip``: a test says which unit vector each text and each grey level has."""

from __future__ import annotations

import hashlib

import numpy as np

from genmeter.contract import EncoderSpec, Feature, Prepared
from genmeter.weights.lock import ModelEntry

ONE = np.ones(1, dtype=np.float32)
DIMENSIONS = 4


class Table:
    """What the fake answers, and what it was asked."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.texts = {}  # final text, prefix included -> vector
        self.images = {}  # grey level -> vector
        self.flags = {}  # text or level -> flags
        self.prepared = []  # (model, text or level)
        self.encoded = []  # (model, text or level)

    def vector(self, key):
        """The vector of a text or level; one of its own for each that the test did not name."""
        given = (self.texts if isinstance(key, str) else self.images).get(key)
        if given is None:
            seed = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:4], "little")
            given = np.random.default_rng(seed).normal(size=DIMENSIONS)
            given = given / np.linalg.norm(given)
        return np.concatenate([given, np.zeros(DIMENSIONS - len(given))]).astype(np.float32)


table = Table()


class FakeClip:
    """Reads texts, grey images and videos of grey frames; flags tiny models as the real encoder does."""

    def __init__(self, entry, fetch):
        self.spec = EncoderSpec("clip", entry.id, f"digest-of-{entry.id}", "fake-1", languages=("en",))
        self._tiny = entry.id.startswith("tiny")

    def prepare(self, media, view):
        own = ("not_comparable",) if self._tiny else ()
        if isinstance(media, str):
            text = view["prefix"] + media
            table.prepared.append((self.spec.model, text))
            codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)[None].astype(np.int64)
            flags = (*table.flags.get(text, table.flags.get(media, ())), *own)
            return Prepared((codes,), ONE, {"text_tokens": len(text.split()) + 2}, flags)
        frames = media.frames if hasattr(media, "frames") else media.rgb(view["alpha"])[None]
        levels = frames.reshape(len(frames), -1).mean(axis=1).round().astype(np.int64)
        table.prepared += [(self.spec.model, int(level)) for level in levels]
        flags = (*(f for level in levels for f in table.flags.get(int(level), ())), *media.flags, *own)
        return Prepared((levels[:, None, None],), np.ones(len(levels), np.float32), {}, flags)

    def load(self, device, precision):
        pass

    def bytes_per_item(self, shape):
        return 1000

    def encode(self, batch):
        return [self._one(item) for item in batch]

    def _one(self, item):
        [array] = item.arrays
        keys = ["".join(map(chr, array[0]))] if array.ndim == 2 else [int(level) for level in array[:, 0, 0]]
        table.encoded += [(self.spec.model, key) for key in keys]
        return Feature(np.stack([table.vector(key) for key in keys]), item.weights, item.detail, item.flags)


def entry(model, path=None):
    """An entry of models.lock for any CLIP, without weights."""
    return ModelEntry(
        id=model, task="image-text", loader="fake", architecture="fake", preprocessing={}, licence="MIT", citation="",
        digest="0" * 64, unverified=False, sources=(), label=model.removeprefix("clip-"), extra={"languages": ["en"]},
    )  # fmt: skip


def install(monkeypatch):
    """Put the fake in the place of the encoder ``clip`` for one test, and return its table."""
    from genmeter.encoders import registry
    from genmeter.engine import catalog

    table.reset()
    monkeypatch.setitem(registry._BUILT_IN, "clip", "genmeter_fakes.clip:FakeClip")
    monkeypatch.setattr(catalog, "get_entry", entry)
    return table
