"""Metrics of an update."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class UpdateMetrics(BaseModel):
    """Metrics of one update; means are over the completion tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    informative_share: float = 0.0
    kl_to_base: float
    entropy: float
    clip_share: float = 0.0
    ratio: float = 1.0
    gradient_norm: float = 0.0
    learning_rate: float = 0.0
    loss: float = 0.0
    tokens: int = 0
    clipped_rewards: int = 0
    """Rewards beyond `reward_clip`."""
    mismatch_kl: float = 0.0
    """KL(sampler ‖ policy) before the first step, measured with an importance_sampling_cap."""
    step_kl: float | None = None
    """KL(old ‖ new) of a trust-region step."""
    margin: float | None = None
    """DPO: mean reward margin of pairs, beta times the difference of their log-ratios."""
    value_loss: float | None = None
    """Loss of the critic after its fit to this rollout."""
    tokens_per_s: float = 0.0
    """Tokens of training passes a second, shared prefixes once."""
    mfu: float | None = None
    """Model FLOPs utilization; None where the accelerator's peak is unknown."""
