"""Sound files made by code: WAV headers written by hand, everything else by PyAV."""

from __future__ import annotations

import functools
import io
import struct

import numpy as np

_GUID = b"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71"


def tone(rate: int, seconds: float = 3.0, hertz: float = 1000.0, level: float = 0.5) -> np.ndarray:
    """(n,) float64."""
    return level * np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate)


def _mulaw_values() -> np.ndarray:
    """What each mu-law code stands for, in 16-bit steps (ITU-T G.711, table 2)."""
    code = ~np.arange(256) & 0xFF
    size = (((code & 15) << 3) + 132 << (code >> 4 & 7)) - 132
    return np.where(code & 0x80, -size, size)


def _alaw_values() -> np.ndarray:
    """What each A-law code stands for, in 16-bit steps (ITU-T G.711, table 1)."""
    code = np.arange(256) ^ 0x55
    step, segment = (code & 15) << 4, code >> 4 & 7
    size = np.where(segment == 0, step + 8, step + 264 << np.maximum(segment - 1, 0))
    return np.where(code & 0x80, size, -size)


def _nearest(values: np.ndarray, samples: np.ndarray) -> bytes:
    """The code whose value lies nearest to each sample in [-1, 1]."""
    order = np.argsort(values, kind="stable")
    edges = (values[order][1:] + values[order][:-1]) / 2
    return order[np.searchsorted(edges, samples * 2**15)].astype("u1").tobytes()


# Format tag, bits, and how samples in [-1, 1] are stored.
FORMATS = {
    "u8": (1, 8, lambda x: np.clip(np.rint(x * 128) + 128, 0, 255).astype("u1").tobytes()),
    "s16": (1, 16, lambda x: np.clip(np.rint(x * 2**15), -(2**15), 2**15 - 1).astype("<i2").tobytes()),
    "s24": (1, 24, lambda x: _three_bytes(np.clip(np.rint(x * 2**23), -(2**23), 2**23 - 1))),
    "s32": (1, 32, lambda x: np.clip(np.rint(x * 2**31), -(2**31), 2**31 - 1).astype("<i4").tobytes()),
    "f32": (3, 32, lambda x: x.astype("<f4").tobytes()),
    "f64": (3, 64, lambda x: x.astype("<f8").tobytes()),
    "mulaw": (7, 8, lambda x: _nearest(_mulaw_values(), x)),
    "alaw": (6, 8, lambda x: _nearest(_alaw_values(), x)),
}


def _three_bytes(values: np.ndarray) -> bytes:
    return values.astype("<i4").view("u1").reshape(-1, 4)[:, :3].tobytes()


def chunk(name: bytes, body: bytes) -> bytes:
    return name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) & 1)


def wav(
    samples: np.ndarray,
    rate: int = 48000,
    kind: str = "s16",
    *,
    extensible: bool = False,
    before: bytes = b"",
    after: bytes = b"",
    size: int | None = None,
    large: bool = False,
    large_size: int | None = None,
) -> bytes:
    """A WAV of samples (n,) or (n, channels).

    Args:
        samples: In [-1, 1].
        rate: In Hz.
        kind: One of FORMATS.
        extensible: With the long format chunk.
        before: Chunks before the samples.
        after: Chunks after them.
        size: What the chunk of samples says of its size; the truth by default.
        large: As RF64.
        large_size: What its ds64 chunk says.
    """
    channels = 1 if samples.ndim == 1 else samples.shape[1]
    tag, bits, store = FORMATS[kind]
    data = store(np.asarray(samples, np.float64).reshape(-1))
    block = channels * bits // 8
    fmt = struct.pack("<HHIIHH", 0xFFFE if extensible else tag, channels, rate, rate * block, block, bits)
    if extensible:
        mask = {1: 4, 2: 3, 6: 0x3F}.get(channels, 0)
        fmt += struct.pack("<HHIH", 22, bits, mask, tag) + _GUID
    elif tag != 1:
        fmt += struct.pack("<H", 0)
    said = (0xFFFFFFFF if large else len(data)) if size is None else size
    body = b""
    if large:
        total = len(data) if large_size is None else large_size
        body += chunk(b"ds64", struct.pack("<QQQI", len(data) + 100, total, len(data) // block, 0))
    body += chunk(b"fmt ", fmt) + before
    body += b"data" + struct.pack("<I", said) + data + b"\0" * (len(data) & 1 if after else 0) + after
    return (b"RF64\xff\xff\xff\xff" if large else b"RIFF" + struct.pack("<I", len(body) + 4)) + b"WAVE" + body


def encoded(
    container: str,
    codec: str,
    samples: np.ndarray,
    rate: int,
    *,
    layout: str = "mono",
    sample_format: str | None = None,
    options: dict[str, str] | None = None,
    codec_options: dict[str, str] | None = None,
) -> bytes:
    """Samples (n,), the same in every channel, in a container and codec of FFmpeg."""
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container, options=options or {}) as output:
        stream = output.add_stream(codec, rate=rate, options=codec_options or {})
        stream.layout = layout
        if sample_format:
            stream.format = sample_format
        if codec == "aac":
            stream.bit_rate = 160_000
        write_sound(output, stream, samples, rate, layout)
    return buffer.getvalue()


def write_sound(output, stream, samples: np.ndarray, rate: int, layout: str = "mono") -> None:
    """Encode samples (n,) into an open stream, to its end."""
    import av

    context = stream.codec_context
    resampler = av.AudioResampler(
        format=context.format, layout=layout, rate=rate, frame_size=context.frame_size or None
    )
    channels = len(av.AudioLayout(layout).channels)
    values = np.repeat(samples[None].astype("f4"), channels, 0)
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(values), format="fltp", layout=layout)
    frame.sample_rate, frame.pts = rate, 0
    for piece in [*resampler.resample(frame), *resampler.resample(None)]:
        output.mux(stream.encode(piece))
    output.mux(stream.encode(None))


def with_pictures(container: str, sound: str | None, rate: int, samples: np.ndarray | None, frames: int = 12) -> bytes:
    """A video of grey 64x48 frames at 12 a second, with a sound track or without."""
    import av

    buffer = io.BytesIO()
    codec = "libvpx-vp9" if container == "webm" else "mpeg4"
    with av.open(buffer, "w", format=container) as output:
        video = output.add_stream(codec, rate=12)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        audio = output.add_stream(sound, rate=rate) if sound else None
        if audio is not None:
            audio.layout = "mono"
            if sound == "aac":
                audio.bit_rate = 160_000
        for index in range(frames):
            picture = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 10 * index, np.uint8), format="rgb24")
            output.mux(video.encode(picture))
        output.mux(video.encode(None))
        if audio is not None:
            write_sound(output, audio, samples, rate)
    return buffer.getvalue()


def mixed(rate: int = 44100, seconds: float = 3.0) -> np.ndarray:
    """A tone with noise, which no codec makes small: cuts and flips hit sound."""
    return tone(rate, seconds, 700.0, 0.3) + 0.1 * np.random.default_rng(0).standard_normal(round(rate * seconds))


# Container and codec of each kind of file, by a name; the rate where the codec wants its own.
ENCODED = {
    "mp3": ("mp3", "libmp3lame", 44100),
    "mp2": ("mp2", "mp2", 44100),
    "ogg-opus": ("ogg", "libopus", 48000),
    "ogg-vorbis": ("ogg", "vorbis", 44100),
    "ogg-flac": ("ogg", "flac", 44100),
    "flac": ("flac", "flac", 44100),
    "adts": ("adts", "aac", 44100),
    "m4a": ("ipod", "aac", 44100),
    "mp4": ("mp4", "aac", 44100),
    "mp4-opus": ("mp4", "libopus", 48000),
    "mov-alac": ("mov", "alac", 44100),
    "webm": ("webm", "libopus", 48000),
    "mkv": ("matroska", "aac", 44100),
    "avi": ("avi", "libmp3lame", 44100),
    "aiff": ("aiff", "pcm_s16be", 44100),
    "aifc": ("aiff", "pcm_s16le", 44100),
    "caf": ("caf", "pcm_s16le", 44100),
    "w64": ("w64", "pcm_s16le", 44100),
    "au": ("au", "pcm_s16be", 44100),
    "wavpack": ("wv", "wavpack", 44100),
    "wav-adpcm": ("wav", "adpcm_ima_wav", 44100),
}
LOSSLESS = ("flac", "ogg-flac", "mov-alac", "aiff", "aifc", "caf", "w64", "au", "wavpack")


@functools.lru_cache(maxsize=64)
def encoded_kind(kind: str, samples_of=mixed, seconds: float = 3.0) -> bytes:
    """A file of one of ENCODED."""
    container, codec, rate = ENCODED[kind]
    special = {"strict": "experimental"} if codec == "vorbis" else None
    layout = "stereo" if codec == "vorbis" else "mono"  # FFmpeg's own encoder knows no other
    return encoded(container, codec, samples_of(rate, seconds), rate, layout=layout, codec_options=special)
