"""Environment, agent and renderer of the episodes of a run, by their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from grpo.agents.catalog import make_agent
from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.episode_parts import EpisodeParts
from grpo.environments.catalog import make_environment
from grpo.environments.environment import Environment
from grpo.policy.renderer import make_renderer
from grpo.renderers.chat_template import Renderer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class MadeParts(NamedTuple):
    """The objects of `EpisodeParts`."""

    environment: Environment
    agent: MultiTurnAgent
    renderer: Renderer
    """Renderer that shows the tools of environment and agent."""


def make_parts(parts: EpisodeParts, tokenizer: PreTrainedTokenizerBase | None) -> MadeParts:
    """Create environment, agent and renderer. Raises `ConfigError` if a class of the user's own cannot be made."""
    environment, agent = make_environment(parts.environment), make_agent(parts.agent)
    renderer = make_renderer(tokenizer, tools=(*environment.tools, *agent.tools), settings=parts.renderer)
    return MadeParts(environment, agent, renderer)
