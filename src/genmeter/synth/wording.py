"""Choices between ways of saying one thing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class Wording:
    """Choices that follow from a number.

    Args:
        number: 0 always takes the plainest way, the first; any other one draws, and equal ones draw alike.
    """

    def __init__(self, number: int = 0) -> None:
        self._rng = np.random.default_rng([number, 10]) if number else None

    def pick(self, options: Sequence[str]) -> str:
        """One of the options; those that stand in it twice are the likelier ones."""
        return options[0] if self._rng is None else options[int(self._rng.integers(len(options)))]

    def chance(self, likely: float) -> bool:
        """True with this probability, and never for the plainest wording."""
        return self._rng is not None and bool(self._rng.random() < likely)
