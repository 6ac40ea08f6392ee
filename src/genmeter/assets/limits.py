"""What decoding is bounded by: the part of the policy that travels to a decoding process, without pydantic."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from genmeter.config import Policy


class PixelLimit(Protocol):
    """Anything that says how many pixels an image or frame may have: a policy, or :class:`Limits`."""

    @property
    def max_pixels(self) -> int:
        """Largest width x height."""
        ...


class Limits(NamedTuple):
    """Bounds of one decoding; see :class:`genmeter.config.Policy` for each."""

    max_pixels: int
    max_seconds: float
    max_frames: int
    decode_memory: int

    @classmethod
    def of(cls, policy: Policy) -> Limits:
        """The bounds among a policy's settings."""
        return cls(policy.max_pixels, policy.max_seconds, policy.max_frames, policy.decode_memory)
