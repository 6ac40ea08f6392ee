"""Small audio and video for the report, encoded anew so that every browser plays them."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from genmeter.contract import AudioMedia, VideoMedia

RATE = 32_000
SECONDS = 12.0
FRAMES = 48
SIDE = 208
# Codecs that come with PyAV's own FFmpeg, the most widely played one first.
_SOUND = (("libmp3lame", "mp3", "audio/mpeg"), ("libopus", "ogg", "audio/ogg"), ("pcm_s16le", "wav", "audio/wav"))
_PICTURES = (("libx264", "mp4", "video/mp4"), ("libvpx-vp9", "webm", "video/webm"), ("libvpx", "webm", "video/webm"))


def encode_sound(media: AudioMedia) -> tuple[str, str]:
    """A ``data:`` URI of the first seconds of a sound, and what was left out (empty when nothing was).

    Args:
        media: Samples at :data:`RATE`.
    """
    import av

    samples = media.samples[: int(SECONDS * media.rate)]
    values = (np.clip(samples, -1, 1) * 32767).astype(np.int16)[None]
    codec, container, kind = _available(_SOUND)
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream: Any = file.add_stream(codec, rate=media.rate)
        stream.layout = "mono"
        if codec != "pcm_s16le":
            stream.bit_rate = 64_000
        frame = av.AudioFrame.from_ndarray(values, format="s16", layout="mono")
        frame.sample_rate = media.rate
        for packet in (*stream.encode(frame), *stream.encode(None)):
            file.mux(packet)
    cut = len(samples) < len(media.samples)
    note = f"the first {SECONDS:.0f} of {len(media.samples) / media.rate:.0f} s" if cut else ""
    return _uri(kind, out.getvalue()), note


def encode_video(media: VideoMedia) -> tuple[str, str]:
    """A ``data:`` URI of frames played in the time that the video takes, and what was left out."""
    import av

    frames = _small(media.frames)
    total = int(media.detail.get("frames_total") or len(frames))
    seconds = float(media.detail.get("duration_s") or 0) or len(frames) / 8
    rate = Fraction(max(1.0, min(60.0, len(frames) / seconds))).limit_denominator(100)
    codec, container, kind = _available(_PICTURES)
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        options = {"crf": "27", "preset": "veryfast"} if codec == "libx264" else {"crf": "34", "b": "0"}
        stream: Any = file.add_stream(codec, rate=rate, options=options)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        for frame in frames:
            for packet in stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")):
                file.mux(packet)
        for packet in stream.encode(None):
            file.mux(packet)
    return _uri(kind, out.getvalue()), f"{len(frames)} of {total} frames" if len(frames) < total else ""


def _small(frames: np.ndarray) -> np.ndarray:
    """(t, H, W, 3) uint8 with sides of at most SIDE pixels and, as the codecs want them, even ones."""
    from PIL import Image

    height, width = frames.shape[1:3]
    scale = min(1.0, SIDE / max(height, width))
    size = (max(2, round(width * scale / 2) * 2), max(2, round(height * scale / 2) * 2))
    if size == (width, height):
        return frames
    return np.stack([np.asarray(Image.fromarray(f).resize(size, Image.Resampling.BILINEAR)) for f in frames])


def _available(choices: Sequence[tuple[str, str, str]]) -> tuple[str, str, str]:
    import av

    found = next((choice for choice in choices if choice[0] in av.codecs_available and _encodes(choice[0])), None)
    if found is None:
        raise ValueError("this build of PyAV has no codec that browsers play")
    return found


def _encodes(codec: str) -> bool:
    import av

    try:
        return av.codec.Codec(codec, "w").is_encoder
    except ValueError:
        return False


def _uri(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"
