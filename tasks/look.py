"""Whether there is a reason to train again. Never cached: it tells of now."""

from __future__ import annotations

from datetime import UTC, datetime

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.retraining import RetrainConfig
from grpo.retraining.champion import Challenger, Champion, known_topics, new_conversations, production_metrics
from grpo.retraining.curation import ACCEPTED, REDACTED
from grpo.retraining.filters import masked_user_text
from grpo.retraining.triggers import ServedVersion, TriggerInputs, TriggerResult, check_triggers


@task(name="look", cache_policy=NO_CACHE, persist_result=False)
def look(
    config: RetrainConfig,
    conversations: Artifact,
    champion: Champion | None,
    judged: Challenger | None,
    reevaluated: tuple[float, float] | None,
    seed: int,
    store: str,
) -> tuple[TriggerResult, ...]:
    """Check every reason, and show what each saw."""
    artifacts = ArtifactStore(store)
    serving = None
    if champion is not None:
        heldout = champion.evaluation.overall.candidate.mean if champion.evaluation is not None else None
        serving = ServedVersion(
            name=champion.name, registered=champion.registered, heldout=heldout, reevaluated=reevaluated
        )
    at = judged.registered if judged is not None else None
    inputs = TriggerInputs(
        serving=serving,
        now=datetime.now(UTC),
        new_conversations=len(new_conversations(artifacts.path(conversations) / ACCEPTED, artifacts, champion, judged)),
        last_evaluated=at,
        known_topics=known_topics(artifacts, champion, judged),
        new_topics=[
            masked_user_text(one)
            for one in new_conversations(artifacts.path(conversations) / REDACTED, artifacts, champion, judged)
        ],
        live=production_metrics(config.conversations, champion.name, at) if champion is not None else {},
        seed=seed,
    )
    results = check_triggers(config.triggers, inputs)
    rows = [{"reason": one.reason, "holds": one.fired, "what": one.explanation, **one.numbers} for one in results]
    create_table_artifact(rows, key="triggers")
    return results
