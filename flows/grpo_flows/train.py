"""Train a policy: scenarios → rollouts → updates → evaluation → gates → registered version → promotion.

Each step is a stage with a cached result. If the run is interrupted and started again, it goes on after the last stage
that has ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import yaml
from prefect import flow
from prefect.runtime import flow_run
from prefect.states import Completed
from pydantic import BaseModel, ConfigDict

from grpo.artifacts import Artifact
from grpo.config.gates import compared_metric
from grpo.config.loading import apply_overrides
from grpo.config.pipeline import PipelineConfig
from grpo.diagnosis.explain import explain
from grpo.errors import NoEffect, NoLearningSignal, PromotionRefused, printable
from grpo.evaluation.report import write_report
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
from grpo.identity.cache_identity import RunInputs, run_settings, short_digest
from grpo.identity.code import code_digest, package_versions
from grpo.policy.weights.promotion_records import LONGEST_REASON
from grpo.registry import ModelVersion
from grpo.storage.credentials import masked
from grpo.storage.home import home
from grpo.user_failures import reason_of
from grpo_flows.pipeline import (
    Scenarios,
    Step,
    base_policy,
    in_store,
    measure_tuning,
    prepare_scenarios,
    settle_gates,
    starting_policies,
    training_steps,
)
from grpo_flows.steps.rollouts import collect_heldout
from grpo_local import preflight, settings
from grpo_local.rollout_servers import run_executor
from grpo_tasks.evaluate import evaluate
from grpo_tasks.execution.executor import StageExecutor
from grpo_tasks.execution.retries import patient
from grpo_tasks.execution.task_runners import one_thread
from grpo_tasks.gate import gate
from grpo_tasks.load_base import BaseCheckpoint, Checkpoint
from grpo_tasks.promote import promote
from grpo_tasks.register import register
from grpo_tasks.registry import registry
from grpo_tasks.report import report, shown_conversations
from grpo_tasks.run_checkpoints import RunCheckpoints, name_in_use
from grpo_tasks.run_page import iteration_progress
from grpo_tasks.score import ScoreResult
from grpo_tasks.write_served import with_written_data

logger = logging.getLogger(__name__)

COMPUTE = ("ingest", "sft", "dpo", "rollout", "rollout_window", "score", "train", "evaluate")
"""Stages that do the work of a run. All other time is orchestration."""
_LONGEST_NAME = 200


class RunResult(BaseModel):
    """Decision, report and registered version of a run."""

    model_config = ConfigDict(frozen=True)

    decision: Decision
    report: Path
    version: ModelVersion | None


def run_name() -> str:
    """Name of this flow run: the name of its config and the settings laid over it, e.g. `quickstart: seed=2`."""
    config, overrides = flow_run.parameters["config"], flow_run.parameters.get("overrides", ())
    name = config.name if isinstance(config, PipelineConfig) else config["name"]
    return masked(printable(": ".join([name, *filter(None, [", ".join(overrides)])])))[:_LONGEST_NAME]


@flow(name="train", flow_run_name=run_name, task_runner=one_thread())
def train(config: PipelineConfig, overrides: tuple[str, ...] = ()) -> RunResult:
    """Prepare scenarios, train the policy, and promote it if it passes the gates.

    Args:
        config: Everything that decides the result of the run.
        overrides: `section.key=value`, laid over the config as `--set` does.

    """
    started_at = settings.started_at()
    config = preflight.check(apply_overrides(config, overrides))
    with name_in_use(config), run_executor(config.rollout, config.compute) as executor:
        config = with_written_data(config)
        run = RunInputs.of(config)
        data = prepare_scenarios(config.scenarios, store=config.store, environment=config.environment)
        config = settle_gates(config, data)
        base = base_policy(config.policy, config.store)
        serving = _serving(config)
        if serving is not None:
            in_store(config.store, serving.checkpoint)  # before the training, because its store may be gone
        so_far = _SoFar()

        def document(decision: Decision) -> ReportDocument:
            inputs = so_far.inputs or run.after(executor.reads)
            return _document(config, inputs, data, base, so_far, executor, started_at, decision)

        with _failure_reported(config, data, so_far, document):
            starts = starting_policies(config, base)
            start, steps = starts[-1], so_far.steps
            checkpoints = RunCheckpoints(config, start)
            so_far.removed = checkpoints.removed
            with iteration_progress(config.training.iterations) as progress:
                for step in training_steps(config, data.split, start, checkpoints, so_far.collected):
                    steps.append(step)
                    progress(len(steps))
            candidate, run = steps[-1].policy, run.after(executor.reads)
            so_far.inputs = run
            champion = _champion(config, run, serving, start)
            before = collect_heldout(config, champion, data.split)
            after = collect_heldout(config, candidate.checkpoint, data.split)
            evaluation, decision = _compare(config, data, start, before, after, so_far)
            so_far.version = version = register(
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
            so_far.decision = decision = _promote(config, version, decision)
            so_far.shown = patient(shown_conversations)(before.scored, after.scored, candidate.checkpoint, config.store)
            so_far.tuned = measure_tuning(config, data, starts, candidate)
            so_far.heldout = (
                RolloutRecord(part="before", scored=(before.scored,)),
                RolloutRecord(part="after", scored=(after.scored,)),
            )
            written = _explained(document(decision))
            page = report(written, config, run.key(config), data.validated.docs, home() / config.name)
        result = RunResult(decision=decision, report=page, version=version)
        # Prefect unwraps the state, so that a caller gets `data`
        return cast(RunResult, Completed(message=f"{decision.verdict}: {decision.reason}", data=result))


@dataclass(slots=True, kw_only=True)
class _SoFar:
    """Results of a run so far, from which its report is written, even if the run fails."""

    steps: list[Step] = field(default_factory=list)
    inputs: RunInputs | None = None
    """The run's inputs with what its code has read. None until all iterations are done."""
    evaluation: Evaluation | None = None
    version: ModelVersion | None = None
    decision: Decision | None = None
    """Decision that was carried out. None before that."""
    shown: tuple[EpisodePair, ...] = ()
    tuned: tuple[FineTuning | None, PreferenceTuning | None] = (None, None)
    rollouts: dict[str | int, RolloutRecord] = field(default_factory=dict)
    """Episodes of the iterations by their index, also of the iteration that is not finished."""
    heldout: tuple[RolloutRecord, ...] = ()
    removed: Sequence[Artifact] = ()

    def collected(self, record: RolloutRecord) -> None:
        """Add the episodes of an iteration. If it is computed again, they replace the earlier ones."""
        self.rollouts[record.part] = record


def _compare(
    config: PipelineConfig,
    data: Scenarios,
    start: Checkpoint,
    before: ScoreResult,
    after: ScoreResult,
    so_far: _SoFar,
) -> tuple[Evaluation, Decision]:
    """Compare the held-out episodes of champion (`before`) and candidate (`after`), and let the gates decide.

    `so_far` gets the evaluation before the gates run, so that the report has it if a gate fails with an error.
    """
    so_far.evaluation = evaluation = evaluate(
        champion=before.scored,
        candidate=after.scored,
        scenarios=data.artifact,
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
        scenarios=data.artifact,
        gates=config.gates,
        settings=config.evaluation,
        seed=config.seed,
        store=config.store,
    ).decision
    return evaluation, decision


def _registered_earlier(config: PipelineConfig, so_far: _SoFar, document: ReportDocument) -> bool:
    """True if this run was registered when it ran before. The report of its version then stays in MLflow as it is."""
    return so_far.version is None and registry().find(config.registry.model_name, document.lineage.run) is not None


@contextmanager
def _failure_reported(
    config: PipelineConfig, data: Scenarios, so_far: _SoFar, document: Callable[[Decision], ReportDocument]
) -> Iterator[None]:
    """Write the report of a run that fails after its first update, whatever ends it, and raise the failure again.

    If a decision was carried out, the report has it, because the champion may have changed. The files are written
    first, because they need no server, and the failure may be a signal, or that Prefect or MLflow is gone.
    """
    try:
        yield
    except BaseException as failure:  # also a signal, and an exit of the user's code
        tuned = config.sft is not None or config.dpo is not None
        if so_far.steps or tuned or isinstance(failure, (NoLearningSignal, NoEffect)):
            folder = home() / config.name
            try:
                written = document(_decision(so_far.decision, failure))
                write_report(written, folder, data_docs=None)
                if isinstance(failure, Exception) and not _registered_earlier(config, so_far, written):
                    written = _explained(written)
                    report(written, config, written.lineage.run, data.validated.docs, folder)
            except Exception:
                logger.warning(
                    "the report of the failed run in %s could not be written completely: its folder, Prefect or "
                    "MLflow lacks it",
                    folder,
                    exc_info=True,
                )
        raise


@patient
def _explained(document: ReportDocument) -> ReportDocument:
    """The report with the explanation why the run learned or did not."""
    return document.model_copy(update={"explanation": explain(document)})


def _decision(carried_out: Decision | None, failure: BaseException) -> Decision:
    """The decision of a failed run: the one that was carried out, with the failure added, or else `failed`."""
    if carried_out is None:
        return Decision(verdict="failed", reason=reason_of(failure))
    return carried_out.model_copy(update={"reason": f"{carried_out.reason}. Then the run failed: {reason_of(failure)}"})


@patient
def _serving(config: PipelineConfig) -> ModelVersion | None:
    """The champion when the run begins."""
    return registry().champion(config.registry.model_name, follow_alias=config.registry.follow_alias)


def _champion(config: PipelineConfig, run: RunInputs, serving: ModelVersion | None, start: Checkpoint) -> Artifact:
    """The policy that the candidate is compared with: the champion, or if there was never one the training's start.

    If the run was registered before, it is compared with the same policy again, so that its decision stays valid.
    """
    earlier = _registered(config, run)
    if earlier is not None:
        tags = earlier.tags
        before = Artifact(uri=tags["champion_uri"], sha256=tags["champion_sha256"], kind="checkpoint")
        return in_store(config.store, before)
    return start.checkpoint if serving is None else in_store(config.store, serving.checkpoint)


@patient
def _registered(config: PipelineConfig, run: RunInputs) -> ModelVersion | None:
    """The version that an earlier run with these inputs has registered."""
    return registry().find(config.registry.model_name, run.key(config))


def _promote(config: PipelineConfig, version: ModelVersion, decision: Decision) -> Decision:
    """Promote the version if the gates decided so and it has not been champion before.

    If another version became champion during this run, the returned decision is a refusal.
    """
    promoted = _promoted(version.name)
    if decision.verdict != "promote" or version.version in promoted:
        return decision
    try:
        promote(
            model_name=version.name,
            version=version.version,
            reason=decision.reason[:LONGEST_REASON],
            follow_alias=config.registry.follow_alias,
        )
    except PromotionRefused as error:
        return decision.model_copy(update={"verdict": "refuse", "reason": f"{error}; {decision.reason}"})
    return decision


@patient
def _promoted(model: str) -> set[int | None]:
    """Versions that have been champion."""
    return {change.champion for change in registry().promotions(model).history()}


def _document(
    config: PipelineConfig,
    run: RunInputs,
    data: Scenarios,
    base: BaseCheckpoint,
    so_far: _SoFar,
    executor: StageExecutor,
    started_at: float,
    decision: Decision,
) -> ReportDocument:
    """Content of the report."""
    steps, evaluation, version = so_far.steps, so_far.evaluation, so_far.version
    counts, wall, timings = data.ingested.counts, time.time() - started_at, executor.timings()
    return ReportDocument(
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
        fine_tuning=so_far.tuned[0],
        preference_tuning=so_far.tuned[1],
        iterations=tuple(step.iteration for step in steps),
        evaluation=evaluation,
        conversations=so_far.shown,
        rollouts=(*so_far.rollouts.values(), *so_far.heldout),
        removed=tuple(checkpoint.uri for checkpoint in so_far.removed),
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
            chat_format=base.chat_format,
            champion_policy=evaluation.champion_policy if evaluation else "",
            candidate_policy=(steps[-1].policy if steps else base).policy,
            package_versions=package_versions(),
            model_version=f"{version.name} {version.version}" if version else None,
        ),
        config=yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False),
    )


def orchestration_share(timings: Sequence[StageTiming], wall_s: float) -> float:
    """Share of a run's time that is not the own work of its computing stages."""
    return max(0.0, 1 - sum(timing.compute_s for timing in timings if timing.name in COMPUTE) / wall_s)
