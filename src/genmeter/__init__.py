"""genmeter: the metric engine for generated media."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from genmeter.api import Engine, score
    from genmeter.registry import list_metrics
    from genmeter.schema.models import Sample

__all__ = ["Engine", "Sample", "__version__", "list_metrics", "score"]

_HOME = {
    "Engine": "genmeter.api",
    "score": "genmeter.api",
    "list_metrics": "genmeter.registry",
    "Sample": "genmeter.schema.models",
}


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that ``import genmeter`` stays light."""
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'genmeter' has no attribute {name!r}")
