"""Rewards and their components → Parquet."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.environments import EnvironmentSettings
from grpo.config.rewards import JudgeSettings, RewardComponent
from grpo.rewards.catalog import make_composite_reward
from grpo.rewards.judge.assertions import AssertionJudge
from grpo.rewards.rollout_summary import RolloutSummary, summarize
from grpo.rewards.score import score_rollout
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.table import read_scenarios
from grpo.tables import read_all, write_trajectories
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import stage


class ScoreResult(StageResult):
    """The scored rollout and its means."""

    scored: Artifact
    summary: RolloutSummary

    def numbers(self) -> dict[str, float]:
        """Mean reward, and verified success."""
        means = {"reward": self.summary.reward, "success": self.summary.success}
        return {name: value for name, value in means.items() if value is not None}


@stage
def score(
    rollouts: tuple[Artifact, ...],
    scenarios: Artifact,
    reward: tuple[RewardComponent, ...],
    judge: JudgeSettings | None,
    error_budget: float,
    timeout_s: float,
    store: str,
    environment: EnvironmentSettings | None = None,
) -> ScoreResult:
    """Score every episode of these shards, see `grpo.rewards.score.score_rollout`.

    `environment` is given if rewards call methods of its class. Its code is then part of this stage's identity.
    """
    artifacts = ArtifactStore(store)
    played = read_all([artifacts.path(artifact) for artifact in rollouts])
    ids = {trajectory.scenario_id for trajectory in played}
    known = {s.id: s for s in read_scenarios(artifacts.path(scenarios) / SCENARIOS_FILE, ids=ids)}
    asked = None if judge is None else AssertionJudge(judge)
    scored = score_rollout(
        played, make_composite_reward(reward), known, judge=asked, error_budget=error_budget, timeout_s=timeout_s
    )
    with artifacts.new_file("scored", ".parquet") as new:
        write_trajectories(new.path, scored, provenance={"rollouts": " ".join(a.sha256 for a in rollouts)})
    return ScoreResult(scored=new.artifact, summary=summarize(scored))
