"""Metrics of an update, and of a policy on preference pairs."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class UpdateMetrics(BaseModel):
    """Metrics of one update: means over its completion tokens, or over its optimizer steps for metrics of a step.

    Metrics that an optimizer step measures are None if the update was skipped.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    informative_share: float = 0.0
    """Share of groups with an advantage other than 0."""
    kl_to_base: float
    """KL(sampler ‖ base), nats per token."""
    entropy: float
    """Nats per token."""
    clip_share: float | None = None
    """Share of tokens with a clipped importance ratio."""
    ratio: float | None = None
    """Mean importance ratio."""
    gradient_norm: float | None = None
    learning_rate: float | None = None
    loss: float | None = None
    """Near 0 on-policy, because the advantages of a group sum to 0."""
    tokens: int = 0
    """Tokens under the loss."""
    clipped_rewards: int = 0
    """Rewards beyond `training.reward_clip`."""
    mismatch_kl: float | None = None
    """KL(sampler ‖ policy) before the first step, nats per token. Measured only with an importance_sampling_cap."""
    masked_share: float | None = None
    """Share of tokens in sequences that `training.importance_sampling_mask` excluded."""
    teacher_kl: float | None = None
    """KL(policy ‖ teacher) over the whole vocabulary, nats per token that has a teacher. None without distillation."""
    taught_share: float | None = None
    """Share of the tokens under the loss that have a teacher, because their scenario has the hint."""
    step_kl: float | None = None
    """KL(policy before ‖ after) of a trust-region step."""
    margin: float | None = None
    """DPO: mean reward margin of pairs, beta times the difference of their log-ratios."""
    value_loss: float | None = None
    """Loss of the critic after its fit to this rollout."""
    tokens_per_s: float | None = None
    """Tokens of training passes per second. Shared prefixes count once."""
    mfu: float | None = None
    """Model FLOPs utilization. None if the accelerator's peak is unknown."""


class PreferenceMetrics(BaseModel):
    """Metrics of a policy on preference pairs, against the reference policy of DPO."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    loss: float
    """DPO's loss, nats per pair."""
    margin: float
    """Mean difference of the implicit rewards of chosen and rejected reply."""
    reward_accuracy: float
    """Share of pairs in which the chosen reply has the higher implicit reward. Ties count half."""
    ranking_accuracy: float
    """Share of pairs in which the chosen reply is the likelier one."""
