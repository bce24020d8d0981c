"""What a reward is: it judges one finished conversation."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo.errors import RewardError
from grpo.messages import Message
from grpo.trajectories import Outcome, Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardContext:
    """What a reward may know beside the words."""

    scenario_id: str
    category: str
    stop: Stop
    outcome: Outcome | None = None


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
    """Base of all rewards; `weight` is what the score counts for in a composite."""

    name: str

    def __init__(self, *, weight: float = 1.0) -> None:
        self.weight = weight

    @abstractmethod
    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Score a conversation; higher is better, usually in [0, 1]."""
