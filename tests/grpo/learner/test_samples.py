from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from grpo.errors import DataError, NoLearningSignal, PolicyError
from grpo.learner.samples import Sample, build_batch, deal
from grpo.trajectories import TrajectoryGroup
from tests.doubles import make_trajectory


def make_group(*rewards: float | None, scenario: str = "s") -> TrajectoryGroup:
    members = tuple(
        make_trajectory(
            scenario_id=scenario,
            sample=k,
            token_ids=np.array([1, 2, 3], dtype=np.int32),
            loss_mask=np.array([False, True, True]),
            sampler_logprobs=np.array([0, -1, -1], dtype=np.float32),
            terminal_reward=reward,
        )
        for k, reward in enumerate(rewards)
    )
    return TrajectoryGroup(scenario_id=scenario, trajectories=members)


def make_sample(length: int, place: str = "") -> Sample:
    return Sample(
        token_ids=np.zeros(length, dtype=np.int32),
        loss_mask=np.ones(length, dtype=np.bool_),
        sampler_logprobs=np.zeros(length, dtype=np.float32),
        advantage=1.0,
        temperature=1.0,
        place=place,
    )


def test_groups_that_are_all_equal_are_dropped_and_counted():
    """Two of three groups teach: share 2/3, and all 6 siblings stay in the denominator."""
    groups = [make_group(0, 1, scenario="a"), make_group(1, 1, scenario="b"), make_group(1, 0, scenario="c")]
    batch = build_batch(groups, policy_hash="p", scale_by_std=False)
    assert [[s.advantage for s in group] for group in batch.groups] == [[-0.5, 0.5], [0.5, -0.5]]
    assert batch.informative_share == pytest.approx(2 / 3)
    assert batch.sample_count == 6


def test_a_failed_sibling_gets_no_gradient():
    """[1, None, 0]: two samples, ±.5"""
    batch = build_batch([make_group(1, None, 0)], policy_hash="p", scale_by_std=False)
    assert [s.advantage for s in batch.groups[0]] == [0.5, -0.5]
    assert batch.sample_count == 2


def test_no_difference_anywhere_is_no_learning_signal():
    """A constant reward ends the run with its reason."""
    with pytest.raises(NoLearningSignal, match="no learning signal: in all 2 groups"):
        build_batch([make_group(1, 1), make_group(0, 0, scenario="t")], policy_hash="p", scale_by_std=True)


def test_rewards_that_all_failed_are_no_learning_signal():
    """None everywhere is not a reward of 0."""
    with pytest.raises(NoLearningSignal):
        build_batch([make_group(None, None)], policy_hash="p", scale_by_std=True)


def test_a_group_of_one_is_refused():
    """The error names the scenario and the setting."""
    with pytest.raises(DataError, match=r"scenario s: a group needs at least 2.*group_size"):
        build_batch([make_group(1)], policy_hash="p", scale_by_std=True)


def test_a_rollout_of_another_policy_is_refused():
    """Training on somebody else's tokens would look like staleness."""
    with pytest.raises(PolicyError, match="sampled by policy p, the checkpoint is q"):
        build_batch([make_group(0, 1)], policy_hash="q", scale_by_std=True)


def test_log_probabilities_that_are_not_finite_are_refused():
    """NaN in one row names that row."""
    group = make_group(0, 1)
    bad = replace(group.trajectories[1], sampler_logprobs=np.array([0, np.nan, -1], dtype=np.float32))
    with pytest.raises(DataError, match="scenario s sample 1"):
        build_batch([replace(group, trajectories=(group.trajectories[0], bad))], policy_hash="p", scale_by_std=True)


def test_dealing_keeps_groups_whole_and_loses_nothing():
    """5 groups into 2 hands: 3 and 2 groups, every sample once."""
    groups = [(make_sample(1, f"{k}a"), make_sample(1, f"{k}b")) for k in range(5)]
    hands = deal(groups, hands=2, rng=np.random.default_rng(0))
    assert sorted(len(hand) for hand in hands) == [4, 6]
    assert sorted(s.place for hand in hands for s in hand) == sorted(s.place for g in groups for s in g)
    for hand in hands:
        assert {s.place[0] for s in hand if s.place.endswith("a")} == {
            s.place[0] for s in hand if s.place.endswith("b")
        }


def test_fewer_groups_than_hands_leaves_no_empty_hand():
    """One group, three steps: one step is taken."""
    assert len(deal([(make_sample(1),)], hands=3, rng=np.random.default_rng(0))) == 1
