"""Turn rewards are compared with success within groups, before they train."""

from __future__ import annotations

import logging

import pytest

from grpo.config.training import TurnRewardAdmission
from grpo.errors import RewardError
from grpo.rewards.hacking.turn_rewards import TurnRewardAgreement, admit_turn_rewards
from grpo.trajectories import Outcome, TrajectoryGroup
from tests.doubles import make_trajectory

Episode = tuple[float, bool | None]
"""Sum of turn rewards, and success."""


def make_group(name: str, *episodes: Episode) -> TrajectoryGroup:
    members = tuple(
        make_trajectory(
            scenario_id=name,
            sample=sample,
            turn_rewards=(reward / 2, reward / 2),
            terminal_reward=0.0,
            outcome=None if success is None else Outcome(success=success),
        )
        for sample, (reward, success) in enumerate(episodes)
    )
    return TrajectoryGroup(scenario_id=name, trajectories=members)


def agreement(*groups: TrajectoryGroup) -> TurnRewardAgreement:
    measured = TurnRewardAgreement.of(groups)
    assert measured is not None
    return measured


GOOD = [make_group(f"g{k}", (1, True), (1, True), (0, False), (1, False)) for k in range(8)]
"""x: ¼ ¼ −¾ ¼, y: ½ ½ −½ −½ around the group's means: Σ x² = ¾, Σ y² = 1, Σ xy = ½, ρ = ½ / √¾ = .577."""
BAD = [make_group(f"b{k}", (0, True), (0, True), (1, False), (0, False)) for k in range(8)]
"""The turn reward pays for failures: ρ = −.577."""


def test_the_correlation_is_that_within_groups():
    """The worked example, with Fisher's interval of 4 − 1 − 2 degrees: atanh .577 ± 1.96 = [−1.301, 2.618]."""
    value, low, high = agreement(make_group("s", (1, True), (0, False), (1, False), (0, False))).correlation or (
        0,
        0,
        0,
    )
    assert value == pytest.approx(0.5 / 0.75**0.5)
    assert (low, high) == (pytest.approx(-0.8621, abs=1e-4), pytest.approx(0.9894, abs=1e-4))


def test_scenarios_that_are_easy_and_pay_more_are_no_agreement():
    """Between the two groups rewards and success rise together. Within each, x is 1 −1 0 0 and y ±¼ ±¼ …: Σ xy = 0."""
    easy = make_group("easy", (6, True), (4, True), (5, True), (5, False))
    hard = make_group("hard", (2, False), (0, False), (1, False), (1, True))
    value, low, high = agreement(easy, hard).correlation or (1, 1, 1)
    assert value == 0
    assert low == pytest.approx(-high)


def test_episodes_without_an_outcome_or_a_reward_and_groups_of_one_do_not_count():
    """Only the two judged episodes of the first group are left."""
    measured = agreement(make_group("s", (1, True), (0, False), (1, None)), make_group("t", (1, True), (0, None)))
    assert (measured.groups, measured.episodes, measured.correlation) == (1, 2, None)


def test_joined_sums_are_those_of_all_groups():
    """Rounds of a rollout share no scenario."""
    assert agreement(*GOOD[:3]).joined(agreement(*GOOD[3:])) == agreement(*GOOD)


def test_a_turn_reward_that_misleads_is_refused_with_its_interval():
    """Eight groups of four: atanh −.577 ± 1.96 / √22 = [−1.076, −.241], which is [−.792, −.236]."""
    with pytest.raises(RewardError, match=r"^turn rewards mislead: .* is -0\.58 \[-0\.79, -0\.24\], and its lower"):
        admit_turn_rewards(agreement(*BAD), "refuse")


def test_a_turn_reward_that_agrees_is_admitted():
    """[.236, .792] is above 0."""
    admit_turn_rewards(agreement(*GOOD), "refuse")


def test_a_turn_reward_that_is_not_shown_to_agree_is_refused():
    """As many groups of either kind: a correlation of 0."""
    with pytest.raises(RewardError, match=r"are not shown to agree with success: .* is -?0\.00 \[-0\.2\d, 0\.2\d\]"):
        admit_turn_rewards(agreement(*GOOD, *BAD), "refuse")


def test_a_turn_reward_that_cannot_be_compared_is_refused():
    """All episodes fail, as those of a policy at the very beginning may."""
    with pytest.raises(RewardError, match=r"cannot be compared with success: .* 4 episodes with a verified outcome"):
        admit_turn_rewards(agreement(make_group("s", *[(k, False) for k in range(1, 5)])), "refuse")


@pytest.mark.parametrize(("admission", "warned"), [("off", False), ("warn", True)])
def test_a_warning_does_not_end_the_run(admission: TurnRewardAdmission, warned: bool, caplog: pytest.LogCaptureFixture):
    """Off does not even warn."""
    with caplog.at_level(logging.WARNING):
        admit_turn_rewards(agreement(*BAD), admission)
    assert ("turn rewards mislead" in caplog.text) is warned


def test_without_turn_rewards_there_is_nothing_to_admit():
    """Rewards of 0 for each turn are none."""
    nothing = TurnRewardAgreement.of([make_group("s", (0, True), (0, False))])
    assert nothing is None
    admit_turn_rewards(nothing, "refuse")
