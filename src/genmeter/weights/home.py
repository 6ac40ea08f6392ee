"""Where genmeter keeps weights and features."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """The folder for weights: ``$GENMETER_HOME``, else ``~/.cache/genmeter``. It need not exist yet.

    It may be read-only once it is filled.
    """
    return _folder("GENMETER_HOME") or Path(os.path.expanduser("~")) / ".cache" / "genmeter"


def cache_home() -> Path:
    """The folder for features: ``$GENMETER_CACHE`` (may be local to a node), else ``features`` under :func:`home`."""
    return _folder("GENMETER_CACHE") or home() / "features"


def downloads() -> Path:
    """``downloads`` under ``home()``: archives while they are needed, and those that a user put there by hand."""
    return home() / "downloads"


def weights_path(model: str, digest: str) -> Path:
    """Where the tensors of ``model`` with this tensor digest (hex) lie once they are converted."""
    return home() / "weights" / model / f"{digest[:16]}.safetensors"


def _folder(variable: str) -> Path | None:
    value = os.environ.get(variable, "").strip()
    return Path(os.path.abspath(os.path.expanduser(value))) if value else None
