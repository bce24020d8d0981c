"""Stage 5: rewards and their breakdown → Parquet."""

from __future__ import annotations

from pathlib import Path

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.rewards import RewardComponent
from grpo.rewards.composite import make_reward
from grpo.rewards.score import score as score_trajectories
from grpo.rewards.summary import RolloutSummary, summarize
from grpo.tables import read_all, write_trajectories
from tasks.stage import Clock, StageResult, stage


class ScoreResult(StageResult):
    """The scored rollout and its means."""

    scored: Artifact
    summary: RolloutSummary


@stage
def score(rollouts: tuple[Artifact, ...], reward: tuple[RewardComponent, ...], store: str) -> ScoreResult:
    """Judge every episode of these shards; a failed one keeps no reward."""
    clock = Clock()
    artifacts = ArtifactStore(store)
    played = read_all([artifacts.path(artifact) for artifact in rollouts])
    scored = list(score_trajectories(played, make_reward(reward)))

    def write(path: Path) -> None:
        write_trajectories(path, scored, provenance={"rollouts": " ".join(a.sha256 for a in rollouts)})

    return ScoreResult(
        scored=artifacts.put_file("scored", ".parquet", write),
        summary=summarize(scored),
        compute_s=clock.seconds,
    )
