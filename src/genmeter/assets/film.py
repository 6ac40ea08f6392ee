"""A video file as frames that can be told apart: counted by its packets, decoded in order, damage noted by frame.

A header's count of frames is never used. The file is read through once without decoding (its packets are counted, and
their times and kinds noted), which says how many frames there are and when each is shown. Then packets are decoded, in
order, as far as the last frame that is wanted; of a long video, only from the last key frame before each wanted one.
Where packets do not stand for frames one to one (old codecs, interlaced video, files without times), everything is
decoded to be counted, and once more for the frames.

Damage. A packet that is not whole, that its decoder refuses, whose frame is marked by it, or that gives no frame, makes
its own frame damaged and all that may refer to it, up to the next key frame. So is the one before a packet that is not
whole, refused or missing: its end may be part of the damage. Nothing that the decoder fills in is ever passed on.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from genmeter.assets import ffmpeg
from genmeter.assets.colours import Turn, turn_of
from genmeter.assets.containers import cut_short
from genmeter.assets.image import check_pixels
from genmeter.assets.limits import PixelLimit
from genmeter.assets.packets import Packets
from genmeter.contract import Scalar
from genmeter.errors import GenmeterError

_PICTURE = 0x0400  # AV_DISPOSITION_ATTACHED_PIC: cover art
_DEFAULT = 1
_LONG = 1500
_KEPT_BYTES = 64 << 20
# Containers whose frames can be told apart although part of the file is missing: they say when each is shown, or
# hold what is left from the beginning.
_TELLING = ("MP4", "QuickTime", "M4A", "Matroska/WebM", "AVI")


class Film:
    """The frames of one video stream.

    Args:
        data: The file.
        name: Its kind, as :func:`genmeter.assets.sniff.kind` calls it.
        fault: What :func:`genmeter.assets.containers.check` found, if anything.
        limits: ``max_pixels`` bounds a frame, before any is decoded.

    Attributes:
        times: (t,) float64, when each frame is shown, in seconds from the first.
        duration_s: When the last one ends.
        fps: Frames a second, on average.
        size: Width and height in pixels, upright.
        turn: How frames are turned upright.
        missing: How many frames the container is known to lack.
        cut: Whether part of the file is missing or no longer what it was.
        transparent: Set by who converts the frames.
        damaged: Indices of frames that are damaged, as far as anything was decoded.
        codec: FFmpeg's name of the codec.

    Raises:
        GenmeterError: ``unsupported_media``, ``empty_media``, ``too_large``, ``decode_failed``, ``out_of_memory``.
    """

    def __init__(self, data: memoryview, name: str, fault: GenmeterError | None, limits: PixelLimit) -> None:
        self._data, self._name, self._fault, self._limits = data, name, fault, limits
        self.damaged: set[int] = set()
        self.missing = 0
        self.cut = fault is not None
        self.transparent = False
        self._kept: list[Any] | None = []
        self._scan()
        self._counted = self._table.one_to_one()
        first = self._first() if self._counted else None
        if first is not None and first.interlaced_frame:
            self._counted = False
        if self._counted:
            self._number()
        else:
            first = self._count()
        if not len(self.times):
            raise GenmeterError("empty_media", f"the {name} file holds no frames")
        if first is None:
            raise cut_short(f"no frame of the {name} can be decoded")
        self.turn: Turn = turn_of(first)
        sides = (first.height, first.width) if self.turn.transpose else (first.width, first.height)
        self.size: tuple[int, int] = sides

    def facts(self) -> dict[str, Scalar]:
        """What a row says beside the size and the count."""
        found: dict[str, Scalar] = {}
        if self.turn.mirrored:
            found["mirrored"] = True
        elif self.turn.degrees:
            found["rotation"] = self.turn.degrees
        aspect = getattr(self._stream, "sample_aspect_ratio", None)
        if aspect and aspect != 1:
            found["pixel_aspect"] = float(aspect)
        return found

    # --- reading through -------------------------------------------------------------------------------------------

    def _open(self) -> Any:
        try:
            container = ffmpeg.open_media((self._data,), self._name)
        except Exception as error:
            if self._name not in ffmpeg.DEMUXERS:
                raise GenmeterError("unsupported_media", f"expected video, found {self._name}") from None
            raise self._fault or ffmpeg.failure(error, self._name) from None
        streams = [s for s in container.streams.video if not int(getattr(s, "disposition", 0)) & _PICTURE]
        if not streams:
            what = ", ".join(sorted({stream.type for stream in container.streams})) or "none"
            raise GenmeterError("unsupported_media", f"the {self._name} file has no video stream; its streams: {what}")
        stream = next((s for s in streams if int(getattr(s, "disposition", 0)) & _DEFAULT), streams[0])
        self._container, self._stream = container, ffmpeg.strict(stream, self._name)
        if stream.width and stream.height:
            check_pixels(stream.width, stream.height, self._limits)
        return container

    def _scan(self) -> None:
        container = self._open()
        stream = self._stream
        self.codec = ffmpeg.codec_name(stream)
        self._rate = float(stream.average_rate or 0) or None
        self._base = float(stream.time_base)
        self._said = int(stream.frames or 0)
        self._table = Packets(self.codec)
        held = 0
        try:
            for packet in container.demux(stream):
                if packet.size == 0 and packet.dts is None:
                    continue  # the end
                self._table.add(packet)
                held += packet.size
                if held > _KEPT_BYTES:
                    self._kept = None
                if self._kept is not None:
                    self._kept.append(packet)
        except Exception as error:
            if self._fault is None:
                raise ffmpeg.failure(error, self._name) from None
        if self._fault is not None and (self._name not in _TELLING or not len(self._table)):
            raise self._fault
        self._missing_by_count()

    def _missing_by_count(self) -> None:
        """Frames that the container has counted and does not hold."""
        lacking = self._said - len(self._table)
        kind = ffmpeg.container_name(self._container)
        if kind == "avi" and lacking > 0 and self._fault is None:
            raise cut_short(f"the AVI says that it holds {self._said} frames, and holds {len(self._table)}")
        if kind in ("avi", "mov") and self._fault is not None:
            self.missing = max(lacking, 0)

    def _number(self) -> None:
        """Give each packet that is shown its index, by when it is shown."""
        step = None
        if self._fault is not None and ffmpeg.container_name(self._container) == "matroska":
            step = 1 / (self._rate * self._base) if self._rate else 0.0
        if not self._table.count(step):
            raise self._fault or cut_short(f"the times of the {self._name} make no sense")
        self.missing += self._table.missing
        self.damaged |= set(range(len(self._table.times))) - set(self._table.number)
        self._time(self._table.times * self._base, self._table.last_span * self._base)
        self._missing_at_the_end()
        for number in self._table.broken:
            self._hurt(number, before=True)

    def _missing_at_the_end(self) -> None:
        """Frames that a cut Matroska file once had, by the length that stands at its beginning."""
        stated = self._container.duration
        if self._fault is not None and ffmpeg.container_name(self._container) == "matroska" and stated and self.fps:
            lost = max(0, round((stated / 1_000_000 - self.duration_s) * self.fps))
            self.missing += lost
            if lost and len(self._table):
                self._table.broken.add(len(self._table) - 1)

    def _time(self, times: np.ndarray, last_s: float) -> None:
        self.times = times
        span = float(times[-1]) if len(times) else 0.0
        measured = (len(times) - 1) / span if span > 0 else None
        stated = self._rate
        if measured is None or (stated and abs(stated - measured) < 0.01 * measured):
            self.fps = stated
        else:
            self.fps = measured
        self.duration_s = span + (last_s or (1 / self.fps if self.fps else 0.0))

    def _hurt(self, number: int, *, before: bool = False) -> None:
        self.damaged |= self._table.hurt_by(number, before=before)

    # --- decoding --------------------------------------------------------------------------------------------------

    def frames(self, wanted: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """Decode frames. After the last one, ``damaged`` holds those of them that are, yielded or not.

        Args:
            wanted: Indices.

        Yields:
            Indices, ascending, and PyAV's frames.
        """
        asked = sorted(set(wanted))
        if self._counted:
            yield from self._by_packets(asked)
            return
        chosen = set(asked)
        for index, frame, _ in self._one_by_one():
            if index in chosen:
                yield index, frame
            if index >= asked[-1]:
                return

    def _packets(self) -> Iterator[Any]:
        """All packets, from the first, for a decoder that remembers nothing."""
        if self._kept is not None:
            self._stream.codec_context.flush_buffers()
            yield from self._kept
            return
        self._open()
        try:
            for packet in self._container.demux(self._stream):
                if packet.size or packet.dts is not None:
                    yield packet
        except Exception as error:
            if self._fault is None:
                raise ffmpeg.failure(error, self._name) from None

    def _decoded(self, packet: Any) -> list[Any] | None:
        """A packet's frames, or what the decoder still holds for None; None for a packet that it refuses."""
        import av

        try:
            return list(self._stream.codec_context.decode(packet))
        except (av.error.FFmpegError, MemoryError) as error:
            found = ffmpeg.failure(error, self._name)
            if found.code != "decode_failed":
                raise found from None
            return None

    def _first(self) -> Any:
        """The first frame that decodes, for what frames have in common; None when there is none."""
        for packet in itertools.chain(self._packets(), [None]):
            for frame in self._decoded(packet) or ():
                return frame
        return None

    def _by_packets(self, asked: list[int]) -> Iterator[tuple[int, Any]]:
        wanted = {index for index in asked if index in self._table.number}
        starts = self._table.watched(wanted, skip=len(self._table) > _LONG)
        pending = deque(sorted(starts))
        feeding = False
        for number, packet in enumerate(itertools.chain(self._packets(), [None])):
            if not pending:
                return
            begun = packet is None or starts[pending[0]] <= number
            if begun and not feeding and number:
                self._stream.codec_context.flush_buffers()
            feeding = begun
            if not feeding:
                continue
            frames = self._decoded(packet)
            if frames is None and packet is not None:
                self._hurt(number, before=True)
            yield from self._shown_of(frames or (), pending, starts, number, wanted)
        for index in pending:
            self._hurt(self._table.number[index], before=True)

    def _shown_of(
        self,
        frames: Iterable[Any],
        pending: deque[int],
        starts: dict[int, int],
        number: int,
        wanted: set[int],
    ) -> Iterator[tuple[int, Any]]:
        """Which of a decoder's frames are wanted. It gives them in the order in which they are shown."""
        for frame in frames:
            index = self._table.index.get(frame.pts)
            if index is None:
                continue  # before the first that is shown, as the container says
            if frame.is_corrupt:
                self._hurt(self._table.number[index])
            while pending and pending[0] < index and starts[pending[0]] <= number:
                self._hurt(self._table.number[pending.popleft()], before=True)
            if pending and pending[0] == index:
                pending.popleft()
                if index in wanted and not frame.is_corrupt:
                    yield index, frame

    def _count(self) -> Any:
        """Decode everything to learn how many frames there are, and when each is shown; returns the first."""
        first = None
        stamps: list[float] = []
        for index, frame, good in self._one_by_one():
            first = first or frame
            stamps.append(np.nan if frame.pts is None else float(frame.pts))
            if not good:
                self.damaged.add(index)
        if self._fault is not None and self._name != "AVI":
            raise self._fault  # without times, nothing says where frames are missing
        known = np.array(stamps)
        told = len(known) > 0 and bool((np.diff(known) > 0).all()) and not np.isnan(known[0])
        self._time((known - known[0]) * self._base if told else np.arange(len(known)) / (self._rate or 25.0), 0.0)
        return first

    def _one_by_one(self) -> Iterator[tuple[int, Any, bool]]:
        """Every frame that decodes, its index among them, and whether it can be relied upon."""
        index, good = 0, True
        for packet in itertools.chain(self._packets(), [None]):
            frames = self._decoded(packet)
            if packet is not None and (frames is None or packet.is_corrupt):
                good = False
            for frame in frames or ():
                good = (good or bool(frame.key_frame)) and not frame.is_corrupt
                yield index, frame, good
                index += 1
