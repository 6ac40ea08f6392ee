"""Which of several candidates are scored."""

from __future__ import annotations

from collections.abc import Sequence

from genmeter.errors import GenmeterError
from genmeter.schema.roles import Found


def select_candidates(found: Sequence[Found], candidate: str | int) -> list[Found]:
    """Keep the candidates that were asked for.

    Args:
        found: What :func:`genmeter.schema.roles.predictions` found, in order.
        candidate: ``all``, ``first``, ``last``, ``best`` (which keeps all: the best is known after scoring), or the
            position of an entry in ``predict_result``; a negative one counts from the end. An entry that
            holds several images is one position.

    Raises:
        GenmeterError: ``no_prediction``, if the sample has no candidate at that position.
        ValueError: If ``candidate`` is none of these.
    """
    if candidate in ("all", "best"):
        return list(found)
    if candidate in ("first", "last"):
        wanted = found[0 if candidate == "first" else -1].index if found else 0
    else:
        wanted = _position(candidate, found)
    chosen = [item for item in found if item.index == wanted]
    if not chosen:
        positions = sorted({item.index for item in found})
        held = f"found {len(positions)}" + (f", at {', '.join(map(str, positions[:5]))}" if positions else "")
        raise GenmeterError("no_prediction", f"no candidate at position {candidate}; {held}")
    return chosen


def _position(candidate: str | int, found: Sequence[Found]) -> int:
    try:
        wanted = int(candidate)
    except (TypeError, ValueError):
        raise ValueError(f"candidate {candidate!r}: expected all, first, last, best or a position") from None
    if wanted >= 0:
        return wanted
    positions = sorted({item.index for item in found})
    return positions[wanted] if -wanted <= len(positions) else wanted
