"""The engines of this process. GAGE builds judges and metrics anew for each run; networks are loaded once.

No manifest names this module, so nothing ever executes it again, and what it holds outlives every run.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator

from genmeter.engine.session import Engine
from genmeter.integrations.gage.settings import JudgeSettings

_lock = threading.Lock()
_engines: dict[str, Engine] = {}
_used: dict[str, JudgeSettings] = {}


def engine_for(settings: JudgeSettings) -> Engine:
    """The engine of these settings; the first call makes it, and equal settings share it.

    Raises:
        ValueError: A device that is not there.
        GenmeterError: ``unknown_metric``.
    """
    with _lock:
        engine = _engines.get(settings.key)
        if engine is None:
            engine = _engines[settings.key] = Engine(config=settings.config)
        _used[settings.key] = settings
        return engine


def settings_in_use() -> list[JudgeSettings]:
    """What judges and metrics were made with since :func:`forget_settings`."""
    with _lock:
        return list(_used.values())


def forget_settings() -> None:
    """A run has ended: its settings are not those of the next one."""
    with _lock:
        _used.clear()


def engines() -> Iterator[Engine]:
    """All engines of this process."""
    with _lock:
        return iter(list(_engines.values()))


@atexit.register
def _close() -> None:
    with _lock:
        for engine in _engines.values():
            engine.close()
        _engines.clear()
