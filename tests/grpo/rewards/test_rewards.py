from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from grpo.config.rewards import RewardComponent
from grpo.errors import ConfigError, RewardError
from grpo.messages import Message, ToolCall
from grpo.rewards.composite import make_reward
from grpo.rewards.reward import RewardContext, RewardFunction, RewardResult
from grpo.rewards.score import score
from grpo.rewards.summary import summarize
from grpo.trajectories import Outcome, Trajectory
from tests.doubles import make_trajectory


def user(text: str) -> Message:
    return Message(role="user", content=text)


def agent(text: str) -> Message:
    return Message(role="assistant", content=text)


def tool(text: str) -> Message:
    return Message(role="tool", content=text)


def judge(kind: str, turns: Sequence[Message], *, outcome: Outcome | None = None, **options: object) -> float:
    reward = make_reward([RewardComponent(kind=kind, weight=1.0, options=options)])  # type: ignore[arg-type]
    context = RewardContext(scenario_id="s", category="c", stop="terminated", outcome=outcome)
    return asyncio.run(reward.compute_reward(turns, context)).score


def _judged(**changes: object) -> Trajectory:
    return make_trajectory(**{"outcome": Outcome(success=True, checks={"a": True, "b": False}), **changes})


@pytest.mark.parametrize(("success", "expected"), [(True, 1.0), (False, 0.0)])
def test_task_completion_asks_the_world_and_not_the_words(success: bool, expected: float):
    """The same boasting, judged by what was verified."""
    assert judge("task_completion", [agent("All done!")], outcome=Outcome(success=success)) == expected


def test_a_reward_on_outcomes_refuses_a_world_without_them():
    """No outcome is an error that says what to change, never a 0."""
    with pytest.raises(RewardError, match="environment that verifies"):
        judge("task_completion", [agent("x")])


def test_checks_give_partial_credit():
    """2 of 4 → .5"""
    outcome = Outcome(success=False, checks={"a": True, "b": True, "c": False, "d": False})
    assert judge("checks", [], outcome=outcome) == 0.5


def test_valid_calls_counts_errors_among_results():
    """1 error in 4 results → .75; no call at all → 1"""
    results = [tool('{"error": "x"}'), tool("{}"), tool("[1]"), tool('{"done": 1}')]
    assert judge("valid_calls", results) == 0.75
    assert judge("valid_calls", []) == 1.0


@pytest.mark.parametrize(("count", "expected"), [(0, 0.0), (1, 1.0), (10, 1.0), (15, 0.5), (20, 0.0), (99, 0.0)])
def test_conciseness_falls_beyond_its_target(count: int, expected: float):
    """Target 10 words: full up to 10, half at 15, nothing at 20, and nothing for silence."""
    assert judge("conciseness", [agent("word " * count)], target=10) == pytest.approx(expected)


def test_keywords_reward_taking_up_the_customers_words_and_not_stuffing():
    """Two shared words are enough; twenty repeats of one are one."""
    said = user("my kettle has a broken handle")
    assert judge("keywords", [said, agent("sorry about the broken kettle")]) == 1.0
    assert judge("keywords", [said, agent("kettle " * 20)]) == 0.5
    assert judge("keywords", [said, agent("how nice")]) == 0.0


def test_variety_punishes_repetition():
    """no no no yes → 2/4; empty → 0"""
    assert judge("variety", [agent("no no no yes")]) == 0.5
    assert judge("variety", [agent("")]) == 0.0


def test_calls_are_not_judged_as_words():
    """A turn that only calls a tool is no empty reply."""
    calling = Message(role="assistant", content="", tool_calls=(ToolCall(name="f", arguments={}),))
    assert judge("variety", [calling, agent("fine")]) == 1.0


def test_a_composite_is_the_weighted_sum_and_shows_its_parts():
    """.7·1 + .3·.5 = .85"""
    reward = make_reward(
        [RewardComponent(kind="task_completion", weight=0.7), RewardComponent(kind="checks", weight=0.3)]
    )
    (scored,) = score([_judged()], reward)
    assert scored.total_reward == pytest.approx(0.85)
    assert scored.breakdown == {"task_completion": 1.0, "checks": 0.5}


def test_a_negative_weight_turns_a_reward_round():
    """The control that must make things worse."""
    reward = make_reward([RewardComponent(kind="task_completion", weight=-1.0)])
    (scored,) = score([_judged()], reward)
    assert scored.total_reward == -1.0


def test_one_reward_twice_is_refused():
    """Two weights for one thing are a mistake."""
    with pytest.raises(ConfigError, match="twice"):
        make_reward([RewardComponent(kind="checks", weight=0.3)] * 2)


def test_an_unknown_option_is_refused():
    """A misspelt option names the reward."""
    with pytest.raises(ConfigError, match=r"reward conciseness does not take options .*'taget'"):
        make_reward([RewardComponent(kind="conciseness", weight=1, options={"taget": 3})])


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

    with pytest.raises(RewardError, match="scenario s sample 0: reward nan is not finite"):
        list(score([_judged()], Broken()))


def test_the_summary_leaves_failed_episodes_out_of_its_means():
    """Rewards 1 and None: mean 1, failed share ½."""
    summary = summarize([_judged(terminal_reward=1.0), _judged(stop="failed", outcome=None)])
    assert (summary.reward, summary.success, summary.failed_share) == (1.0, 1.0, 0.5)
