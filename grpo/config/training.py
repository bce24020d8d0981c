"""How the policy is updated."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from grpo.config.base import Settings

AlgorithmName = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce"]


class TrainingSettings(Settings):
    """The policy update. What is not set here is as the algorithm's paper has it."""

    algorithm: AlgorithmName = "grpo"
    """How siblings are compared, what a token costs and what it weighs."""
    baseline: Literal["group_mean", "group_median", "leave_one_out", "global_mean"] | None = None
    """What a reward is compared with; by default the algorithm's own."""
    scale_by_std: bool | None = None
    """Divide the compared reward by the group's standard deviation; by default as the algorithm does."""
    credit: Literal["trajectory", "turn"] = "trajectory"
    """Whether all turns of an episode share its advantage, or each turn has one from its own return."""
    reward_clip: float | None = Field(default=None, gt=0)
    """Rewards are cut to [-reward_clip, reward_clip]."""
    normalize_rewards: bool = False
    """Divide the rewards of an iteration by their standard deviation, before they are compared."""
    overlong_limit: int | None = Field(default=None, ge=1)
    """Tokens that the policy may say in an episode before 1 is taken off its reward; none takes nothing off."""
    overlong_margin: int = Field(default=64, ge=1)
    """Tokens before that limit over which the penalty grows."""
    iterations: int = Field(default=20, ge=1)
    """Rounds of rollout, score and train."""
    learning_rate: float = Field(default=1e-4, ge=0)
    warmup_steps: int = Field(default=0, ge=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls over the iterations of the run."""
    groups_per_step: int | None = Field(default=None, ge=1)
    """Groups in which siblings differ that one optimizer step learns from; none takes all of a rollout in one step."""
    epochs: int = Field(default=1, ge=1)
    """How often each rollout is gone through."""
    clip_low: float | None = Field(default=None, gt=0)
    clip_high: float | None = Field(default=None, gt=0)
    """The importance ratio is clipped to [1 - clip_low, 1 + clip_high]; for cispo clip_high is the cap itself."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Largest ratio that a bad token is blamed with."""
    importance_cap: float | None = Field(default=None, ge=1)
    """Weigh a token by how much likelier the policy finds it than the sampler did, at most this; none: they are one."""
    entropy_share: float = Field(default=1.0, gt=0, le=1)
    """Learn only from this share of the tokens, those of highest entropy."""
    length_normalizer: int = Field(default=256, ge=1)
    """Constant that dr_grpo divides a sequence's sum by."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence to the base policy."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    weight_decay: float = Field(default=0.0, ge=0)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.99, ge=0, lt=1)
    max_grad_norm: float = Field(default=1.0, gt=0)
    microbatch_tokens: int = Field(default=16384, ge=64)
    """Most tokens in one forward pass, those that sequences share counted once."""
    ratio_tolerance: float = Field(default=1e-5, gt=0)
    """How far the importance ratio may be from 1 before the first step, on average over the tokens of a row."""

    @model_validator(mode="after")
    def _clips_are_read(self) -> TrainingSettings:
        unread = {
            "cispo": ("clip_low", "dual_clip"),
            "rloo": ("clip_low", "clip_high", "dual_clip"),
            "reinforce": ("clip_low", "clip_high", "dual_clip"),
        }.get(self.algorithm, ())
        for name in unread:
            if getattr(self, name) is not None:
                raise ValueError(f"{name} is not read by {self.algorithm}, which does not clip so; leave it out")
        return self
