"""Statistics on plain arrays: no torch, no I/O, float64."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from genmeter.stats.frechet import frechet_distance, frechet_distance_from_moments
    from genmeter.stats.mmd import polynomial_mmd

_HOME = {
    "frechet_distance": "genmeter.stats.frechet",
    "frechet_distance_from_moments": "genmeter.stats.frechet",
    "polynomial_mmd": "genmeter.stats.mmd",
}

__all__ = ["frechet_distance", "frechet_distance_from_moments", "polynomial_mmd"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
