"""The critic of ppo and a2c."""

from __future__ import annotations

from pydantic import Field

from grpo.config.base import Settings


class CriticSettings(Settings):
    """A value head on the policy's hidden states, with an optimizer of its own."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per token that the policy says."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """How far ahead an advantage looks: 0 to the next token, 1 to the end of the episode."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """AdamW's learning rate of the value head."""
    epochs: int = Field(default=8, ge=1)
    """Steps of the critic on each rollout."""
    value_clip: float | None = Field(default=0.2, gt=0)
    """How far a value may move in one update before it is charged for it; none is plain squared error."""
