"""Registered versions, and other models, as they are served."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.agent import AgentConfig
from grpo.errors import AddressError
from grpo.policy.catalog import is_weights, load_files, open_policy
from grpo.policy.policy import Policy
from grpo.policy.weights.sources import model_files
from grpo.registry import Registry
from grpo.registry.served_agent import served_agent
from grpo.serving.engine import ProcessPolicy
from grpo.serving.versions import ServedModel


def watched_version(models: Registry, address: str) -> Callable[[str], ServedModel | None]:
    """Look up the version at an address such as `models:/support-desk@champion`, and load another one."""

    def next_version(current: str) -> ServedModel | None:
        version = models.resolve(address)
        name = f"{version.name}/{version.version}"
        if name == current:
            return None
        served = served_agent(models, version)
        registration = models.client.get_model_version(version.name, str(version.version))
        policy = ProcessPolicy(partial(load_files, served.files))
        agent = served.with_policy(policy)
        own = {tool.name for tool in agent.tools}
        return ServedModel(
            model=version.name,
            version=name,
            policy=policy,
            agent=agent,
            renderer=served.renderer,
            system_prompt=served.system_prompt,
            tools=tuple(tool for tool in served.tools if tool.name not in own),
            temperature=agent.config.temperature,
            max_new_tokens=agent.config.max_new_tokens,
            max_context=agent.config.max_context,
            registered=registration.creation_timestamp / 1000,
        )

    return next_version


def fixed_model(address: str, name: str) -> Callable[[str], ServedModel | None]:
    """Load the model at any other address once, with an agent that adds nothing to its conversations."""

    def next_version(current: str) -> ServedModel | None:
        if current:
            return None
        policy: Policy
        if is_weights(address):
            policy = ProcessPolicy(partial(load_files, model_files(address)))
        else:
            policy = open_policy(address)
        if getattr(policy, "tokenizer", None) is None:
            raise AddressError(f"{address} has no tokenizer; serve a model folder, org/name, file.gguf or models:/name")
        agent = MultiTurnAgent(AgentConfig(model_name=address), policy=policy)
        return ServedModel(model=name, version=name, policy=policy, agent=agent)

    return next_version
