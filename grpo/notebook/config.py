"""Flat training config for notebooks, from which the pipeline's settings are made."""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from grpo.config.base import Settings
from grpo.config.rollout import RolloutSettings
from grpo.config.training import AlgorithmName, LoraSettings, TrainingSettings
from grpo.errors import ConfigError

_IMPORTANCE_CAP = 2.0
"""Cap of importance weights, which correct for the learner's half-precision log-probabilities."""


class TrainingProfile(StrEnum):
    """Step sizes and regularization of the updates."""

    CONSERVATIVE = "conservative"
    """Small steps, a narrow clip range and a KL penalty: for a policy in production."""
    BALANCED = "balanced"
    AGGRESSIVE = "aggressive"
    """Large steps and a wide clip range: fast, and may diverge."""
    EXPERIMENTAL = "experimental"
    """Token-level loss and higher upper clip of DAPO, with an entropy bonus: for research."""


class TrainingConfig(Settings):
    """Settings of a training in memory, by the names of TRL and Hugging Face."""

    num_episodes: int = Field(default=1000, ge=2)
    """Episodes in all; the last iteration is complete."""
    num_epochs: int = Field(default=1, ge=1)
    """Epochs on each rollout."""
    num_generations: int = Field(default=8, ge=2)
    """Episodes of each scenario: the group that an advantage is relative to."""
    per_device_train_batch_size: int = Field(default=1, ge=1)
    """Groups in one forward pass."""
    gradient_accumulation_steps: int = Field(default=4, ge=1)
    """Forward passes of one optimizer step, and of one iteration."""
    algorithm: AlgorithmName = "grpo"
    engine: Literal["learner", "trl"] = "learner"
    """Training engine: this package's learner, or TRL's GRPOTrainer."""
    learning_rate: float = Field(default=1e-4, ge=0)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.99, ge=0, lt=1)
    max_grad_norm: float = Field(default=1.0, gt=0)
    warmup_ratio: float = Field(default=0.0, ge=0, lt=1)
    """Share of the optimizer steps over which the learning rate rises."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    beta: float = Field(default=0.0, ge=0)
    """Coefficient of the KL penalty to the base policy."""
    clip_low: float | None = Field(default=None, gt=0)
    clip_high: float | None = Field(default=None, gt=0)
    """The importance ratio is clipped to [1 - clip_low, 1 + clip_high]; by default the algorithm's own."""
    baseline_type: Literal["group_mean", "group_median", "leave_one_out", "global_mean"] | None = None
    """Baseline of the advantage; by default the algorithm's own."""
    advantage_normalization: bool | None = None
    """Division of advantages by the group's standard deviation; by default the algorithm's own."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Coefficient of the entropy bonus."""
    reward_clip: float | None = Field(default=None, gt=0)
    """Rewards are clipped to [-reward_clip, reward_clip]."""
    max_prompt_length: int = Field(default=512, ge=8)
    max_completion_length: int = Field(default=512, ge=8)
    """Most tokens of an episode are the sum of both."""
    max_new_tokens: int = Field(default=64, ge=1)
    """Most tokens of a turn in training rollouts."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of training rollouts."""
    concurrency: int = Field(default=64, ge=1)
    """Concurrent episodes."""
    lora: LoraSettings | None = None
    """LoRA adapters are trained instead of all weights."""
    bf16: bool = False
    fp16: bool = False
    """Precision of the training passes; float32 without either."""
    gradient_checkpointing: bool = False
    eval_steps: int | None = Field(default=None, ge=1)
    """Iterations between evaluations on the held-out scenarios; None evaluates at the end alone."""
    save_steps: int | None = Field(default=None, ge=1)
    """Iterations between kept checkpoints; None keeps the last alone."""
    logging_steps: int = Field(default=1, ge=1)
    """Iterations between log lines."""
    report_to: Literal["none", "wandb"] = "none"
    wandb_project: str | None = None
    seed: int = Field(default=0, ge=0)

    @classmethod
    def from_profile(cls, profile: TrainingProfile | str, **overrides: Any) -> TrainingConfig:
        """Settings of a profile, with overrides; raises `ConfigError` for an unknown profile."""
        try:
            chosen = _PROFILES[TrainingProfile(profile)]
        except ValueError as error:
            raise ConfigError(f"unknown profile {profile!r}; choose from {', '.join(TrainingProfile)}") from error
        return cls(**{**chosen, **overrides})

    @property
    def groups(self) -> int:
        """Groups of an iteration, which are one optimizer step."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def iterations(self) -> int:
        """Iterations of rollout, scoring and update that have `num_episodes`."""
        return math.ceil(self.num_episodes / (self.groups * self.num_generations))

    def training_settings(self) -> TrainingSettings:
        """Settings of the learner."""
        half = "bf16" if self.bf16 else "fp16" if self.fp16 else "fp32"
        return TrainingSettings(
            algorithm=self.algorithm,
            engine=self.engine,
            iterations=self.iterations,
            epochs=self.num_epochs,
            learning_rate=self.learning_rate,
            adam_beta1=self.adam_beta1,
            adam_beta2=self.adam_beta2,
            max_grad_norm=self.max_grad_norm,
            warmup_steps=math.ceil(self.warmup_ratio * self.iterations * self.num_epochs),
            lr_scheduler_type=self.lr_scheduler_type,
            beta=self.beta,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            baseline=self.baseline_type,
            scale_by_std=self.advantage_normalization,
            entropy_coefficient=self.entropy_coef,
            reward_clip=self.reward_clip,
            microbatch_tokens=max(64, self.per_device_train_batch_size * self.num_generations * self._tokens),
            lora=self.lora,
            precision=half,
            importance_sampling_cap=None if half == "fp32" else _IMPORTANCE_CAP,
            gradient_checkpointing=self.gradient_checkpointing,
        )

    def rollout_settings(self) -> RolloutSettings:
        """Settings of the rollout."""
        return RolloutSettings(
            scenarios=self.groups,
            group_size=self.num_generations,
            temperature=self.temperature,
            max_new_tokens=self.max_new_tokens,
            max_context=max(16, self._tokens),
            concurrency=self.concurrency,
            on_truncation="continue",
        )

    @property
    def _tokens(self) -> int:
        return self.max_prompt_length + self.max_completion_length

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if self.bf16 and self.fp16:
            raise ValueError("bf16 and fp16 exclude each other; set one")
        if self.wandb_project is not None and self.report_to != "wandb":
            raise ValueError(
                "wandb_project has no effect without report_to: wandb; set report_to, or leave wandb_project out"
            )
        try:
            self.training_settings()
        except ValidationError as error:
            raise ValueError("; ".join(str(part["msg"]) for part in error.errors())) from error
        return self


_PROFILES: dict[TrainingProfile, dict[str, Any]] = {
    TrainingProfile.CONSERVATIVE: {
        "learning_rate": 2e-5,
        "clip_low": 0.1,
        "clip_high": 0.1,
        "beta": 0.05,
        "max_grad_norm": 0.5,
        "warmup_ratio": 0.1,
        "lr_scheduler_type": "cosine",
    },
    TrainingProfile.BALANCED: {"learning_rate": 1e-4, "warmup_ratio": 0.05, "lr_scheduler_type": "cosine"},
    TrainingProfile.AGGRESSIVE: {"learning_rate": 5e-4, "clip_low": 0.2, "clip_high": 0.3},
    TrainingProfile.EXPERIMENTAL: {"algorithm": "dapo", "learning_rate": 3e-4, "entropy_coef": 0.001},
}

_TASKS: dict[str, dict[str, Any]] = {
    # short replies, and customers must not notice the training: small groups and a KL penalty
    "customer_service": {"beta": 0.02, "max_new_tokens": 96, "num_generations": 8},
    # long steps of a repair, and few successful samples: longer turns and larger groups
    "technical_support": {"max_new_tokens": 192, "max_completion_length": 1024, "num_generations": 12},
    # many ways to a sale: more entropy, so that the policy keeps several
    "sales": {"entropy_coef": 0.001, "temperature": 1.1, "num_generations": 12},
}


def get_config_for_task(task: str, *, model_name: str, **overrides: Any) -> TrainingConfig:
    """Settings for a task; models of at least 1 B parameters, by their name, are trained with LoRA adapters.

    Raises `ConfigError` for a task other than customer_service, technical_support and sales.
    """
    if task not in _TASKS:
        raise ConfigError(f"unknown task {task!r}; choose from {', '.join(_TASKS)}")
    size: dict[str, Any] = {} if _billions(model_name) < 1 else {"lora": LoraSettings(), "gradient_checkpointing": True}
    return TrainingConfig.from_profile(TrainingProfile.BALANCED, **{**_TASKS[task], **size, **overrides})


def _billions(model_name: str) -> float:
    """Parameters in billions in a name such as `llama-7b` or `Qwen3-0.6B`; 0 without a number."""
    numbers = re.findall(r"(\d+(?:\.\d+)?)\s*b(?![a-z])", model_name.casefold())
    return max(map(float, numbers), default=0.0)
