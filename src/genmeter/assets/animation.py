"""Pictures that make a video: animated GIF, WebP, APNG and AVIF files, and folders of frames."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from genmeter.assets.containers import cut_short
from genmeter.assets.image import check_pixels, decode_image, open_image
from genmeter.assets.limits import PixelLimit
from genmeter.contract import ImageMedia
from genmeter.errors import GenmeterError

ANIMATED = frozenset({"GIF", "WEBP", "PNG", "AVIF"})
_SHOWN_MS = 100.0  # how long viewers show a frame that does not say so


class Animation:
    """The frames of an animated picture, decoded in order by Pillow; see :class:`genmeter.assets.film.Film`.

    Raises:
        GenmeterError: ``unsupported_media`` for a picture that does not move, ``too_large``, ``decode_failed``.
    """

    codec = "pillow"
    missing = 0
    cut = False

    def __init__(self, data: memoryview, name: str, limits: PixelLimit) -> None:
        self._data, self._name, self._limits = bytes(data), name, limits
        self.damaged: set[int] = set()
        self.transparent = False
        with _damage(name), open_image(self._data, name, limits) as image:
            check_pixels(image.width, image.height, limits)
            count = int(getattr(image, "n_frames", 1))
            # An APNG may show a picture of its own where nothing moves: it is no frame.
            self._skipped = int(bool(getattr(image, "default_image", False)))
            total = count - self._skipped
            if total < 2:
                raise GenmeterError("unsupported_media", f"expected video, found an image that does not move ({name})")
            self.size = (image.width, image.height)
        shown = np.array([ms for _, ms in self._walk(range(total), decode=False)], np.float64) / 1000
        self.times = np.concatenate([[0.0], np.cumsum(shown)[:-1]])
        self.duration_s = float(shown.sum())
        self.fps: float | None = total / self.duration_s

    def frames(self, wanted: Iterable[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Indices, ascending, and pixels (H, W, 3) uint8, composited on white."""
        asked = set(wanted)
        for index, pixels in enumerate(self._walk(asked, decode=True)):
            if index in asked:
                yield index, pixels[0]

    def _walk(self, wanted: Iterable[int], *, decode: bool) -> Iterator[tuple[np.ndarray, float]]:
        """Each frame's pixels, where they are wanted, and for how many milliseconds it is shown."""
        asked = set(wanted)
        empty = np.empty(0, np.uint8)
        with _damage(self._name), open_image(self._data, self._name, self._limits) as image:
            for index in range(max(asked, default=-1) + 1):
                image.seek(index + self._skipped)
                pixels = empty
                if decode and index in asked:
                    image.load()
                    media = ImageMedia(np.asarray(image.convert("RGBA")))
                    self.transparent = self.transparent or media.transparent
                    pixels = media.rgb("white")
                elif not decode:
                    image.load()  # the length stands beside the frame in some formats
                yield pixels, float(image.info.get("duration") or _SHOWN_MS)


@contextlib.contextmanager
def _damage(name: str) -> Iterator[None]:
    """Whatever Pillow raises says that the file is damaged; its words may quote the file."""
    try:
        yield
    except (GenmeterError, MemoryError, GeneratorExit):
        raise
    except Exception:
        raise cut_short(f"the {name} animation cannot be read whole") from None


class Stack:
    """A folder of pictures as frames; see :class:`genmeter.assets.film.Film`. They have no times of their own.

    Args:
        parts: The files, in order.
        limits: ``max_pixels`` bounds each.
    """

    codec = "images"
    missing = 0
    cut = False
    fps: float | None = None

    def __init__(self, parts: Sequence[memoryview], limits: PixelLimit) -> None:
        self._parts, self._limits = parts, limits
        self.damaged: set[int] = set()
        self.transparent = False
        if not parts:
            raise GenmeterError("empty_media", "the folder holds no frames")
        height, width = decode_image(bytes(parts[0]), limits).pixels.shape[:2]
        self.size = (width, height)
        self.times = np.arange(len(parts), dtype=np.float64)
        self.duration_s = float(len(parts))

    def frames(self, wanted: Iterable[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Indices, ascending, and pixels (H, W, 3) uint8. Raises as :func:`genmeter.assets.image.decode_image`."""
        for index in sorted(set(wanted)):
            try:
                media = decode_image(bytes(self._parts[index]), self._limits)
            except GenmeterError as error:
                raise GenmeterError(error.code, f"frame {index} of the folder: {error.message}", error.hint) from None
            self.transparent = self.transparent or media.transparent
            yield index, media.rgb("white")
