"""Environments by their settings, and the scenarios that they cannot play."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
from collections.abc import Iterable

from grpo.config.environments import (
    EnvironmentSettings,
    GymEnvironmentSettings,
    GymnasiumTextSettings,
    PythonEnvironmentSettings,
    ReasoningGymSettings,
    ReplaySettings,
    SimulatedUserSettings,
    SupportDeskSettings,
    TaskSettings,
    TextArenaSettings,
    TextWorldSettings,
    TriageSettings,
    TRLEnvironmentSettings,
    VerifiersSettings,
)
from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.environment import Environment
from grpo.environments.gym import GymEnvironment
from grpo.environments.replay import ReplayEnvironment
from grpo.environments.support_desk.desk import SupportDesk
from grpo.environments.task import TaskEnvironment
from grpo.environments.triage.triage import TriageEnvironment
from grpo.environments.trl import TRLEnvironment
from grpo.environments.users.simulated_user import ScenarioUser, SimulatedUser
from grpo.environments.users.user_model import open_user_model
from grpo.environments.world import World
from grpo.errors import BudgetError, DataError
from grpo.scenario import Scenario
from grpo.user_failures import REMEDY, user_code
from grpo.user_objects import make_object

WORLDS = (
    "file_system",
    "mathematics",
    "messaging",
    "posting",
    "tickets",
    "trading",
    "travel",
    "vehicle",
    "retail",
)
"""Modules of `grpo.contrib.worlds` with the worlds of the task environment. The one without a state key is the last."""


@functools.cache
def load_worlds() -> tuple[World, ...]:
    """Worlds of the task environment. The module `file_system` has the world `FILE_SYSTEM`."""
    modules = [(name, importlib.import_module(f"grpo.contrib.worlds.{name}")) for name in WORLDS]
    return tuple(getattr(module, name.upper()) for name, module in modules)


def make_environment(settings: EnvironmentSettings) -> Environment:
    """Create the environment of these settings. Raises `ConfigError` for one of the user's that cannot be made."""
    if isinstance(settings, PythonEnvironmentSettings):
        return make_object(settings.reference, settings.options, Environment)  # type: ignore[type-abstract]
    if isinstance(settings, TRLEnvironmentSettings | GymEnvironmentSettings):
        adapter = GymEnvironment if isinstance(settings, GymEnvironmentSettings) else TRLEnvironment
        return adapter(
            lambda: make_object(settings.reference, settings.options, object),
            system_prompt=settings.system_prompt,
            max_turns=settings.max_turns,
            success_reward=settings.success_reward,
        )
    if isinstance(settings, VerifiersSettings):
        return _verifiers(settings)
    if isinstance(settings, GymnasiumTextSettings):
        from grpo.environments.gymnasium_text.environment import GymnasiumTextEnvironment  # the package is an extra

        return GymnasiumTextEnvironment(max_turns=settings.max_turns, system_prompt=settings.system_prompt)
    if isinstance(settings, ReasoningGymSettings):
        from grpo.environments.reasoning_gym.environment import ReasoningGymEnvironment  # the package is an extra

        return ReasoningGymEnvironment(max_turns=settings.max_turns, system_prompt=settings.system_prompt)
    if isinstance(settings, TextArenaSettings):
        from grpo.environments.textarena.environment import TextArenaEnvironment  # the package is an extra

        return TextArenaEnvironment(max_turns=settings.max_turns, system_prompt=settings.system_prompt)
    if isinstance(settings, TextWorldSettings):
        from grpo.environments.textworld.environment import TextWorldEnvironment  # the package is an extra

        return TextWorldEnvironment(max_turns=settings.max_turns, system_prompt=settings.system_prompt)
    if isinstance(settings, SupportDeskSettings):
        return SupportDesk(max_turns=settings.max_turns)
    if isinstance(settings, TriageSettings):
        return TriageEnvironment(settings.teams, max_turns=settings.max_turns, system_prompt=settings.system_prompt)
    if isinstance(settings, ReplaySettings):
        return ReplayEnvironment(max_turns=settings.max_turns, system_prompt=settings.system_prompt)
    if isinstance(settings, SimulatedUserSettings):
        return ConversationEnvironment(
            max_turns=settings.max_turns, system_prompt=settings.system_prompt, user=_simulated(settings)
        )
    if isinstance(settings, TaskSettings):
        return TaskEnvironment(
            max_turns=settings.max_turns,
            system_prompt=settings.system_prompt,
            worlds=load_worlds(),
            user=ScenarioUser(_simulated(settings)),
        )
    return ConversationEnvironment(max_turns=settings.max_turns, system_prompt=settings.system_prompt)


def make_environment_without_model(settings: EnvironmentSettings) -> Environment:
    """Create the environment without the model that would write the user's messages."""
    return make_environment(settings.model_copy(update={"model": None}) if hasattr(settings, "model") else settings)


def _verifiers(settings: VerifiersSettings) -> Environment:
    from grpo.environments.verifiers import VerifiersEnvironment  # the package is an extra
    from grpo.scenarios.readers.verifiers import make_taskset

    taskset = make_taskset(settings.id, settings.args)
    return VerifiersEnvironment(taskset, max_turns=settings.max_turns, success_reward=settings.success_reward)


def _simulated(settings: SimulatedUserSettings | TaskSettings) -> SimulatedUser:
    model = None
    if settings.model is not None:
        model = open_user_model(
            settings.model, temperature=settings.temperature, max_new_tokens=settings.max_new_tokens
        )
    return SimulatedUser(patience=settings.patience, model=model)


async def check_scenario(environment: Environment, scenario: Scenario) -> None:
    """Let an environment check a scenario. Raises what it raises, or `UserCodeError` for an exception of its code."""
    with user_code(f"scenario {scenario.id}: the environment's check", remedy=REMEDY, transient=True):
        checking = environment.check(scenario)
        if not inspect.isawaitable(checking):
            raise TypeError("it is not async, so write it with `async def`")
        await checking


def verifies(environment: Environment, scenario: Scenario, *, judged: bool) -> bool:
    """False if no episode of a scenario can have an outcome. Raises `UserCodeError` for an exception of its code."""
    with user_code(f"scenario {scenario.id}: the environment's can_verify", remedy=REMEDY):
        return environment.can_verify(scenario, judged=judged) is not False


def unplayable_reasons(environment: Environment, scenarios: Iterable[Scenario]) -> dict[str, str]:
    """Reasons why scenarios cannot be played in the environment, by scenario id."""
    reasons: dict[str, str] = {}

    async def check_all() -> None:
        for scenario in scenarios:
            try:
                await check_scenario(environment, scenario)
            except DataError as reason:
                reasons[scenario.id] = str(reason)

    asyncio.run(check_all())
    return reasons


def find_unplayable(
    settings: EnvironmentSettings,
    scenarios: Iterable[Scenario],
    *,
    max_fraction: float,
    environment: Environment | None = None,
) -> dict[str, str]:
    """Reasons why scenarios cannot be played under these settings, by scenario id. The user's model is not called.

    `environment` is the environment of the settings, if it already exists.

    Raises `BudgetError` if all of the scenarios, or more than `max_fraction`, cannot be played.
    """
    scenarios = list(scenarios)
    reasons = unplayable_reasons(environment or make_environment_without_model(settings), scenarios)
    if reasons and (len(reasons) == len(scenarios) or len(reasons) > max_fraction * len(scenarios)):
        raise BudgetError(
            f"{len(reasons)} of {len(scenarios)} scenarios cannot be played in environment {settings.kind}, at most "
            f"{max_fraction:.1%} may be. First: {next(iter(reasons.values()))}. Choose other sources, another "
            "environment, or raise scenarios.max_quarantined_fraction"
        )
    return reasons
