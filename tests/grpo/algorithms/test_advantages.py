from __future__ import annotations

import numpy as np
import pytest

from grpo.algorithms.advantages import (
    clip_rewards,
    group_advantages,
    maximum_likelihood_advantages,
    overlong_penalty,
    state_advantages,
    turn_advantages,
)

REWARDS = np.array([0.7, 0.9, 0.6, 0.8])


def test_centred_on_the_group_mean():
    """mean .75 → −.05 .15 −.15 .05"""
    assert group_advantages(REWARDS, scale_by_std=False) == pytest.approx([-0.05, 0.15, -0.15, 0.05])


def test_scaled_by_the_sample_standard_deviation():
    """std = sqrt((.0025 + .0225 + .0225 + .0025) / 3) = .129099; .15 / (.129099 + .0001) = 1.1610"""
    expected = [-0.05 / 0.1291994, 0.15 / 0.1291994, -0.15 / 0.1291994, 0.05 / 0.1291994]
    assert group_advantages(REWARDS, scale_by_std=True) == pytest.approx(expected, abs=1e-5)


def test_a_constant_group_gives_zeros_and_no_nan():
    """Without a difference the advantage is 0, not 0/0."""
    assert group_advantages(np.full(4, 0.3), scale_by_std=True).tolist() == [0, 0, 0, 0]


def test_a_failed_trajectory_stays_out_of_the_baseline():
    """[1, None, 0] → mean .5 of the two; None is not 0"""
    advantages = group_advantages(np.array([1.0, np.nan, 0.0]), scale_by_std=False)
    assert advantages[[0, 2]].tolist() == [0.5, -0.5]
    assert np.isnan(advantages[1])


def test_a_group_with_one_reward_has_advantage_zero():
    """There is nothing to compare it with."""
    assert group_advantages(np.array([1.0, np.nan]), scale_by_std=True)[0] == 0


def test_each_is_compared_with_the_mean_of_the_others():
    """.7 − (.9 + .6 + .8)/3 = −.0667"""
    advantages = group_advantages(REWARDS, baseline="leave_one_out", scale_by_std=False)
    assert advantages == pytest.approx([-0.066667, 0.2, -0.2, 0.066667], abs=1e-6)


def test_a_median_does_not_follow_an_outlier():
    """[0 1 2 10]: 1.5"""
    advantages = group_advantages(np.array([0.0, 1, 2, 10]), baseline="group_median", scale_by_std=False)
    assert advantages.tolist() == [-1.5, -0.5, 0.5, 8.5]


def test_under_maximum_likelihood_a_rare_success_weighs_more():
    """[1 0 0 0]: mean ¼, (1 − ¼) / ¼ = 3 and (0 − ¼) / ¼ = −1; [1 1 1 0]: mean ¾, ¼ / ¾ = ⅓ and −1."""
    assert maximum_likelihood_advantages(np.array([1.0, 0, 0, 0])).tolist() == [3, -1, -1, -1]
    assert maximum_likelihood_advantages(np.array([1.0, 1, 1, 0])) == pytest.approx([1 / 3, 1 / 3, 1 / 3, -1])


def test_under_maximum_likelihood_a_group_without_a_difference_or_a_success_gives_zeros():
    """All 0 is not 0/0. None stays out of the mean: [1 None 0 0] has mean ⅓, (1 − ⅓) / ⅓ = 2."""
    for constant in (np.zeros(3), np.ones(3), np.array([1.0])):
        assert maximum_likelihood_advantages(constant).tolist() == [0] * len(constant)
    advantages = maximum_likelihood_advantages(np.array([1.0, np.nan, 0, 0]))
    assert advantages[[0, 2, 3]] == pytest.approx([2, -1, -1])
    assert np.isnan(advantages[1])


def test_under_maximum_likelihood_a_reward_below_zero_is_refused():
    """The mean of [1 −1] is 0."""
    with pytest.raises(ValueError, match="a reward of -1 is below 0"):
        maximum_likelihood_advantages(np.array([1.0, -1.0]))


@pytest.mark.parametrize("rewards", [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
def test_in_groups_of_two_maximum_likelihood_is_leave_one_out(rewards: list[float]):
    """Mean ½ as a divisor is the factor 2 / (2 − 1) of leave_one_out."""
    group = np.array(rewards)
    expected = group_advantages(group, baseline="leave_one_out", scale_by_std=False)
    assert maximum_likelihood_advantages(group).tolist() == expected.tolist()


def test_in_groups_of_two_with_graded_rewards_maximum_likelihood_is_leave_one_out_over_twice_the_mean():
    """(R_1 − R_2) / 2 / mean R in place of R_1 − R_2."""
    for group in np.random.default_rng(0).uniform(0.0, 3.0, size=(20, 2)):
        expected = group_advantages(group, baseline="leave_one_out", scale_by_std=False) / (2 * group.mean())
        assert maximum_likelihood_advantages(group) == pytest.approx(expected)


def test_against_the_whole_batch_a_constant_group_has_advantages():
    """A group that is all 1 in a batch [1 1 0 0 −1 .5]: mean .25, and its spread is the batch's, .758288."""
    batch = np.array([1, 1, 0, 0, -1, 0.5])
    plain = group_advantages(np.ones(2), baseline="global_mean", scale_by_std=False, batch=batch)
    assert plain.tolist() == [0.75, 0.75]
    scaled = group_advantages(np.ones(2), baseline="global_mean", scale_by_std=True, batch=batch)
    assert scaled.tolist() == pytest.approx([0.75 / 0.758388] * 2, abs=1e-5)
    with pytest.raises(ValueError, match=r"^global_mean needs the rewards of the whole batch$"):
        group_advantages(np.ones(2), baseline="global_mean", scale_by_std=False)


def test_a_constant_batch_has_advantage_zero_under_the_global_mean():
    """Three times .1 has a mean that is not .1 in floating point."""
    rewards = np.full(3, 0.1)
    assert group_advantages(rewards, baseline="global_mean", scale_by_std=True, batch=rewards).tolist() == [0, 0, 0]


def test_turns_are_compared_with_the_same_turn_of_the_group():
    """Returns [1 0] and [1 1]: turn 0 equal, turn 1 −.5 and .5; a third turn that only one trajectory reached is 0."""
    advantages = turn_advantages([[1, 0], [0, 0, 0]], np.array([0.0, 1.0]), scale_by_std=False)
    assert [a.tolist() for a in advantages] == [[0.0, -0.5], [0.0, 0.5, 0.0]]


def test_turns_are_compared_as_the_trajectories_are():
    """Returns 0, 1 and 5 of one turn each: median 1; mean 2 and std sqrt(7) = 2.6458."""
    turns, terminal = [[0], [0], [0]], np.array([0.0, 1.0, 5.0])
    by_median = turn_advantages(turns, terminal, baseline="group_median", scale_by_std=False)
    assert [a.tolist() for a in by_median] == [[-1.0], [0.0], [4.0]]
    scaled = turn_advantages(turns, terminal, scale_by_std=True)
    assert [a.item() for a in scaled] == pytest.approx([-2 / 2.64585, -1 / 2.64585, 3 / 2.64585], abs=1e-4)


def test_each_trajectory_has_its_terminal_reward():
    """Two trajectories and one reward are an error; an empty group has no advantages."""
    with pytest.raises(ValueError, match="shorter"):
        turn_advantages([[1], [0]], np.array([0.0]), scale_by_std=False)
    assert turn_advantages([], np.array([]), scale_by_std=False) == []
    with pytest.raises(ValueError, match="shorter"):
        state_advantages([["s"], ["s"]], [[1.0], [0.0]], np.array([0.0]), discount=0.5, scale_by_std=False)


def test_turns_in_one_state_are_compared_by_their_discounted_returns():
    """Rewards 0 and 1, discount ½: returns [0 0] and [¼ ½ 1].

    State s: 0 and ¼, mean ⅛. State t, twice in the second trajectory: 0, ½ and 1, mean ½.
    """
    advantages = state_advantages(
        [["s", "t"], ["s", "t", "t"]], [[0, 0], [0, 0, 0]], np.array([0.0, 1.0]), discount=0.5, scale_by_std=False
    )
    assert [a.tolist() for a in advantages] == [[-0.125, -0.5], [0.125, 0.0, 0.5]]


def test_a_state_that_occurred_once_compares_nothing_and_turn_rewards_are_part_of_returns():
    """u and v occur once. In s the returns are 1 + .9 · 0 = 1 and 0 + .9 · (2 + 1) = 2.7: ∓.85."""
    advantages = state_advantages(
        [["s", "u"], ["s", "v"]], [[1, 0], [0, 2]], np.array([0.0, 1.0]), discount=0.9, scale_by_std=False
    )
    assert advantages[0] == pytest.approx([-0.85, 0])
    assert advantages[1] == pytest.approx([0.85, 0])
    scaled = state_advantages(
        [["s", "u"], ["s", "v"]], [[1, 0], [0, 2]], np.array([0.0, 1.0]), discount=0.9, scale_by_std=True
    )
    assert scaled[1] == pytest.approx([0.85 / 1.20218, 0], abs=1e-4)  # std = 1.7 / sqrt(2) = 1.20208


def test_turns_in_one_state_are_also_compared_by_the_states_before_them():
    """Returns [0 0] and [¼ ½ 1] as above. With one earlier state, t after s is 0 and ½, mean ¼; t after t is single.

    s is the first state of both, so that its advantage stays ∓⅛. t: (−½ − 2/4) / 3 = −⅓, (0 + 2/4) / 3 = ⅙, and ½.
    """
    states, rewards, terminal = [["s", "t"], ["s", "t", "t"]], [[0, 0], [0, 0, 0]], np.array([0.0, 1.0])
    once = state_advantages(states, rewards, terminal, discount=0.5, history=1, scale_by_std=False)
    assert once[0] == pytest.approx([-1 / 8, -1 / 3])
    assert once[1] == pytest.approx([1 / 8, 1 / 6, 1 / 2])


def test_the_first_turns_of_a_long_history_are_compared_with_turns_of_the_same_beginning():
    """Two earlier states: t in the second turn has only s before it, and t in the third has s and u.

    Returns with discount 1: 0 0 0, 1 1 1 and 2 2. t: 0, 1 and 2, mean 1. With the state before: after u 0 and 1,
    mean ½, and after s once. With two before: after s u once, after u u once.
    (−1 + 2 · −½) / 3 = −⅔, (0 + 2 · ½) / 3 = ⅓, and 1.
    """
    advantages = state_advantages(
        [["s", "u", "t"], ["u", "u", "t"], ["s", "t"]],
        [[0, 0, 0], [0, 0, 0], [0, 0]],
        np.array([0.0, 1.0, 2.0]),
        discount=1.0,
        history=2,
        scale_by_std=False,
    )
    assert [values[-1] for values in advantages] == pytest.approx([-2 / 3, 1 / 3, 1])
    assert advantages[0][0] == pytest.approx(-1)  # s begins two episodes, with 0 and 2, and is the same at every depth


def test_the_default_baseline_is_the_mean():
    """[0 1 5]: mean 2, median 1."""
    assert group_advantages(np.array([0.0, 1.0, 5.0]), scale_by_std=False).tolist() == [-2.0, -1.0, 3.0]


def test_rewards_are_clipped_and_missing_ones_stay_missing():
    """limit 1: −3 → −1, 3 → 1, NaN → NaN"""
    clipped = clip_rewards(np.array([-3.0, 0.5, 3.0, np.nan]), 1.0)
    assert clipped[:3].tolist() == [-1.0, 0.5, 1.0]
    assert np.isnan(clipped[3])


def test_the_penalty_for_length_grows_towards_the_limit():
    """limit 100, buffer 20: 40 and 80 → 0, 90 → −.5, 100 → −1, 120 → −1"""
    penalty = overlong_penalty(np.array([40, 80, 90, 100, 120]), limit=100, buffer=20)
    assert penalty.tolist() == [0.0, 0.0, -0.5, -1.0, -1.0]
