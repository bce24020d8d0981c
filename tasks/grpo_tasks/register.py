"""An MLflow model version with its provenance."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.errors import ArtifactError
from grpo.evaluation.schema import Decision, Evaluation
from grpo.identity.code import code_digest, user_code_files
from grpo.identity.provenance import agent_record, parameters, provenance
from grpo.policy.weights.registered import EVALUATION_DIGEST
from grpo.registry import ModelVersion
from grpo.registry.erased_data import refuse_erased, tuned_on
from grpo.registry.retention import REGISTERED, Retention
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import stage
from grpo_tasks.registry import registry


class RegisterResult(StageResult):
    """The registered version."""

    version: ModelVersion

    def verify(self, store: ArtifactStore) -> None:
        """Raise `ArtifactError` if the version of this run is gone."""
        super().verify(store)
        if registry().find(self.version.name, self.version.tags["run_key"]) != self.version:
            raise ArtifactError(f"version {self.version.version} of {self.version.name} is not in the registry")


@stage
def register(
    config: PipelineConfig,
    run_key: str,
    decision: Decision,
    evaluation: Evaluation,
    candidate: Artifact,
    champion: Artifact,
    scenarios: Artifact,
    sources: str,
    model: str,
    external_digests: dict[str, str],
    policies: tuple[str, ...],
    store: str,
) -> RegisterResult:
    """Register the candidate, whatever the verdict.

    Digests are of what the run read. `policies` are the hashes of the base and of each iteration's policy.
    """
    from grpo.learner.checkpoints import load_policy, read_state  # torch: to look at the registry needs none

    models, artifacts = registry(), ArtifactStore(store)
    refuse_erased(config, scenarios, artifacts)
    state = read_state(artifacts.path(candidate))
    tags = {
        **(config.registry.tags | tuned_on(config)),
        "run_key": run_key,
        "policy": state.policy_hash,
        "parent": state.parent or "",
        "checkpoint_uri": candidate.uri,
        "checkpoint_sha256": candidate.sha256,
        "champion_uri": champion.uri,
        "champion_sha256": champion.sha256,
        "verdict": decision.verdict,
        "scenarios": scenarios.sha256,
        "code": code_digest(),
        EVALUATION_DIGEST: evaluation.digest,
    }
    made_from = provenance(
        config,
        sources=sources,
        scenarios=scenarios.sha256,
        model=model,
        external_digests=external_digests,
        policies=policies,
        champion=read_state(artifacts.path(champion)).policy_hash,
        decision=decision,
        evaluation=evaluation,
        agent=agent_record(config),
    )
    for needed in (candidate, champion):
        Retention(artifacts).keep(needed, REGISTERED)
    run_id = models.open_run(config.registry.experiment, config.name, run_key=run_key, params=parameters(config))
    models.log_code(run_id, user_code_files([config.episode_parts]))
    policy = load_policy(artifacts, candidate)
    if (whole := policy.merged_hash) is not None:
        tags["merged"] = whole
    version = models.register(config.registry.model_name, run_id, policy, tags=tags, provenance=made_from)
    return RegisterResult(version=version)
