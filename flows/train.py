"""The main job: scenarios in, a judged and registered policy out."""

from __future__ import annotations

import hashlib
import json
import time
from datetime import UTC, datetime
from pathlib import Path

import yaml
from grpo.artifacts import Artifact
from grpo.config.pipeline import PipelineConfig
from grpo.errors import NoEffect, NoLearningSignal
from grpo.evaluation.document import (
    Decision,
    Evaluation,
    Ingestion,
    Iteration,
    Lineage,
    ReportDocument,
    ShownPair,
)
from grpo.registry import ModelVersion
from grpo.scenarios.fingerprint import fingerprint
from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import BaseModel, ConfigDict
from tasks.base import Checkpoint, base
from tasks.evaluate import evaluate
from tasks.gate import gate
from tasks.ingest import IngestResult, ingest
from tasks.register import register, registry
from tasks.report import report, shown_conversations
from tasks.rollout import rollout
from tasks.score import ScoreResult, score
from tasks.split import SplitResult, split
from tasks.stage import code_digest, home, package_versions
from tasks.train import TrainResult, train as update
from tasks.validate import ValidateResult, validate

from flows.ledger import Ledger

COMPUTE = ("ingest", "rollout", "score", "train", "evaluate")
"""Stages whose own work is what a run is for; everything else is orchestration."""


class Promotion(BaseModel):
    """How a run ended."""

    model_config = ConfigDict(frozen=True)

    decision: Decision
    report: Path
    version: ModelVersion | None
    orchestration_share: float


class Run:
    """One run of the pipeline while it is going on."""

    def __init__(self, config: PipelineConfig, started: float) -> None:
        self.config = config
        self.store = config.store
        self.started = started
        self.ledger = Ledger(config.store)
        self.content = fingerprint(config.scenarios.sources)
        self.run_key = _digest([config.model_dump(mode="json"), self.content, _folder(config), code_digest()])
        self.iterations: list[Iteration] = []

    def prepare(self) -> tuple[IngestResult, ValidateResult, SplitResult]:
        """Ingest, validate and split: nothing is computed on scenarios that fail an expectation."""
        settings = self.config.scenarios
        bound = settings.max_quarantined_share
        ingested = self.ledger.run(
            ingest, sources=settings.sources, content=self.content, max_quarantined_share=bound, store=self.store
        )
        validated = self.ledger.run(
            validate,
            scenarios=ingested.scenarios,
            counts=ingested.counts,
            max_quarantined_share=bound,
            store=self.store,
        )
        sides = self.ledger.run(
            split,
            scenarios=ingested.scenarios,
            heldout_share=settings.heldout_share,
            limit=settings.limit,
            store=self.store,
        )
        return ingested, validated, sides

    def play(self, data: IngestResult, sides: SplitResult, checkpoint: Artifact, part: int | str) -> ScoreResult:
        """Roll out one iteration, or the held-out side, in shards, and score it."""
        config = self.config
        heldout = part == "heldout"
        shared = {
            "scenarios": data.scenarios,
            "split": sides.split,
            "checkpoint": checkpoint,
            "environment": config.environment,
            "settings": config.rollout,
            "samples": config.evaluation.samples if heldout else config.rollout.group_size,
            "temperature": config.evaluation.temperature if heldout else config.rollout.temperature,
            "part": part,
            "seed": config.seed,
            "store": self.store,
        }
        played = self.ledger.map(rollout, [{**shared, "shard": k} for k in range(config.rollout.shards)])
        rollouts = tuple(result.rollout for result in played)
        return self.ledger.run(score, rollouts=rollouts, reward=config.reward, store=self.store)

    def improve(self, data: IngestResult, sides: SplitResult, first: Checkpoint) -> Checkpoint:
        """Rollout, score and train, again and again."""
        policy = first
        for index in range(self.config.training.iterations):
            scored = self.play(data, sides, policy.checkpoint, index)
            trained = self.ledger.run(
                update,
                scored=scored.scored,
                parent=policy.checkpoint,
                base=first.checkpoint,
                settings=self.config.training,
                iteration=index,
                seed=self.config.seed,
                store=self.store,
            )
            self.iterations.append(_iteration(index, scored, trained))
            policy = trained
        return policy


@flow(name="train", flow_run_name="{config.name}", task_runner=ThreadPoolTaskRunner(max_workers=2))  # type: ignore[arg-type]
def train(config: PipelineConfig) -> Promotion:
    """Prepare scenarios, train the policy, and promote it if it beats the one in service."""
    run = Run(config, time.time())
    data, validated, sides = run.prepare()
    first = run.ledger.run(base, policy=config.policy, content=_folder(config), store=run.store)
    known = registry().find(config.registry.model_name, run.run_key)
    champion = _champion(config, known, first)

    evaluation: Evaluation | None = None
    pairs: tuple[ShownPair, ...] = ()
    version, candidate, failure = None, first, None
    try:
        candidate = run.improve(data, sides, first)
        before = run.play(data, sides, champion, "heldout")
        after = run.play(data, sides, candidate.checkpoint, "heldout")
        evaluation = run.ledger.run(
            evaluate,
            champion=before.scored,
            candidate=after.scored,
            base=first.checkpoint,
            settings=config.evaluation,
            metric=config.gates.metric,
            seed=config.seed,
            store=run.store,
        ).evaluation
        decision = run.ledger.run(gate, evaluation=evaluation, settings=config.gates).decision
        pairs = shown_conversations(before.scored, after.scored, candidate.checkpoint, run.store)
        version = run.ledger.run(
            register,
            refresh=known is None,
            config=config,
            run_key=run.run_key,
            decision=decision,
            candidate=candidate.checkpoint,
            champion=champion,
            scenarios=data.scenarios,
            store=run.store,
        ).version
    except (NoLearningSignal, NoEffect) as error:
        failure = error
        decision = Decision(verdict="failed", reason=str(error))

    wall = time.time() - run.started
    document = ReportDocument(
        name=config.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        decision=decision,
        ingestion=Ingestion(
            records=data.counts.records,
            scenarios=data.counts.scenarios,
            quarantined=data.counts.quarantined,
            train=sides.train,
            heldout=sides.heldout,
            reasons=dict(data.counts.reasons),
            data_docs=f"data_docs/{validated.validation.docs_index}",
        ),
        iterations=tuple(run.iterations),
        evaluation=evaluation,
        conversations=pairs,
        stages=run.ledger.timings(),
        wall_s=wall,
        orchestration_share=_orchestration_share(run.ledger, wall),
        lineage=Lineage(
            run=run.run_key,
            seed=config.seed,
            config_digest=_digest(config.model_dump(mode="json")),
            code_digest=code_digest(),
            scenarios_digest=data.scenarios.sha256[:16],
            base_policy=first.policy,
            champion_policy=evaluation.champion_policy if evaluation else "",
            candidate_policy=candidate.policy,
            package_versions=package_versions(),
            model_version=f"{version.name} {version.version}" if version else None,
        ),
        config=yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False),
    )
    page = report(document, config, run.run_key, validated.docs, home() / config.name)
    if failure is not None:
        raise failure
    return Promotion(
        decision=decision, report=page, version=version, orchestration_share=document.orchestration_share
    )


def _champion(config: PipelineConfig, known: ModelVersion | None, first: Checkpoint) -> Artifact:
    """Whom the candidate is judged against: the version in service, else the base.

    A run that was judged before is judged against the same policy again, so that its decision stands.
    """
    if known is not None:
        return Artifact(uri=known.tags["champion_uri"], sha256=known.tags["champion_sha256"], kind="checkpoint")
    serving = registry().champion(config.registry.model_name)
    return serving.checkpoint if serving is not None else first.checkpoint


def _iteration(index: int, scored: ScoreResult, trained: TrainResult) -> Iteration:
    summary, metrics = scored.summary, trained.metrics
    return Iteration(
        index=index,
        reward=summary.reward or 0.0,
        success=summary.success,
        components=summary.components,
        informative_share=metrics.informative_share,
        kl_to_base=metrics.kl_to_base,
        entropy=metrics.entropy,
        clip_share=metrics.clip_share,
        gradient_norm=metrics.gradient_norm,
        learning_rate=metrics.learning_rate,
        truncated_share=summary.truncated_share,
        failed_share=summary.failed_share,
        tokens=metrics.tokens,
    )


def _orchestration_share(ledger: Ledger, wall_s: float) -> float:
    compute = sum(stage.compute_s for stage in ledger.timings() if stage.name in COMPUTE)
    return max(0.0, 1 - compute / wall_s)


def _folder(config: PipelineConfig) -> str:
    """Digest of the model folder's files."""
    digest = hashlib.sha256()
    for path in sorted(Path(config.policy.model).glob("*")):
        if path.is_file():
            digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
