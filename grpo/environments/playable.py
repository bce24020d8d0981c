"""Scenarios that an environment cannot play: known, with the reason, before any is played."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from grpo.config.environments import EnvironmentSettings
from grpo.environments.catalog import make_environment
from grpo.environments.environment import Environment
from grpo.errors import BudgetError, DataError
from grpo.scenarios.scenario import Scenario


def unplayable_reasons(environment: Environment, scenarios: Iterable[Scenario]) -> dict[str, str]:
    """Reasons of the scenarios that the environment refuses, by id."""
    reasons: dict[str, str] = {}

    async def ask() -> None:
        for scenario in scenarios:
            try:
                await environment.check(scenario)
            except DataError as reason:
                reasons[scenario.id] = str(reason)

    asyncio.run(ask())
    return reasons


def find_unplayable(
    settings: EnvironmentSettings, scenarios: Iterable[Scenario], *, max_fraction: float
) -> dict[str, str]:
    """Reasons of the scenarios that the environment of these settings refuses, by id; a user's model is not asked.

    Raises `BudgetError` where they are all, or more than `max_fraction` of all.
    """
    every = list(scenarios)
    silent = settings.model_copy(update={"model": None}) if hasattr(settings, "model") else settings
    refused = unplayable_reasons(make_environment(silent), every)
    if refused and (len(refused) == len(every) or len(refused) > max_fraction * len(every)):
        raise BudgetError(
            f"{len(refused)} of {len(every)} scenarios cannot be played in environment {settings.kind}, at most "
            f"{max_fraction:.1%} may be; first: {next(iter(refused.values()))}; choose sources that it can play, another "
            "environment, or raise scenarios.max_quarantined_fraction"
        )
    return refused
