"""Preflight: faults that a run would be refused for later, found before anything is computed."""

from __future__ import annotations

from flows.doctor.stores import artifacts
from flows.local.checks import require
from grpo.config.gates import SafetyGate
from grpo.config.pipeline import PipelineConfig
from grpo.identity.code import external_digests
from grpo.policy.catalog import model_folder
from grpo.scenarios.sources import content_hash


def check_files(config: PipelineConfig) -> None:
    """Try the store, the sources, the user's code and the model folder of a config; this takes no time to speak of.

    Raises `ConfigError`, `StorageError`, `DataError` or `PolicyError`, as the run would.
    """
    require([artifacts(config.store)])
    content_hash(config.scenarios.sources)
    external_digests([config])
    model_folder(config.policy.model)


def preflight(config: PipelineConfig) -> None:
    """Try all that can be tried without weights: also chat template, rewards, environment, gates and backends.

    Raises what the run would raise, and leaves nothing behind.
    """
    from grpo.environments.catalog import make_environment
    from grpo.policy.transformers.model import load_tokenizer
    from grpo.policy.transformers.quantization import bitsandbytes_config
    from grpo.renderers.chat_template import Renderer
    from grpo.rewards.hacking.check import check_rewards
    from grpo.rewards.learned.safety import SafetyReward
    from tasks.executor import shard_runner

    check_files(config)
    Renderer(load_tokenizer(model_folder(config.policy.model), chat_template=config.policy.chat_template))
    if config.policy.quantization is not None:
        bitsandbytes_config(config.policy.quantization)
    if config.rollout.backend == "vllm":
        import grpo.policy.vllm  # noqa: F401 - raises where the package is missing
    shard_runner(config.rollout)
    make_environment(config.environment)
    check_rewards(config.reward)
    for gate in config.gates:
        if isinstance(gate, SafetyGate):
            SafetyReward() if gate.model is None else SafetyReward(model=gate.model)
