"""Whether there is a reason to train again. Never cached: it tells of now."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from pathlib import Path

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.retraining import RetrainConfig
from grpo.config.scenarios import ConversationLogSource
from grpo.retraining.champion import Champion, known_topics, since
from grpo.retraining.gates import spoken
from grpo.retraining.intake import ACCEPTED, SEEN
from grpo.retraining.reasons import Finding, Serving, Situation, check_all
from grpo.scenarios.conversation_log import ConversationLog
from grpo.scenarios.scenario import Scenario


def fresh_conversations(conversations: Artifact, champion: Champion | None, artifacts: ArtifactStore) -> list[Scenario]:
    """Accepted conversations that the champion's training could not have used."""
    return since(artifacts.path(conversations) / ACCEPTED, champion, artifacts)


@task(name="look", cache_policy=NO_CACHE, persist_result=False)
def look(
    config: RetrainConfig,
    conversations: Artifact,
    champion: Champion | None,
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
    situation = Situation(
        serving=serving,
        now=datetime.now(UTC),
        fresh=len(fresh_conversations(conversations, champion, artifacts)),
        known_topics=known_topics(champion, artifacts),
        new_topics=[spoken(one) for one in since(artifacts.path(conversations) / SEEN, champion, artifacts)],
        live=_live(config, champion),
        seed=seed,
    )
    findings = check_all(config.reasons, situation)
    rows = [{"reason": one.reason, "holds": one.holds, "what": one.sentence, **one.numbers} for one in findings]
    create_table_artifact(rows, key="reasons")
    return findings


def _live(config: RetrainConfig, champion: Champion | None) -> dict[str, list[float]]:
    """What the champion's conversations in the log were worth, by measure, oldest first."""
    if champion is None:
        return {}
    logs = (source for source in config.conversations if isinstance(source, ConversationLogSource))
    rows = itertools.chain.from_iterable(ConversationLog(Path(log.path)).rows(log.files) for log in logs)
    served = sorted((row["time"], row["id"], row) for _, _, row in rows if row["model"] == champion.name)
    return {
        measure: [row[measure] for *_, row in served if row[measure] is not None] for measure in ("reward", "rating")
    }
