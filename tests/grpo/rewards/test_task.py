from __future__ import annotations

import pytest

from grpo.errors import RewardError
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


def test_valid_calls_counts_errors_among_results():
    """1 error in 4 results → .75; no call at all → 1"""
    results = [tool('{"error": "x"}'), tool("{}"), tool("[1]"), tool('{"done": 1}')]
    assert judge("valid_calls", results) == 0.75
    assert judge("valid_calls", []) == 1.0
