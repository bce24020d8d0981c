"""One run of the pipeline while it is going on: which stage gets what from which."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict

from flows.ledger import Ledger
from flows.models import folder_digest
from flows.rollouts import Played, Rollouts
from flows.scenarios import prepare_scenarios
from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.gates import compared_metric
from grpo.config.pipeline import PipelineConfig
from grpo.errors import PromotionRefused, RemovedError
from grpo.evaluation.gates import check_gate_scenarios
from grpo.evaluation.schema import (
    Decision,
    EpisodePair,
    Evaluation,
    Ingestion,
    IterationMetrics,
    ReportDocument,
    RunProvenance,
)
from grpo.identity.code import code_digest, external_digests, package_versions
from grpo.policy.catalog import model_folder
from grpo.registry import ModelVersion
from grpo.registry.promotions import LONGEST_REASON
from grpo.registry.retention import REGISTERED, run_owner
from grpo.rewards.hacking.check import check_rewards
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.sources import content_hash
from grpo.scenarios.table import read_scenarios
from grpo.storage.home import home
from tasks.base import Checkpoint, base
from tasks.evaluate import evaluate
from tasks.gate import gate
from tasks.promote import promote
from tasks.register import register
from tasks.registry import registry
from tasks.report import report, shown_conversations
from tasks.split import read_split
from tasks.train import TrainResult
from tasks.train import train as update

logger = logging.getLogger(__name__)

COMPUTE = ("ingest", "rollout", "score", "train", "evaluate")
"""Stages whose own work is what a run is for; everything else is orchestration."""


class Promotion(BaseModel):
    """How a run ended."""

    model_config = ConfigDict(frozen=True)

    decision: Decision
    report: Path
    version: ModelVersion | None


class Run:
    """The stages of one run in order, and what they left."""

    def __init__(self, config: PipelineConfig, ledger: Ledger, *, started_at: float) -> None:
        self.config = config
        self.store = config.store
        self.artifacts = ArtifactStore(config.store)
        self.started_at = started_at
        self.ledger = ledger
        self.content = content_hash(config.scenarios.sources)
        self.model_content = folder_digest(model_folder(config.policy.model))
        self.external_digests = external_digests([config])
        self.retention = ledger.retention(config.store)
        self.iterations: list[IterationMetrics] = []
        self.evaluation: Evaluation | None = None
        self.conversations: tuple[EpisodePair, ...] = ()
        self.version: ModelVersion | None = None
        self.checkpoints: list[Artifact] = []
        self.remake = False
        """True while updates whose checkpoint was removed are computed again."""
        self.removed: list[Artifact] = []

    def prepare(self) -> None:
        """Take in what the run starts from, and find the version in service."""
        self.gather()
        models = registry()
        self.serving = models.champion(self.config.registry.model_name)
        for checkpoint in models.checkpoints(self.store):
            self.retention.keep(checkpoint, REGISTERED)

    def gather(self) -> None:
        """Take scenarios and base policy in; nothing at all is computed for a reward that a probe fools."""
        check_rewards(self.config.reward)
        self.read_scenarios()
        self.load_base()

    def read_scenarios(self) -> None:
        """Ingest, validate and split: nothing is computed on scenarios that fail, or that no gate can judge."""
        read = prepare_scenarios(self.config.scenarios, self.ledger, self.store, environment=self.config.environment)
        self.data, self.validated, self.sides = read.data, read.validated, read.sides
        heldout = read_scenarios(
            self.artifacts.path(self.data.scenarios) / SCENARIOS_FILE,
            ids=read_split(self.artifacts, self.sides.split).heldout,
        )
        check_gate_scenarios(self.config.gates, heldout)
        self.rollouts = Rollouts(self.config, self.ledger, self.data, self.sides)

    def load_base(self) -> None:
        """Take the policy in that training starts from."""
        self.base = self.ledger.run(base, policy=self.config.policy, content=self.model_content, store=self.store)
        self.candidate: Checkpoint = self.base
        self.policies = [self.base.policy]

    def improve(self) -> None:
        """Rollout, score and train, again and again."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[IterationMetrics]:
        """Iterate rollout, score and train; a stale rollout is played while the one before is trained on.

        Where a checkpoint is needed that was removed, all are made again from the base.
        """
        try:
            yield from self._steps(first=0)
        except RemovedError as error:
            logger.warning("the checkpoints of this run are made again: %s", error)
            reached = len(self.iterations)
            self.remake = True
            self.load_base()
            yield from self._steps(first=reached)

    def _steps(self, *, first: int) -> Iterator[IterationMetrics]:
        """Iterate from the base on, and yield the iterations from `first` on."""
        iterations, ahead = self.config.training.iterations, self.config.rollout.staleness
        self.iterations, self.checkpoints = [], []
        upcoming: Played | None = None
        advance = self.ledger.advance(iterations)
        for index in range(iterations):
            played = upcoming or self.rollouts.iteration(self.candidate.checkpoint, index)
            inputs = {
                "scored": played.scored,
                "parent": self.candidate.checkpoint,
                "base": self.base.checkpoint,
                "settings": self.config.training,
                "iteration": index,
                "seed": self.config.seed,
                "store": self.store,
            }
            if ahead and index + 1 < iterations:
                result = self.ledger.start(update, **inputs)
                upcoming = self.rollouts.iteration(self.candidate.checkpoint, index + 1)
                trained = result()
            else:
                upcoming, trained = None, self.ledger.run(update, **inputs)
            if self.remake and self.artifacts.is_removed(trained.checkpoint):
                self.artifacts.forget_removal(trained.checkpoint)
                trained = self.ledger.run(update, **inputs)
            self.iterations.append(_iteration(index, played, trained))
            self.candidate = trained
            self.policies.append(trained.policy)
            self._retain(trained.checkpoint)
            advance.reach(index + 1)
            if index >= first:
                yield self.iterations[-1]

    def _retain(self, checkpoint: Artifact) -> None:
        """Keep the newest checkpoints of this run, and let the others go."""
        if self.retention is None or checkpoint in (self.base.checkpoint, *self.checkpoints[-1:]):
            return  # an iteration that changed nothing
        self.checkpoints.append(checkpoint)
        self.retention.keep(checkpoint, run_owner(self.config.name))
        limit = self.config.save_total_limit
        if limit is not None and len(self.checkpoints) > limit:
            self._release(self.checkpoints[-limit - 1])

    def _release_earlier_runs(self) -> None:
        """Let go what an earlier run of this name went on from."""
        for checkpoint in self.retention.kept(run_owner(self.config.name)):
            if checkpoint not in self.checkpoints:
                self._release(checkpoint)

    def _release(self, checkpoint: Artifact) -> None:
        gone = self.retention is not None and self.retention.release(checkpoint, run_owner(self.config.name))
        if gone and checkpoint not in self.removed:
            self.removed.append(checkpoint)

    @cached_property
    def key(self) -> str:
        """Identity of the run, once its policy is trained: config, data, code, and what the code has read."""
        read = sorted(digest or "" for digest in self.ledger.reads.values())
        return _digest(
            [
                self.config.identity_settings(),
                self.content,
                self.model_content,
                code_digest(),
                self.external_digests,
                read,
            ]
        )

    def judge(self) -> Decision:
        """Let champion and candidate play the held-out scenarios, compare them, and ask the gates."""
        self.known = registry().find(self.config.registry.model_name, self.key)
        self.champion = self._champion()
        before = self.rollouts.heldout(self.champion)
        after = self.rollouts.heldout(self.candidate.checkpoint)
        self.evaluation = self.ledger.run(
            evaluate,
            champion=before.scored,
            candidate=after.scored,
            base=self.base.checkpoint,
            settings=self.config.evaluation,
            metric=compared_metric(self.config.gates),
            seed=self.config.seed,
            store=self.store,
        ).evaluation
        self.conversations = shown_conversations(before.scored, after.scored, self.candidate.checkpoint, self.store)
        return self.ledger.run(
            gate,
            evaluation=self.evaluation,
            champion=before.scored,
            candidate=after.scored,
            gates=self.config.gates,
            settings=self.config.evaluation,
            seed=self.config.seed,
            store=self.store,
        ).decision

    def publish(self, decision: Decision) -> Decision:
        """Register the candidate, and let it serve if the decision is to promote it.

        What is returned is a refusal where another champion came to serve since this run looked for one.
        """
        name = self.config.registry.model_name
        self.version = self.ledger.run(
            register,
            config=self.config,
            run_key=self.key,
            decision=decision,
            candidate=self.candidate.checkpoint,
            champion=self.champion,
            scenarios=self.data.scenarios,
            sources=self.content,
            model=self.model_content,
            external_digests=self.all_external_digests(),
            policies=tuple(self.policies),
            store=self.store,
        ).version
        self._release_earlier_runs()
        served = {one.champion for one in registry().promotions(name).history()}
        if decision.verdict != "promote" or self.version.version in served:
            return decision
        try:
            self.ledger.run(
                promote, model_name=name, version=self.version.version, reason=decision.reason[:LONGEST_REASON]
            )
        except PromotionRefused as error:
            return decision.model_copy(update={"verdict": "refuse", "reason": f"{error}; {decision.reason}"})
        return decision

    def all_external_digests(self) -> dict[str, str]:
        """The user's code and declared files, and the files that the code has read, with their digests."""
        read = {f"file {path}": digest or "absent" for path, digest in self.ledger.reads.items()}
        return self.external_digests | read

    def report(self, decision: Decision) -> Promotion:
        """Write the report, and attach it to the records of both services."""
        page = report(self._document(decision), self.config, self.key, self.validated.docs, home() / self.config.name)
        return Promotion(decision=decision, report=page, version=self.version)

    def _champion(self) -> Artifact:
        """Whom the candidate is judged against: the version in service, the base where none has ever been.

        A run that was judged before is judged against the same policy again, so that its decision stands.
        """
        if self.known is not None:
            tags = self.known.tags
            return Artifact(uri=tags["champion_uri"], sha256=tags["champion_sha256"], kind="checkpoint")
        return self.serving.checkpoint if self.serving is not None else self.base.checkpoint

    def _document(self, decision: Decision) -> ReportDocument:
        """Every number of the run."""
        config, counts = self.config, self.data.counts
        wall = time.time() - self.started_at
        stages = self.ledger.timings()
        compute = sum(stage.compute_s for stage in stages if stage.name in COMPUTE)
        return ReportDocument(
            name=config.name,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            decision=decision,
            ingestion=Ingestion(
                records=counts.records,
                scenarios=counts.scenarios,
                quarantined=counts.quarantined,
                train=self.sides.train,
                heldout=self.sides.heldout,
                reasons=dict(counts.reasons),
                data_docs=f"data_docs/{self.validated.validation.docs_index}",
            ),
            iterations=tuple(self.iterations),
            evaluation=self.evaluation,
            conversations=self.conversations,
            removed=tuple(checkpoint.uri for checkpoint in self.removed),
            stages=stages,
            wall_s=wall,
            orchestration_share=max(0.0, 1 - compute / wall),
            lineage=RunProvenance(
                run=self.key,
                seed=config.seed,
                config_digest=_digest(config.identity_settings()),
                code_digest=code_digest(),
                scenarios_digest=self.data.scenarios.sha256[:16],
                base_policy=self.base.policy,
                champion_policy=self.evaluation.champion_policy if self.evaluation else "",
                candidate_policy=self.candidate.policy,
                package_versions=package_versions(),
                model_version=f"{self.version.name} {self.version.version}" if self.version else None,
            ),
            config=yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False),
        )


def _iteration(index: int, played: Played, trained: TrainResult) -> IterationMetrics:
    summary = played.summary
    return IterationMetrics(
        index=index,
        rounds=len(played.rounds),
        reward=summary.reward or 0.0,
        success=summary.success,
        components=summary.components,
        highly_correlated=tuple(
            f"{one} and {two} ({rho:+.2f})" for (one, two), rho in summary.moments.highly_correlated().items()
        ),
        truncated_share=summary.truncated_share,
        failed_share=summary.failed_share,
        **trained.metrics.model_dump(),
    )


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
