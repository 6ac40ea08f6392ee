"""Encoders by name: those that ship with genmeter and those of the entry-point group ``genmeter.encoders``.

An encoder is a class called with its models.lock entry and a function that returns the path of the verified
weights. Making one imports no torch and fetches nothing; ``load`` does both.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, cast

from genmeter.config import nearest
from genmeter.contract import Encoder, EncoderSpec
from genmeter.errors import GenmeterError

if TYPE_CHECKING:
    from genmeter.weights.lock import ModelEntry

GROUP = "genmeter.encoders"
_BUILT_IN = {
    "clap": "genmeter.encoders.clap:ClapEncoder",
    "clip": "genmeter.encoders.clip:ClipEncoder",
    "i3d": "genmeter.encoders.i3d:I3dEncoder",
    "lpips": "genmeter.encoders.lpips:LpipsEncoder",
    "motion": "genmeter.encoders.motion:MotionEncoder",
}


def list_encoders() -> list[str]:
    """Names of all installed encoders, sorted."""
    return sorted(_targets())


def create_encoder(name: str, entry: ModelEntry, fetch: Callable[[], Path]) -> Encoder:
    """An encoder that is not loaded yet.

    Args:
        name: Its registered name, as a metric's need states it.
        entry: The models.lock entry it runs on.
        fetch: Returns the path of the verified safetensors file; called by ``load`` alone.

    Raises:
        GenmeterError: ``unknown_metric`` when no encoder of this name is installed, or it cannot run this entry;
            ``extra_missing`` or ``internal`` when it cannot be imported or made.
    """
    target = _BUILT_IN.get(name) or _targets().get(name)
    if target is None:
        known = list_encoders()
        raise GenmeterError(
            "unknown_metric",
            f"no encoder {name!r} is installed{nearest(name, known)}",
            f"installed: {', '.join(known)}",
        )
    module, _, attribute = target.partition(":")
    try:
        return cast(Encoder, getattr(importlib.import_module(module), attribute)(entry, fetch))
    except GenmeterError:
        raise
    except ImportError as error:
        message = f"encoder {name!r} needs {error.name or error}, which is not installed"
        raise GenmeterError("extra_missing", message, "install it with pip") from None
    except Exception as error:
        message = f"encoder {name!r} cannot be made for {entry.id}: {type(error).__name__}: {error}"
        raise GenmeterError("internal", message, "please report it to the encoder's authors") from None


def encoder_spec(name: str, entry: ModelEntry) -> EncoderSpec:
    """What is known of an encoder without loading it; same errors as :func:`create_encoder`."""
    return create_encoder(name, entry, _no_fetch).spec


def _no_fetch() -> Path:
    raise GenmeterError("weights_unavailable", "this encoder was made to be described, not to be loaded")


def _targets() -> dict[str, str]:
    found = {point.name: point.value for point in entry_points(group=GROUP)}
    return {**found, **_BUILT_IN}
