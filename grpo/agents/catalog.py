"""Agents by their settings in a config."""

from __future__ import annotations

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.agent import AgentConfig, AgentSettings, AnyAgentSettings, PythonAgentSettings
from grpo.config.pipeline import PipelineConfig
from grpo.user_objects import make_object


def make_agent(settings: AnyAgentSettings) -> MultiTurnAgent:
    """Create the agent of these settings, without a policy. Raises `ConfigError` for a class that cannot be made."""
    config = AgentConfig(**{name: getattr(settings, name) for name in AgentSettings.model_fields})
    if isinstance(settings, PythonAgentSettings):
        return make_object(settings.reference, settings.options, MultiTurnAgent, config)
    return MultiTurnAgent(config)


def make_evaluated_agent(config: PipelineConfig, model: str) -> MultiTurnAgent:
    """Create the agent of a run with the sampling of its evaluation and its renderer, for the model at an address."""
    agent = make_agent(config.agent)
    agent.config = agent.config.model_copy(
        update={
            "temperature": config.evaluation.temperature,
            "max_new_tokens": config.rollout.max_new_tokens,
            "max_context": config.rollout.max_context,
            "model_name": model,
            "renderer": config.policy.renderer,
        }
    )
    return agent
