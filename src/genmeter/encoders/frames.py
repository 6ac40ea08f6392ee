"""What encoders of videos have in common: which frames they ask for, and what a row says of them."""

from __future__ import annotations

from genmeter.contract import Decoding, Scalar, VideoMedia, View


def spread(view: View) -> Decoding:
    """Which frames a view asks for: ``frames`` of them spread evenly, or every frame for ``all`` or where it is unsaid.

    A video of fewer frames is taken whole.
    """
    frames = view.get("frames", "all")
    return {"spread": frames} if isinstance(frames, int) else {}


def facts(media: VideoMedia) -> dict[str, Scalar]:
    """How many frames were read of how many, their size (WIDTHxHEIGHT), their rate and how many are damaged.

    What decoding does not say is left out.
    """
    height, width = media.frames.shape[1:3]
    found: dict[str, Scalar] = {"frames_used": len(media.frames), "size": f"{width}x{height}"}
    known = {key: media.detail.get(key) for key in ("frames_total", "fps", "damaged_frames")}
    return {**found, **{key: value for key, value in known.items() if value is not None}}


def partial(media: VideoMedia) -> tuple[str, ...]:
    """The flag for a video of which only some frames were read."""
    total = media.detail.get("frames_total")
    return () if total is None or total == len(media.frames) else ("partial_video",)
