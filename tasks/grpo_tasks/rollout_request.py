"""Inputs that the shards and the windows of a rollout have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from grpo.artifacts import Artifact
from grpo.config.episode_parts import EpisodeParts
from grpo.config.rollout import RolloutSettings


class RolloutRequest(BaseModel):
    """A policy, and the scenarios and settings of its episodes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    checkpoint: Artifact
    """The policy."""
    scenarios: Artifact
    split: Artifact
    parts: EpisodeParts
    settings: RolloutSettings
    seed: int
    """Seed of the run."""
