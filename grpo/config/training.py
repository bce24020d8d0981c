"""How the policy is updated."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from grpo.config.base import Settings


class TrainingSettings(Settings):
    """The GRPO update."""

    iterations: int = Field(default=20, ge=1)
    """Rounds of rollout, score and train."""
    learning_rate: float = Field(default=1e-4, ge=0)
    warmup_steps: int = Field(default=0, ge=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls over all steps of the run."""
    steps_per_rollout: int = Field(default=1, ge=1)
    """Optimizer steps on each rollout: its groups are dealt into this many batches."""
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.2, gt=0)
    """The importance ratio is clipped to [1 - clip_low, 1 + clip_high]."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence to the base policy."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    scale_by_std: bool = True
    """Divide the group-relative reward by the group's standard deviation."""
    weight_decay: float = Field(default=0.0, ge=0)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.99, ge=0, lt=1)
    max_grad_norm: float = Field(default=1.0, gt=0)
    microbatch_tokens: int = Field(default=16384, ge=64)
    """Most tokens, padding included, in one forward pass."""
    ratio_tolerance: float = Field(default=1e-5, gt=0)
    """How far the importance ratio may be from 1 before the first step, on average over the tokens of a row."""
