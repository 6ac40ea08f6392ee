"""What audio and video decoding share: FFmpeg, through PyAV, kept to files whose kind is known and to the bytes given.

A demuxer is never chosen by FFmpeg from all that it knows: some of them (playlists, concatenation scripts) open other
files and addresses. The content's kind names the demuxer, or one of a fixed list may be chosen, and no protocol may be
opened from within a file.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Sequence
from typing import Any

from genmeter.errors import GenmeterError

DEMUXERS = {
    "WAV": "wav",
    "W64": "w64",
    "AIFF": "aiff",
    "CAF": "caf",
    "AU": "au",
    "FLAC": "flac",
    "MP3": "mp3",
    "AAC": "aac",
    "Ogg": "ogg",
    "Ogg video": "ogg",
    "WavPack": "wv",
    "TTA": "tta",
    "Monkey's Audio": "ape",
    "AMR": "amr",
    "AC-3": "ac3",
    "M4A": "mov",
    "MP4": "mov",
    "QuickTime": "mov",
    "Matroska/WebM": "matroska",
    "AVI": "avi",
    "MPEG-PS": "mpeg",
    "MPEG-TS": "mpegts",
    "MPEG": "mpegvideo",
    "FLV": "flv",
    "ASF": "asf",
    "GIF": "gif",
}
"""FFmpeg's demuxer for each kind of content that :func:`genmeter.assets.sniff.kind` names."""

_PROBED = ("eac3", "dts", "loas", "voc", "h264", "hevc", "m4v", "ivf", "obu")
STRICT = {"err_detect": "crccheck+bitstream+buffer+explode"}
"""Damage is an error: checksums are compared, and nothing is made up for what is missing."""


class Reader:
    """A read-only file over pieces of memory, for PyAV; the pieces are not copied."""

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        self._pieces = [piece for piece in pieces if len(piece)]
        self._size = sum(map(len, self._pieces))
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes, fewer only at the end."""
        end = self._size if size < 0 else min(self._size, self._at + size)
        parts = []
        start = 0
        for piece in self._pieces:
            low, high = max(self._at - start, 0), min(end - start, len(piece))
            if low < high:
                parts.append(bytes(piece[low:high]))
            start += len(piece)
        self._at = max(self._at, end)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move as :meth:`io.IOBase.seek`."""
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at


def open_media(pieces: Sequence[memoryview], name: str) -> Any:
    """Open a container with PyAV. Close it after use.

    Args:
        pieces: The content.
        name: Its kind, as :func:`genmeter.assets.sniff.kind` calls it; one without a demuxer is looked for among those
            that open nothing else.
    """
    import av

    demuxer = DEMUXERS.get(name)
    options = dict(STRICT, protocol_whitelist="none")
    options["format_whitelist"] = demuxer or ",".join(sorted({*DEMUXERS.values(), *_PROBED}))
    if name in ("WAV", "W64"):
        # Samples are samples: by default FFmpeg looks for compressed sound among them, and noise can look like it.
        options["max_probe_packets"] = "1"
    opener: Any = av.open
    return opener(Reader(pieces), format=demuxer, container_options=options, **_tolerant())


@functools.cache
def _tolerant() -> dict[str, str]:
    """Tags need not be UTF-8; newer releases of PyAV take them as they are."""
    import av

    return {"metadata_errors": "ignore"} if int(av.__version__.partition(".")[0]) < 19 else {}


def container_name(container: Any) -> str:
    """FFmpeg's first name for the container's format: ``mov`` for all of ``mov,mp4,m4a,3gp,3g2,mj2``."""
    return str(container.format.name).partition(",")[0]


def codec_name(stream: Any) -> str:
    """FFmpeg's name of a stream's codec, whichever decoder reads it (``mp3``, ``h264``)."""
    return _canonical(str(stream.codec_context.name))


@functools.cache
def _canonical(decoder: str) -> str:
    import av

    return str(getattr(av.Codec(decoder, "r"), "canonical_name", None) or decoder)


def strict(stream: Any, name: str) -> Any:
    """Prepare a stream for decoding: damage raises, and the only thread is the caller's.

    Raises:
        GenmeterError: ``unsupported_media`` for a codec that FFmpeg does not know.
    """
    context = stream.codec_context
    if context is None:
        raise unread(f"this kind of {name}")
    context.thread_count = 1
    context.options = dict(STRICT)
    return stream


def failure(error: Exception, name: str) -> GenmeterError:
    """What PyAV, FFmpeg or Pillow raised, as a typed error. Their texts may quote the file and are not passed on.

    A fault of the code is raised again: it says nothing about the file.
    """
    import av

    if isinstance(error, GenmeterError):
        return error
    if isinstance(error, TypeError | AttributeError | NameError | AssertionError | ImportError):
        raise error
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return out_of_memory(name)
    lost = (av.error.DecoderNotFoundError, av.error.DemuxerNotFoundError, av.error.PatchWelcomeError)
    if isinstance(error, (*lost, NotImplementedError)) or type(error).__name__ == "UnknownCodecError":
        return unread(f"this kind of {name}")
    return GenmeterError(
        "decode_failed", f"the {name} data is damaged or cut short", "write or download the file again"
    )


def unread(what: str) -> GenmeterError:
    """The error for a codec that is not read here."""
    return GenmeterError("unsupported_media", f"{what} (its codec) is not read", "convert it to a common codec")


def out_of_memory(name: str) -> GenmeterError:
    """The error for a file that takes more memory than the policy grants."""
    return GenmeterError(
        "out_of_memory", f"decoding the {name} file does not fit into policy.decode_memory", "raise it, or cut the file"
    )


@functools.cache
def versions() -> str:
    """PyAV's version and those of the FFmpeg libraries that decode."""
    try:
        import av
    except ImportError:
        return "no-pyav"
    names = ("libavcodec", "libavformat", "libswscale", "libavutil")
    libraries = [f"{name}-{'.'.join(map(str, av.library_versions[name]))}" for name in names]
    return "+".join([f"pyav-{av.__version__}", *libraries])
