from __future__ import annotations

import asyncio

import pytest

from grpo.environments.support_desk.desk import SupportDesk
from grpo.errors import RewardError, Unscored
from grpo.scenario import Scenario
from grpo.trajectories import Outcome
from tests.grpo.rewards.scoring import agent, judge, tool


@pytest.mark.parametrize(("success", "expected"), [(True, 1.0), (False, 0.0)])
def test_task_completion_reads_the_verified_outcome(success: bool, expected: float):
    """The same reply under both outcomes."""
    assert judge("task_completion", [agent("All done!")], outcome=Outcome(success=success)) == expected


def test_a_reward_on_outcomes_requires_a_verified_outcome():
    """A missing outcome is an error with its remedy, never a 0."""
    with pytest.raises(RewardError, match="environment that verifies"):
        judge("task_completion", [agent("x")])


def test_checks_give_partial_credit():
    """2 of 4 → .5"""
    outcome = Outcome(success=False, checks={"a": True, "b": True, "c": False, "d": False})
    assert judge("checks", [], outcome=outcome) == 0.5


@pytest.mark.parametrize("name", ["checks", "task_completion"])
def test_a_goodbye_at_a_desk_where_nothing_is_expected_has_no_score(name: str):
    """Every check of the desk passes, since nothing had to be done: the episode counts as not judged."""
    scenario = Scenario(id="chat", user_responses=("Hello.",), world={"orders": {}})

    async def play() -> Outcome:
        desk = SupportDesk()
        state = await desk.reset(scenario)
        return desk.verify((await desk.step(state, agent("Bye."))).state)

    outcome = asyncio.run(play())
    assert all(outcome.checks.values())
    with pytest.raises(Unscored, match=r"expects nothing that could succeed\. Give it `expected`"):
        judge(name, [agent("Bye.")], outcome=outcome)


def test_valid_calls_counts_errors_among_results():
    """1 error in 4 results → .75"""
    results = [tool('{"error": "x"}'), tool("{}"), tool("[1]"), tool('{"done": 1}')]
    assert judge("valid_calls", results) == 0.75


def test_valid_calls_has_no_score_for_an_episode_without_a_call():
    """An agent that calls nothing has made no valid call: 1 for it would reward doing nothing."""
    with pytest.raises(Unscored, match="the agent called no tool"):
        judge("valid_calls", [])


@pytest.mark.parametrize(
    ("result", "score"),
    [("[" * 100_000, 1.0), ('{"a": ' * 2_000, 1.0), ("9" * 5_000, 1.0), ('{"error": NaN}', 0.0), ("{'error': 1}", 0.0)],
)
def test_valid_calls_reads_a_result_that_no_strict_reader_accepts(result: str, score: float):
    """Deeply nested results, and numbers of thousands of digits, are results without an error."""
    assert judge("valid_calls", [tool(result)]) == score
