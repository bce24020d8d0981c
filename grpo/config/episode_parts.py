"""Settings of the parts that every episode of a run has."""

from __future__ import annotations

from grpo.config.agent import AgentSettings, AnyAgentSettings
from grpo.config.base import Settings
from grpo.config.environments import EnvironmentSettings
from grpo.config.renderer import RendererSettings


class EpisodeParts(Settings):
    """Environment and agent of an episode, and the renderer of their messages.

    Rollouts, SFT and DPO take them as one value, because a prompt depends on all three.
    """

    environment: EnvironmentSettings
    """Environment of the episodes."""
    agent: AnyAgentSettings = AgentSettings()
    """Agent around the policy."""
    renderer: RendererSettings | None = None
    """Renderer of your own. None renders with the chat template of the model."""
