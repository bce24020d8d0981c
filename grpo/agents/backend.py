"""Inference backend of an agent: a script, a model in this process, a server, or an object of your own."""

from __future__ import annotations

from collections.abc import Sequence

from grpo.config.agent import AgentConfig
from grpo.errors import ConfigError, PolicyError
from grpo.policy.catalog import TOKENS, is_weights, open_policy
from grpo.policy.policy import Policy
from grpo.policy.scripted import ScriptedPolicy
from grpo.renderers.chat_template import Renderer


def make_backend(config: AgentConfig, renderer: Renderer | None) -> Policy:
    """Make the policy of an agent config. Raises `ConfigError` if it has no model, `PolicyError` if that is missing."""
    if config.is_stub:
        return stub(config.stub_responses)
    if config.model_name is None:
        raise ConfigError("the agent has no model: set AgentConfig.model_name, or give the agent a policy")
    kind = config.model_name.partition("://")[0]
    if kind.startswith(TOKENS) and renderer is None:
        raise PolicyError(
            f"{config.model_name} takes token ids, and the agent has no renderer. Give the agent the renderer of the "
            "checkpoint"
        )
    policy = open_policy(config.model_name)
    if not is_weights(config.model_name):
        return policy
    from grpo.policy.transformers.device import move_to_device
    from grpo.policy.transformers.model import TransformersPolicy

    assert isinstance(policy, TransformersPolicy)
    return move_to_device(
        policy, dtype=config.torch_dtype, device=config.device_map, attention=config.attn_implementation
    )


def stub(replies: Sequence[str]) -> ScriptedPolicy:
    """Build a scripted policy in which seed k starts at reply k. An agent increments its seed, so that replies rotate.

    a, b, c → seed 0: a b c a …, seed 1: b c a b …
    """
    return ScriptedPolicy([[*replies[first:], *replies[:first]] for first in range(len(replies))])
