"""Whether there is a reason to train again. Never cached: it tells of now."""

from __future__ import annotations

from datetime import UTC, datetime

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.retraining import RetrainConfig
from grpo.retraining.champion import Champion, Judgement, known_topics, since
from grpo.retraining.gates import spoken
from grpo.retraining.intake import ACCEPTED, SEEN
from grpo.retraining.live import worth
from grpo.retraining.reasons import Finding, Serving, Situation, check_all


@task(name="look", cache_policy=NO_CACHE, persist_result=False)
def look(
    config: RetrainConfig,
    conversations: Artifact,
    champion: Champion | None,
    judged: Judgement | None,
    judged_again: tuple[float, float] | None,
    seed: int,
    store: str,
) -> tuple[Finding, ...]:
    """Check every reason, and show what each saw."""
    artifacts = ArtifactStore(store)
    serving = None
    if champion is not None:
        heldout = champion.evaluation.overall.candidate.mean if champion.evaluation is not None else None
        serving = Serving(
            name=champion.name, registered=champion.registered, heldout=heldout, judged_again=judged_again
        )
    at = judged.registered if judged is not None else None
    situation = Situation(
        serving=serving,
        now=datetime.now(UTC),
        fresh=len(since(artifacts.path(conversations) / ACCEPTED, artifacts, champion, judged)),
        judged=at,
        known_topics=known_topics(artifacts, champion, judged),
        new_topics=[spoken(one) for one in since(artifacts.path(conversations) / SEEN, artifacts, champion, judged)],
        live=worth(config.conversations, champion.name, at) if champion is not None else {},
        seed=seed,
    )
    findings = check_all(config.reasons, situation)
    rows = [{"reason": one.reason, "holds": one.holds, "what": one.sentence, **one.numbers} for one in findings]
    create_table_artifact(rows, key="reasons")
    return findings
