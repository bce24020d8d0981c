from __future__ import annotations

import numpy as np
import pytest

from grpo.algorithms.mutual_information import MutualInformation, mutual_information


def _measure(replies: list[list[int]], scenarios: list[int], turns: list[int] | None = None) -> MutualInformation:
    tokens = [np.array(reply) for reply in replies]
    return mutual_information(tokens, np.array(scenarios), np.array(turns or [0] * len(replies)))


def _sampled(dependent_share: float) -> MutualInformation:
    """8 replies of 20 tokens for each of 16 scenarios. All tokens are drawn from 32 alike, at log 32 nats each.

    A share of them names the scenario: one of two tokens that only this scenario has.
    """
    rng = np.random.default_rng(0)
    scenarios = np.repeat(np.arange(16), 8)
    tokens = rng.integers(0, 32, (128, 20))
    own = 2 * scenarios[:, None] + rng.integers(0, 2, (128, 20))
    chosen = np.where(rng.random((128, 20)) < dependent_share, own, tokens)
    counts = np.bincount(chosen.ravel(), minlength=32) / chosen.size
    assert -(counts * np.log(counts)).sum() > np.log(32) - 0.02  # as diverse in both cases
    return mutual_information(list(chosen), scenarios, np.zeros(128, dtype=np.int64))


def test_replies_that_name_their_scenario_have_the_entropy_of_the_scenarios():
    """Of 40 replies, 10 each say 1, 2, 3 and 4: log 4, less what 19 shuffles have by chance."""
    scenarios = [k % 4 for k in range(40)]
    measured = _measure([[scenario + 1] for scenario in scenarios], scenarios)
    assert not measured.is_independent
    assert np.log(4) - 0.2 < measured.nats < np.log(4)


def test_equal_replies_have_none():
    """Every shuffle is the same: exactly 0, and it is no more than the largest of them."""
    assert _measure([[1, 2, 3]] * 20, [k % 4 for k in range(20)]) == MutualInformation(nats=0.0, is_independent=True)


def test_a_policy_that_ignores_its_input_is_found_though_its_entropy_is_high():
    """Template collapse: replies differ as much as those of a policy that reads its input."""
    agnostic, reading = _sampled(0.0), _sampled(0.5)
    assert agnostic.is_independent
    assert abs(agnostic.nats) < 0.01
    assert not reading.is_independent
    assert reading.nats > 0.3


def test_a_tenth_of_the_tokens_is_enough_to_be_dependent():
    """Weak dependence is not taken for none."""
    assert not _sampled(0.1).is_independent


def test_turns_are_compared_with_the_same_turn_of_other_scenarios():
    """Scenario 0 has one turn and the others two, with a word for each turn: lengths alone are no dependence."""
    replies, scenarios, turns = [], [], []
    for scenario in range(4):
        for _ in range(6):
            for turn in range(1 if scenario == 0 else 2):
                replies.append([turn])
                scenarios.append(scenario)
                turns.append(turn)
    assert _measure(replies, scenarios, turns) == MutualInformation(nats=pytest.approx(0.0), is_independent=True)
    assert not _measure(replies, scenarios).is_independent


def test_the_same_replies_give_the_same_value_whatever_scenarios_and_tokens_are_called():
    """The seed decides the shuffles. Numbers are names."""
    replies, scenarios = [[1, 2], [2, 2], [5], [5, 1]] * 5, [0, 0, 1, 1] * 5
    measured = _measure(replies, scenarios)
    renamed = _measure([[900 - token for token in reply] for reply in replies], [7 * k + 3 for k in scenarios])
    assert measured == _measure(replies, scenarios)
    assert measured.nats == pytest.approx(renamed.nats)


def test_without_a_token_it_is_refused():
    """Empty replies have no distribution."""
    with pytest.raises(ValueError, match="at least one token"):
        _measure([[], []], [0, 1])


def test_lengths_of_replies_are_no_dependence():
    """Scenario 1 repeats the only word five times. The same word is 0 nats under each assignment of scenarios."""
    replies = [[1]] * 6 + [[1] * 5] * 6
    measured = _measure(replies, [0] * 6 + [1] * 6)
    assert measured == MutualInformation(nats=pytest.approx(0.0), is_independent=True)
