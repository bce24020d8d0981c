"""Objects of the user's own code that a config names, made before anything is started."""

from __future__ import annotations

from collections.abc import Iterable

from grpo.agents.catalog import make_agent
from grpo.config.environments import VerifiersSettings
from grpo.config.gates import PythonGate
from grpo.config.pipeline import PipelineConfig
from grpo.config.python_object import UserObject
from grpo.config.scenarios import PythonSource, Source
from grpo.environments.catalog import make_environment
from grpo.policy.renderer import check_renderer
from grpo.rewards.catalog import make_component
from grpo.user_objects import bind


def check_objects(config: PipelineConfig) -> None:
    """Make the user's own scenario sources, environment, agent, renderer, rewards and gates.

    Raises `ConfigError` for an object or an option that does not exist, and `DataError` for a taskset that cannot be
    played.
    """
    check_sources(config.scenarios.sources)
    if isinstance(config.environment, UserObject | VerifiersSettings):
        make_environment(config.environment)
    make_agent(config.agent)
    if config.policy.renderer is not None:
        check_renderer(config.policy.renderer)
    for component in config.reward:
        if component.reference is not None:
            make_component(component)
    for gate in config.gates:
        if isinstance(gate, PythonGate):
            bind(gate.reference, gate.options)


def check_sources(sources: Iterable[Source]) -> None:
    """Import the functions of the user's own among these sources, and check their options. Raises `ConfigError`."""
    for source in sources:
        if isinstance(source, PythonSource):
            bind(source.reference, source.options, given=0)
