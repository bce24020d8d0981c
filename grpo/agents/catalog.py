"""Agents by their config."""

from __future__ import annotations

from grpo.agents.backend import stub
from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.agent import AgentConfig
from grpo.errors import ConfigError


def create_agent(config: AgentConfig) -> MultiTurnAgent:
    """The agent that a config describes: one that says `stub_responses` where they are given, else one with a model."""
    return create_stub_agent(config) if config.is_stub else MultiTurnAgent(config)


def create_stub_agent(config: AgentConfig) -> MultiTurnAgent:
    """An agent that says `stub_responses` in turn; it needs no model. Raises `ConfigError` where there are none."""
    if not config.is_stub:
        raise ConfigError("a stub agent says stub_responses, and the config has none; set use_stub_model and them")
    agent = MultiTurnAgent(config)
    agent.set_policy(stub(config.stub_responses))
    return agent
