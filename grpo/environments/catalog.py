"""From settings to an environment."""

from __future__ import annotations

from grpo.config.environments import EnvironmentSettings, SupportDeskSettings
from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.environment import Environment
from grpo.environments.support_desk import SupportDesk


def make_environment(settings: EnvironmentSettings) -> Environment:
    """The environment that these settings describe."""
    if isinstance(settings, SupportDeskSettings):
        return SupportDesk(max_turns=settings.max_turns)
    return ConversationEnvironment(system_prompt=settings.system_prompt, max_turns=settings.max_turns)
