"""Retrain the champion on new conversations, if a trigger fires."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed
from pydantic import ValidationError

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.dpo import DPOSettings, WrittenPairs
from grpo.config.pipeline import PipelineConfig
from grpo.config.retraining import CorrectionSettings, RetrainConfig, SFTCorrections
from grpo.config.scenarios import FileSource, ScenarioSettings, ServedSource, Source
from grpo.config.sft import SFTSettings, WrittenDemonstrations
from grpo.errors import DataError, GRPOError
from grpo.identity.cache_identity import short_digest
from grpo.identity.code import LOG_PREFIX, code_digest, external_digests
from grpo.retraining.champion import Champion, champion, last_challenger, new_conversations
from grpo.retraining.curation import ACCEPTED, CONVERSATIONS
from grpo.retraining.data_lineage import STARTED_FROM
from grpo.retraining.reports import PendingRetraining, RetrainingReport, TriggerReport
from grpo.scenarios.served_tuning import CorrectionCounts
from grpo.scenarios.sources import content_hash, pin_sources, snapshot
from grpo.storage.files import write_atomically
from grpo.storage.home import home
from grpo.user_failures import reason_of
from grpo_flows.pipeline import in_store
from grpo_local.preflight import check_retraining
from grpo_tasks.build_mixture import build_mixture
from grpo_tasks.check_triggers import check_triggers
from grpo_tasks.curate import CurationResult, curate, keep_conversations, keep_planned
from grpo_tasks.execution.executor import InProcessExecutor, stage_executor
from grpo_tasks.execution.stage import executed_by, run_all
from grpo_tasks.execution.task_runners import one_thread
from grpo_tasks.ingest import ingest
from grpo_tasks.registry import registry
from grpo_tasks.retraining_report import retraining_report, write_retraining
from grpo_tasks.split import SplitResult, split
from grpo_tasks.validate import validate
from grpo_tasks.verify_log import verify_log
from grpo_tasks.warm_start import warm_start
from grpo_tasks.write_corrections import write_corrections

logger = logging.getLogger(__name__)

# torch is loaded only when a trigger has fired, because most scheduled runs end without training


@flow(name="retrain", flow_run_name="{config.name}", task_runner=one_thread())
def retrain(config: RetrainConfig) -> RetrainingReport:
    """Check the triggers. If one fires, train the champion on new conversations, and let the gates decide.

    If a retraining was interrupted, it goes on with the mixture that it began with.

    Args:
        config: The triggers, the conversations, and the run that is repeated.

    """
    so_far = RetrainingReport(name=config.name, verdict="running", reason="the triggers are checked")
    folder, known = home() / config.name, [so_far]
    with _failure_reported(config, folder, known):
        write_retraining(so_far, folder)
        pipeline, pending = check_retraining(config, depth="files"), pending_path(config)
        plan = _read_pending(pending)
        if plan is None:
            with stage_executor():
                checked = check(config, pipeline)
                triggers = checked.triggers
                if not triggers.fired:
                    report = _idle_report(config, triggers)
                    retraining_report(report, None, folder)
                    # the caller gets the data of a state
                    ended: State[Any] = Completed(name="Nothing to do", message=triggers.summary, data=report)
                    return cast(RetrainingReport, ended)
                known.append(so_far.model_copy(update={"triggers": triggers, "reason": triggers.summary}))
                plan = _plan(config, check_retraining(config), checked)
            _write_pending(pending, plan)
        known.append(plan.report("running", f"it trains: {plan.triggers.summary}"))
        write_retraining(known[-1], folder)
        return _train(plan, folder, pending)


def retrain_if_idle(config: RetrainConfig, pipeline: PipelineConfig) -> RetrainingReport | None:
    """Check the triggers without a Prefect server. None if one fires, or if a flow run is needed to check them.

    `pipeline` is the run that is repeated, as `check_retraining` returns it. The flow writes the same report and caches
    the same stages, so that a flow run that follows finds them.
    """
    evaluates = any(trigger.kind == "heldout_reward" for trigger in config.triggers)
    if evaluates or pending_path(config).exists():
        return None
    with executed_by(InProcessExecutor()):
        triggers = check(config, pipeline).triggers
    if triggers.fired:
        return None
    report = _idle_report(config, triggers)
    retraining_report.fn(report, None, home() / config.name)
    return report


def _idle_report(config: RetrainConfig, triggers: TriggerReport) -> RetrainingReport:
    return RetrainingReport(name=config.name, verdict="nothing to do", reason=triggers.summary, triggers=triggers)


@contextmanager
def _failure_reported(config: RetrainConfig, folder: Path, known: Sequence[RetrainingReport]) -> Iterator[None]:
    """Write the report of a retraining that fails, whatever ends it, and raise the failure again.

    `known` are the reports of its steps so far. The file comes first, because it needs no server.
    """
    try:
        yield
    except BaseException as failure:  # also a signal, and an exit of the user's code
        report = known[-1].model_copy(update={"verdict": "failed", "reason": reason_of(failure)})
        try:
            write_retraining(report, folder)
            if isinstance(failure, Exception):
                retraining_report(report, None, folder)
        except Exception:
            logger.warning(
                "the report of the failed retraining %s could not be written completely: its folder, Prefect or "
                "MLflow lacks it",
                config.name,
                exc_info=True,
            )
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Results of the trigger check, and the artifacts that a retraining is planned from."""

    triggers: TriggerReport
    champion: Champion | None
    scenarios: Artifact
    split: Artifact
    sources: tuple[Source, ...]
    """The sources of conversations, as they were at the start."""
    curated: CurationResult


def check(config: RetrainConfig, pipeline: PipelineConfig) -> Checked:
    """Curate the conversations that exist now, and check every trigger."""
    models, artifacts = registry(), ArtifactStore(pipeline.store)
    name, settings = pipeline.registry.model_name, pin_sources(pipeline.scenarios)
    serving = champion(models, artifacts, name, follow_alias=pipeline.registry.follow_alias)
    challenger = last_challenger(models, artifacts, name, serving)
    sources = tuple(map(snapshot, config.conversations))
    ingested = ingest(
        sources=settings.sources,
        content=content_hash(settings.sources),
        max_quarantined_fraction=settings.max_quarantined_fraction,
        store=pipeline.store,
    )
    divided = _split(pipeline, ingested.scenarios, settings.validation_fraction, settings.limit)
    call = curate.bind(
        sources=sources,
        content=content_hash(sources),
        base=ingested.scenarios,
        split=divided.split,
        champion=serving.training_data if serving is not None else None,
        settings=config.curation,
        store=pipeline.store,
    )
    curated = run_all([call])[0]
    registered = [version.tags[CONVERSATIONS] for version in models.versions(name) if CONVERSATIONS in version.tags]
    keep_conversations(call, curated, registered)
    asked = any(trigger.kind == "heldout_reward" for trigger in config.triggers) and challenger is None
    results = (check_triggers.fn if flow_run.get_id() is None else check_triggers)(
        config=config,
        conversations=curated.conversations,
        champion=serving,
        challenger=challenger,
        reevaluated=_reevaluate(pipeline, serving) if asked and serving is not None else None,
        seed=pipeline.seed,
        store=pipeline.store,
    )
    return Checked(
        triggers=TriggerReport(
            model=name,
            champion=serving.name if serving is not None else None,
            results=results,
            curation=curated.counts,
        ),
        champion=serving,
        scenarios=ingested.scenarios,
        split=divided.split,
        sources=sources,
        curated=curated,
    )


def retraining_config(
    pipeline: PipelineConfig,
    *,
    name: str,
    scenarios: str,
    model: str | None,
    tags: Mapping[str, str],
    tuning: SFTSettings | DPOSettings | None = None,
) -> PipelineConfig:
    """The pipeline's config with other scenarios, a file with declared splits, and another model, if one is given.

    If a model is given, it is trained already, so it gets `tuning`, if there is one, instead of the pipeline's SFT and
    DPO. The tags are added to the tags of the registered version.
    """
    settings, recorded = pipeline.scenarios, pipeline.registry
    return pipeline.model_copy(
        update={
            "name": name,
            "policy": pipeline.policy.model_copy(update={"model": model or pipeline.policy.model}),
            "sft": pipeline.sft if model is None else tuning if isinstance(tuning, SFTSettings) else None,
            "dpo": pipeline.dpo if model is None else tuning if isinstance(tuning, DPOSettings) else None,
            "scenarios": ScenarioSettings(
                sources=(FileSource(kind="parquet", path=scenarios),),
                max_quarantined_fraction=settings.max_quarantined_fraction,
                validation_fraction=settings.validation_fraction,
            ),
            "registry": recorded.model_copy(update={"tags": {**recorded.tags, **tags}}),
        }
    )


def _plan(config: RetrainConfig, pipeline: PipelineConfig, checked: Checked) -> PendingRetraining:
    """Build and validate the training mixture, and the config of a run on it that starts from the champion."""
    artifacts, serving = ArtifactStore(pipeline.store), checked.champion
    conversations = checked.curated.conversations
    new = new_conversations(artifacts.path(conversations) / ACCEPTED, artifacts, serving)
    mixed = build_mixture(
        base=checked.scenarios,
        split=checked.split,
        conversations=conversations,
        new_ids=sorted(new.ids.to_pylist()),
        lineage=serving.data_lineage if serving is not None else (),
        settings=config.mixture,
        validation_fraction=pipeline.scenarios.validation_fraction,
        seed=pipeline.seed,
        store=pipeline.store,
        environment=pipeline.environment,
    )
    keep_planned(conversations, config.name, pipeline.store)
    validate(
        scenarios=mixed.mixture,
        validation_fraction=pipeline.scenarios.validation_fraction,
        previous=serving.training_data.scenarios if serving is not None else None,
        store=pipeline.store,
    )
    served = _served(checked)
    verified = None
    if served:
        verified = verify_log(
            sources=served,
            content=content_hash(checked.sources),
            model=pipeline.registry.model_name,
            seed=pipeline.seed,
            store=pipeline.store,
        ).check
    tags, model, tuning, counts = {CONVERSATIONS: conversations.sha256}, None, None, None
    if serving is not None:
        start = in_store(pipeline.store, serving.checkpoint)
        model = artifacts.address(warm_start(champion=start, store=pipeline.store).model)
        tags[STARTED_FROM] = serving.checkpoint.sha256
        if config.corrections is not None:
            tuning, counts = _tuning(config.corrections, config, pipeline, checked, mixed.mixture)
    run = retraining_config(
        pipeline, name=config.name, scenarios=artifacts.address(mixed.mixture), model=model, tags=tags, tuning=tuning
    )
    return PendingRetraining(
        config=config, triggers=checked.triggers, mixture=mixed.counts, corrections=counts, served=verified, run=run
    )


def _served(checked: Checked) -> tuple[ServedSource, ...]:
    return tuple(source for source in checked.sources if isinstance(source, ServedSource))


def _tuning(
    settings: CorrectionSettings, config: RetrainConfig, pipeline: PipelineConfig, checked: Checked, mixture: Artifact
) -> tuple[SFTSettings | DPOSettings | None, CorrectionCounts]:
    """SFT or DPO on corrections of conversations in the training split. None if there are too few corrections."""
    corrected = write_corrections(
        sources=_served(checked),
        content=content_hash(checked.sources),
        mixture=mixture,
        settings=config.curation,
        method=settings.method,
        max_corrections=settings.max_corrections,
        store=pipeline.store,
    )
    if corrected.counts.used < settings.min_corrections:
        return None, corrected.counts
    path = ArtifactStore(pipeline.store).address(corrected.written)
    if isinstance(settings, SFTCorrections):
        sft = SFTSettings(
            demonstrations=WrittenDemonstrations(kind="jsonl", path=path),
            epochs=settings.epochs,
            learning_rate=settings.learning_rate,
            conversations_per_step=settings.conversations_per_step,
        )
        return sft, corrected.counts
    dpo = DPOSettings(
        pairs=WrittenPairs(kind="jsonl", path=path),
        beta=settings.beta,
        epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        pairs_per_step=settings.pairs_per_step,
    )
    return dpo, corrected.counts


def _train(plan: PendingRetraining, folder: Path, pending: Path) -> RetrainingReport:
    """Run the pipeline on the plan. If it fails permanently, the next scheduled run does not try the plan again."""
    from grpo_flows.train import train

    try:
        result = train(plan.run)
    except GRPOError:
        pending.unlink(missing_ok=True)
        raise
    version, decision = result.version, result.decision
    name = f"{version.name}/{version.version}" if version is not None else None
    report = plan.report(decision.verdict, decision.reason, version=name)
    retraining_report(report, version, folder)
    pending.unlink(missing_ok=True)
    return cast(RetrainingReport, Completed(message=f"{decision.verdict}: {decision.reason}", data=report))


def _split(pipeline: PipelineConfig, scenarios: Artifact, fraction: float, limit: int | None) -> SplitResult:
    return split(  # as a training does, without the scenarios that its environment cannot play
        scenarios=scenarios,
        validation_fraction=fraction,
        limit=limit,
        store=pipeline.store,
        environment=pipeline.environment,
        max_refused_share=pipeline.scenarios.max_quarantined_fraction,
    )


def _reevaluate(pipeline: PipelineConfig, serving: Champion) -> tuple[float, float] | None:
    """The champion's held-out mean by today's pipeline, and its upper bound. None if its registration has no mean."""
    from grpo.evaluation.evaluate import mean
    from grpo.tables import read_all
    from grpo_flows.steps.rollouts import collect_heldout

    if serving.evaluation is None:
        return None
    data = serving.training_data
    divided = _split(pipeline, data.scenarios, data.validation_fraction, data.limit)
    heldout = collect_heldout(pipeline, in_store(pipeline.store, serving.checkpoint), divided)
    interval = mean(
        read_all([ArtifactStore(pipeline.store).path(heldout.scored)]),
        pipeline.evaluation,
        metric=serving.evaluation.metric,
        seed=pipeline.seed,
    )
    return interval.mean, interval.high


def pending_path(config: RetrainConfig) -> Path:
    """File of the retraining that has begun and not ended, with these settings and this code.

    The settings count as they are written. If an alias moves, a file of scenarios grows, or a serving log that `sft` or
    `dpo` reads gets further turns, it is still the same file.
    """
    pipeline = config.load_pipeline()
    settings = [config.model_dump(mode="json"), pipeline.model_dump(mode="json")]
    digests = {k: v for k, v in external_digests([config, pipeline]).items() if not k.startswith(LOG_PREFIX)}
    identity = short_digest([settings, code_digest(), digests])
    return home() / config.name / f"pending-{identity}.json"


def _read_pending(path: Path) -> PendingRetraining | None:
    try:
        return PendingRetraining.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise DataError(
            f"the plan of a retraining that has begun, {path}, is damaged. Restore it from a backup, or remove it, so "
            "that the triggers are checked again"
        ) from error


def _write_pending(path: Path, plan: PendingRetraining) -> None:
    """Write the plan. From now on it is carried out, even if new conversations are logged or a version is promoted."""
    for other in path.parent.glob("pending-*.json"):
        if other != path:
            other.unlink(missing_ok=True)
    write_atomically(path, plan.model_dump_json())
