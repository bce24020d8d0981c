"""How long what may be waited for. What is late fails its episode, and the failure says which deadline it was.

Only what awaits can be cut off: a tool that blocks the thread holds up every episode of the shard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from grpo.config.rollout import RolloutSettings

T = TypeVar("T")


class RolloutTimeout(TimeoutError):
    """A deadline of the rollout has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """The deadlines of one stage, which begins when this is made, inside a running event loop."""

    turn_s: float
    step_s: float
    episode_s: float
    stage_s: float
    stage_end: float
    """Time of the event loop at which the stage is over."""

    @classmethod
    def begin(cls, settings: RolloutSettings) -> Timeouts:
        """The stage begins now."""
        return cls(
            turn_s=settings.turn_timeout_s,
            step_s=settings.step_timeout_s,
            episode_s=settings.episode_timeout_s,
            stage_s=settings.stage_timeout_s,
            stage_end=asyncio.get_running_loop().time() + settings.stage_timeout_s,
        )

    async def turn(self, awaitable: Awaitable[T], number: int) -> T:
        """One turn of the policy; raises `RolloutTimeout`."""
        late = f"turn {number} of the policy took longer than {self.turn_s} s (rollout.turn_timeout_s)"
        return await _until(_now() + self.turn_s, awaitable, late)

    async def step(self, awaitable: Awaitable[T], number: int) -> T:
        """One answer of the environment, to turn `number` or, at 0, its first message; raises `RolloutTimeout`."""
        what = f"answer to turn {number}" if number else "first message"
        late = f"the environment's {what} took longer than {self.step_s} s (rollout.step_timeout_s)"
        return await _until(_now() + self.step_s, awaitable, late)

    async def episode(self, begin: Callable[[], Awaitable[T]]) -> T:
        """A whole episode, within the stage; once that is over none begins. Raises `RolloutTimeout`."""
        now = _now()
        if now + self.episode_s < self.stage_end:
            late = f"the episode took longer than {self.episode_s} s (rollout.episode_timeout_s)"
            return await _until(now + self.episode_s, begin(), late)
        late = f"the episode was not finished when the stage had taken {self.stage_s} s (rollout.stage_timeout_s)"
        if now >= self.stage_end:
            raise RolloutTimeout(late)
        return await _until(self.stage_end, begin(), late)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _until(end: float, awaitable: Awaitable[T], late: str) -> T:
    """Wait until a time of the event loop; a `TimeoutError` of what is waited for passes through as it is."""
    limit = asyncio.timeout_at(end)
    try:
        async with limit:
            return await awaitable
    except TimeoutError as error:
        if limit.expired():
            raise RolloutTimeout(late) from error
        raise
