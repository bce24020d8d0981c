"""Metrics of an iteration are those of its rollout and of its update."""

from __future__ import annotations

import pytest

from grpo.evaluation.iteration import iteration_metrics
from grpo.learner.metrics import UpdateMetrics
from grpo.rewards.hacking.turn_rewards import TurnRewardAgreement
from grpo.rewards.rollout_summary import RolloutSummary

SUMMARY = RolloutSummary(
    groups=4,
    informative_groups=3,
    episodes=16,
    rewarded=15,
    verified=14,
    reward=0.5,
    success=0.25,
    components={"length": 0.75},
    truncated_share=0.1,
    turn_limit_share=0.2,
    failed_share=0.3,
    mutual_information=0.4,
    input_agnostic=True,
)

UPDATE = UpdateMetrics(informative_share=0.6, kl_to_base=0.02, entropy=1.5)


def test_each_metric_of_the_rollout_and_of_the_update_is_there():
    """Under its own name."""
    metrics = iteration_metrics(7, SUMMARY, UPDATE, rounds=2, open_levels=("easy",))
    shared = ("reward", "success", "components", "truncated_share", "turn_limit_share", "failed_share")
    for name in (*shared, "mutual_information", "input_agnostic", "calls"):
        assert getattr(metrics, name) == getattr(SUMMARY, name), name
    assert (metrics.index, metrics.rounds, metrics.open_levels, metrics.entropy) == (7, 2, ("easy",), 1.5)
    assert (metrics.turn_reward_correlation, metrics.turn_reward_low, metrics.turn_reward_high) == (None, None, None)


def test_the_correlation_of_turn_rewards_has_its_interval():
    """It is 12 / √(16 · 16) = .75."""
    agreement = TurnRewardAgreement(groups=8, episodes=64, rewards=16.0, outcomes=16.0, products=12.0)
    summary = SUMMARY.model_copy(update={"turn_rewards": agreement})
    metrics = iteration_metrics(0, summary, UPDATE, rounds=1)
    correlation = agreement.correlation
    assert correlation is not None
    assert metrics.turn_reward_correlation == pytest.approx(0.75)
    assert (metrics.turn_reward_low, metrics.turn_reward_high) == (correlation.low, correlation.high)
    assert correlation.low < 0.75 < correlation.high


def test_a_rollout_without_a_reward_has_the_reward_0():
    """Its curve goes on."""
    assert iteration_metrics(0, SUMMARY.model_copy(update={"reward": None}), UPDATE, rounds=1).reward == 0.0
