"""Columns of a scenario: the form in which code written for a data set reads it.

Scenario(id="w1", world={"answer": "crane"}, …)    {"id": "w1", "category": "general", "answer": "crane", …}
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from grpo.scenarios.scenario import Scenario


def columns(scenario: Scenario) -> dict[str, Any]:
    """Fields of a scenario, of its metadata and of its world, by name; the world's come first."""
    fields = scenario.model_dump(exclude={"world", "metadata"})
    return {**fields, **scenario.metadata.model_dump(), **scenario.world}


def accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that a signature takes by name: all of them where it has `**kwargs`."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(arguments)
    by_name = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return {name: value for name, value in arguments.items() if name in by_name}
