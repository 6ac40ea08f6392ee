"""Video files made by code: frame i is grey of level i, with a texture that no codec makes small."""

from __future__ import annotations

import functools
import struct
import tempfile
from fractions import Fraction

import numpy as np

SIZE = (96, 64)
FPS = 30


def grey(index: int, size: tuple[int, int] = SIZE, texture: int = 6) -> np.ndarray:
    """(H, W, 3) uint8 whose mean is ``20 + index % 216``, give or take a tenth."""
    width, height = size
    noise = np.random.default_rng(index).integers(-texture, texture + 1, (height, width, 1))
    noise -= round(float(noise.mean()))
    return np.clip(20 + index % 216 + noise, 0, 255).repeat(3, 2).astype(np.uint8)


def level(frame: np.ndarray) -> float:
    """Which frame a decoded grey is, or was: its mean less 20."""
    return float(frame.mean()) - 20


def encoded(
    frames: list[np.ndarray],
    container: str = "mp4",
    codec: str = "libx264",
    pixels: str = "yuv420p",
    *,
    fps: int = FPS,
    stamps: list[float] | None = None,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
    source: str = "rgb24",
    prepare=None,
) -> bytes:
    """Frames (H, W, C) in a container and codec of FFmpeg.

    Args:
        frames: Of one size.
        container, codec, pixels: FFmpeg's names.
        fps: Frames a second.
        stamps: When each is shown, in seconds, instead.
        options, container_options: Of codec and muxer.
        source: PyAV's name for what the arrays are.
        prepare: Called with the stream before it is opened, and with each frame.
    """
    import av

    # What is moved within a file is read from it again, which PyAV does only where it has a name.
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/film"
        with av.open(path, "w", format=container, options=container_options or {}) as output:
            stream = output.add_stream(codec, rate=fps, options=options or {})
            stream.height, stream.width = frames[0].shape[:2]
            stream.pix_fmt = pixels
            base = Fraction(1, fps)
            if stamps is not None:
                base = Fraction(1, 1000)
                stream.codec_context.time_base = base
            if prepare is not None:
                prepare(stream)
            for index, array in enumerate(frames):
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(array), format=source)
                frame.pts = index if stamps is None else round(stamps[index] * 1000)
                frame.time_base = base
                output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
        with open(path, "rb") as file:
            return file.read()


# Container, codec and pixel format of each kind of file, by a name.
KINDS = {
    "mp4": ("mp4", "libx264", "yuv420p"),
    "mp4-hevc": ("mp4", "libx265", "yuv420p"),
    "mp4-av1": ("mp4", "libsvtav1", "yuv420p"),
    "mp4-mpeg4": ("mp4", "mpeg4", "yuv420p"),
    "mov": ("mov", "libx264", "yuv420p"),
    "webm": ("webm", "libvpx-vp9", "yuv420p"),
    "mkv": ("matroska", "libx264", "yuv420p"),
    "mkv-ffv1": ("matroska", "ffv1", "bgr0"),
    "avi-mjpeg": ("avi", "mjpeg", "yuvj420p"),
    "avi-mpeg4": ("avi", "mpeg4", "yuv420p"),
    "avi-raw": ("avi", "rawvideo", "bgr24"),
    "ts": ("mpegts", "libx264", "yuv420p"),
    "mpg": ("mpeg", "mpeg2video", "yuv420p"),
    "flv": ("flv", "flv1", "yuv420p"),
}


@functools.lru_cache(maxsize=64)
def film(kind: str = "mp4", count: int = 60, keys: int = 15, fast: bool = False) -> bytes:
    """``count`` greys, a key frame every ``keys``; ``fast`` puts an MP4's index in front."""
    container, codec, pixels = KINDS[kind]
    options = {"g": str(keys)} if codec not in ("ffv1", "mjpeg", "rawvideo") else {}
    if codec == "libx264":
        options.update(crf="12", preset="veryfast")
    elif codec in ("libx265", "libsvtav1"):
        options["preset"] = "ultrafast" if codec == "libx265" else "12"
    elif codec == "libvpx-vp9":
        options.update(deadline="realtime", **{"cpu-used": "8", "b:v": "2M"})
    elif codec not in ("ffv1", "rawvideo"):
        options.update(qmin="1", qmax="3")
    moved = {"movflags": "faststart"} if fast else {}
    frames = [grey(index) for index in range(count)]
    return encoded(frames, container, codec, pixels, options=options, container_options=moved)


def with_matrix(data: bytes, matrix: tuple[int, int, int, int]) -> bytes:
    """An MP4 whose display matrix is ``a, b, c, d`` (ISO 14496-12, 8.3.2)."""
    out = bytearray(data)
    at = out.index(b"tkhd") + 44
    a, b, c, d = (value << 16 for value in matrix)
    out[at : at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    return bytes(out)


def bar(size: tuple[int, int] = (64, 48)) -> np.ndarray:
    """Blue with a red bar on the left."""
    width, height = size
    picture = np.zeros((height, width, 3), np.uint8)
    picture[:] = (0, 0, 255)
    picture[:, : width // 4] = (255, 0, 0)
    return picture
