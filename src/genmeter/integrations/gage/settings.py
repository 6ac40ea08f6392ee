"""What a configuration of GAGE may say to the judge, read and checked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from genmeter.config import RunConfig, nearest
from genmeter.engine.session import merged_config

MEDIA_ROOT = "GENMETER_MEDIA_ROOT"
"""Environment variable with the folders of media, separated as in PATH, for configurations that name none."""

_OWN = ("metrics", "config", "deadline_s", "eval_config", "sets", "report")


@dataclass(frozen=True)
class JudgeSettings:
    """What the judge does.

    Attributes:
        config: The engine's configuration. ``metrics_from`` is ``sample`` unless the parameters say otherwise, so that
            of the metrics configured a sample gets those that its ``eval_config.metrics`` lists.
        deadline_s: Longest that one call may take, in seconds, loading of the networks included.
        sets: Whether the summary generator scores the set metrics over the finished run.
        report: Whether it writes a report.html beside them.
    """

    config: RunConfig
    deadline_s: float = 600.0
    sets: bool = True
    report: bool = False

    @property
    def key(self) -> str:
        """Equal for settings that can share one engine."""
        return self.config.model_dump_json()


def read_settings(params: Mapping[str, Any]) -> JudgeSettings:
    """Settings from the parameters of a judge or a metric.

    Args:
        params: ``metrics`` (names or variants), ``deadline_s``, ``eval_config`` (``honour``, or ``ignore`` to score
            every metric on every sample), ``sets``, ``report``, ``config`` (a YAML file of genmeter), and every key of
            :class:`~genmeter.config.RunConfig`.

    Raises:
        ValueError: Naming the parameter, what it may hold, and for an unknown one the nearest known.
    """
    params = {key: value for key, value in params.items() if value is not None}
    known = [*_OWN, *RunConfig.model_fields]
    for key in params:
        if key not in known:
            raise ValueError(f"unknown parameter {key!r} of the genmeter judge{nearest(str(key), known)}")
    own = {key: params.pop(key) for key in _OWN if key in params}
    honour = own.get("eval_config", "honour")
    if honour not in ("honour", "ignore"):
        raise ValueError(f"eval_config: expected honour or ignore, found {honour!r}")
    params.setdefault("metrics_from", "sample" if honour == "honour" else "config")
    if "media_root" not in params and os.environ.get(MEDIA_ROOT):
        params["media_root"] = tuple(part for part in os.environ[MEDIA_ROOT].split(os.pathsep) if part)
    config = merged_config(own.get("config"), _names(own.get("metrics")), params)
    return JudgeSettings(
        config,
        _seconds(own.get("deadline_s", JudgeSettings.deadline_s)),
        _flag("sets", own.get("sets", True)),
        _flag("report", own.get("report", False)),
    )


def _names(metrics: Any) -> list[str] | None:
    if metrics is None or isinstance(metrics, str):
        return None if metrics is None else [name.strip() for name in metrics.split(",") if name.strip()]
    if isinstance(metrics, Sequence) and all(isinstance(name, str) for name in metrics):
        return list(metrics)
    raise ValueError(f"metrics: expected a list of names, found {type(metrics).__name__}")


def _seconds(value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        return float(value)
    raise ValueError(f"deadline_s: expected seconds above 0, found {value!r}")


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"{name}: expected true or false, found {value!r}")
