"""Search spaces of hyperparameters: dimensions over the fields of a config, and named spaces."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from grpo.config.base import Settings
from grpo.config.loading import describe_errors
from grpo.errors import ConfigError

Value = bool | int | float | str | None
"""Value of a dimension."""
S = TypeVar("S", bound=Settings)


class _Range(Settings):
    @model_validator(mode="after")
    def _low_is_below_high(self) -> Self:
        low, high = self.boundary_values()[0], self.boundary_values()[-1]
        if not low < high:  # type: ignore[operator]
            raise ValueError(f"low {low} is not below high {high}")
        return self

    def boundary_values(self) -> tuple[Value, ...]:
        """Values that stand for the whole range: if the config accepts them, it accepts all values between them."""
        raise NotImplementedError


class LogUniform(_Range):
    """Log-uniform distribution over a range."""

    type: Literal["loguniform"]
    """Distribution of the values."""
    low: float = Field(gt=0)
    """Lower end."""
    high: float
    """Upper end."""

    def boundary_values(self) -> tuple[Value, ...]:
        """Both ends and their geometric mean."""
        return self.low, (self.low * self.high) ** 0.5, self.high


class Uniform(_Range):
    """Uniform distribution over a range."""

    type: Literal["uniform"]
    """Distribution of the values."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""

    def boundary_values(self) -> tuple[Value, ...]:
        """Both ends, and a number between them that is not an integer."""
        return self.low, self.low + 0.382 * (self.high - self.low), self.high


class Int(_Range):
    """Uniform distribution over integers, both ends included."""

    type: Literal["int"]
    """Distribution of the values."""
    low: int
    """Lower end."""
    high: int
    """Upper end."""

    def boundary_values(self) -> tuple[Value, ...]:
        """Both ends."""
        return self.low, self.high


class Categorical(Settings):
    """Choice of one value."""

    type: Literal["categorical"]
    """Distribution of the values."""
    choices: tuple[Value, ...] = Field(min_length=2)
    """Values to choose from."""

    def boundary_values(self) -> tuple[Value, ...]:
        """All of them."""
        return self.choices


Dimension = Annotated[LogUniform | Uniform | Int | Categorical, Field(discriminator="type")]
SearchSpace = dict[str, Dimension]
"""Dimensions by the field that they set: `learning_rate`, or `training.learning_rate` in the config of a run."""


def get_value(config: Settings, path: str) -> Value:
    """Value of a field by its path. If it is unknown, raises `ConfigError` with the nearest field names."""
    document: Any = config.model_dump(mode="json")
    known = list(_leaves(document))
    if path not in known:
        near = get_close_matches(path, known, n=3, cutoff=0.5)
        hint = f". Near it are {', '.join(near)}" if near else ""
        raise ConfigError(f"dimension {path} is not a field of the tuned {type(config).__name__}{hint}")
    for part in path.split("."):
        document = document[part]
    return document


def with_values(config: S, values: Mapping[str, Value]) -> S:
    """Copy of the config with these fields set. Raises `ConfigError` for an unknown field or an invalid value.

    with_values(base, {"training.learning_rate": 3e-4}).training.learning_rate == 3e-4
    """
    document: dict[str, Any] = config.model_dump(mode="json", exclude_unset=True)
    for path, value in values.items():
        get_value(config, path)
        *parents, last = path.split(".")
        node = document
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = value
    try:
        return type(config).model_validate(document)
    except ValidationError as error:
        assignments = ", ".join(f"{path} = {value!r}" for path, value in values.items())
        raise ConfigError(
            f"{assignments} cannot be set: {'; '.join(describe_errors(error, type(config), document))}"
        ) from error


def check_space(space: SearchSpace, config: S) -> None:
    """Check that the ends of every dimension fit the config.

    Raises `ConfigError` if the space is empty, if a field is unknown, or if an end is outside the field's bounds or in
    conflict with another setting.
    """
    if not space:
        raise ConfigError("the search space is empty. Name at least one field and its range")
    for path, dimension in space.items():
        for value in dimension.boundary_values():
            with_values(config, {path: value})


def _leaves(document: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Paths of all settings that are not mappings."""
    paths: list[str] = []
    for name, value in document.items():
        if isinstance(value, dict):
            paths += _leaves(value, f"{prefix}{name}.")
        else:
            paths.append(f"{prefix}{name}")
    return paths


SpaceName = Literal["grpo", "full", "customer_service", "conservative", "aggressive"]
Naming = Literal["notebook", "pipeline"]

_GRPO = {
    "training.learning_rate": {"type": "loguniform", "low": 1e-6, "high": 1e-3},
    "rollout.group_size": {"type": "categorical", "choices": [4, 8, 16]},
    "rollout.temperature": {"type": "uniform", "low": 0.7, "high": 1.2},
    "training.epochs": {
        "type": "int",
        "low": 1,
        "high": 4,
    },  # the first step on a rollout has ratio 1 and is not clipped
    "training.clip_low": {"type": "uniform", "low": 0.1, "high": 0.3},
    "training.clip_high": {"type": "uniform", "low": 0.1, "high": 0.4},
    "training.beta": {"type": "uniform", "low": 0.0, "high": 0.1},
}
_SPACES: dict[str, dict[str, object]] = {
    "grpo": _GRPO,
    "full": {
        **_GRPO,
        "training.groups_per_step": {"type": "categorical", "choices": [2, 4, 8]},
        "training.entropy_coefficient": {"type": "uniform", "low": 0.0, "high": 0.01},
        "training.max_grad_norm": {"type": "loguniform", "low": 0.1, "high": 10.0},
        "training.adam_beta2": {"type": "categorical", "choices": [0.95, 0.99, 0.999]},
        "training.lr_scheduler_type": {"type": "categorical", "choices": ["constant", "linear", "cosine"]},
        "training.baseline": {"type": "categorical", "choices": ["group_mean", "group_median", "leave_one_out"]},
        "training.scale_by_std": {"type": "categorical", "choices": [True, False]},
    },
    # close to the base policy, replies of a readable length
    "customer_service": {
        "training.learning_rate": {"type": "loguniform", "low": 1e-6, "high": 2e-4},
        "rollout.group_size": {"type": "categorical", "choices": [4, 8]},
        "rollout.temperature": {"type": "uniform", "low": 0.7, "high": 1.0},
        "rollout.max_new_tokens": {"type": "int", "low": 48, "high": 160},
        "training.beta": {"type": "loguniform", "low": 5e-3, "high": 0.1},
    },
    "conservative": {
        "training.learning_rate": {"type": "loguniform", "low": 1e-5, "high": 1e-4},
        "training.epochs": {"type": "int", "low": 1, "high": 2},
        "training.clip_low": {"type": "uniform", "low": 0.1, "high": 0.2},
        "training.clip_high": {"type": "uniform", "low": 0.1, "high": 0.2},
        "training.beta": {"type": "loguniform", "low": 1e-2, "high": 0.1},
    },
    "aggressive": {
        "training.learning_rate": {"type": "loguniform", "low": 1e-5, "high": 1e-2},
        "rollout.group_size": {"type": "categorical", "choices": [4, 8, 16, 32]},
        "rollout.temperature": {"type": "uniform", "low": 0.5, "high": 1.5},
        "training.epochs": {"type": "int", "low": 1, "high": 8},
        "training.clip_low": {"type": "uniform", "low": 0.1, "high": 0.5},
        "training.clip_high": {"type": "uniform", "low": 0.1, "high": 1.0},
        "training.entropy_coefficient": {"type": "uniform", "low": 0.0, "high": 0.05},
        "training.max_grad_norm": {"type": "loguniform", "low": 0.1, "high": 100.0},
    },
}
_SPACE: TypeAdapter[SearchSpace] = TypeAdapter(SearchSpace)


def get_search_space(name: SpaceName | str, *, naming: Naming = "notebook") -> SearchSpace:
    """Named search space over fields of `TrainingConfig`, or with naming="pipeline" over paths of a `PipelineConfig`.

    Raises `ConfigError` for an unknown name.
    """
    if name not in _SPACES:
        raise ConfigError(f"no search space {name!r}. There are {', '.join(get_args(SpaceName))}")
    chosen = _SPACES[name]
    if naming == "notebook":
        chosen = {path.partition(".")[2]: distribution for path, distribution in chosen.items()}
    return _SPACE.validate_python(chosen)
