"""One flat config for training in a notebook, in the words of the guide; the pipeline's settings are made from it."""

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
"""In half precision the learner's log-probabilities differ from the sampler's; weights up to this make up for it."""


class TrainingProfile(StrEnum):
    """How much an update may change."""

    CONSERVATIVE = "conservative"
    """Small steps, tight clip, held to the base: for a policy that is in service."""
    BALANCED = "balanced"
    AGGRESSIVE = "aggressive"
    """Large steps and a wide clip: quick, and may fall over."""
    EXPERIMENTAL = "experimental"
    """Loss by token and the higher clip of DAPO, entropy bonus: for research."""


class TrainingConfig(Settings):
    """How an agent is trained in memory: so many episodes, in groups of siblings that are compared."""

    num_episodes: int = Field(default=1000, ge=2)
    """Episodes that are played in all; the last iteration is played whole."""
    num_epochs: int = Field(default=1, ge=1)
    """How often each rollout is gone through."""
    num_generations: int = Field(default=8, ge=2)
    """Sibling episodes of each scenario: the group that an advantage is relative to."""
    per_device_train_batch_size: int = Field(default=1, ge=1)
    """Groups that are passed through the model together."""
    gradient_accumulation_steps: int = Field(default=4, ge=1)
    """Times so many groups make one optimizer step, and one iteration."""
    algorithm: AlgorithmName = "grpo"
    engine: Literal["learner", "trl"] = "learner"
    """Who takes the steps: this package's learner, or TRL's GRPOTrainer."""
    learning_rate: float = Field(default=1e-4, ge=0)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.99, ge=0, lt=1)
    max_grad_norm: float = Field(default=1.0, gt=0)
    warmup_ratio: float = Field(default=0.0, ge=0, lt=1)
    """Share of the optimizer steps over which the learning rate rises."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence to the policy that training started from."""
    clip_low: float | None = Field(default=None, gt=0)
    clip_high: float | None = Field(default=None, gt=0)
    """The importance ratio is clipped to [1 - clip_low, 1 + clip_high]; by default as the algorithm does."""
    baseline_type: Literal["group_mean", "group_median", "leave_one_out", "global_mean"] | None = None
    """What a reward is compared with; by default the algorithm's own."""
    advantage_normalization: bool | None = None
    """Divide by the group's standard deviation; by default as the algorithm does."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    reward_clip: float | None = Field(default=None, gt=0)
    """Rewards are cut to [-reward_clip, reward_clip]."""
    max_prompt_length: int = Field(default=512, ge=8)
    max_completion_length: int = Field(default=512, ge=8)
    """Tokens of an episode: at most both together."""
    max_new_tokens: int = Field(default=64, ge=1)
    """Most tokens in one turn of the agent while it is trained."""
    temperature: float = Field(default=1.0, gt=0)
    """Of the episodes that are trained on."""
    concurrency: int = Field(default=64, ge=1)
    """Episodes in flight at once."""
    lora: LoraSettings | None = None
    """Train adapters instead of all weights."""
    bf16: bool = False
    fp16: bool = False
    """Numbers of the training passes; neither is float32."""
    gradient_checkpointing: bool = False
    eval_steps: int | None = Field(default=None, ge=1)
    """Iterations between looks at the held-out scenarios; none looks only at the end."""
    save_steps: int | None = Field(default=None, ge=1)
    """Iterations between checkpoints that are kept; none keeps the last alone."""
    logging_steps: int = Field(default=1, ge=1)
    """Iterations between log lines."""
    report_to: Literal["none", "wandb"] = "none"
    wandb_project: str | None = None
    seed: int = Field(default=0, ge=0)

    @classmethod
    def from_profile(cls, profile: TrainingProfile | str, **changes: Any) -> TrainingConfig:
        """The settings of a profile, with changes; raises `ConfigError` for a name that is none."""
        try:
            chosen = _PROFILES[TrainingProfile(profile)]
        except ValueError as error:
            raise ConfigError(f"no profile {profile!r}; there are {', '.join(TrainingProfile)}") from error
        return cls(**{**chosen, **changes})

    @property
    def groups(self) -> int:
        """Groups in an iteration, which one optimizer step learns from."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def iterations(self) -> int:
        """Rounds of rollout, score and train that play `num_episodes`."""
        return math.ceil(self.num_episodes / (self.groups * self.num_generations))

    def training(self) -> TrainingSettings:
        """What the learner reads of this."""
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

    def rollout(self) -> RolloutSettings:
        """What the rollout reads of this."""
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
            raise ValueError("wandb_project is not read without report_to: wandb; set it or leave the project out")
        try:
            self.training()
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
    # replies are short and a customer in service must not notice the training: small groups, held to the base
    "customer_service": {"beta": 0.02, "max_new_tokens": 96, "num_generations": 8},
    # steps of a repair are long, and only few of many tries help: longer turns, larger groups
    "technical_support": {"max_new_tokens": 192, "max_completion_length": 1024, "num_generations": 12},
    # there are many ways to a sale: more entropy, so that the policy does not settle on one pitch
    "sales": {"entropy_coef": 0.001, "temperature": 1.1, "num_generations": 12},
}


def get_config_for_task(task: str, *, model_name: str, **changes: Any) -> TrainingConfig:
    """Settings for a kind of work; of a model that is known to be large by its name, adapters are trained.

    Raises `ConfigError` for a task that is none of customer_service, technical_support and sales.
    """
    if task not in _TASKS:
        raise ConfigError(f"no settings for task {task!r}; there are {', '.join(_TASKS)}")
    billions = _billions(model_name)
    size: dict[str, Any] = {} if billions < 1 else {"lora": LoraSettings(), "gradient_checkpointing": True}
    return TrainingConfig.from_profile(TrainingProfile.BALANCED, **{**_TASKS[task], **size, **changes})


def _billions(model_name: str) -> float:
    """Parameters in billions that a name such as `llama-7b` or `Qwen3-0.6B` tells; 0 where it tells none."""
    found = re.findall(r"(\d+(?:\.\d+)?)\s*b(?![a-z])", model_name.casefold())
    return max(map(float, found), default=0.0)
