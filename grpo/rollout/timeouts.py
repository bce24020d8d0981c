"""Timeouts of turns, environment steps, episodes and the stage. If one expires, its episode fails with a reason.

When the timeout of the stage expires, every unfinished episode fails with this reason, and no other begins. Only code
that awaits can be cancelled. If a tool blocks the thread, it delays every episode of the shard.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from grpo.config.rollout import EpisodeSettings

T = TypeVar("T")


class RolloutTimeout(TimeoutError):
    """A timeout of the rollout has expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Timeouts of one stage, created inside its running event loop."""

    turn_s: float
    step_s: float
    episode_s: float
    stage_s: float
    stage_end: float
    """Event-loop time at which the stage ends."""

    @classmethod
    def start(cls, settings: EpisodeSettings) -> Timeouts:
        """Start the stage's clock now."""
        return cls(
            turn_s=settings.turn_timeout_s,
            step_s=settings.step_timeout_s,
            episode_s=settings.episode_timeout_s,
            stage_s=settings.stage_timeout_s,
            stage_end=asyncio.get_running_loop().time() + settings.stage_timeout_s,
        )

    async def turn(self, awaitable: Awaitable[T], number: int) -> T:
        """Await one turn of the policy. Raises `RolloutTimeout`."""
        message = (
            f"turn {number} of the policy took longer than {self.turn_s} s (rollout.turn_timeout_s). "
            "Raise it, or lower rollout.concurrency"
        )
        return await _until(_now() + self.turn_s, awaitable, message)

    async def step(self, awaitable: Awaitable[T], number: int) -> T:
        """Await the environment's step after turn `number`, or its reset if 0. Raises `RolloutTimeout`."""
        what = f"answer to turn {number}" if number else "first message"
        message = f"the environment's {what} took longer than {self.step_s} s (rollout.step_timeout_s)"
        return await _until(_now() + self.step_s, awaitable, message)

    async def episode(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Await a whole episode. None begins after the end of the stage. Raises `RolloutTimeout`."""
        now = _now()
        if now + self.episode_s < self.stage_end:
            message = f"the episode took longer than {self.episode_s} s (rollout.episode_timeout_s)"
            return await _until(now + self.episode_s, begin(), message)
        message = f"the episode was not finished when the stage had taken {self.stage_s} s (rollout.stage_timeout_s)"
        if now >= self.stage_end:
            raise RolloutTimeout(message)
        return await _until(self.stage_end, begin(), message)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _until(end: float, awaitable: Awaitable[T], message: str) -> T:
    """Await until a time of the event loop. A `TimeoutError` of the awaitable itself passes through unchanged."""
    if not inspect.isawaitable(awaitable):
        raise TypeError(f"{awaitable!r:.80} was returned by a method that is not async. Write it with `async def`")
    limit = asyncio.timeout_at(end)
    try:
        async with limit:
            return await awaitable
    except TimeoutError as error:
        if limit.expired():
            raise RolloutTimeout(message) from error
        raise
