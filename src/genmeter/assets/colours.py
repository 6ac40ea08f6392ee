"""From FFmpeg's frames to upright RGB bytes.

swscale converts with the matrix and range that the frame names, interpolates chroma, and rounds accurately: within one
level of the closed form, where its fast path is up to four levels off and a level too dark on average. A frame that
names no matrix is read as BT.601, as FFmpeg reads and writes it, whatever its size; one that names no range as limited
range, unless its pixel format is one of full range (yuvj, grey, RGB). HDR transfer curves are not mapped.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from genmeter.contract import ImageMedia
from genmeter.errors import GenmeterError

_FLAGS = "bicubic+accurate_rnd+full_chroma_int"
# FFmpeg's numbers for matrices (AVColorSpace) and ranges (AVColorRange), and the names that its scaler has for them.
_MATRICES = {1: "bt709", 4: "fcc", 5: "bt470bg", 6: "smpte170m", 7: "smpte240m", 9: "bt2020", 10: "bt2020"}
_RANGES = {1: "tv", 2: "pc"}
# Planes of the planar RGB formats: green, blue, red, alpha.
_PLANES = (2, 0, 1, 3)


class Turn(NamedTuple):
    """How stored pixels are turned upright: transposed first, then mirrored."""

    transpose: bool = False
    mirror_x: bool = False
    mirror_y: bool = False

    @property
    def degrees(self) -> int:
        """Clockwise turn that this is, where it is no mirror image."""
        if self.transpose:
            return 90 if self.mirror_x else 270
        return 180 if self.mirror_x else 0

    @property
    def mirrored(self) -> bool:
        """Whether the picture is a mirror image of what is stored."""
        return (self.mirror_x != self.mirror_y) != self.transpose

    def upright(self, pixels: np.ndarray) -> np.ndarray:
        """A view of (H, W, C) pixels, turned."""
        if self.transpose:
            pixels = pixels.transpose(1, 0, 2)
        if self.mirror_y:
            pixels = pixels[::-1]
        return pixels[:, ::-1] if self.mirror_x else pixels


def turn_of(frame: Any) -> Turn:
    """The turn that a frame's display matrix asks for.

    Raises:
        GenmeterError: ``unsupported_media`` for one that is no quarter turn or mirror image.
    """
    found = frame.side_data.get("DISPLAYMATRIX")
    if found is None:
        return Turn()
    # x' = a x + c y and y' = b x + d y, in 16.16 fixed point (ISO 14496-12, 6.2.2).
    a, b, _, c, d = (int(value) for value in np.frombuffer(bytes(found), np.int32)[:5])
    if a and d and not b and not c:
        return Turn(False, a < 0, d < 0)
    if b and c and not a and not d:
        return Turn(True, c < 0, b < 0)
    raise GenmeterError(
        "unsupported_media", "the video is displayed at an angle that is no quarter turn", "write it upright"
    )


class Painter:
    """Converts the frames of one video.

    Attributes:
        transparent: Whether any frame so far was not fully opaque; it was composited on white.
    """

    def __init__(self, turn: Turn) -> None:
        self.transparent = False
        self._turn = turn
        self._kind: tuple[Any, ...] = ()
        self._graph: Any = None

    def paint(self, frame: Any, out: np.ndarray) -> None:
        """Write a frame to ``out``, (H, W, 3) uint8. Raises ``unsupported_media`` when it is of another size."""
        stored = self._rgb(frame)
        upright = self._turn.upright(stored)
        if upright.shape[:2] != out.shape[:2]:
            raise GenmeterError(
                "unsupported_media",
                f"the video changes its frames' size from {out.shape[1]}x{out.shape[0]} to "
                f"{upright.shape[1]}x{upright.shape[0]}",
                "write it in one size",
            )
        out[...] = upright

    def _rgb(self, frame: Any) -> np.ndarray:
        kind = (frame.format.name, frame.width, frame.height, int(frame.colorspace), int(frame.color_range))
        if kind != self._kind:
            self._graph, self._kind = _graph(frame, kind), kind
        self._graph.push(frame)
        converted = self._graph.pull()
        planes = [np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size) for plane in converted.planes]
        pixels = np.empty((converted.height, converted.width, len(planes)), np.uint8)
        for channel, plane in zip(range(len(planes)), _PLANES, strict=False):
            pixels[..., channel] = planes[plane][: converted.height, : converted.width]
        if len(planes) == 3:
            return pixels
        media = ImageMedia(pixels)
        self.transparent = self.transparent or media.transparent
        return media.rgb("white")


def _graph(frame: Any, kind: tuple[Any, ...]) -> Any:
    """A converter to planar RGB: swscale's accurate way to it is fast, that to packed RGB is not."""
    from av.filter import Graph

    name, width, height, matrix, extent = kind
    alpha = name == "pal8" or any(component.is_alpha for component in frame.format.components)
    options = [f"sws_flags={_FLAGS}", "out_range=pc"]
    if not name.startswith(("rgb", "bgr", "gbr", "argb", "abgr", "0rgb", "0bgr", "pal8")):
        options.append(f"in_color_matrix={_MATRICES.get(matrix, 'bt601')}")
        if extent in _RANGES:
            options.append(f"in_range={_RANGES[extent]}")
    graph = Graph()
    if hasattr(graph, "threads"):
        graph.threads = 1
    nodes = [
        graph.add_buffer(width=width, height=height, format=name, time_base=Fraction(1, 1000)),
        graph.add("scale", ":".join(options)),
        graph.add("format", f"pix_fmts={'gbrap' if alpha else 'gbrp'}"),
        graph.add("buffersink"),
    ]
    for source, target in itertools.pairwise(nodes):
        source.link_to(target)
    graph.configure()
    return graph
