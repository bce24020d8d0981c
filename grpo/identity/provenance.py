"""Provenance of a run: config, digests, code, packages and machine."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable

from pydantic import BaseModel

from grpo.agents.catalog import make_agent
from grpo.config.pipeline import PipelineConfig
from grpo.environments.catalog import make_environment_without_model
from grpo.evaluation.schema import Decision, Evaluation, Interval
from grpo.identity.code import code_digest, commit, package_versions, user_code_files
from grpo.registry import Provenance
from grpo.registry.provenance import AgentRecord, Estimate, HeldOut
from grpo.storage.files import file_digest


def provenance(
    config: PipelineConfig,
    *,
    sources: str,
    scenarios: str,
    model: str,
    external_digests: dict[str, str],
    policies: Iterable[str],
    champion: str = "",
    decision: Decision | None = None,
    evaluation: Evaluation | None = None,
    agent: AgentRecord | None = None,
) -> Provenance:
    """Provenance of a run: everything that the result of this config depends on, as it is now."""
    import torch  # not needed to read the registry

    return Provenance(
        config=config.model_dump(mode="json"),
        seed=config.seed,
        sources=sources,
        scenarios=scenarios,
        model=model,
        code=code_digest(),
        commit=commit(),
        packages=package_versions(),
        external_digests=external_digests,
        machine={"processor": platform.machine(), "threads": str(torch.get_num_threads())},
        policies=tuple(policies),
        champion=champion,
        decision=decision.reason if decision else "",
        checks={check.name: check.value for check in decision.checks} if decision else {},
        conditions={check.name: f"{check.relation} {check.bound:g}" for check in decision.checks} if decision else {},
        failed_gates=tuple(check.name for check in decision.checks if not check.passed) if decision else (),
        heldout=_heldout(evaluation) if evaluation else None,
        agent=agent,
    )


def agent_record(config: PipelineConfig) -> AgentRecord:
    """Prompt, tools and user's modules of a run's agent. Raises `ConfigError` if it cannot be made."""
    environment, agent = make_environment_without_model(config.environment), make_agent(config.agent)
    return AgentRecord(
        system_prompt=environment.system_prompt,
        tools=tuple(json.dumps(tool.to_template()["function"]) for tool in (*environment.tools, *agent.tools)),
        modules=_digests(config.agent, config.policy),
        environment_modules=_digests(config.environment),
    )


def _digests(*settings: BaseModel) -> dict[str, str]:
    return {name: file_digest(path) for name, path in user_code_files(settings).items()}


def _heldout(evaluation: Evaluation) -> HeldOut:
    overall = evaluation.overall
    return HeldOut(
        metric=evaluation.metric,
        candidate=_estimate(overall.candidate),
        champion=_estimate(overall.champion),
        scenarios=overall.candidate.count,
        confidence=evaluation.confidence,
    )


def _estimate(interval: Interval) -> Estimate:
    return Estimate(mean=interval.mean, low=interval.low, high=interval.high)


def parameters(config: BaseModel) -> dict[str, str]:
    """Settings as flat MLflow parameters: `training.learning_rate`."""
    flat: dict[str, str] = {}

    def walk(prefix: str, value: object) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                walk(f"{prefix}.{key}" if prefix else str(key), item)
        else:
            flat[prefix] = str(value)

    walk("", config.model_dump(mode="json"))
    return flat
