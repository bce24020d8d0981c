"""Search spaces with a name, in the words of `TrainingConfig` or as paths into the config of a run."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import TypeAdapter

from grpo.config.search_space import SearchSpace
from grpo.errors import ConfigError

SpaceName = Literal["grpo", "full", "customer_service", "conservative", "aggressive"]
Naming = Literal["notebook", "pipeline"]

PIPELINE_PATHS = {
    "learning_rate": "training.learning_rate",
    "num_epochs": "training.epochs",
    "num_generations": "rollout.group_size",
    "gradient_accumulation_steps": "training.groups_per_step",
    "temperature": "rollout.temperature",
    "max_new_tokens": "rollout.max_new_tokens",
    "clip_low": "training.clip_low",
    "clip_high": "training.clip_high",
    "beta": "training.beta",
    "entropy_coef": "training.entropy_coefficient",
    "max_grad_norm": "training.max_grad_norm",
    "adam_beta2": "training.adam_beta2",
    "lr_scheduler_type": "training.lr_scheduler_type",
    "baseline_type": "training.baseline",
    "advantage_normalization": "training.scale_by_std",
}
"""What a dimension of a named space is called in the config of a run."""

_GRPO = {
    "learning_rate": {"type": "loguniform", "low": 1e-6, "high": 1e-3},
    "num_generations": {"type": "categorical", "choices": [4, 8, 16]},
    "temperature": {"type": "uniform", "low": 0.7, "high": 1.2},
    "num_epochs": {"type": "int", "low": 1, "high": 4},  # the clip is felt from the second step on a rollout on
    "clip_low": {"type": "uniform", "low": 0.1, "high": 0.3},
    "clip_high": {"type": "uniform", "low": 0.1, "high": 0.4},
    "beta": {"type": "uniform", "low": 0.0, "high": 0.1},
}
_SPACES: dict[str, dict[str, object]] = {
    "grpo": _GRPO,
    "full": {
        **_GRPO,
        "gradient_accumulation_steps": {"type": "categorical", "choices": [2, 4, 8]},
        "entropy_coef": {"type": "uniform", "low": 0.0, "high": 0.01},
        "max_grad_norm": {"type": "loguniform", "low": 0.1, "high": 10.0},
        "adam_beta2": {"type": "categorical", "choices": [0.95, 0.99, 0.999]},
        "lr_scheduler_type": {"type": "categorical", "choices": ["constant", "linear", "cosine"]},
        "baseline_type": {"type": "categorical", "choices": ["group_mean", "group_median", "leave_one_out"]},
        "advantage_normalization": {"type": "categorical", "choices": [True, False]},
    },
    # customers notice: held to the base, replies of a length that is read
    "customer_service": {
        "learning_rate": {"type": "loguniform", "low": 1e-6, "high": 2e-4},
        "num_generations": {"type": "categorical", "choices": [4, 8]},
        "temperature": {"type": "uniform", "low": 0.7, "high": 1.0},
        "max_new_tokens": {"type": "int", "low": 48, "high": 160},
        "beta": {"type": "loguniform", "low": 5e-3, "high": 0.1},
    },
    "conservative": {
        "learning_rate": {"type": "loguniform", "low": 1e-5, "high": 1e-4},
        "num_epochs": {"type": "int", "low": 1, "high": 2},
        "clip_low": {"type": "uniform", "low": 0.1, "high": 0.2},
        "clip_high": {"type": "uniform", "low": 0.1, "high": 0.2},
        "beta": {"type": "loguniform", "low": 1e-2, "high": 0.1},
    },
    "aggressive": {
        "learning_rate": {"type": "loguniform", "low": 1e-5, "high": 1e-2},
        "num_generations": {"type": "categorical", "choices": [4, 8, 16, 32]},
        "temperature": {"type": "uniform", "low": 0.5, "high": 1.5},
        "num_epochs": {"type": "int", "low": 1, "high": 8},
        "clip_low": {"type": "uniform", "low": 0.1, "high": 0.5},
        "clip_high": {"type": "uniform", "low": 0.1, "high": 1.0},
        "entropy_coef": {"type": "uniform", "low": 0.0, "high": 0.05},
        "max_grad_norm": {"type": "loguniform", "low": 0.1, "high": 100.0},
    },
}
_SPACE: TypeAdapter[SearchSpace] = TypeAdapter(SearchSpace)


def get_search_space(name: SpaceName | str, *, naming: Naming = "notebook") -> SearchSpace:
    """A named space: its dimensions are fields of `TrainingConfig`, or with words="pipeline" paths into a run's config.

    Raises `ConfigError` for a name that is none.
    """
    if name not in _SPACES:
        raise ConfigError(f"no search space {name!r}; there are {', '.join(get_args(SpaceName))}")
    chosen = _SPACES[name]
    if naming == "pipeline":
        chosen = {PIPELINE_PATHS[dimension]: drawn for dimension, drawn in chosen.items()}
    return _SPACE.validate_python(chosen)
