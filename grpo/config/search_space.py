"""Dimensions of a search: which settings are tried, and from what range. Each is a live field of a config."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from grpo.config.base import Settings
from grpo.config.faults import faults
from grpo.errors import ConfigError

Value = bool | int | float | str | None
"""What a dimension may be set to."""
S = TypeVar("S", bound=Settings)


class _Range(Settings):
    @model_validator(mode="after")
    def _low_is_below_high(self) -> Self:
        low, high = self.boundary_values()[0], self.boundary_values()[-1]
        if not low < high:  # type: ignore[operator]
            raise ValueError(f"low {low} is not below high {high}")
        return self

    def boundary_values(self) -> tuple[Value, ...]:
        """Values that must all be allowed, if every value between them is to be."""
        raise NotImplementedError


class LogUniform(_Range):
    """Any number of a range, each order of magnitude as likely as the next."""

    type: Literal["loguniform"]
    """Chooses how values are drawn."""
    low: float = Field(gt=0)
    """Least value that is tried."""
    high: float
    """Greatest value that is tried."""

    def boundary_values(self) -> tuple[Value, ...]:
        """Both ends and their geometric mean."""
        return self.low, (self.low * self.high) ** 0.5, self.high


class Uniform(_Range):
    """Any number of a range."""

    type: Literal["uniform"]
    """Chooses how values are drawn."""
    low: float
    """Least value that is tried."""
    high: float
    """Greatest value that is tried."""

    def boundary_values(self) -> tuple[Value, ...]:
        """Both ends, and a number between them that is no integer."""
        return self.low, self.low + 0.382 * (self.high - self.low), self.high


class Int(_Range):
    """A whole number of a range, both ends included."""

    type: Literal["int"]
    """Chooses how values are drawn."""
    low: int
    """Least value that is tried."""
    high: int
    """Greatest value that is tried."""

    def boundary_values(self) -> tuple[Value, ...]:
        """Both ends."""
        return self.low, self.high


class Categorical(Settings):
    """One of several values."""

    type: Literal["categorical"]
    """Chooses how values are drawn."""
    choices: tuple[Value, ...] = Field(min_length=2)
    """The values that are tried."""

    def boundary_values(self) -> tuple[Value, ...]:
        """All of them."""
        return self.choices


Dimension = Annotated[LogUniform | Uniform | Int | Categorical, Field(discriminator="type")]
SearchSpace = dict[str, Dimension]
"""Dimensions by the field that they set: `learning_rate`, or `training.learning_rate` in the config of a run."""


def get_value(config: Settings, path: str) -> Value:
    """The value of a field, however deep; raises `ConfigError` that names the nearest fields if there is none."""
    document: Any = config.model_dump(mode="json")
    known = list(_leaves(document))
    if path not in known:
        near = get_close_matches(path, known, n=3, cutoff=0.5)
        hint = f"; near it are {', '.join(near)}" if near else ""
        raise ConfigError(f"dimension {path} is no field of the {type(config).__name__} that is tuned{hint}")
    for part in path.split("."):
        document = document[part]
    return document


def with_values(config: S, values: Mapping[str, Value]) -> S:
    """The same config with these fields set; raises `ConfigError` for a field that is none or a value that it refuses.

    laid_over(base, {"training.learning_rate": 3e-4}).training.learning_rate == 3e-4
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
        tried = ", ".join(f"{path} = {value!r}" for path, value in values.items())
        raise ConfigError(f"{tried} cannot be set: {'; '.join(faults(error, document))}") from error


def check_space(space: SearchSpace, config: S) -> None:
    """Refuse a space before anything is tried with it: every end of every dimension must fit the config.

    Raises `ConfigError` for an empty space, a field that is none, and an end that is outside the field's own bounds or
    contradicts another setting.
    """
    if not space:
        raise ConfigError("the search space is empty; name at least one field and its range")
    for path, dimension in space.items():
        for value in dimension.boundary_values():
            with_values(config, {path: value})


def _leaves(document: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Paths of all settings that are no mapping themselves."""
    found: list[str] = []
    for name, value in document.items():
        if isinstance(value, dict):
            found += _leaves(value, f"{prefix}{name}.")
        else:
            found.append(f"{prefix}{name}")
    return found
