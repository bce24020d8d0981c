"""How candidate and champion are compared, and what the candidate must show."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from grpo.config.base import Settings


class EvaluationSettings(Settings):
    """Candidate against champion on held-out scenarios, sample k of both from the same random numbers."""

    samples: int = Field(default=1, ge=1)
    """Episodes of each held-out scenario."""
    temperature: float = Field(default=1.0, gt=0)
    """At which the held-out scenarios are played."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Level of the intervals."""
    resamples: int = Field(default=2000, ge=100)
    """Bootstrap resamples over scenarios."""


class GateSettings(Settings):
    """What a candidate must show before it may serve."""

    metric: Literal["success", "reward"] = "success"
    """What is compared: the verified outcome, or the reward where nothing can be verified."""
    margin: float = Field(default=0.0, ge=0)
    """The lower bound of the paired difference must exceed this."""
    max_category_drop: float = Field(default=0.1, ge=0)
    """No category's mean may fall by more."""
    max_kl: float = Field(default=5.0, gt=0)
    """Most KL divergence to the base policy, nats a token."""
    max_failed_share: float = Field(default=0.02, ge=0, le=1)
    """Most failed or truncated episodes of the candidate."""
    max_length_ratio: float = Field(default=2.0, gt=0)
    """Most growth of the tokens said in an episode."""
