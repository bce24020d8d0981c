"""Reward interface: a score for one finished conversation, or for the group of one scenario."""

from __future__ import annotations

import asyncio
import inspect
import math
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from grpo.errors import RewardError, Unscored
from grpo.messages import Message
from grpo.scenarios.scenario import Scenario
from grpo.trajectories import Outcome, Stop, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardContext:
    """Facts about an episode beside its messages."""

    scenario_id: str
    category: str
    stop: Stop
    outcome: Outcome | None = None
    sample: int = 0
    scenario: Scenario | None = None
    """Start of the episode: its context and its expected outcome."""
    completion_ids: tuple[int, ...] = ()
    """Token ids from the first turn of the agent on; empty where no model generated the turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Input of a reward: a finished conversation."""

    turns: tuple[Message, ...]
    context: RewardContext

    @classmethod
    def of(cls, trajectory: Trajectory, scenario: Scenario | None = None) -> Episode:
        """Messages and context of a trajectory."""
        return cls(
            turns=trajectory.messages,
            context=RewardContext(
                scenario_id=trajectory.scenario_id,
                category=trajectory.category,
                stop=trajectory.stop,
                outcome=trajectory.outcome,
                sample=trajectory.sample,
                scenario=scenario,
                completion_ids=trajectory.completion_ids,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardResult:
    """A score and its parts."""

    score: float
    breakdown: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not math.isfinite(self.score):
            raise RewardError(f"reward {self.score} is not finite; raise an error or return a number")


class RewardFunction(ABC):
    """Base of all rewards; `weight` is the share of the score in a composite, usually in [0, 1]; else it warns.

    A reward that scores one conversation at a time has `compute_reward`; one that compares the group of a scenario is
    a `GroupReward`. Either raises, or returns, `Unscored` for an episode that it cannot score.
    """

    name: str
    """By default the class's name: `ResponseQualityReward` is response_quality."""
    probed: ClassVar[bool] = True
    """Tested by the reward hacking check; not for a control, a verified outcome, or a judge that costs by the call."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not hasattr(cls, "name"):
            cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Reward") or "Reward").lower()

    def __init__(self, *, weight: float = 1.0) -> None:
        self.weight = checked_weight(weight, self.name)

    @classmethod
    def files(cls, options: Mapping[str, Any]) -> Sequence[str | Path]:
        """Files and folders that a reward with these options reads; a change of one invalidates cached scores.

        Files that Python's `open` reads during scoring are noticed without being declared here.
        """
        return ()

    @abstractmethod
    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Score a conversation; higher is better, usually in [0, 1]."""

    async def compute_group(self, episodes: Sequence[Episode]) -> list[RewardResult | Unscored]:
        """Score the group of one scenario, in its order; by default each episode by itself."""
        return list(await asyncio.gather(*(self._single(episode) for episode in episodes)))

    async def _single(self, episode: Episode) -> RewardResult | Unscored:
        try:
            return await self.compute_reward(episode.turns, episode.context)
        except Unscored as reason:
            return reason
        except RewardError as error:
            raise RewardError(f"sample {episode.context.sample}: {error}") from error


class GroupReward(RewardFunction):
    """Base of the rewards that compare the episodes of a group."""

    @abstractmethod
    async def compute_group(self, episodes: Sequence[Episode]) -> list[RewardResult | Unscored]:
        """Score the group of one scenario, in its order."""

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Score one conversation as a group of one."""
        [result] = await self.compute_group([Episode(turns=tuple(turns), context=context)])
        if isinstance(result, Unscored):
            raise result
        return result


Score: TypeAlias = float | RewardResult
Scorer: TypeAlias = Callable[..., Score | Awaitable[Score]]
"""Called with the turns, and with the context if it takes a second argument."""


class FunctionReward(RewardFunction):
    """Scores with a function of (turns) or (turns, context) that returns, or awaits, a number or a `RewardResult`."""

    def __init__(self, function: Scorer, *, weight: float = 1.0) -> None:
        self.name = getattr(function, "__name__", type(function).__name__)
        super().__init__(weight=weight)
        self._function = function
        self.probed = bool(getattr(function, "probed", True))  # type: ignore[misc]
        try:
            inspect.signature(function).bind((), None)
            self._takes_context = True
        except TypeError:
            self._takes_context = False

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Call the function. Raises `RewardError` when it does not return a number or a `RewardResult`."""
        returned = self._function(turns, context) if self._takes_context else self._function(turns)
        result = await returned if inspect.isawaitable(returned) else returned
        if isinstance(result, RewardResult):
            return result
        if isinstance(result, bool) or not isinstance(result, int | float):
            raise RewardError(f"reward {self.name} returned {result!r}; return a number or a RewardResult")
        return RewardResult(score=float(result))


def reward_function(*, weight: float = 1.0) -> Callable[[Scorer], FunctionReward]:
    """Make a reward of the decorated function.

    @reward_function(weight=0.5)
    async def politeness(turns, context=None) -> float: ...
    """
    return lambda function: FunctionReward(function, weight=weight)


def checked_weight(weight: float, name: str) -> float:
    """The weight itself; warns outside [0, 1], as such a weight inverts a reward or dominates the others."""
    if not 0 <= weight <= 1:
        warnings.warn(f"reward {name} has weight {weight}, outside [0, 1]", stacklevel=3)
    return weight
