"""Which frames of a video a request means. Pure arithmetic: a video's length and times in, indices out."""

from __future__ import annotations

import hashlib

import numpy as np

from genmeter.contract import Decoding

_KEYS = frozenset({"all", "spread", "frames", "start", "stride", "sampling", "fps"})
_EPSILON_S = 1e-6


def pick(request: Decoding, times: np.ndarray, duration_s: float, digest: bytes) -> list[int]:
    """The indices that a request means, in order.

    Args:
        request: ``{"all": True}`` or ``{}``: every frame. ``{"spread": n}``: the frames in the middle of n equal parts,
            all of them where there are no more than n. ``{"frames": n}``: a clip of n frames, with ``start`` (first,
            center, random), ``stride`` (1), and ``sampling``: ``index`` counts frames, ``time`` shows the video at
            ``fps`` frames a second and takes what is on display.
        times: (t,) float64, when each frame is shown, in seconds from the first, ascending.
        duration_s: When the last frame ends.
        digest: The asset's digest; ``random`` means the same frames for the same file, everywhere.

    Returns:
        Indices into ``times``; fewer than n where the video is shorter. By ``time``, one may come twice.

    Raises:
        ValueError: For a request that is none.
    """
    unknown = set(request) - _KEYS
    if unknown:
        raise ValueError(f"unknown keys in a request for frames: {', '.join(sorted(unknown))}")
    total = len(times)
    if request.get("spread") is not None:
        wanted = _count(request["spread"], "spread")
        return list(range(total)) if total <= wanted else [(2 * i + 1) * total // (2 * wanted) for i in range(wanted)]
    if request.get("frames") is None or request.get("all"):
        return list(range(total))
    frames, stride = _count(request["frames"], "frames"), _count(request.get("stride") or 1, "stride")
    start, sampling = request.get("start") or "first", request.get("sampling") or "index"
    if start not in ("first", "center", "random"):
        raise ValueError(f"expected start to be first, center or random, found {start!r}")
    share = _share(digest) if start == "random" else 0.5 if start == "center" else 0.0
    if sampling == "index":
        room = total - ((frames - 1) * stride + 1)
        first = max(0, min(room, int(share * (room + 1)) if start == "random" else int(share * room)))
        return list(range(first, total, stride))[:frames]
    if sampling != "time":
        raise ValueError(f"expected sampling to be index or time, found {sampling!r}")
    return _by_time(request.get("fps"), frames, stride, share, times, duration_s)


def _by_time(fps: object, frames: int, stride: int, share: float, times: np.ndarray, duration_s: float) -> list[int]:
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not fps > 0:
        raise ValueError(f"expected fps above 0 for sampling by time, found {fps!r}")
    step = stride / fps
    room = max(0.0, duration_s - (frames - 1) * step - 1 / fps)
    moments = share * room + step * np.arange(frames)
    moments = moments[moments < duration_s - _EPSILON_S]
    # On display is the last frame that has been shown by then.
    return [int(i) for i in np.maximum(np.searchsorted(times, moments + _EPSILON_S, side="right") - 1, 0)]


def _share(digest: bytes) -> float:
    """A number in [0, 1) that looks random and depends on the file alone."""
    word = hashlib.sha256(b"genmeter/start/1\0" + digest).digest()[:8]
    return (int.from_bytes(word, "big") >> 11) / 2**53


def _count(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"expected {name} to be a whole number from 1 on, found {value!r}")
    return value
