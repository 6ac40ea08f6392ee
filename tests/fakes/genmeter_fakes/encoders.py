"""Fake encoders: exact arithmetic on the input, so that every feature is known in advance."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

from genmeter.contract import EncoderSpec, Feature, Prepared
from genmeter.errors import GenmeterError

ONE = np.ones(1, dtype=np.float32)


class Control:
    """How the fakes misbehave; everything is off by default."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.calls = []  # (encoder name, items in the batch)
        self.most = None  # out of memory above this many items
        self.oom_on_cuda = False  # out of memory whatever the batch, but not on the CPU
        self.nan_at = None  # a mean value that comes out as NaN
        self.raise_at = None  # a mean value that raises
        self.load_error = None
        self.devices = []


control = Control()


class OutOfMemoryError(RuntimeError):
    """Stands in for torch.cuda.OutOfMemoryError."""


class _Fake:
    name = ""
    pair = False

    def __init__(self, entry, fetch):
        self.spec = EncoderSpec(self.name, entry.id, f"digest-of-{self.name}", f"{self.name}-1", pair=self.pair)
        self.device = None

    def load(self, device, precision):
        if control.load_error:
            raise control.load_error
        self.device = device
        control.devices.append(device)

    def bytes_per_item(self, shape):
        return 1_000_000

    def encode(self, batch):
        control.calls.append((self.name, len(batch)))
        assert len({item.bucket for item in batch}) == 1, "one bucket a batch"
        if control.oom_on_cuda and self.device != "cpu":
            raise OutOfMemoryError("CUDA out of memory")
        if control.most is not None and len(batch) > control.most:
            raise OutOfMemoryError("CUDA out of memory")
        time.sleep(float(os.environ.get("GENMETER_FAKE_DELAY", "0")))
        features = [self._one(item) for item in batch]
        if os.environ.get("GENMETER_FAKE_COMPANY"):  # what no encoder may do: numbers that depend on the batch
            company = np.float32(1000 * len(batch) + sum(float(f.values[0, 0]) for f in features))
            features = [f._replace(values=f.values + company) for f in features]
        return features

    def _one(self, item):
        values = np.asarray(self.values(item), dtype=np.float32)
        mark = float(values[0, 0])
        if os.environ.get("GENMETER_FAKE_KILL_AT") == f"{self.name} {mark:g}":
            os.kill(os.getpid(), signal.SIGKILL)
        if control.raise_at is not None and abs(mark - control.raise_at) < 0.25:
            raise RuntimeError("the fake broke")
        if control.nan_at is not None and abs(mark - control.nan_at) < 0.25:
            values = np.full_like(values, np.nan)
        return Feature(values, item.weights, item.detail, item.flags)


class PixelEncoder(_Fake):
    """Mean colour of an image: (1, 3)."""

    name = "fake_pixels"

    def prepare(self, media, view):
        pixels = media.rgb(view.get("alpha", "white"))
        if os.environ.get("GENMETER_FAKE_KILL_DECODING") == str(pixels[0, 0, 0]):
            os.kill(os.getpid(), signal.SIGKILL)
        return Prepared((pixels[None],), ONE, flags=media.flags)

    def values(self, item):
        return item.arrays[0].reshape(1, -1, 3).mean(axis=1, dtype=np.float64)


class PairPixelEncoder(_Fake):
    """Mean absolute difference of two images: (1, 1)."""

    name = "fake_pairs"
    pair = True

    def prepare(self, media, view):
        return Prepared((media.rgb()[None],), ONE, flags=media.flags)

    def join(self, parts, view):
        first, second = (part.arrays[0] for part in parts)
        if first.shape != second.shape:
            raise GenmeterError("size_mismatch", f"{first.shape} against {second.shape}")
        return Prepared((first, second), ONE, flags=tuple(f for part in parts for f in part.flags))

    def values(self, item):
        first, second = (array.astype(np.float64) for array in item.arrays)
        return np.abs(first - second).mean().reshape(1, 1)


class JointEncoder(_Fake):
    """Text and image in one space of one dimension: the length of a text, the mean of an image."""

    name = "fake_joint"

    def prepare(self, media, view):
        if isinstance(media, str):
            text = view.get("prefix", "") + media
            return Prepared((np.full((1, 1), len(text), dtype=np.int64),), ONE, {"text_tokens": len(text)})
        return Prepared((media.rgb()[None],), ONE, flags=media.flags)

    def values(self, item):
        return item.arrays[0].mean(dtype=np.float64).reshape(1, 1)


class WindowEncoder(_Fake):
    """Mean absolute value of each 4-sample window of audio: (k, 1), weighted by the window's length."""

    name = "fake_windows"

    def prepare(self, media, view):
        samples = media.samples
        size = int(view["window"])
        starts = range(0, len(samples), size)
        windows = [np.resize(samples[start : start + size], size) for start in starts]
        weights = [min(size, len(samples) - start) / media.rate for start in starts]
        return Prepared((np.stack(windows),), np.asarray(weights, dtype=np.float32), {"windows": len(windows)})

    def values(self, item):
        return np.abs(item.arrays[0]).mean(axis=1, dtype=np.float64)[:, None]


class FrameEncoder(_Fake):
    """A whole clip as one unit: (1, 2) mean of its first and last frame."""

    name = "fake_clip"

    def prepare(self, media, view):
        wanted = int(view["frames"])
        if len(media.frames) < wanted:
            raise GenmeterError("too_short", f"{len(media.frames)} frames, {wanted} needed")
        return Prepared((media.frames[None, :wanted],), ONE, {"frames": wanted})

    def values(self, item):
        frames = item.arrays[0][0]
        return np.array([[frames[0].mean(), frames[-1].mean()]])
