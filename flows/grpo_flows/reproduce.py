"""The flow `reproduce`: train a registered version again from its provenance, and compare the weights.

`grpo reproduce` calls it, to show that the recorded inputs are all that a version depends on. The training runs in a
store of its own that is removed at the end, so that it neither uses nor leaves cached results, and nothing is
registered. If the weights differ, the result names the inputs that differ.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from prefect import flow
from pydantic import BaseModel, ConfigDict

from grpo.artifacts import ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.errors import ReproductionError
from grpo.identity.cache_identity import RunInputs, model_digest
from grpo.identity.provenance import provenance
from grpo.reads.names import ABSENT, VARIABLE, current_digest, is_read
from grpo.registry import Provenance
from grpo.registry.recorded_config import recorded_config
from grpo.scenarios.sources import content_hash
from grpo.storage.home import home
from grpo_flows.pipeline import base_policy, prepare_scenarios, starting_policies, training_steps
from grpo_local import preflight
from grpo_local.rollout_servers import run_executor
from grpo_tasks.execution.task_runners import one_thread
from grpo_tasks.registry import registry
from grpo_tasks.run_checkpoints import RunCheckpoints


class Reproduction(BaseModel):
    """Policies then and now, and the inputs that differ."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    expected: tuple[str, ...]
    """Hashes of the base and of the policy after each iteration, as they were registered."""
    reproduced: tuple[str, ...]
    iterations: int
    """Iterations of the run. The policies before them are the base and the results of SFT and DPO."""
    differences: dict[str, tuple[str, str]]
    """Inputs that differ, as (then, now), with the likeliest cause first."""

    @property
    def equal(self) -> bool:
        """True if all policies are the same bit for bit."""
        return self.expected == self.reproduced

    @property
    def first_difference(self) -> str | None:
        """The first with different weights of the base, SFT or DPO, and the iterations, which are counted from 1."""
        pairs = zip(self.expected, self.reproduced, strict=False)
        index = next((index for index, (then, now) in enumerate(pairs) if then != now), None)
        if index is None:
            return None
        iteration = index + 1 - (len(self.expected) - self.iterations)
        return f"iteration {iteration}" if iteration > 0 else "SFT or DPO" if index else "the base"


@flow(name="reproduce", task_runner=one_thread())
def reproduce(model: str) -> Reproduction:
    """Train the version at `models:/NAME@alias` or `models:/NAME/3` again, in a store of its own.

    No cached result is used or left, and nothing is registered. If the sources or the base model have changed, it
    raises `ReproductionError` before anything is computed.
    """
    models = registry()
    version = models.resolve(model)
    then = models.provenance(version)
    home().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="reproduce-", dir=home()) as scratch:
        config = require_unchanged(version.address, then)
        now = retrain_aside(config.model_copy(update={"store": f"{scratch}/store"}))
    now = now.model_copy(update={"external_digests": reads_now(then) | now.external_digests})
    return Reproduction(
        model=model,
        expected=then.policies,
        reproduced=now.policies,
        iterations=config.training.iterations,
        differences=then.differences(now),
    )


@flow(name="reproduce-training", persist_result=False, task_runner=one_thread())
def retrain_aside(config: PipelineConfig) -> Provenance:
    """Train a config, and return the provenance of the result."""
    config = preflight.check(config, purpose="trial")
    inputs = RunInputs.of(config)
    with run_executor(config.rollout) as executor:
        data = prepare_scenarios(config.scenarios, store=config.store, environment=config.environment)
        starts = starting_policies(config, base_policy(config.policy, config.store))
        steps = list(training_steps(config, data.split, starts[-1], RunCheckpoints(config, starts[-1])))
    return provenance(
        config,
        sources=inputs.sources,
        scenarios=data.artifact.sha256,
        model=inputs.model,
        external_digests=inputs.after(executor.reads).external_digests,
        policies=(*dict.fromkeys(start.policy for start in starts), *(step.policy.policy for step in steps)),
    )


def reads_now(then: Provenance) -> dict[str, str]:
    """Present digests of the files and variables that the user's code read then, without files that lie elsewhere.

    They are looked up by name, because what a process reads depends on what it has imported before, and on what the
    cache answers.
    """
    digests: dict[str, str] = {}
    for name, digest in then.external_digests.items():
        is_variable, place = name.startswith(VARIABLE), name.partition(" ")[2]
        if is_read(name) and (is_variable or Path(place).is_absolute()):
            now = current_digest(name) or ABSENT
            if now != ABSENT or digest == ABSENT or is_variable:
                digests[name] = now
    return digests


def require_unchanged(address: str, then: Provenance) -> PipelineConfig:
    """Config of a version. Raises `ReproductionError` if its sources or its base model have changed.

    The same error is raised if conversations that it was trained on were erased since. Raises like `recorded_config`
    as well.
    """
    config = recorded_config(address, then)
    _refuse_erased(config, then)
    _unchanged("scenarios.sources", then.sources, content_hash(config.scenarios.sources))
    _unchanged("policy.model", then.model, model_digest(config.policy))
    return config


def _refuse_erased(config: PipelineConfig, then: Provenance) -> None:
    store = ArtifactStore(config.store)
    if store.is_erased(store.folder("scenarios", then.scenarios)):
        raise ReproductionError(
            "conversations that this version was trained on were erased, because a user asked for it. Its training "
            "cannot be repeated, and grpo lineage still names its inputs"
        )


def _unchanged(setting: str, then: str, now: str) -> None:
    if then != now:
        raise ReproductionError(
            f"the files of {setting} have changed: their digest was {then[:16]}, now it is {now[:16]}. Restore the "
            "files of that time"
        )
