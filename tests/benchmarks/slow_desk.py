"""The support desk with tools that answer after a while, as tools behind a network do."""

from __future__ import annotations

import asyncio

from grpo.environments.environment import EnvironmentState, StepResult
from grpo.environments.support_desk.desk import SupportDesk
from grpo.messages import Message


class SlowDesk(SupportDesk):
    """A desk of which each tool call takes `delay_s` seconds. Other episodes go on in that time."""

    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self._delay_s = delay_s

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        """See `SupportDesk.step`."""
        await asyncio.sleep(self._delay_s * len(action.tool_calls))
        return await super().step(state, action)
