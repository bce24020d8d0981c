"""Reproduce a registered version from its provenance, and compare the weights."""

from __future__ import annotations

import tempfile
from pathlib import Path

from prefect import flow
from pydantic import BaseModel, ConfigDict

from grpo.config.pipeline import PipelineConfig
from grpo.errors import ReproductionError
from grpo.identity.cache_identity import ABSENT, RunInputs, model_digest
from grpo.identity.file_reads import current_digest
from grpo.identity.provenance import provenance
from grpo.registry import Provenance
from grpo.registry.provenance import FILE
from grpo.rewards.hacking.check import check_rewards
from grpo.scenarios.sources import content_hash
from grpo.storage.home import home
from grpo_flows.local.objects import check_objects
from grpo_flows.pipeline import RunCheckpoints, base_policy, prepare_scenarios, starting_policies, training_steps
from grpo_tasks.executor import one_thread, stage_executor
from grpo_tasks.registry import registry


class Reproduction(BaseModel):
    """Policies then and now, and the inputs that differ."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    model: str
    expected: tuple[str, ...]
    """Hashes of the base and of the policy after each iteration, as they were registered."""
    reproduced: tuple[str, ...]
    differences: dict[str, tuple[str, str]]
    """(then, now) of the inputs that differ, the likeliest cause first."""

    @property
    def equal(self) -> bool:
        """True when all policies are bit for bit the same."""
        return self.expected == self.reproduced

    @property
    def first_iteration(self) -> int | None:
        """The first iteration whose weights differ, from 1; 0 is the base."""
        pairs = zip(self.expected, self.reproduced, strict=False)
        return next((index for index, (then, now) in enumerate(pairs) if then != now), None)


@flow(name="reproduce", task_runner=one_thread())
def reproduce(model: str) -> Reproduction:
    """Train the version at `models:/NAME@alias` or `models:/NAME/3` again, in a store of its own.

    No cached result is used or left, and nothing is registered. Raises `ReproductionError` before anything is
    computed when the sources or the base model are not what they were.
    """
    models = registry()
    then = models.provenance(models.resolve(model))
    home().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="reproduce-", dir=home()) as scratch:
        config = require_unchanged(then)
        now = retrain_aside(config.model_copy(update={"store": f"{scratch}/store"}))
    now = now.model_copy(update={"external_digests": files_now(then) | now.external_digests})
    return Reproduction(model=model, expected=then.policies, reproduced=now.policies, differences=then.differences(now))


@flow(name="reproduce-training", persist_result=False, task_runner=one_thread())
def retrain_aside(config: PipelineConfig) -> Provenance:
    """Train a config, and return the provenance of the result."""
    inputs = RunInputs.of(config)
    with stage_executor(config.rollout) as executor:
        check_rewards(config.reward)
        check_objects(config)  # as `train`: what these import outside of the stages is not among their reads
        data = prepare_scenarios(config.scenarios, store=config.store, environment=config.environment)
        starts = starting_policies(config, base_policy(config.policy, config.store))
        steps = list(training_steps(config, data.artifact, data.split, starts[-1], RunCheckpoints(config, starts[-1])))
    return provenance(
        config,
        sources=inputs.sources,
        scenarios=data.artifact.sha256,
        model=inputs.model,
        external_digests=inputs.after(executor.reads).external_digests,
        policies=(*dict.fromkeys(start.policy for start in starts), *(step.policy.policy for step in steps)),
    )


def files_now(then: Provenance) -> dict[str, str]:
    """Digests that the files have now which the user's code read then; without those that lie elsewhere now.

    What a process reads depends on what it has imported before, and on what the cache answers.
    """
    digests: dict[str, str] = {}
    for name, digest in then.external_digests.items():
        path = name.removeprefix(FILE)
        if name.startswith(FILE) and Path(path).is_absolute():
            now = current_digest(path) or ABSENT
            if now != ABSENT or digest == ABSENT:
                digests[name] = now
    return digests


def require_unchanged(then: Provenance) -> PipelineConfig:
    """Config of a version whose sources and base model are what they were; raises `ReproductionError` otherwise."""
    config = PipelineConfig.model_validate(then.config)
    _unchanged("scenarios.sources", then.sources, content_hash(config.scenarios.sources))
    _unchanged("policy.model", then.model, model_digest(config.policy))
    return config


def _unchanged(setting: str, then: str, now: str) -> None:
    if then != now:
        raise ReproductionError(
            f"the files of {setting} have changed: their digest was {then[:16]}, now it is {now[:16]}; restore the "
            "files of that time"
        )
