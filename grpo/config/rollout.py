"""How episodes are played."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from grpo.config.base import Settings


class RolloutSettings(Settings):
    """How episodes are played."""

    scenarios: int = Field(default=32, ge=1)
    """Scenarios in an iteration; the training side is gone through in a seeded order."""
    group_size: int = Field(default=8, ge=2)
    """Sibling episodes of each scenario: what an advantage is relative to."""
    temperature: float = Field(default=1.0, gt=0)
    max_new_tokens: int = Field(default=64, ge=1)
    """Most tokens in one turn of the agent."""
    cut_turns: Literal["end", "go_on"] = "end"
    """What a turn that reaches max_new_tokens does: end the episode as truncated, or stand as it is."""
    max_context: int = Field(default=512, ge=16)
    """Most tokens in one episode."""
    shards: int = Field(default=1, ge=1)
    """Parts that an iteration is cut into; a shard is what is retried."""
    concurrency: int = Field(default=256, ge=1)
    """Episodes of a shard in flight at once."""
    episode_timeout_s: float = Field(default=120.0, gt=0)
    """An episode that takes longer is failed, not waited for."""
    error_budget: float = Field(default=0.05, ge=0, le=1)
    """More failed episodes than this share stop the run."""
