"""A video's packets, read through without decoding: which frame each is, when it is shown, and what may refer to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

# Codecs of which every packet is one frame on display.
_ONE_TO_ONE = frozenset(
    {"h264", "hevc", "vvc", "vp8", "vp9", "av1", "mjpeg", "png", "apng", "prores", "dnxhd", "qtrle"}
    | {"rawvideo", "v210", "ffv1", "huffyuv", "ffvhuff", "utvideo"}
)
# A packet of MPEG-4 below this many bytes may say that the frame before it stays.
_NOTHING_NEW = 20
_GAP = 1.5
# A damaged file whose times leave more room than this for frames that it has lost has damaged times.
_MOST_LOST = 10


class Packets:
    """The packets of one stream, in the order of the file, which is the order of decoding.

    Attributes:
        broken: Numbers of packets that are damaged, or stand beside a gap.
        missing: How many frames the file has lost between those that are there.
        index: The frame of each packet that is shown, by its time stamp.
        number: The packet of each frame that is there.
        times: (t,) float64, when each frame is shown, in time stamps from the first.
        last_span: For how many time stamps the last frame is shown; 0 if it is not said.
    """

    def __init__(self, codec: str) -> None:
        self.broken: set[int] = set()
        self.missing = 0
        self.index: dict[int | None, int] = {}
        self.number: dict[int, int] = {}
        self.times = np.empty(0)
        self.last_span = 0
        self._codec = codec
        self._pts: list[int | None] = []
        self._spans: list[int] = []
        self._keys: list[bool] = []
        self._shown: list[bool] = []
        self._least = 1 << 30

    def __len__(self) -> int:
        return len(self._pts)

    def add(self, packet: Any) -> None:
        """Note the next packet."""
        shown = not packet.is_discard
        if self._codec == "vp8" and packet.size:
            shown = shown and bool(memoryview(packet)[0] & 0x10)  # show_frame (RFC 6386, 9.1)
        if packet.is_corrupt:
            self.broken.add(len(self._pts))
        self._pts.append(packet.pts)
        self._spans.append(packet.duration or 0)
        self._keys.append(bool(packet.is_keyframe))
        self._shown.append(shown)
        self._least = min(self._least, packet.size)

    def one_to_one(self) -> bool:
        """Whether each packet that is shown is one frame, at a time of its own."""
        pts = [pts for pts, shown in zip(self._pts, self._shown, strict=True) if shown]
        known = self._codec in _ONE_TO_ONE or (self._codec == "mpeg4" and self._least >= _NOTHING_NEW)
        return known and None not in pts and len(set(pts)) == len(pts)

    def count(self, step: float | None) -> bool:
        """Give each frame its index, by when it is shown.

        Args:
            step: None for a whole file. For a damaged one that says when its frames are shown, the time stamps from one
                frame to the next as its header has it, or 0: gaps are room for frames that are lost.

        Returns:
            Whether that makes sense: times may be damaged too.
        """
        shown = [number for number, is_shown in enumerate(self._shown) if is_shown]
        shown.sort(key=lambda number: self._pts[number] or 0)
        if not shown:
            return True
        pts = np.array([self._pts[number] for number in shown], dtype=np.float64)
        index = np.arange(len(shown))
        if step is not None and len(shown) > 2:
            index = self._around_gaps(pts, shown, step)
        total = int(index[-1]) + 1
        if total > _MOST_LOST * (len(shown) + 100):
            return False
        self.index = {self._pts[number]: int(i) for number, i in zip(shown, index, strict=True)}
        self.number = {int(i): number for number, i in zip(shown, index, strict=True)}
        self.times = np.interp(np.arange(total), index, pts - pts[0])
        self.last_span = self._spans[shown[-1]]
        return True

    def _around_gaps(self, pts: np.ndarray, shown: list[int], stated: float) -> np.ndarray:
        """Indices with room for what is lost: one for each step of the usual length."""
        steps = np.diff(pts)
        usual = float(np.median(steps))
        if abs(stated - usual) < 0.05 * usual:
            usual = stated  # times in whole milliseconds are all a little off
        jumps = np.where(steps > _GAP * usual, np.maximum(np.rint(steps / usual), 1), 1)
        for place in np.flatnonzero(jumps > 1):
            self.broken |= {shown[place], min(shown[place] + 1, len(self._pts) - 1)}
        self.missing = int(jumps.sum()) - len(jumps)
        places: np.ndarray = np.concatenate([[0], np.cumsum(jumps)]).astype(np.int64)
        return places

    def hurt_by(self, number: int, *, before: bool = False) -> set[int]:
        """The frames that a damaged packet damages: its own, and all that may refer to it.

        Args:
            number: The packet.
            before: The one before it too: its end may be part of the damage.
        """
        end = self._next_key(number)
        hurt = list(range(max(0, number - before), end))
        if end < len(self._keys):
            # Frames behind the key frame that are shown before it may refer to what is in front of it.
            shown = self._pts[end] or 0
            hurt += [place for place in range(end + 1, self._next_key(end)) if (self._pts[place] or 0) < shown]
        return {self.index[self._pts[place]] for place in hurt if self._shown[place] and self._pts[place] in self.index}

    def _next_key(self, number: int) -> int:
        number += 1
        while number < len(self._keys) and not self._keys[number]:
            number += 1
        return number

    def watched(self, wanted: Iterable[int], *, skip: bool) -> dict[int, int]:
        """The frames whose fate decides whether the wanted ones can be relied upon, and where to decode each from.

        Those are all that a wanted frame may refer to, itself, and the one behind it in the file.

        Args:
            wanted: Frames.
            skip: Decode from key frames; else from the first packet.
        """
        starts: dict[int, int] = {}
        done = -1
        for last in sorted(self.number[index] for index in wanted):
            key = self._key_before(last)
            for place in range(max(key, done + 1), min(last + 2, len(self._pts))):
                if self._shown[place] and self._pts[place] in self.index:
                    starts[self.index[self._pts[place]]] = key if skip else 0
            done = max(done, last)
        return starts

    def _key_before(self, number: int) -> int:
        """The last key frame up to a packet that is shown no later: what to decode it from."""
        pts = self._pts[number] or 0
        while number > 0 and not (self._keys[number] and (self._pts[number] or 0) <= pts):
            number -= 1
        return number
