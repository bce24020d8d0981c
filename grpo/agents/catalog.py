"""Agents by their settings in a config."""

from __future__ import annotations

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.agent import AgentConfig, AgentSettings, AnyAgentSettings, PythonAgentSettings
from grpo.user_objects import create


def make_agent(settings: AnyAgentSettings) -> MultiTurnAgent:
    """Create the agent of these settings, without a policy. Raises `ConfigError` for a class that cannot be made."""
    config = AgentConfig(**{name: getattr(settings, name) for name in AgentSettings.model_fields})
    if isinstance(settings, PythonAgentSettings):
        return create(settings.reference, settings.options, MultiTurnAgent, config)
    return MultiTurnAgent(config)
