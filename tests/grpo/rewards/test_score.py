from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from grpo.config.rewards import RewardComponent
from grpo.errors import RewardError, Unscored
from grpo.messages import Message
from grpo.rewards.catalog import make_composite_reward
from grpo.rewards.composite import CompositeReward
from grpo.rewards.reward import Episode, FunctionReward, RewardContext, RewardFunction, RewardResult
from grpo.rewards.rollout_summary import summarize
from grpo.rewards.score import score
from grpo.scenario import Scenario
from grpo.trajectories import Outcome, Trajectory, Turn
from tests.doubles import make_trajectory


def agent(text: str) -> Message:
    return Message(role="assistant", content=text)


def _judged(**changes: object) -> Trajectory:
    return make_trajectory(**{"outcome": Outcome(success=True, checks={"a": True, "b": False}), **changes})


def test_a_failed_episode_keeps_no_reward():
    """None is not 0."""
    (scored,) = score(
        [_judged(stop="failed", outcome=None)], make_composite_reward([RewardComponent(kind="constant", weight=1)])
    )
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
    """Words of the conversation; above `most` the score is absent."""

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
    """Rank by length in the group: a reward that needs the whole group."""

    name = "rank"

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        raise AssertionError("asked for one alone")

    async def compute_group(self, episodes: Sequence[Episode]) -> list[RewardResult | Unscored]:
        lengths = [sum(len(turn.content) for turn in episode.turns) for episode in episodes]
        return [RewardResult(score=float(sum(other < own for other in lengths))) for own in lengths]


def _trajectory(text: str, **changes: object) -> Trajectory:
    return make_trajectory(**{"turns": (Turn(message=agent(text), start=0, stop=1),), **changes})


def test_a_group_is_scored_together():
    """Two groups of three; a failed episode is not compared and keeps no reward."""
    played = [_trajectory("ab", sample=0), _trajectory("a", sample=1), _trajectory("abcd", sample=2, stop="failed")]
    played += [_trajectory("abc", sample=k, scenario_id="t") for k in range(3)]
    rewards = [t.terminal_reward for t in score(played, _Rank())]
    assert rewards == [1.0, 0.0, None, 0.0, 0.0, 0.0]


def test_an_unscored_episode_has_no_reward_and_the_reason():
    """None is not 0."""
    [short, long] = score([_trajectory("a b"), _trajectory("a b c", sample=1)], CompositeReward([_Length(most=2)]))
    assert (short.terminal_reward, short.error) == (2.0, None)
    assert long.terminal_reward is None
    assert long.error == "unscored: length: 3 words are too many"
    assert summarize([short, long]).rewarded == 1


def test_an_optional_component_is_left_out_where_it_has_no_score():
    """Words ½ + rank 1: 2 words → 1 + 0; 3 words cannot be counted → rank 1 alone."""
    reward = CompositeReward([_Length(most=2, weight=0.5), _Rank()], optional=["length"])
    [short, long] = score([_trajectory("a b"), _trajectory("a b c", sample=1)], reward)
    assert (short.terminal_reward, dict(short.breakdown)) == (1.0, {"length": 2.0, "rank": 0.0})
    assert (long.terminal_reward, dict(long.breakdown)) == (1.0, {"rank": 1.0})


def test_an_episode_that_no_component_scores_has_no_reward():
    """Not 0 either."""
    [only] = score([_trajectory("a b c")], CompositeReward([_Length(most=2)], optional=["length"]))
    assert only.terminal_reward is None


def test_a_reward_gets_the_scenario_of_its_episode():
    """The scenario's context and what was expected of it."""
    seen = []

    class Sees(RewardFunction):
        name = "sees"

        async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
            seen.append((context.sample, context.scenario and context.scenario.context))
            return RewardResult(score=0.0)

    scenario = Scenario(id="s", user_responses=("hi",), context="sentinel")
    list(
        score(
            [_trajectory("a"), _trajectory("b", sample=1), _trajectory("c", scenario_id="t")], Sees(), {"s": scenario}
        )
    )
    assert seen == [(0, "sentinel"), (1, "sentinel"), (0, None)]


def test_a_reward_with_a_missing_score_is_refused():
    """Scores must belong to their episodes."""

    class Forgets(_Rank):
        async def compute_group(self, episodes: Sequence[Episode]) -> list[RewardResult | Unscored]:
            return (await super().compute_group(episodes))[1:]

    with pytest.raises(RewardError, match="returned 1 scores for a group of 2 episodes"):
        list(score([_trajectory("a"), _trajectory("b", sample=1)], Forgets()))


def test_scoring_never_formats_trajectories(monkeypatch: pytest.MonkeyPatch):
    """The repr of a trajectory costs more than its scoring; an event loop formats what a coroutine returns."""

    printed: list[Trajectory] = []
    monkeypatch.setattr(Trajectory, "__repr__", lambda trajectory: printed.append(trajectory) or "")
    list(score([_trajectory("a"), _trajectory("b", sample=1)], _Rank()))
    assert not printed


def test_a_scored_episode_has_the_metadata_of_its_components():
    """The weights, and the metadata of each component."""
    [scored] = score([_trajectory("a b c")], CompositeReward([(_Length(most=5), 0.5)]))
    assert scored.reward_metadata == {"weights": {"length": 0.5}, "length": {}}


def test_a_composite_is_the_weighted_sum_and_shows_its_parts():
    """.7·1 + .3·.5 = .85"""
    reward = make_composite_reward(
        [RewardComponent(kind="task_completion", weight=0.7), RewardComponent(kind="checks", weight=0.3)]
    )
    (scored,) = score([_judged()], reward)
    assert scored.total_reward == pytest.approx(0.85)
    assert scored.breakdown == {"task_completion": 1.0, "checks": 0.5}


def test_a_negative_weight_inverts_a_reward():
    """It warns, as any weight outside [0, 1] does."""
    with pytest.warns(UserWarning, match=r"reward task_completion has weight -1\.0, outside \[0, 1\]"):
        reward = make_composite_reward([RewardComponent(kind="task_completion", weight=-1.0)])
    (scored,) = score([_judged()], reward)
    assert scored.total_reward == -1.0


def _sleeps(turns: Sequence[Message]) -> float:
    threading.Event().wait()
    return 1.0


def _loops(turns: Sequence[Message]) -> float:
    while True:
        pass


async def _waits(turns: Sequence[Message]) -> float:
    await asyncio.Event().wait()
    return 1.0


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_sleeps, r"reward _sleeps blocked for more than 0.2 s \(rollout.reward_timeout_s\) \(test_score.py:"),
        (_loops, r"reward _loops blocked for more than 0.2 s \(rollout.reward_timeout_s\) \(test_score.py:"),
        (_waits, r"reward _waits took longer than 0.2 s \(rollout.reward_timeout_s\)"),
    ],
)
def test_a_reward_that_never_ends_ends_the_run(function: Callable[..., object], reason: str):
    """After the timeout of a group, whether it blocks the process or waits; none of the others blocks in turn."""
    rollout = [_trajectory("a", sample=sample) for sample in range(50)]
    with pytest.raises(RewardError, match=reason):
        list(score(rollout, FunctionReward(function), timeout_s=0.2))


@pytest.mark.parametrize("is_async", [False, True])
def test_the_time_of_a_reward_counts_for_one_group(is_async: bool):
    """Twelve groups of two episodes, each of which blocks for 0.2 s: more time than a group has, altogether."""

    def slow(turns: Sequence[Message]) -> float:
        threading.Event().wait(0.2)
        return 1.0

    async def blocking(turns: Sequence[Message]) -> float:
        return slow(turns)

    rollout = [_trajectory("a", scenario_id=f"s{number}", sample=sample) for number in range(12) for sample in range(2)]
    scored = list(score(rollout, FunctionReward(blocking if is_async else slow), timeout_s=2.0))
    assert [trajectory.total_reward for trajectory in scored] == [1.0] * 24


def test_metadata_that_json_lacks_leave_the_episode_unscored():
    """NaN, which the table of the rollout does not have; the other episode keeps its score."""

    def measured(turns: Sequence[Message], context: RewardContext) -> RewardResult:
        return RewardResult(score=1.0, metadata={"ratio": float("nan") if context.sample else 0.5})

    scored = list(score([_trajectory("a"), _trajectory("b", sample=1)], FunctionReward(measured)))
    assert [trajectory.total_reward for trajectory in scored] == [1.0, None]
    assert "not a value of JSON" in str(scored[1].error)


class _Returns(RewardFunction):
    """A reward that returns what it is given."""

    name = "returns"

    def __init__(self, value: object, *, group: bool = False) -> None:
        super().__init__()
        self._value, self._group = value, group

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        return self._value  # type: ignore[return-value]

    async def compute_group(self, episodes: Sequence[Episode]) -> list[RewardResult | Unscored]:
        return self._value if self._group else await super().compute_group(episodes)  # type: ignore[return-value]


@pytest.mark.parametrize("composed", [False, True])
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "None"),
        ("", "''"),
        ("good", "'good'"),
        ({}, "a value of type dict"),
        (object(), "a value of type object"),
    ],
)
def test_a_reward_that_returns_no_result_ends_the_run_with_one_sentence(value: object, shown: str, composed: bool):
    """Values that are false as well: reward, scenario, sample, what was returned, and the remedy."""
    reward: RewardFunction = _Returns(value)
    reward = CompositeReward([reward]) if composed else reward
    with pytest.raises(RewardError) as raised:
        list(score([_judged()], reward))
    assert str(raised.value) == (
        f"scenario s: sample 0: reward returns returned {shown}. Return a number, a list with one for each turn of the "
        "agent, or a RewardResult, or raise Unscored for an episode that it cannot score"
    )


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "reward returns raised TypeError: 'NoneType' object is not iterable"),
        ([], "reward returns returned 0 scores for a group of 1 episodes"),
        ([None], "sample 0: reward returns returned None"),
        (3, "reward returns raised TypeError"),
    ],
)
def test_a_group_without_a_result_for_each_sibling_ends_the_run_with_one_sentence(value: object, reason: str):
    """Of a reward that compares the siblings."""
    with pytest.raises(RewardError, match=rf"^scenario s: {reason}"):
        list(score([_judged()], _Returns(value, group=True)))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"score": None}, "reward None is not a number"),
        ({"score": "1"}, "reward a value of type str is not a number"),
        ({"score": 1.0, "breakdown": None}, "the breakdown of a reward is None"),
        ({"score": 1.0, "breakdown": {"a": "x"}}, "the breakdown of a reward is a value of type dict"),
        ({"score": 1.0, "metadata": None}, "the metadata of a reward are None"),
    ],
)
def test_a_result_with_parts_of_another_type_is_refused(fields: dict[str, object], reason: str):
    """Where the reward makes it, so that the message has the scenario and the sample."""

    async def make(turns: Sequence[Message]) -> RewardResult:
        return RewardResult(**fields)  # type: ignore[arg-type]

    with pytest.raises(RewardError, match=rf"^scenario s: sample 0: {reason}"):
        list(score([_judged()], FunctionReward(make)))
