from __future__ import annotations

from collections.abc import Sequence

import pytest

from grpo.config.rewards import RewardComponent
from grpo.errors import RewardError, Unscored
from grpo.messages import Message
from grpo.rewards.catalog import make_reward
from grpo.rewards.composite import CompositeReward
from grpo.rewards.reward import Episode, RewardContext, RewardFunction, RewardResult
from grpo.rewards.rollout_summary import summarize
from grpo.rewards.score import score
from grpo.scenarios.scenario import Scenario
from grpo.trajectories import Outcome, Trajectory, Turn
from tests.doubles import make_trajectory


def agent(text: str) -> Message:
    return Message(role="assistant", content=text)


def _judged(**changes: object) -> Trajectory:
    return make_trajectory(**{"outcome": Outcome(success=True, checks={"a": True, "b": False}), **changes})


def test_a_failed_episode_keeps_no_reward():
    """None is not 0."""
    (scored,) = score([_judged(stop="failed", outcome=None)], make_reward([RewardComponent(kind="constant", weight=1)]))
    assert scored.terminal_reward is None


def test_a_reward_that_is_not_a_number_stops_the_stage_with_its_place():
    """NaN from a plug-in names scenario and sample."""

    class Broken(RewardFunction):
        name = "broken"

        async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
            return RewardResult(score=float("nan"))

    with pytest.raises(RewardError, match="scenario s: sample 0: reward nan is not finite"):
        list(score([_judged()], Broken()))


class _Length(RewardFunction):
    """Words of the conversation; above `most` it gives up."""

    name = "length"

    def __init__(self, *, most: int = 100, weight: float = 1.0) -> None:
        super().__init__(weight=weight)
        self.most = most

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        count = sum(len(turn.content.split()) for turn in turns)
        if count > self.most:
            raise Unscored(f"{count} words are too many")
        return RewardResult(score=float(count))


class _Rank(RewardFunction):
    """How many siblings said less: a reward that needs the whole group."""

    name = "rank"

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        raise AssertionError("asked for one alone")

    async def compute_group(self, episodes: Sequence[Episode]) -> list[RewardResult | Unscored]:
        lengths = [sum(len(turn.content) for turn in episode.turns) for episode in episodes]
        return [RewardResult(score=float(sum(other < own for other in lengths))) for own in lengths]


def _said(text: str, **changes: object) -> Trajectory:
    return make_trajectory(**{"turns": (Turn(message=agent(text), start=0, stop=1),), **changes})


def test_siblings_are_judged_together():
    """Two scenarios of three siblings; a failed one is nobody's rival and stays without a reward."""
    played = [_said("ab", sample=0), _said("a", sample=1), _said("abcd", sample=2, stop="failed")]
    played += [_said("abc", sample=k, scenario_id="t") for k in range(3)]
    rewards = [t.terminal_reward for t in score(played, _Rank())]
    assert rewards == [1.0, 0.0, None, 0.0, 0.0, 0.0]


def test_what_cannot_be_judged_gets_no_reward_and_says_why():
    """None is not 0."""
    [short, long] = score([_said("a b"), _said("a b c", sample=1)], CompositeReward([_Length(most=2)]))
    assert (short.terminal_reward, short.error) == (2.0, None)
    assert long.terminal_reward is None
    assert long.error == "unscored: length: 3 words are too many"
    assert summarize([short, long]).rewarded == 1


def test_an_optional_component_is_left_out_where_it_cannot_judge():
    """Words ½ + rank 1: 2 words → 1 + 0; 3 words cannot be counted → rank 1 alone."""
    reward = CompositeReward([_Length(most=2, weight=0.5), _Rank()], optional=["length"])
    [short, long] = score([_said("a b"), _said("a b c", sample=1)], reward)
    assert (short.terminal_reward, dict(short.breakdown)) == (1.0, {"length": 2.0, "rank": 0.0})
    assert (long.terminal_reward, dict(long.breakdown)) == (1.0, {"rank": 1.0})


def test_nothing_is_left_of_an_episode_that_no_component_can_judge():
    """Not 0 either."""
    [only] = score([_said("a b c")], CompositeReward([_Length(most=2)], optional=["length"]))
    assert only.terminal_reward is None


def test_a_reward_sees_what_the_episode_started_from():
    """The scenario's context and what was expected of it."""
    seen = []

    class Sees(RewardFunction):
        name = "sees"

        async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
            seen.append((context.sample, context.scenario and context.scenario.context))
            return RewardResult(score=0.0)

    scenario = Scenario(id="s", user_responses=("hi",), context="sentinel")
    list(score([_said("a"), _said("b", sample=1), _said("c", scenario_id="t")], Sees(), {"s": scenario}))
    assert seen == [(0, "sentinel"), (1, "sentinel"), (0, None)]


def test_a_reward_that_forgets_a_sibling_is_refused():
    """Scores must not slip to the wrong episode."""

    class Forgets(_Rank):
        async def compute_group(self, episodes: Sequence[Episode]) -> list[RewardResult | Unscored]:
            return (await super().compute_group(episodes))[1:]

    with pytest.raises(RewardError, match="1 scores for 2 siblings"):
        list(score([_said("a"), _said("b", sample=1)], Forgets()))


def test_scoring_never_prints_what_it_judges(monkeypatch: pytest.MonkeyPatch):
    """The text form of a trajectory costs more than its judging; an event loop makes one of what it returns."""

    printed: list[Trajectory] = []
    monkeypatch.setattr(Trajectory, "__repr__", lambda trajectory: printed.append(trajectory) or "")
    list(score([_said("a"), _said("b", sample=1)], _Rank()))
    assert not printed


def test_a_scored_episode_says_how_it_was_judged():
    """The weights that the components had, and what each said beside its score."""
    [scored] = score([_said("a b c")], CompositeReward([(_Length(most=5), 0.5)]))
    assert scored.reward_metadata == {"weights": {"length": 0.5}, "length": {}}


def test_a_composite_is_the_weighted_sum_and_shows_its_parts():
    """.7·1 + .3·.5 = .85"""
    reward = make_reward(
        [RewardComponent(kind="task_completion", weight=0.7), RewardComponent(kind="checks", weight=0.3)]
    )
    (scored,) = score([_judged()], reward)
    assert scored.total_reward == pytest.approx(0.85)
    assert scored.breakdown == {"task_completion": 1.0, "checks": 0.5}


def test_a_negative_weight_turns_a_reward_round():
    """The control that must make things worse; it warns, as any weight outside [0, 1] does."""
    with pytest.warns(UserWarning, match=r"reward task_completion has weight -1\.0, outside \[0, 1\]"):
        reward = make_reward([RewardComponent(kind="task_completion", weight=-1.0)])
    (scored,) = score([_judged()], reward)
    assert scored.total_reward == -1.0
