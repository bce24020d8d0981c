from __future__ import annotations

import pytest

from grpo.artifacts import Artifact
from grpo.config.rollout import RolloutSettings
from grpo.rewards.rollout_summary import RolloutSummary
from grpo_flows.pipeline import dynamic_sampling
from grpo_tasks.score import ScoreResult


class Script:
    """Rounds of four groups, of which so many differ."""

    def __init__(self, *informative: int) -> None:
        self.informative = informative
        self.asked: list[int] = []

    def __call__(self, index: int) -> ScoreResult:
        self.asked.append(index)
        summary = RolloutSummary(
            groups=4,
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
