"""From settings to an environment."""

from __future__ import annotations

from grpo.config.environments import EnvironmentSettings, SimulatedUserSettings, SupportDeskSettings, TaskSettings
from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.environment import Environment
from grpo.environments.support_desk.desk import SupportDesk
from grpo.environments.task import TaskEnvironment
from grpo.environments.users.simulated_user import ScenarioUser, SimulatedUser
from grpo.environments.users.user_model import open_user_model
from grpo.environments.worlds.file_system import FILE_SYSTEM
from grpo.environments.worlds.mathematics import MATHEMATICS
from grpo.environments.worlds.messaging import MESSAGING
from grpo.environments.worlds.posting import POSTING
from grpo.environments.worlds.retail import RETAIL
from grpo.environments.worlds.tickets import TICKETS
from grpo.environments.worlds.trading import TRADING
from grpo.environments.worlds.travel import TRAVEL
from grpo.environments.worlds.vehicle import VEHICLE

WORLDS = (FILE_SYSTEM, MATHEMATICS, MESSAGING, POSTING, TICKETS, TRADING, TRAVEL, VEHICLE, RETAIL)
"""Worlds that tasks can be played in. The one without a place of its own is the last."""


def make_environment(settings: EnvironmentSettings) -> Environment:
    """The environment that these settings describe."""
    if isinstance(settings, SupportDeskSettings):
        return SupportDesk(max_turns=settings.max_turns)
    if isinstance(settings, SimulatedUserSettings):
        return ConversationEnvironment(
            max_turns=settings.max_turns, system_prompt=settings.system_prompt, user=_simulated(settings)
        )
    if isinstance(settings, TaskSettings):
        return TaskEnvironment(
            max_turns=settings.max_turns,
            system_prompt=settings.system_prompt,
            worlds=WORLDS,
            user=ScenarioUser(_simulated(settings)),
        )
    return ConversationEnvironment(max_turns=settings.max_turns, system_prompt=settings.system_prompt)


def _simulated(settings: SimulatedUserSettings | TaskSettings) -> SimulatedUser:
    voice = None
    if settings.model is not None:
        voice = open_user_model(
            settings.model, temperature=settings.temperature, max_new_tokens=settings.max_new_tokens
        )
    return SimulatedUser(patience=settings.patience, voice=voice)
