"""Frames to a video file, by PyAV: H.264, which browsers play, or MPEG-4 where this build cannot write it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

_CODECS = ("libx264", "mpeg4")


def write_video(path: Path, frames: np.ndarray, fps: int) -> Path:
    """Write an MP4 file; equal arguments write equal bytes.

    Args:
        path: Where; the folder exists.
        frames: (t, H, W, 3) uint8, sRGB; even H and W.
        fps: Frames a second.

    Returns:
        The path.

    Raises:
        ValueError: For sides that are not even, which 4:2:0 cannot hold.
    """
    import av

    _, height, width, _ = frames.shape
    if height % 2 or width % 2:
        raise ValueError(f"expected even sides, found {width}x{height}")
    codec = next(name for name in _CODECS if name in av.codecs_available)
    options = {"crf": "16", "threads": "1"} if codec == "libx264" else {"qscale": "3"}
    with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as file:
        stream = file.add_stream(codec, rate=fps, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        # One thread, so that what is written does not depend on the machine.
        stream.codec_context.thread_count = 1
        for frame in frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
        file.mux(stream.encode())
    return path
