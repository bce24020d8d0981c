"""Stage 5: rewards and their breakdown → Parquet."""

from __future__ import annotations

from pathlib import Path

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.judge import JudgeSettings
from grpo.config.rewards import RewardComponent
from grpo.errors import BudgetError
from grpo.rewards.assertions import AssertionJudge
from grpo.rewards.catalog import make_reward
from grpo.rewards.score import leave_unjudged
from grpo.rewards.score import score as score_trajectories
from grpo.rewards.summary import RolloutSummary, summarize
from grpo.scenarios.ingest import SCENARIOS
from grpo.scenarios.parquet import read_scenarios
from grpo.tables import read_all, write_trajectories
from tasks.results import StageResult
from tasks.stage import Clock, stage


class ScoreResult(StageResult):
    """The scored rollout and its means."""

    scored: Artifact
    summary: RolloutSummary


@stage
def score(
    rollouts: tuple[Artifact, ...],
    scenarios: Artifact,
    reward: tuple[RewardComponent, ...],
    judge: JudgeSettings | None,
    error_budget: float,
    store: str,
) -> ScoreResult:
    """Judge every episode of these shards; one that failed or cannot be judged keeps no reward.

    Raises `BudgetError` when more than `error_budget` of the finished ones could not be judged, and `RewardError` when
    none could, as nothing here judges a part of their success.
    """
    clock = Clock()
    artifacts = ArtifactStore(store)
    played = read_all([artifacts.path(artifact) for artifact in rollouts])
    ids = {trajectory.scenario_id for trajectory in played}
    known = {s.id: s for s in read_scenarios(artifacts.path(scenarios) / SCENARIOS, ids=ids)}
    asked = None if judge is None else AssertionJudge(judge)
    scored = list(score_trajectories(played, make_reward(reward), known, judge=asked))
    unscored = [trajectory for trajectory in scored if trajectory.stop != "failed" and trajectory.total_reward is None]
    if judge is None:  # what nothing is there to judge is counted, not an error
        unscored = leave_unjudged(scored, unscored)
    if len(unscored) > error_budget * len(scored):
        raise BudgetError(
            f"{len(unscored)} of {len(scored)} episodes could not be judged, more than rollout.error_budget "
            f"{error_budget:.0%}; the first at {unscored[0].place}: {unscored[0].error}"
        )

    def write(path: Path) -> None:
        write_trajectories(path, scored, provenance={"rollouts": " ".join(a.sha256 for a in rollouts)})

    return ScoreResult(
        scored=artifacts.put_file("scored", ".parquet", write),
        summary=summarize(scored),
        compute_s=clock.seconds,
    )
