"""Train a policy: scenarios → rollouts → updates → evaluation → gates → registered version → promotion."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import yaml
from prefect import flow
from prefect.states import Completed
from pydantic import BaseModel, ConfigDict

from grpo.artifacts import Artifact
from grpo.config.gates import compared_metric
from grpo.config.loading import apply_overrides
from grpo.config.pipeline import PipelineConfig
from grpo.errors import NoEffect, NoLearningSignal, PromotionRefused
from grpo.evaluation.schema import (
    Decision,
    EpisodePair,
    Evaluation,
    FineTuning,
    Ingestion,
    PreferenceTuning,
    ReportDocument,
    RolloutRecord,
    RunProvenance,
    StageTiming,
)
from grpo.identity.cache_identity import RunInputs, pin_models, run_settings, short_digest
from grpo.identity.code import code_digest, package_versions
from grpo.registry import ModelVersion
from grpo.registry.promotions import LONGEST_REASON
from grpo.rewards.hacking.check import check_rewards
from grpo.storage.home import home
from grpo_flows.local import settings
from grpo_flows.local.objects import check_objects
from grpo_flows.pipeline import (
    RunCheckpoints,
    Scenarios,
    Step,
    base_policy,
    check_gates,
    collect_heldout,
    measure_tuning,
    prepare_scenarios,
    starting_policies,
    training_steps,
)
from grpo_tasks.evaluate import evaluate
from grpo_tasks.executor import StageExecutor, one_thread, stage_executor
from grpo_tasks.gate import gate
from grpo_tasks.load_base import BaseCheckpoint, Checkpoint
from grpo_tasks.promote import promote
from grpo_tasks.register import register
from grpo_tasks.registry import registry
from grpo_tasks.report import iteration_progress, report, shown_conversations

COMPUTE = ("ingest", "rollout", "score", "train", "evaluate")
"""Stages whose own work is what a run is for; everything else is orchestration."""


class RunResult(BaseModel):
    """Decision, report and registered version of a run."""

    model_config = ConfigDict(frozen=True)

    decision: Decision
    report: Path
    version: ModelVersion | None


@flow(name="train", flow_run_name="{config.name}", task_runner=one_thread())
def train(config: PipelineConfig, overrides: tuple[str, ...] = ()) -> RunResult:
    """Prepare scenarios, train the policy, and promote it if it passes the gates.

    Args:
        config: Everything that decides the result of the run.
        overrides: `section.key=value`, laid over the config as `--set` does.

    """
    config, started_at = pin_models(apply_overrides(config, overrides)), settings.started_at()
    run = RunInputs.of(config)
    with stage_executor(config.rollout, config.compute) as executor:
        check_rewards(config.reward)
        check_objects(config)
        data = prepare_scenarios(config.scenarios, store=config.store, environment=config.environment)
        check_gates(config, data)
        base = base_policy(config.policy, config.store)
        starts = starting_policies(config, base)
        start = starts[-1]
        serving = registry().champion(config.registry.model_name)
        checkpoints, steps = RunCheckpoints(config, start), list[Step]()
        try:
            with iteration_progress(config.training.iterations) as progress:
                for step in training_steps(config, data.artifact, data.split, start, checkpoints):
                    steps.append(step)
                    progress(len(steps))
        except (NoLearningSignal, NoEffect) as error:
            failed = Decision(verdict="failed", reason=str(error))
            _report(config, run.after(executor.reads), data, base, steps, checkpoints, executor, started_at, failed)
            raise
        candidate, run = steps[-1].policy, run.after(executor.reads)
        champion = _champion(config, run, serving, start)
        before = collect_heldout(config, champion, data.artifact, data.split)
        after = collect_heldout(config, candidate.checkpoint, data.artifact, data.split)
        evaluation = evaluate(
            champion=before.scored,
            candidate=after.scored,
            base=start.checkpoint,
            settings=config.evaluation,
            metric=compared_metric(config.gates),
            seed=config.seed,
            store=config.store,
        ).evaluation
        decision = gate(
            evaluation=evaluation,
            champion=before.scored,
            candidate=after.scored,
            gates=config.gates,
            settings=config.evaluation,
            seed=config.seed,
            store=config.store,
        ).decision
        version = register(
            config=config,
            run_key=run.key(config),
            decision=decision,
            evaluation=evaluation,
            candidate=candidate.checkpoint,
            champion=champion,
            scenarios=data.artifact,
            sources=run.sources,
            model=run.model,
            external_digests=run.external_digests,
            policies=(*dict.fromkeys(policy.policy for policy in starts), *(step.policy.policy for step in steps)),
            store=config.store,
        ).version
        checkpoints.release_earlier_runs()
        decision = _promote(version, decision)
        shown = shown_conversations(before.scored, after.scored, candidate.checkpoint, config.store)
        tuned = measure_tuning(config, data, starts, candidate)
        heldout = (
            RolloutRecord(part="before", scored=(before.scored,)),
            RolloutRecord(part="after", scored=(after.scored,)),
        )
        result = _report(
            config,
            run,
            data,
            base,
            steps,
            checkpoints,
            executor,
            started_at,
            decision,
            version,
            evaluation,
            shown,
            tuned,
            heldout,
        )
        # the caller gets the data of a state
        return cast(RunResult, Completed(message=f"{decision.verdict}: {decision.reason}", data=result))


def _champion(config: PipelineConfig, run: RunInputs, serving: ModelVersion | None, start: Checkpoint) -> Artifact:
    """The policy that the candidate is compared with: the champion, or where there has never been one the policy that
    the training starts from.

    A run that was evaluated before is compared with the same policy again, so that its decision stands.
    """
    earlier = registry().find(config.registry.model_name, run.key(config))
    if earlier is not None:
        tags = earlier.tags
        return Artifact(uri=tags["champion_uri"], sha256=tags["champion_sha256"], kind="checkpoint")
    return start.checkpoint if serving is None else serving.checkpoint


def _promote(version: ModelVersion, decision: Decision) -> Decision:
    """Promote the version if the gates decided so and it has not been champion before.

    The decision that is returned is a refusal where another version became champion during this run.
    """
    promoted = {change.champion for change in registry().promotions(version.name).history()}
    if decision.verdict != "promote" or version.version in promoted:
        return decision
    try:
        promote(model_name=version.name, version=version.version, reason=decision.reason[:LONGEST_REASON])
    except PromotionRefused as error:
        return decision.model_copy(update={"verdict": "refuse", "reason": f"{error}; {decision.reason}"})
    return decision


def _report(
    config: PipelineConfig,
    run: RunInputs,
    data: Scenarios,
    base: BaseCheckpoint,
    steps: Sequence[Step],
    checkpoints: RunCheckpoints,
    executor: StageExecutor,
    started_at: float,
    decision: Decision,
    version: ModelVersion | None = None,
    evaluation: Evaluation | None = None,
    shown: tuple[EpisodePair, ...] = (),
    tuned: tuple[FineTuning | None, PreferenceTuning | None] = (None, None),
    heldout: tuple[RolloutRecord, ...] = (),
) -> RunResult:
    """Write the report, and attach it to the records of Prefect and MLflow."""
    counts, wall, timings = data.ingested.counts, time.time() - started_at, executor.timings()
    document = ReportDocument(
        name=config.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        decision=decision,
        ingestion=Ingestion(
            records=counts.records,
            scenarios=counts.scenarios,
            quarantined=counts.quarantined,
            train=data.split.train,
            heldout=data.split.heldout,
            reasons=dict(counts.reasons),
            data_docs=f"data_docs/{data.validated.validation.docs_index}",
        ),
        fine_tuning=tuned[0],
        preference_tuning=tuned[1],
        iterations=tuple(step.iteration for step in steps),
        evaluation=evaluation,
        conversations=shown,
        rollouts=(*(step.rollouts for step in steps), *heldout),
        removed=tuple(checkpoint.uri for checkpoint in checkpoints.removed),
        stages=timings,
        wall_s=wall,
        orchestration_share=orchestration_share(timings, wall),
        lineage=RunProvenance(
            run=run.key(config),
            seed=config.seed,
            config_digest=short_digest(run_settings(config)),
            code_digest=code_digest(),
            scenarios_digest=data.artifact.sha256[:16],
            base_policy=base.policy,
            forward_path=base.forward_path,
            champion_policy=evaluation.champion_policy if evaluation else "",
            candidate_policy=(steps[-1].policy if steps else base).policy,
            package_versions=package_versions(),
            model_version=f"{version.name} {version.version}" if version else None,
        ),
        config=yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False),
    )
    page = report(document, config, run.key(config), data.validated.docs, home() / config.name)
    return RunResult(decision=decision, report=page, version=version)


def orchestration_share(timings: Sequence[StageTiming], wall_s: float) -> float:
    """Share of a run's time that is not the own work of its computing stages."""
    return max(0.0, 1 - sum(timing.compute_s for timing in timings if timing.name in COMPUTE) / wall_s)
