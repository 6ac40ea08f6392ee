"""How much a video moves, from the changes between its frames."""

from __future__ import annotations

import numpy as np

from genmeter.contract import Feature

STATIC = 2.0 / 255.0
"""Below this motion a video hardly moves: compression alone stays under it, a small thing in motion does not."""


def motion_of(changes: Feature) -> tuple[float, tuple[str, ...]]:
    """How much moves from frame to frame, in [0, 1], and the flag ``static_video`` where it is next to nothing.

    The mean over pairs of frames of the largest change of a block, less the tenth of the pairs that change most: cuts
    and the jumps of key frames are no motion.

    Args:
        changes: What the encoder ``motion`` returns: values (k, 2), the second column being that change.
    """
    largest = np.sort(np.asarray(changes.values, dtype=np.float64)[:, 1])
    motion = float(largest[: len(largest) - len(largest) // 10].mean())
    return motion, ("static_video",) if motion < STATIC else ()
