"""What a reward is: it judges one finished conversation."""

from __future__ import annotations

import asyncio
import math
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from grpo.errors import RewardError, Unscored
from grpo.messages import Message
from grpo.scenarios.scenario import Scenario
from grpo.trajectories import Outcome, Stop, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardContext:
    """What a reward may know beside the words."""

    scenario_id: str
    category: str
    stop: Stop
    outcome: Outcome | None = None
    sample: int = 0
    scenario: Scenario | None = None
    """What the episode started from: its context, and what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A finished conversation as a reward sees it."""

    turns: tuple[Message, ...]
    context: RewardContext

    @classmethod
    def of(cls, trajectory: Trajectory, scenario: Scenario | None = None) -> Episode:
        """What there is to judge in a trajectory."""
        return cls(
            turns=trajectory.messages,
            context=RewardContext(
                scenario_id=trajectory.scenario_id,
                category=trajectory.category,
                stop=trajectory.stop,
                outcome=trajectory.outcome,
                sample=trajectory.sample,
                scenario=scenario,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardResult:
    """A score with the parts that it is made of."""

    score: float
    breakdown: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not math.isfinite(self.score):
            raise RewardError(f"reward {self.score} is not finite; raise an error or return a number")


class RewardFunction(ABC):
    """Base of all rewards; `weight` is what the score counts for in a composite, usually in [0, 1]; else it warns.

    A reward that judges one conversation at a time has `compute_reward`; one that compares siblings is a `GroupReward`.
    Either raises, or returns, `Unscored` for an episode that it cannot judge.
    """

    name: str
    """By default the class's name: `ResponseQualityReward` is response_quality."""
    probed: ClassVar[bool] = True
    """Whether words may fool it; a control, a verified outcome, or a judge that costs by the question is not probed."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not hasattr(cls, "name"):
            cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Reward") or "Reward").lower()

    def __init__(self, *, weight: float = 1.0) -> None:
        self.weight = checked_weight(weight, self.name)

    @classmethod
    def files(cls, options: Mapping[str, Any]) -> Sequence[str | Path]:
        """Files and folders that a reward with these options reads; a changed one is scored again.

        What Python's `open` reads while it scores is noticed without being declared here.
        """
        return ()

    @abstractmethod
    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Score a conversation; higher is better, usually in [0, 1]."""

    async def compute_group(self, episodes: Sequence[Episode]) -> list[RewardResult | Unscored]:
        """Score the siblings of one scenario, in their order; by default each by itself."""
        return list(await asyncio.gather(*(self._single(episode) for episode in episodes)))

    async def _single(self, episode: Episode) -> RewardResult | Unscored:
        try:
            return await self.compute_reward(episode.turns, episode.context)
        except Unscored as reason:
            return reason
        except RewardError as error:
            raise RewardError(f"sample {episode.context.sample}: {error}") from error


class GroupReward(RewardFunction):
    """Base of the rewards that judge siblings beside each other."""

    @abstractmethod
    async def compute_group(self, episodes: Sequence[Episode]) -> list[RewardResult | Unscored]:
        """Score the siblings of one scenario, in their order."""

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Score one conversation as a group of its own."""
        [result] = await self.compute_group([Episode(turns=tuple(turns), context=context)])
        if isinstance(result, Unscored):
            raise result
        return result


def checked_weight(weight: float, name: str) -> float:
    """The weight itself; outside [0, 1] it warns, as one that turns a reward round or drowns the others does."""
    if not 0 <= weight <= 1:
        warnings.warn(f"reward {name} has weight {weight}, outside [0, 1]", stacklevel=3)
    return weight
