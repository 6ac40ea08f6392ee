"""WAV files of 16 bit, by the standard library alone."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np


def write_wav(path: Path, samples: np.ndarray, rate: int) -> None:
    """Write samples as 16-bit PCM.

    Args:
        path: Where to; replaced if it is there.
        samples: (n,) mono or (n, channels) float in [-1, 1]; what lies beyond is clipped. 1 becomes 32767.
        rate: Samples a second.

    Raises:
        ValueError: For another number of axes, or samples that are not finite.
    """
    if samples.ndim not in (1, 2):
        raise ValueError(f"samples have the shape {samples.shape}; expected (n,) or (n, channels)")
    if not np.isfinite(samples).all():
        raise ValueError("samples hold NaN or infinity")
    values = np.rint(np.clip(samples, -1, 1) * 32767).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(values.tobytes())


def read_wav(path: Path) -> tuple[np.ndarray, int]:
    """The (n, channels) float32 samples in [-1, 1] of a file that :func:`write_wav` wrote, and its rate.

    Raises:
        ValueError: For another sample width than 16 bit.
    """
    with wave.open(str(path), "rb") as file:
        if file.getsampwidth() != 2:
            raise ValueError(f"{path.name}: {8 * file.getsampwidth()} bits a sample; expected 16")
        data = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
        samples: np.ndarray = data.reshape(-1, file.getnchannels()).astype(np.float32) / 32767
        return samples, file.getframerate()
