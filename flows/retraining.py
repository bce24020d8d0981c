"""One retraining while it is going on: which stage gets what from which."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from prefect.task_runners import ThreadPoolTaskRunner

from flows.ledger import Ledger
from grpo.artifacts import ArtifactStore
from grpo.config.pipeline import PipelineConfig, load_config
from grpo.config.retraining import RetrainConfig
from grpo.config.scenarios import ConversationLogSource, FileSource, ScenarioSettings, Source
from grpo.identity.code import code_digest, external_digests
from grpo.retraining.champion import Champion, champion, last_challenger, new_conversations
from grpo.retraining.curation import ACCEPTED, CONVERSATIONS
from grpo.retraining.data_lineage import STARTED_FROM
from grpo.retraining.reports import PendingRetraining, TriggerReport
from grpo.scenarios.conversation_log import ConversationLog
from grpo.scenarios.sources import content_hash
from grpo.storage.files import write_atomically
from grpo.storage.home import home
from tasks.ingest import ingest
from tasks.intake import intake
from tasks.look import look
from tasks.mix import mix
from tasks.registry import registry
from tasks.split import split
from tasks.warm_start import warm_start


class Retraining:
    """The stages before training, and the run that they lead to."""

    def __init__(self, config: RetrainConfig) -> None:
        self.config = config
        self.pipeline = load_config(Path(config.pipeline), config.overrides)
        self.store = self.pipeline.store
        self.ledger = Ledger(ThreadPoolTaskRunner(max_workers=1))

    def look(self) -> TriggerReport:
        """Take conversations in, and check every reason to train again."""
        models, artifacts, name = registry(), ArtifactStore(self.store), self.pipeline.registry.model_name
        self.champion = champion(models, artifacts, name)
        self.judged = last_challenger(models, artifacts, name, self.champion)
        settings = self.pipeline.scenarios
        sources = tuple(map(_pinned, self.config.conversations))
        self.base = self.ledger.run(
            ingest,
            sources=settings.sources,
            content=content_hash(settings.sources),
            max_quarantined_fraction=settings.max_quarantined_fraction,
            store=self.store,
        )
        self.sides = self.ledger.run(
            split,
            scenarios=self.base.scenarios,
            validation_fraction=settings.validation_fraction,
            limit=settings.limit,
            store=self.store,
        )
        self.taken = self.ledger.run(
            intake,
            sources=sources,
            content=content_hash(sources),
            base=self.base.scenarios,
            split=self.sides.split,
            champion=self.champion.training_data if self.champion is not None else None,
            settings=self.config.curation,
            store=self.store,
        )
        results = look(
            config=self.config.model_copy(update={"conversations": sources}),
            conversations=self.taken.conversations,
            champion=self.champion,
            judged=self.judged,
            reevaluated=self._judge_again(),
            seed=self.pipeline.seed,
            store=self.store,
        )
        return TriggerReport(
            model=self.pipeline.registry.model_name,
            champion=self.champion.name if self.champion is not None else None,
            results=results,
            curation=self.taken.counts,
        )

    def plan(self, found: TriggerReport) -> PendingRetraining:
        """Mix what is trained on, and start from the champion: the run that comes out is one like any other."""
        artifacts = ArtifactStore(self.store)
        settings, serving = self.pipeline.scenarios, self.champion
        new_ids = new_conversations(artifacts.path(self.taken.conversations) / ACCEPTED, artifacts, serving)
        mixed = self.ledger.run(
            mix,
            base=self.base.scenarios,
            split=self.sides.split,
            conversations=self.taken.conversations,
            new_ids=sorted(one.id for one in new_ids),
            data_lineage=serving.data_lineage if serving is not None else (),
            share=self.config.mixture.conversation_fraction,
            validation_fraction=settings.validation_fraction,
            seed=self.pipeline.seed,
            store=self.store,
        )
        tags = {CONVERSATIONS: self.taken.conversations.sha256}
        model = None
        if serving is not None:
            start = self.ledger.run(warm_start, champion=serving.checkpoint, store=self.store)
            model = artifacts.address(start.model)
            tags[STARTED_FROM] = serving.checkpoint.sha256
        run = follow_up(
            self.pipeline, name=self.config.name, scenarios=artifacts.address(mixed.mixture), model=model, tags=tags
        )
        return PendingRetraining(config=self.config, triggers=found, mixture=mixed.counts, run=run)

    def _judge_again(self) -> tuple[float, float] | None:
        """The champion's mean on its held-out side as the pipeline judges today, where a reason asks for it."""
        asked = any(reason.kind == "heldout_reward" for reason in self.config.triggers)
        if not asked or self.champion is None or self.champion.evaluation is None or self.judged is not None:
            return None
        return reevaluated(self.pipeline, self.ledger, self.champion)


def follow_up(
    pipeline: PipelineConfig, *, name: str, scenarios: str, model: str | None, tags: Mapping[str, str]
) -> PipelineConfig:
    """The same run on other scenarios, a file with declared sides, from another model; it says so in its tags.

    Without a model it starts as the pipeline does.
    """
    settings, recorded = pipeline.scenarios, pipeline.registry
    return pipeline.model_copy(
        update={
            "name": name,
            "policy": pipeline.policy.model_copy(update={"model": model or pipeline.policy.model}),
            "scenarios": ScenarioSettings(
                sources=(FileSource(kind="parquet", path=scenarios),),
                max_quarantined_fraction=settings.max_quarantined_fraction,
                validation_fraction=settings.validation_fraction,
            ),
            "registry": recorded.model_copy(update={"tags": {**recorded.tags, **tags}}),
        }
    )


def reevaluated(pipeline: PipelineConfig, ledger: Ledger, serving: Champion) -> tuple[float, float]:
    """Let the champion play its held-out scenarios; mean and upper bound of what its registration recorded."""
    from flows.rollouts import Rollouts
    from grpo.evaluation.evaluate import mean
    from grpo.scenarios.ingest import IngestCounts
    from grpo.tables import read_all
    from tasks.ingest import IngestResult

    if serving.evaluation is None:
        raise ValueError(f"{serving.name} has no evaluation to compare with")
    data = IngestResult(
        scenarios=serving.training_data.scenarios,
        counts=IngestCounts(records=0, scenarios=0, quarantined=0, reasons={}),
        compute_s=0.0,
    )
    sides = ledger.run(
        split,
        scenarios=serving.training_data.scenarios,
        validation_fraction=serving.training_data.validation_fraction,
        limit=serving.training_data.limit,
        store=pipeline.store,
    )
    played = Rollouts(pipeline, ledger, data, sides).heldout(serving.checkpoint)
    found = mean(
        read_all([ArtifactStore(pipeline.store).path(played.scored)]),
        pipeline.evaluation,
        metric=serving.evaluation.metric,
        seed=pipeline.seed,
    )
    return found.mean, found.high


class Begun:
    """The plan of a retraining that has not ended, on disk: whoever comes after a crash goes on with it.

    It is that of these very settings and this code: with others a retraining begins anew.
    """

    def __init__(self, config: RetrainConfig, pipeline: PipelineConfig) -> None:
        settings = [config.model_dump(mode="json"), pipeline.model_dump(mode="json")]
        text = json.dumps([settings, code_digest(), external_digests([config, pipeline])], sort_keys=True)
        identity = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._path = home() / config.name / f"begun-{identity}.json"

    def read(self) -> PendingRetraining | None:
        """The plan that was begun and not ended."""
        try:
            return PendingRetraining.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None

    def keep(self, plan: PendingRetraining) -> None:
        """From here on this plan is what is done, whatever is logged or promoted meanwhile."""
        for other in self._path.parent.glob("begun-*.json"):
            if other != self._path:
                other.unlink(missing_ok=True)
        write_atomically(self._path, plan.model_dump_json())

    def end(self) -> None:
        """It is done, or cannot be done."""
        self._path.unlink(missing_ok=True)


def _pinned(source: Source) -> Source:
    """The log as it is now: what is written from here on belongs to the next retraining."""
    if isinstance(source, ConversationLogSource) and source.files is None:
        return source.model_copy(update={"files": ConversationLog(Path(source.path)).files()})
    return source
