"""Damage to a sound of a known kind and strength, as a poor generator or a poor channel would do it.

A strength is in [0, 1]: 0 changes nothing, and what 1 means stands in :data:`DEGRADATIONS`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

DEGRADATIONS = {
    "noise": "white noise, 60 dB below the sound near strength 0 and as loud as it at 1",
    "clipping": "amplified by up to 36 dB at strength 1 and cut at full scale",
    "lowpass": "nothing above 400 Hz at strength 1 and above half the rate near 0",
    "dropouts": "silenced for 70 % of each 80 ms at strength 1",
}


def degrade_sound(samples: np.ndarray, rate: int, kind: str, strength: float, *, seed: int = 0) -> np.ndarray:
    """Degrade a sound.

    Args:
        samples: (n,) float32 in [-1, 1].
        rate: Samples a second.
        kind: A key of :data:`DEGRADATIONS`.
        strength: 0 (nothing) to 1.
        seed: For ``noise``.

    Returns:
        (n,) float32 in [-1, 1], a new array.

    Raises:
        ValueError: For an unknown kind, or a strength outside [0, 1].
    """
    if kind not in _FUNCTIONS:
        raise ValueError(f"degradation {kind!r} is not among {', '.join(_FUNCTIONS)}")
    if not 0 <= strength <= 1:
        raise ValueError(f"strength must be in [0, 1], not {strength}")
    if strength == 0:
        return np.array(samples, dtype=np.float32)
    damaged = _FUNCTIONS[kind](samples.astype(float), rate, strength, seed)
    return np.clip(damaged, -1, 1).astype(np.float32)


def _noise(samples: np.ndarray, rate: int, strength: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, 9])
    power = float(np.sqrt(np.mean(samples**2)))
    mixed: np.ndarray = samples + rng.standard_normal(len(samples)) * power * 10 ** (-3 * (1 - strength))
    # Quieter as a whole where it would be clipped: this damage is noise and nothing else.
    return mixed / max(1.0, float(np.abs(mixed).max()))


def _clipping(samples: np.ndarray, rate: int, strength: float, seed: int) -> np.ndarray:
    amplified: np.ndarray = samples * 10 ** (36 * strength / 20)
    return amplified


def _lowpass(samples: np.ndarray, rate: int, strength: float, seed: int) -> np.ndarray:
    frequency = np.fft.rfftfreq(len(samples), 1 / rate)
    edge = (rate / 2) * (400 / (rate / 2)) ** strength
    gain = 1 / np.sqrt(1 + (frequency / edge) ** 16)
    filtered: np.ndarray = np.fft.irfft(np.fft.rfft(samples) * gain, len(samples))
    return filtered


def _dropouts(samples: np.ndarray, rate: int, strength: float, seed: int) -> np.ndarray:
    period = max(1, round(0.08 * rate))
    kept: np.ndarray = samples * (np.arange(len(samples)) % period >= 0.7 * strength * period)
    return kept


_FUNCTIONS: dict[str, Callable[[np.ndarray, int, float, int], np.ndarray]] = {
    "noise": _noise,
    "clipping": _clipping,
    "lowpass": _lowpass,
    "dropouts": _dropouts,
}
