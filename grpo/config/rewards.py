"""What an episode is worth."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from grpo.config.base import Settings

RewardName = Literal[
    "task_completion", "checks", "valid_calls", "conciseness", "keywords", "variety", "constant", "safety", "neural"
]


class RewardComponent(Settings):
    """One reward and what it counts for."""

    kind: RewardName
    weight: float = Field(ge=-1, le=1)
    """Share in the total; negative turns the reward round."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of this reward, by name."""
    optional: bool = False
    """Whether an episode that this reward cannot judge still counts, without it; else it gets no reward."""
