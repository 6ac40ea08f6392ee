"""The judge as a role adapter of its own, for configurations that name it by import path (``class_path``)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from gage_eval.role.adapters.base import RoleAdapter

from genmeter.integrations.gage.settings import read_settings
from genmeter.integrations.gage.verdicts import judge


class GenmeterAdapter(RoleAdapter):  # type: ignore[misc]  # the framework has no types
    """Scores each sample; see :class:`~genmeter.integrations.gage.judge.GenmeterJudge`.

    Raises:
        ValueError: A parameter that is none.
    """

    def __init__(
        self,
        adapter_id: str,
        role_type: str = "judge_model",
        capabilities: Sequence[str] = (),
        resource_requirement: dict[str, Any] | None = None,
        sandbox_config: dict[str, Any] | None = None,
        **params: Any,
    ) -> None:
        super().__init__(
            adapter_id,
            role_type,
            capabilities,
            resource_requirement=resource_requirement,
            sandbox_config=sandbox_config,
        )
        # What the framework itself adds is not for the judge.
        own = {key: value for key, value in params.items() if key not in ("backend", "registry_view", "prompt_id")}
        self.settings = read_settings(own)

    async def ainvoke(self, payload: dict[str, Any], state: Any) -> dict[str, Any]:
        """The sample's scores, in the standard's shape; never raises."""
        return await asyncio.to_thread(judge, payload, self.settings)
