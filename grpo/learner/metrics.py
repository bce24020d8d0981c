"""Metrics of an update, and of a policy on preference pairs."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class UpdateMetrics(BaseModel):
    """Metrics of one update: means over its completion tokens, or over its optimizer steps for metrics of a step.

    Metrics that an optimizer step measures are None for a skipped update.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="constants")

    informative_share: float = 0.0
    """Share of groups with an advantage other than 0."""
    kl_to_base: float
    """KL(sampler ‖ base), nats a token."""
    entropy: float
    """Nats a token."""
    clip_share: float | None = None
    """Share of tokens whose importance ratio was clipped."""
    ratio: float | None = None
    """Mean importance ratio."""
    gradient_norm: float | None = None
    learning_rate: float | None = None
    loss: float | None = None
    """Near 0 on-policy: the advantages of a group sum to 0."""
    tokens: int = 0
    """Tokens under the loss."""
    clipped_rewards: int = 0
    """Rewards beyond `training.reward_clip`."""
    mismatch_kl: float | None = None
    """KL(sampler ‖ policy) before the first step, nats a token; measured with an importance_sampling_cap."""
    masked_share: float | None = None
    """Share of tokens in sequences that `training.importance_sampling_mask` excluded."""
    step_kl: float | None = None
    """KL(policy before ‖ after) of a trust-region step."""
    margin: float | None = None
    """DPO: mean reward margin of pairs, beta times the difference of their log-ratios."""
    value_loss: float | None = None
    """Loss of the critic after its fit to this rollout."""
    tokens_per_s: float | None = None
    """Tokens of training passes a second, shared prefixes once."""
    mfu: float | None = None
    """Model FLOPs utilization; None where the accelerator's peak is unknown."""


class PreferenceMetrics(BaseModel):
    """Metrics of a policy on preference pairs, against the reference policy of DPO."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    loss: float
    """DPO's loss, nats a pair."""
    margin: float
    """Mean of the implicit reward of the chosen reply minus that of the rejected one."""
    reward_accuracy: float
    """Share of pairs whose chosen reply has the higher implicit reward, ties as half."""
    ranking_accuracy: float
    """Share of pairs whose chosen reply is the likelier one."""
