"""Flat training config for notebooks: the pipeline's settings of training and episodes, in one class."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator

from grpo.config.base import Settings
from grpo.config.loading import describe_errors
from grpo.config.rollout import EpisodeSettings
from grpo.config.training import LoraSettings, TrainingSettings
from grpo.errors import ConfigError

_IMPORTANCE_CAP = 2.0
"""Cap of the importance weights that correct the learner's half-precision log-probabilities, with bf16 and fp16."""

OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "num_generations": ("group_size",),
    "num_epochs": ("epochs",),
    "num_outer_iterations": ("iterations",),
    "kl_penalty": ("beta",),
    "clip_ratio": ("clip_low", "clip_high"),
    "clip_range_left": ("clip_low",),
    "clip_range_right": ("clip_high",),
    "entropy_coef": ("entropy_coefficient",),
    "baseline_type": ("baseline",),
    "advantage_normalization": ("scale_by_std",),
    "num_episodes": ("iterations",),
    "per_device_train_batch_size": ("scenarios", "microbatch_tokens"),
    "gradient_accumulation_steps": ("scenarios",),
    "warmup_ratio": ("warmup_steps",),
    "max_prompt_length": ("max_context",),
    "max_completion_length": ("max_context",),
    "bf16": ("precision",),
    "fp16": ("precision",),
}
"""Names of the same settings in TRL, Hugging Face's Trainer and other frameworks, and the fields that they set."""


class TrainingProfile(StrEnum):
    """Step sizes and regularization of the updates."""

    CONSERVATIVE = "conservative"
    """Small steps, a narrow clip range and a KL penalty: for a policy in production."""
    BALANCED = "balanced"
    AGGRESSIVE = "aggressive"
    """Large steps and a wide clip range: fast, but it may diverge."""
    EXPERIMENTAL = "experimental"
    """DAPO's token-level loss and higher upper clip range, with an entropy bonus: for research."""


class _Units(Settings):
    """Settings of other frameworks that are in other units than the settings of this package."""

    num_episodes: int = Field(default=2, ge=2)
    """Episodes in all, rounded up so that the last iteration is complete."""
    per_device_train_batch_size: int = Field(default=1, ge=1)
    """Groups per forward pass."""
    gradient_accumulation_steps: int = Field(default=4, ge=1)
    """Forward passes per optimizer step, and per iteration."""
    warmup_ratio: float = Field(default=0.0, ge=0, lt=1)
    """Share of the optimizer steps over which the learning rate rises."""
    max_prompt_length: int = Field(default=512, ge=8)
    max_completion_length: int = Field(default=512, ge=8)
    """An episode may have as many tokens as the sum of both."""
    bf16: bool = False
    fp16: bool = False
    """Precision of the training passes. If neither is set, it is float32."""

    @model_validator(mode="after")
    def _one_precision(self) -> Self:
        if self.bf16 and self.fp16:
            raise ValueError("bf16 and fp16 exclude each other. Set one")
        return self

    def convert(self, config: TrainingConfig) -> dict[str, Any]:
        """Fields that the given settings set, computed with the other fields of `config`."""
        fields: dict[str, Any] = {}
        given = self.model_fields_set
        if given & {"per_device_train_batch_size", "gradient_accumulation_steps"}:
            fields["scenarios"] = self.per_device_train_batch_size * self.gradient_accumulation_steps
        if given & {"max_prompt_length", "max_completion_length"}:
            fields["max_context"] = self.max_prompt_length + self.max_completion_length
        if "per_device_train_batch_size" in given:
            tokens = (
                self.per_device_train_batch_size * config.group_size * fields.get("max_context", config.max_context)
            )
            fields["microbatch_tokens"] = max(64, tokens)
        if "num_episodes" in given:
            episodes = fields.get("scenarios", config.scenarios) * config.group_size
            fields["iterations"] = math.ceil(self.num_episodes / episodes)
        if "warmup_ratio" in given:
            steps = fields.get("iterations", config.iterations) * config.epochs * (config.num_mini_batches or 1)
            fields["warmup_steps"] = math.ceil(self.warmup_ratio * steps)
        if self.bf16 or self.fp16:
            fields["precision"] = "bf16" if self.bf16 else "fp16"
            fields["importance_sampling_cap"] = config.importance_sampling_cap or _IMPORTANCE_CAP
        return fields


class TrainingConfig(TrainingSettings, EpisodeSettings):
    """Settings of a training in memory: the fields of `training` and of the episodes of `rollout`, in one class.

    The names in `OTHER_NAMES` also set these fields: `TrainingConfig(num_generations=4).group_size` is 4.
    """

    scenarios: int = Field(default=4, ge=1)
    """Scenarios per iteration. Fewer than in the pipeline, because a notebook has a short list of them."""
    on_truncation: Literal["end", "continue"] = "continue"
    """If a turn reaches max_new_tokens, end the episode as truncated, or go on with the turn as it is, so that a few
    tokens per turn are enough for a first try."""
    eval_steps: int | None = Field(default=None, ge=1)
    """Iterations between evaluations on the held-out scenarios. None evaluates only at the end."""
    save_steps: int | None = Field(default=None, ge=1)
    """Iterations between kept checkpoints. None keeps only the last."""
    logging_steps: int = Field(default=1, ge=1)
    """Iterations between log lines."""
    report_to: Literal["none", "tensorboard", "wandb", "mlflow"] = "none"
    """Tracking of the metrics, in addition to the log."""
    wandb_project: str | None = None
    """Project of Weights & Biases."""
    seed: int = Field(default=0, ge=0)
    """Seed of all random numbers of the training."""

    @classmethod
    def from_profile(cls, profile: TrainingProfile | str, **overrides: Any) -> TrainingConfig:
        """Settings of a profile, with overrides. Raises `ConfigError` for an unknown profile."""
        try:
            chosen = _PROFILES[TrainingProfile(profile)]
        except ValueError as error:
            raise ConfigError(f"unknown profile {profile!r}. Choose from {', '.join(TrainingProfile)}") from error
        return cls(**_overridden(chosen, overrides))

    @model_validator(mode="wrap")
    @classmethod
    def _read_other_names(cls, document: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(document, Mapping) or not document.keys() & OTHER_NAMES.keys():
            return validate(document)
        own = {name: value for name, value in document.items() if name not in OTHER_NAMES}
        units = {name: document[name] for name in _Units.model_fields if name in document}
        for name, fields in OTHER_NAMES.items():
            if name in document and own.keys() & fields:
                raise ValueError(
                    f"{name} sets {' and '.join(fields)}, which another setting sets as well. Leave one of the two out"
                )
            if name in document and name not in units:
                own |= dict.fromkeys(fields, document[name])
        try:
            converted = _Units.model_validate(units)
        except ValidationError as error:
            raise ValueError("; ".join(describe_errors(error, _Units, units))) from error
        return validate({**own, **converted.convert(validate(own))})

    @model_validator(mode="after")
    def _a_project_has_its_reporter(self) -> Self:
        if self.wandb_project is not None and self.report_to != "wandb":
            raise ValueError(
                "wandb_project has no effect if report_to is not wandb. Set report_to, or leave wandb_project out"
            )
        return self


def _overridden(settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the overrides. A setting is left out if an override sets the same field by another name."""
    replaced = {field for name in overrides for field in OTHER_NAMES.get(name, (name,))}
    return {**{name: value for name, value in settings.items() if name not in replaced}, **overrides}


_PROFILES: dict[TrainingProfile, dict[str, Any]] = {
    TrainingProfile.CONSERVATIVE: {
        "learning_rate": 2e-5,
        "clip_low": 0.1,
        "clip_high": 0.1,
        "beta": 0.05,
        "max_grad_norm": 0.5,
        "warmup_steps": 4,
        "lr_scheduler_type": "cosine",
    },
    TrainingProfile.BALANCED: {"learning_rate": 1e-4, "warmup_steps": 2, "lr_scheduler_type": "cosine"},
    TrainingProfile.AGGRESSIVE: {"learning_rate": 5e-4, "clip_low": 0.2, "clip_high": 0.3},
    TrainingProfile.EXPERIMENTAL: {"algorithm": "dapo", "learning_rate": 3e-4, "entropy_coefficient": 0.001},
}

_TASKS: dict[str, dict[str, Any]] = {
    # short replies, and customers must not notice the training: small groups and a KL penalty
    "customer_service": {"beta": 0.02, "max_new_tokens": 96, "group_size": 8},
    # long steps of a repair, and few successful samples: longer turns and larger groups
    "technical_support": {"max_new_tokens": 192, "max_context": 1536, "group_size": 12},
    # many ways to a sale: more entropy, so that the policy keeps several
    "sales": {"entropy_coefficient": 0.001, "temperature": 1.1, "group_size": 12},
}


def get_config_for_task(task: str, *, model_name: str, **overrides: Any) -> TrainingConfig:
    """Settings for a task. A model with at least 1 B parameters, by its name, is trained with LoRA adapters.

    Raises `ConfigError` for a task other than customer_service, technical_support and sales.
    """
    if task not in _TASKS:
        raise ConfigError(f"unknown task {task!r}. Choose from {', '.join(_TASKS)}")
    size: dict[str, Any] = {} if _billions(model_name) < 1 else {"lora": LoraSettings(), "gradient_checkpointing": True}
    chosen = _overridden({**_TASKS[task], **size}, overrides)
    return TrainingConfig.from_profile(TrainingProfile.BALANCED, **chosen)


def _billions(model_name: str) -> float:
    """Parameters in billions in a name such as `llama-7b` or `Qwen3-0.6B`, or 0 if the name has no such number."""
    numbers = re.findall(r"(\d+(?:\.\d+)?)\s*b(?![a-z])", model_name.casefold())
    return max(map(float, numbers), default=0.0)
