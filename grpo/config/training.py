"""How the policy is updated."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from grpo.config.adapters import LoraSettings
from grpo.config.base import Settings
from grpo.config.critic import CriticSettings
from grpo.config.trust_region import TrustRegionSettings

AlgorithmName = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce", "ppo", "a2c", "trpo", "dpo"]
_CLIPS = ("clip_low", "clip_high", "dual_clip")
_STEPS = (
    "learning_rate",
    "warmup_steps",
    "lr_scheduler_type",
    "weight_decay",
    "max_grad_norm",
    "adam_beta1",
    "adam_beta2",
)
_SEVERAL = ("groups_per_step", "epochs")  # without a ratio only the first step on a rollout is unbiased
_RATIO = ("ratio_tolerance", "importance_sampling_cap", "top_entropy_quantile", "entropy_coefficient")
UNREAD: dict[str, tuple[str, ...]] = {
    "cispo": ("clip_low", "dual_clip"),
    "rloo": (*_CLIPS, *_SEVERAL),
    "reinforce": (*_CLIPS, *_SEVERAL),
    "ppo": ("baseline", "credit_assignment"),
    "a2c": ("baseline", "credit_assignment", *_CLIPS, *_SEVERAL),
    "trpo": (*_CLIPS, *_STEPS, "top_entropy_quantile", "precision"),
    "dpo": ("baseline", "scale_by_std", "credit_assignment", "reward_clip", "normalize_rewards", "overlong_limit", *_CLIPS,
            *_RATIO, "lora", "precision", "gradient_checkpointing"),
}  # fmt: skip
"""Settings that an algorithm has no use for: changed all the same, they are refused."""
TRL_ALGORITHMS = ("grpo", "dr_grpo", "dapo", "gspo", "cispo")
TRL_READS = frozenset((
    "engine", "algorithm", "scale_by_std", "iterations", "learning_rate", "warmup_steps", "lr_scheduler_type", "epochs",
    "clip_low", "clip_high", "dual_clip", "importance_sampling_cap", "max_mismatch_kl", "top_entropy_quantile", "length_normalizer",
    "beta", "entropy_coefficient", "weight_decay", "adam_beta1", "adam_beta2", "max_grad_norm", "microbatch_tokens",
    "ratio_tolerance",
))  # fmt: skip
"""Settings that TRL's GRPOTrainer obeys, or its caller; any other is refused with it."""


class TrainingSettings(Settings):
    """The policy update. What is not set here is as the algorithm's paper has it."""

    algorithm: AlgorithmName = "grpo"
    """How siblings are compared, what a token costs and what it weighs."""
    engine: Literal["learner", "trl"] = "learner"
    """Who takes the steps: this package's learner, or TRL's GRPOTrainer from the same Parquet."""
    baseline: Literal["group_mean", "group_median", "leave_one_out", "global_mean"] | None = None
    """What a reward is compared with; by default the algorithm's own."""
    scale_by_std: bool | None = None
    """Divide the compared reward by the group's standard deviation; by default as the algorithm does."""
    credit_assignment: Literal["trajectory", "turn"] = "trajectory"
    """Whether all turns of an episode share its advantage, or each turn has one from its own return."""
    reward_clip: float | None = Field(default=None, gt=0)
    """Rewards are cut to [-reward_clip, reward_clip]."""
    normalize_rewards: bool = False
    """Divide the rewards of an iteration by their standard deviation, before they are compared."""
    overlong_limit: int | None = Field(default=None, ge=1)
    """Tokens that the policy may say in an episode before 1 is taken off its reward; none takes nothing off."""
    overlong_buffer: int = Field(default=64, ge=1)
    """Tokens before that limit over which the penalty grows."""
    iterations: int = Field(default=20, ge=1)
    """Rounds of rollout, score and train."""
    learning_rate: float = Field(default=1e-4, ge=0)
    """AdamW's learning rate after the warm-up; 0 ends the run, for it has no effect."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps over which the learning rate rises from 0."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls over the iterations of the run."""
    groups_per_step: int | None = Field(default=None, ge=1)
    """Groups in which siblings differ that one optimizer step learns from; none takes all of a rollout in one step."""
    epochs: int = Field(default=1, ge=1)
    """How often each rollout is gone through."""
    clip_low: float | None = Field(default=None, gt=0)
    """How far below 1 the importance ratio may fall; by default what the algorithm was published with."""
    clip_high: float | None = Field(default=None, gt=0)
    """The importance ratio is clipped to [1 - clip_low, 1 + clip_high]; for cispo clip_high is the cap itself."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Largest ratio that a bad token is blamed with."""
    importance_sampling_cap: float | None = Field(default=None, ge=1)
    """Weigh a token by how much likelier the policy finds it than the sampler did, at most this; none: they are one."""
    max_mismatch_kl: float = Field(default=0.01, gt=0)
    """Most KL(sampler ‖ policy), nats a token, that an importance_sampling_cap may make up for; beyond it the run stops."""
    top_entropy_quantile: float = Field(default=1.0, gt=0, le=1)
    """Learn only from this share of the tokens, those of highest entropy."""
    length_normalizer: int = Field(default=256, ge=1)
    """Constant that dr_grpo divides a sequence's sum by."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence to the base policy; for dpo how sharply pairs are told apart."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's weight decay."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's memory of gradients."""
    adam_beta2: float = Field(default=0.99, ge=0, lt=1)
    """AdamW's memory of their squares."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients of a larger norm are scaled down to it."""
    microbatch_tokens: int = Field(default=16384, ge=64)
    """Most tokens in one forward pass, those that sequences share counted once."""
    ratio_tolerance: float = Field(default=1e-5, gt=0)
    """How far the importance ratio may be from 1 before the first step, on average over the tokens of a row."""
    critic: CriticSettings = CriticSettings()
    """What ppo and a2c compare rewards with."""
    trust_region: TrustRegionSettings = TrustRegionSettings()
    """The step of trpo."""
    lora: LoraSettings | None = None
    """Train adapters instead of all weights."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of the matrices in a training pass; weights, log-probabilities and losses stay in float32."""
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them."""
    processes: int = Field(default=1, ge=1)
    """Processes that share a step, each with its part of the batch."""
    sharding: Literal["replicated", "sharded"] = "replicated"
    """Whether each process holds all weights (DDP) or its share of them (FSDP)."""
    update_timeout_s: float = Field(default=14400.0, gt=0)
    """Several processes that take longer for an update are ended, and the stage is tried again."""

    @model_validator(mode="after")
    def _settings_are_read(self) -> Self:
        """A setting that does nothing would look as if it did."""
        unread = set(UNREAD.get(self.algorithm, ()))
        if self.algorithm not in ("ppo", "a2c"):
            unread.add("critic")
        if self.algorithm != "trpo":
            unread.add("trust_region")
        if self.algorithm != "dr_grpo":
            unread.add("length_normalizer")
        unread.add("max_mismatch_kl" if self.importance_sampling_cap is None else "ratio_tolerance")
        if self.overlong_limit is None:
            unread.add("overlong_buffer")
        if self.processes == 1:
            unread.add("update_timeout_s")
        reader = f"{self.algorithm} with these settings"
        if self.engine == "trl":
            if self.algorithm not in TRL_ALGORITHMS:
                raise ValueError(f"engine trl has no {self.algorithm}, only {', '.join(TRL_ALGORITHMS)}")
            reader = "engine trl"
            unread |= set(type(self).model_fields) - TRL_READS
        for name in sorted(unread):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is not read by {reader}; leave it out")
        return self

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if self.credit_assignment == "turn" and "global_mean" in (
            self.baseline,
            {"reinforce": "global_mean"}.get(self.algorithm),
        ):
            raise ValueError(
                "credit_assignment: turn compares siblings turn by turn; set baseline to one within the group"
            )
        if self.algorithm == "dpo" and not self.beta:
            raise ValueError("dpo needs beta above 0, for example 0.1: how sharply pairs are told apart")
        if self.precision != "fp32" and self.importance_sampling_cap is None:
            raise ValueError(
                f"precision {self.precision} makes the learner's log-probabilities differ from the sampler's; "
                "set importance_sampling_cap, for example 2.0, which makes up for it"
            )
        if self.algorithm in ("trpo", "dpo") and self.processes > 1:
            raise ValueError(f"{self.algorithm} takes its steps in one process; set processes to 1")
        if self.algorithm in ("ppo", "a2c") and self.sharding == "sharded":
            raise ValueError(f"the critic of {self.algorithm} reads whole models; set sharding to replicated")
        if self.sharding == "sharded" and self.processes == 1:
            raise ValueError("sharding: sharded needs at least 2 processes")
        return self
