"""A reward from a plain function, or a coroutine: the shortest way to one's own."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from grpo.errors import RewardError
from grpo.messages import Message
from grpo.rewards.reward import RewardContext, RewardFunction, RewardResult

Score: TypeAlias = float | RewardResult
Scorer: TypeAlias = Callable[..., Score | Awaitable[Score]]
"""Called with the turns, and with the context if it takes a second argument."""


class FunctionReward(RewardFunction):
    """Scores with a function of (turns) or (turns, context) that returns, or awaits, a number or a `RewardResult`."""

    def __init__(self, function: Scorer, *, weight: float = 1.0) -> None:
        self.name = getattr(function, "__name__", type(function).__name__)
        super().__init__(weight=weight)
        self._function = function
        try:
            inspect.signature(function).bind((), None)
            self._takes_context = True
        except TypeError:
            self._takes_context = False

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Raises `RewardError` when the function returns no number."""
        found = self._function(turns, context) if self._takes_context else self._function(turns)
        result = await found if inspect.isawaitable(found) else found
        if isinstance(result, RewardResult):
            return result
        if isinstance(result, bool) or not isinstance(result, int | float):
            raise RewardError(f"reward {self.name} returned {result!r}; return a number or a RewardResult")
        return RewardResult(score=float(result))


def reward_function(*, weight: float = 1.0) -> Callable[[Scorer], FunctionReward]:
    """Make a reward of the function below it.

    @reward_function(weight=0.5)
    async def politeness(turns, context=None) -> float: ...
    """
    return lambda function: FunctionReward(function, weight=weight)
