from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo.artifacts import Artifact
from grpo.config.pipeline import PipelineConfig
from grpo.config.rollout import RolloutSettings
from grpo.errors import RewardError
from grpo.rewards.rollout_summary import RolloutSummary, summarize
from grpo.trajectories import TrajectoryGroup
from grpo_flows.pipeline import training_steps
from grpo_flows.steps.rollouts import dynamic_sampling
from grpo_tasks.execution.stage import Call, executed_by
from grpo_tasks.load_base import Checkpoint
from grpo_tasks.rollout import RolloutResult
from grpo_tasks.score import ScoreResult
from grpo_tasks.split import SplitResult
from tests.doubles import short_run
from tests.grpo.rewards.hacking.test_turn_rewards import BAD, GOOD


class Script:
    """Rounds of four groups, of which so many differ."""

    def __init__(self, *informative: int, groups: Sequence[int] = (4, 4, 4)) -> None:
        self.informative, self.groups = informative, groups
        self.asked: list[int] = []

    def __call__(self, index: int) -> ScoreResult:
        self.asked.append(index)
        summary = RolloutSummary(
            groups=self.groups[index],
            informative_groups=self.informative[index],
            episodes=8,
            rewarded=8,
            verified=0,
            reward=0.5,
            success=None,
            components={},
            truncated_share=0.0,
            failed_share=0.0,
        )
        scored = Artifact(uri=f"/scored/{index}", sha256=str(index), kind="scored")
        return ScoreResult(scored=scored, summary=summary, compute_s=0.0)


@pytest.mark.parametrize(
    ("wanted", "most", "scenarios", "rounds"),
    [
        (None, 3, 100, [0]),
        (2, 3, 100, [0]),
        (3, 3, 100, [0, 1]),
        (4, 3, 100, [0, 1, 2]),
        (9, 3, 100, [0, 1, 2]),
        (9, 1, 100, [0]),
        (9, 3, 7, [0, 1]),
    ],
    ids=["not asked", "enough", "one more", "two more", "bound", "one round", "all were played"],
)
def test_further_rounds_are_played_only_while_they_are_needed(
    wanted: int | None, most: int, scenarios: int, rounds: list[int]
):
    """2, 1 and 1 of 4 groups differ: rounds go on until there are enough, at most so many, or no scenario is left."""
    script = Script(2, 1, 1)
    settings = RolloutSettings.model_construct(scenarios=4, informative_groups=wanted, max_rounds=most)
    played = dynamic_sampling(script, settings, scenarios=scenarios)
    assert script.asked == rounds
    assert [artifact.sha256 for artifact in played.scored] == [str(index) for index in rounds]
    assert played.summary.episodes == 8 * len(rounds)


def test_rounds_end_when_a_curriculum_has_no_open_scenario_left():
    """Eight of 100 scenarios are open: the third round has none."""
    script = Script(1, 1, 0, 0, groups=(4, 4, 0, 0))
    settings = RolloutSettings.model_construct(scenarios=4, informative_groups=9, max_rounds=4)
    dynamic_sampling(script, settings, scenarios=100)
    assert script.asked == [0, 1, 2]


class ScoredRollouts:
    """Executor of stages: rollouts have these episodes, and nothing can be trained."""

    def __init__(self, groups: Sequence[TrajectoryGroup]) -> None:
        self.summary = summarize([trajectory for group in groups for trajectory in group.trajectories])

    def run(self, calls: Sequence[Call[Any]]) -> list[Any]:
        name = calls[0].stage.name
        assert name in ("rollout", "score"), f"{name} was run before"
        artifact = Artifact(uri=f"/{name}", sha256=name, kind=name)
        if name == "score":
            return [ScoreResult(scored=artifact, summary=self.summary)]
        return [RolloutResult(rollout=artifact, episodes=1) for _ in calls]

    def start(self, call: Call[Any]) -> Any:
        return self.run([call])


@pytest.mark.parametrize("staleness", [0, 1])
def test_turn_rewards_that_mislead_are_refused_before_anything_is_trained(tmp_path: Path, staleness: int):
    """Also where the next rollout would overlap the update."""
    training = {"turn_reward_admission": "refuse", "importance_sampling_cap": 2.0}
    sections = short_run(tmp_path, training=training, rollout={"staleness": staleness})
    config = PipelineConfig.model_validate(sections)
    artifact = Artifact(uri="/given", sha256="0", kind="given")
    split = SplitResult(scenarios=artifact, split=artifact, train=8, heldout=4)
    base = Checkpoint(checkpoint=artifact, policy="p")
    with executed_by(ScoredRollouts(BAD)), pytest.raises(RewardError, match="turn rewards mislead"):
        next(training_steps(config, split, base))
    with executed_by(ScoredRollouts(GOOD)), pytest.raises(AssertionError, match="train was run before"):
        next(training_steps(config, split, base))
