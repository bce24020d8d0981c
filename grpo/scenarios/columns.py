"""Columns of a scenario, for code that was written for the rows of a data set.

Scenario(id="w1", world={"answer": "crane"}, …)    {"id": "w1", "category": "general", "answer": "crane", …}
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo.errors import RewardError
from grpo.scenario import Scenario
from grpo.user_failures import on_one_line

_MOST_SHOWN, _LONGEST_NAME = 40, 60
"""Columns in a message, and characters of each."""


def columns(scenario: Scenario) -> dict[str, Any]:
    """Fields of a scenario, its metadata and its world, by name. If names repeat, the world's value is taken."""
    fields = scenario.model_dump(exclude={"world", "metadata"})
    return {**fields, **scenario.metadata.model_dump(), **scenario.world}


def accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that a signature takes by name. If it has `**kwargs`, all of them."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(arguments)
    by_name = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return {name: value for name, value in arguments.items() if name in by_name}


def missing_columns(names: Sequence[str], scenario: Scenario | None) -> list[str]:
    """Names that are not columns of the scenario. Without a scenario, all names."""
    present = {} if scenario is None else columns(scenario)
    return [name for name in names if name not in present]


def require_columns(what: str, names: Sequence[str], scenario: Scenario | None) -> None:
    """Raise `RewardError` if a scenario lacks a column that the reward named in `what` needs."""
    missing = ", ".join(missing_columns(names, scenario))
    if missing and scenario is None:
        raise RewardError(f"{what} takes {missing}, but the episode has come without its scenario")
    if missing and scenario is not None:
        raise RewardError(
            f"{what} takes {missing}, which the scenario does not have. "
            f"{describe_columns(scenario)}. Put columns of your own into its `world`"
        )


def describe_columns(scenario: Scenario) -> str:
    """The names of a scenario's columns for a message, names of its world first."""
    names = dict.fromkeys((*scenario.world, *columns(scenario)))
    shown = [on_one_line(str(name), longest=_LONGEST_NAME) for name in list(names)[:_MOST_SHOWN]]
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return f"Its columns are {', '.join(shown)}{more}"
