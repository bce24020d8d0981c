"""Agent that serves a registered version as it was trained: prompt, tools, renderer, sampling and code.

    served = served_agent(registry, registry.resolve("models:/support-desk@champion"))
    agent = served.with_policy(load(served.files.folder, base=served.files.base))
    messages = [Message(role="system", content=served.system_prompt), *conversation]

The user's modules that its agent and renderer import have to be on this machine, with the same bytes as in training.
The files of the version's run have them in the folder `code`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from grpo.agents.catalog import make_evaluated_agent
from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.agent import AgentConfig
from grpo.config.renderer import RendererSettings
from grpo.errors import AddressError, ConfigError
from grpo.messages import Tool
from grpo.policy.policy import Policy
from grpo.policy.renderer import make_renderer
from grpo.policy.weights.registered import ModelVersion
from grpo.policy.weights.sources import ModelFiles, version_files
from grpo.reads.modules import find_module
from grpo.registry.recorded_config import recorded_config
from grpo.registry.store import CODE, Registry
from grpo.storage.files import file_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAgent:
    """A registered version with the agent that it was trained as."""

    version: ModelVersion
    files: ModelFiles
    """Folder of the weights and, if they are adapters, folder of their base."""
    agent: MultiTurnAgent
    """Agent without a policy, with the sampling of the evaluation."""
    renderer: RendererSettings | None
    """Renderer of the user's own. None renders with the chat template."""
    system_prompt: str
    """System prompt of the environment, for the start of each conversation. Empty if the environment has none."""
    tools: tuple[Tool, ...]
    """Tools of the environment and of the agent, as rollouts rendered them."""

    def with_policy(self, policy: Policy) -> MultiTurnAgent:
        """The agent with this policy, and the renderer and tools of the training."""
        self.agent.renderer = make_renderer(
            getattr(policy, "tokenizer", None), tools=self.tools, settings=self.renderer
        )
        self.agent.set_policy(policy)
        return self.agent


def served_agent(models: Registry, version: ModelVersion) -> ServedAgent:
    """Rebuild the agent of a version, without loading weights. If it has no provenance, its agent adds nothing.

    Raises `AddressError` if the version has no record of its agent, `ConfigError` if a module of the user's is missing
    or differs from the one in training, and `ArtifactError` if the weights are damaged.
    """
    if version.is_model_alone:
        return ServedAgent(
            version=version,
            files=version_files(version),
            agent=MultiTurnAgent(AgentConfig(model_name=version.address)),
            renderer=None,
            system_prompt="",
            tools=(),
        )
    provenance = models.provenance(version)
    record = provenance.agent
    if record is None:
        raise AddressError(
            f"{version.address} has no record of its agent, because an earlier release registered it. Train it again"
        )
    config = recorded_config(version.address, provenance, without=("gates",))  # they judged a training that has ended
    check_modules(version, record.modules)
    return ServedAgent(
        version=version,
        files=version_files(version),
        agent=make_evaluated_agent(config, version.address),
        renderer=config.policy.renderer,
        system_prompt=record.system_prompt,
        tools=tuple(Tool(**json.loads(tool)) for tool in record.tools),
    )


def check_modules(version: ModelVersion, modules: Mapping[str, str]) -> None:
    """Raise `ConfigError` if a file of the user's is missing, or has another sha256 than in training."""
    for name, expected in modules.items():
        module = _module(name)
        origin = _origin(module)
        actual = None if origin is None else file_digest(origin)
        if actual == expected:
            continue
        here = "it was not found" if actual is None else f"{origin} has sha256 {actual}"
        raise ConfigError(
            f"{version.address} was trained with module {module} of sha256 {expected}, and here {here}. Its sources "
            f"are in the folder {CODE} of the files of run {version.run_id}: copy that file into a folder of your own "
            "that is first on PYTHONPATH"
        )


def _module(name: str) -> str:
    """Name of the module in a file: `shop/agent.py` → `shop.agent`, `shop/__init__.py` → `shop`."""
    parts = PurePosixPath(name).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _origin(module: str) -> Path | None:
    """File of a module, found without importing it. None if there is none."""
    spec = find_module(module)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    return Path(spec.origin)
