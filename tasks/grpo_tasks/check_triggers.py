"""Check the triggers of a retraining. Not cached, because the result depends on the time and on the registry."""

from __future__ import annotations

from datetime import UTC, datetime

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.retraining import RetrainConfig
from grpo.retraining.champion import Challenger, Champion, known_topics, new_conversations, production_metrics
from grpo.retraining.curation import ACCEPTED, LIVE, REDACTED
from grpo.retraining.triggers import ServedVersion, TriggerInputs, TriggerResult
from grpo.retraining.triggers import check_triggers as check_all_triggers
from grpo_tasks.page_artifacts import show_table


@task(name="check-triggers", cache_policy=NO_CACHE, persist_result=False)
def check_triggers(
    config: RetrainConfig,
    conversations: Artifact,
    champion: Champion | None,
    challenger: Challenger | None,
    reevaluated: tuple[float, float] | None,
    seed: int,
    store: str,
) -> tuple[TriggerResult, ...]:
    """Check every trigger, and show the results in Prefect's page."""
    artifacts = ArtifactStore(store)
    serving = None
    if champion is not None:
        heldout = champion.evaluation.overall.candidate.mean if champion.evaluation is not None else None
        serving = ServedVersion(
            name=champion.name, registered=champion.registered, heldout=heldout, reevaluated=reevaluated
        )
    at = challenger.registered if challenger is not None else None
    folder, live = artifacts.path(conversations), dict[str, list[float]]()
    if champion is not None:
        live = production_metrics(folder / LIVE, champion.name, at)
    inputs = TriggerInputs(
        serving=serving,
        now=datetime.now(UTC),
        new_conversations=len(new_conversations(folder / ACCEPTED, artifacts, champion, challenger)),
        last_evaluated=at,
        known_topics=known_topics(artifacts, champion, challenger),
        new_topics=new_conversations(folder / REDACTED, artifacts, champion, challenger),
        live=live,
        seed=seed,
    )
    results = check_all_triggers(config.triggers, inputs)
    rows = [
        {"trigger": result.reason, "fired": result.fired, "explanation": result.explanation, **result.numbers}
        for result in results
    ]
    if flow_run.get_id() is not None:
        show_table(rows, key="triggers")
    return results
