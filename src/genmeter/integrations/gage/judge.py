"""The judge implementation ``genmeter`` (role ``judge_extend``)."""

from __future__ import annotations

import asyncio
from typing import Any

from gage_eval.role.judge.base import JudgeImplementation

from genmeter.integrations.gage.settings import read_settings
from genmeter.integrations.gage.verdicts import judge


class GenmeterJudge(JudgeImplementation):  # type: ignore[misc]  # the framework has no types
    """Scores each sample; calls that come at the same time share batches.

    Args:
        **params: See :func:`~genmeter.integrations.gage.settings.read_settings`.

    Raises:
        ValueError: A parameter that is none, when the run is set up and not at its first sample.
    """

    def __init__(self, **params: Any) -> None:
        self.settings = read_settings(params)

    def invoke(self, payload: dict[str, Any], state: Any = None) -> dict[str, Any]:
        """The sample's scores; see :func:`~genmeter.integrations.gage.verdicts.judge`."""
        return judge(payload, self.settings)

    async def ainvoke(self, payload: dict[str, Any], state: Any = None) -> dict[str, Any]:
        """The same; other work of the event loop goes on meanwhile."""
        return await asyncio.to_thread(judge, payload, self.settings)
