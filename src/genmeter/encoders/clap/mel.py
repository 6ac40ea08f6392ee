"""The log-mel front end of the CLAP networks: from 48 kHz windows to decibels.

Two forms are in use. ``slaney`` is what torchlibrosa computes inside LAION's networks (librosa's default filters:
linear below 1 kHz, each filter of unit area); ``htk`` is what LAION's feature fusion was trained on (torchaudio's
default filters: O'Shaughnessy's scale, each filter of unit height). Both are power spectra under a periodic Hann
window, centred with reflection, and 10*log10 with a floor at 1e-10 (-100 dB), without a limit below the peak.

The spectrum is taken in float64. In float32 the rounding of a loud tone stands above what the quiet bins hold, so that
every Fourier library, batch size and device gives other decibels there; in float64 they agree, and what is handed on
is float32 all the same. Importing this module imports numpy alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import torch

FLOOR = 1e-10
"""Power below which everything is silence: -100 dB."""

# Frames whose spectra exist at one time, over all rows: 16 MB at 1024 points.
_FRAMES_AT_ONCE = 2048


class MelRecipe(NamedTuple):
    """How sound becomes mel bands; the defaults are those of every LAION checkpoint.

    Attributes:
        rate: Samples a second.
        n_fft: Length of the window and of the transform, in samples.
        hop: Samples from one frame to the next.
        bands: Mel bands.
        low, high: Edges of the lowest and highest band, in Hz.
        scale: ``slaney`` (unit area) or ``htk`` (unit height).
    """

    rate: int = 48000
    n_fft: int = 1024
    hop: int = 480
    bands: int = 64
    low: float = 50.0
    high: float = 14000.0
    scale: Literal["slaney", "htk"] = "slaney"

    def frames(self, samples: int) -> int:
        """Frames that this many samples give: 1001 for 480,000."""
        return samples // self.hop + 1


LAION = MelRecipe()
"""What every LAION checkpoint without feature fusion hears through."""


def filterbank(how: MelRecipe) -> np.ndarray:
    """Triangular filters, (n_fft/2 + 1, bands) float64: power of a frame @ filters = power of its bands.

    Raises:
        ValueError: For edges that are not 0 <= low < high <= rate/2, or an unknown scale.
    """
    if not 0 <= how.low < how.high <= how.rate / 2:
        raise ValueError(f"band edges {how.low} and {how.high} Hz do not fit a rate of {how.rate} Hz")
    if how.scale not in ("slaney", "htk"):
        raise ValueError(f"mel scale {how.scale!r} is neither slaney nor htk")
    forward, backward = (_slaney, _hertz_slaney) if how.scale == "slaney" else (_htk, _hertz_htk)
    ends = forward(np.array([how.low, how.high]))
    edges = backward(np.linspace(ends[0], ends[1], how.bands + 2))
    bins = np.arange(how.n_fft // 2 + 1) * (how.rate / how.n_fft)
    widths = np.diff(edges)
    rising = (bins[:, None] - edges[None, :-2]) / widths[None, :-1]
    falling = (edges[None, 2:] - bins[:, None]) / widths[None, 1:]
    filters: np.ndarray = np.maximum(0.0, np.minimum(rising, falling))
    if how.scale == "slaney":
        filters *= 2.0 / (edges[2:] - edges[:-2])
    return filters


def transform(how: MelRecipe) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The front end as the constant tensors that LAION's checkpoints hold, float32.

    Returns:
        Real and imaginary part of the windowed Fourier transform, each (n_fft/2 + 1, 1, n_fft), and the mel filters
        (n_fft/2 + 1, bands).
    """
    at = np.arange(how.n_fft)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * at / how.n_fft)
    # Whole turns are taken off before the product becomes an angle, which would round otherwise.
    angle = 2 * np.pi * (np.outer(np.arange(how.n_fft // 2 + 1), at) % how.n_fft) / how.n_fft
    waves = (np.cos(angle) * window, -np.sin(angle) * window)
    real, imaginary = (wave[:, None].astype(np.float32) for wave in waves)
    return real, imaginary, filterbank(how).astype(np.float32)


class LogMel:
    """The front end on one device.

    Args:
        how: The recipe.
        device: ``cpu``, ``cuda`` or ``cuda:i``.
    """

    def __init__(self, how: MelRecipe = LAION, device: str = "cpu") -> None:
        import torch

        self.how = how
        # The window in float64 as well: a rounded one leaks at -140 dB.
        self._window = torch.hann_window(how.n_fft, periodic=True, dtype=torch.float64, device=device)
        filters = filterbank(how)
        heard = np.flatnonzero(filters.any(axis=1))
        # Bins outside the band reach no filter.
        self._bins = slice(int(heard[0]), int(heard[-1]) + 1)
        self._filters = torch.from_numpy(filters[self._bins]).to(device)

    def __call__(self, waves: torch.Tensor) -> torch.Tensor:
        """Decibels of each row.

        Args:
            waves: (n, samples) in [-1, 1] on the front end's device, more than n_fft/2 samples.

        Returns:
            (n, samples // hop + 1, bands) float32, -100 dB where there is silence.
        """
        import torch

        how, half = self.how, self.how.n_fft // 2
        padded = torch.nn.functional.pad(waves.double()[:, None], (half, half), mode="reflect")[:, 0]
        count = how.frames(waves.shape[1])
        step = max(1, _FRAMES_AT_ONCE // max(1, len(waves)))
        out = torch.empty((len(waves), count, how.bands), dtype=torch.float32, device=waves.device)
        for first in range(0, count, step):
            last = min(first + step, count)
            piece = padded[:, first * how.hop : (last - 1) * how.hop + how.n_fft]
            spectrum = torch.fft.rfft(piece.unfold(1, how.n_fft, how.hop) * self._window)[..., self._bins]
            power = spectrum.real.square() + spectrum.imag.square()
            out[:, first:last] = 10.0 * torch.log10(torch.clamp(power @ self._filters, min=FLOOR))
        return out


def _slaney(hertz: np.ndarray) -> np.ndarray:
    """Slaney's Auditory Toolbox: 3 mel for 200 Hz up to 1 kHz, then 27 for each factor of 6.4."""
    above = 15.0 + 27.0 * np.log(np.maximum(hertz, 1000.0) / 1000.0) / np.log(6.4)
    scale: np.ndarray = np.where(hertz < 1000.0, 3.0 * hertz / 200.0, above)
    return scale


def _hertz_slaney(mel: np.ndarray) -> np.ndarray:
    hertz: np.ndarray = np.where(mel < 15.0, 200.0 * mel / 3.0, 1000.0 * 6.4 ** ((np.maximum(mel, 15.0) - 15.0) / 27.0))
    return hertz


def _htk(hertz: np.ndarray) -> np.ndarray:
    scale: np.ndarray = 2595.0 * np.log10(1.0 + hertz / 700.0)
    return scale


def _hertz_htk(mel: np.ndarray) -> np.ndarray:
    hertz: np.ndarray = 700.0 * (10.0 ** (mel / 2595.0) - 1.0)
    return hertz
