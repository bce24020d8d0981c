from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from grpo.config.pipeline import EvaluationSettings
from grpo.errors import DataError
from grpo.evaluation.episode_pairs import select_pairs
from grpo.evaluation.evaluate import evaluate, evaluate_policy, mean
from grpo.evaluation.schema import Evaluation
from grpo.trajectories import Outcome, Trajectory
from tests.doubles import make_trajectory

SETTINGS = EvaluationSettings(resamples=500)
FEW = EvaluationSettings(resamples=200)


def _played(
    scenario: str, success: bool | None, *, category: str = "a", tokens: int = 4, **changes: object
) -> Trajectory:
    return make_trajectory(
        scenario_id=scenario,
        category=category,
        token_ids=np.zeros(tokens, dtype=np.int32),
        loss_mask=np.ones(tokens, dtype=np.bool_),
        sampler_logprobs=np.zeros(tokens, dtype=np.float32),
        outcome=None if success is None else Outcome(success=success),
        **changes,
    )


def _evaluate(before: list[Trajectory], after: list[Trajectory]) -> Evaluation:
    return evaluate(before, after, SETTINGS, metric="success", kl_to_base=0.1, seed=0)


def _side(results: str, **changes: object) -> list[Trajectory]:
    """'101' → scenarios 0, 1, 2 with success, failure, success."""
    return [_played(str(k), r == "1", **changes) for k, r in enumerate(results)]  # type: ignore[arg-type]


def _tries(**results: str) -> list[Trajectory]:
    """a="10" → scenario a with two samples, the first a success."""
    return [
        _played(scenario, result == "1", sample=sample)
        for scenario, samples in results.items()
        for sample, result in enumerate(samples)
    ]


def test_every_heldout_scenario_is_counted():
    """1 of 4 before, 3 of 4 after: +.5"""
    result = _evaluate(_side("1000"), _side("1110"))
    assert (result.overall.name, result.overall.champion.mean, result.overall.candidate.mean) == ("all", 0.25, 0.75)
    assert result.overall.difference.mean == 0.5
    assert result.episodes == 4


def test_a_failed_episode_counts_as_no_success():
    """Failing does not take a scenario out of the count."""
    after = [_played("0", None, stop="failed"), _played("1", True)]
    result = _evaluate(_side("11"), after)
    assert result.overall.candidate.mean == 0.5
    assert (result.failed_share, result.truncated_share) == (0.5, 0.0)


def test_truncated_and_failed_episodes_are_counted_separately():
    """Of eight, one is truncated, two failed and four are at the limit of turns."""
    stops = ["truncated", "failed", "failed", "turn_limit", "turn_limit", "turn_limit", "turn_limit", "terminated"]
    after = [_played(str(k), False, stop=stop) for k, stop in enumerate(stops)]
    result = _evaluate(_side("0" * 8), after)
    assert (result.failed_share, result.truncated_share, result.turn_limit_share) == (0.25, 0.125, 0.5)


def test_calls_that_were_never_logged_are_counted_for_each_policy():
    """Champion 2 of 3 + 0 of 1, candidate 1 of 4 in its one outcome; another environment's state has no such count."""
    before, after = _side("01"), [_played("0", True), _played("1", None, stop="failed")]

    def replayed(trajectory: Trajectory, calls: int, unrecorded: int) -> Trajectory:
        return replace(
            trajectory, outcome=Outcome(success=True, state={"calls": calls, "unrecorded_calls": unrecorded})
        )

    replays = _evaluate(
        [replayed(before[0], 3, 2), replayed(before[1], 1, 0)], [replayed(after[0], 4, 1), after[1]]
    ).replays
    assert replays is not None
    assert (replays.champion.calls, replays.champion.unrecorded) == (4, 2)
    assert (replays.candidate.calls, replays.candidate.unrecorded) == (4, 1)
    assert _evaluate(before, after).replays is None


def test_pass_rates_are_compared_by_scenario():
    """a: 2 of 3 → 3 of 3, b: 1 of 3 → 2 of 3. pass@2: 1 and 2/3 → 1 and 1; pass^2: 1/3 and 0 → 1 and 1/3."""
    evaluation = _evaluate(_tries(a="110", b="100"), _tries(a="111", b="110"))
    rates = {c.name: (c.champion.mean, c.candidate.mean) for c in (*evaluation.pass_at_k, *evaluation.pass_hat_k)}
    assert rates == {
        "pass@1": (0.5, pytest.approx(5 / 6)),
        "pass@2": (pytest.approx(5 / 6), 1.0),
        "pass@3": (1.0, 1.0),
        "pass^1": (0.5, pytest.approx(5 / 6)),
        "pass^2": (pytest.approx(1 / 6), pytest.approx(2 / 3)),
        "pass^3": (0.0, 0.5),
    }
    assert evaluation.pass_hat_k[1].difference.mean == 0.5


def test_a_scenario_with_fewer_samples_is_left_out_of_larger_k():
    """b was verified twice of three times: at k = 3 only a counts."""
    before, after = _tries(a="111", b="11"), _tries(a="110", b="11")
    before.append(_played("b", None, sample=2))
    after.append(_played("b", True, sample=2))
    evaluation = _evaluate(before, after)
    assert [rate.difference.count for rate in evaluation.pass_hat_k] == [2, 2, 1]
    assert [rate.candidate.mean for rate in evaluation.pass_hat_k] == [pytest.approx(5 / 6), pytest.approx(2 / 3), 0.0]


def test_pass_rates_need_verification():
    """A reward for each episode and no outcome: a failed one is not a success of 0 there."""
    before = [_played("0", None, terminal_reward=0.5), _played("1", None, stop="failed")]
    evaluation = evaluate(before, before, SETTINGS, metric="reward", kl_to_base=0.1, seed=0)
    assert (evaluation.pass_at_k, evaluation.pass_hat_k) == ((), ())


def test_equal_policies_have_an_interval_around_no_difference():
    """20 of 20 and 20 of 20: 1.000 [.88, 1] twice, and 0 [-.10, .10] between them."""
    overall = _evaluate(_side("1" * 20), _side("1" * 20)).overall
    assert overall.candidate.low == pytest.approx(0.883, abs=0.02)
    assert (overall.difference.low, overall.difference.high) == pytest.approx((-0.10, 0.10), abs=0.03)


def test_the_range_of_rewards_is_from_0_to_the_largest():
    """Twenty of 2 each: the interval is that of shares, twice as wide: Beta(20.5, .5) from .883 on."""
    played = [_played(str(k), None, terminal_reward=2.0) for k in range(20)]
    judged = mean(played, SETTINGS, metric="reward", seed=0)
    assert (judged.mean, judged.low, judged.high) == (2.0, pytest.approx(2 * 0.883, abs=0.04), 2.0)


def test_zero_successes_leave_an_upper_bound_above_zero():
    """0 of 20: up to 1 - .883."""
    assert mean(_side("0" * 20), SETTINGS, metric="success", seed=0).high == pytest.approx(0.117, abs=0.02)


def test_the_mean_of_one_policy_equals_its_comparison():
    """The same scenarios, range and random numbers."""
    before, after = _tries(a="110", b="100"), _tries(a="111", b="110")
    assert mean(after, SETTINGS, metric="success", seed=0) == _evaluate(before, after).overall.candidate
    with pytest.raises(DataError, match="no held-out episode has a reward"):
        mean(after, SETTINGS, metric="reward", seed=0)


def test_unpaired_episodes_are_refused():
    """Another seed is another sample."""
    with pytest.raises(DataError, match="same scenarios, samples and seeds"):
        _evaluate(_side("10"), _side("10", seed=9))


def test_selected_pairs_include_a_regression():
    """A scenario that got worse is shown too."""
    pairs = select_pairs(_side("0000100000"), _side("1111011111"), lambda ids: "x", count=3)
    changes = [(p.champion.success, p.candidate.success) for p in pairs]
    assert (False, True) in changes
    assert (True, False) in changes


def _scored(scenario: str, sample: int, *, success: bool | None, reward: float | None, **changes: object) -> Trajectory:
    return make_trajectory(
        scenario_id=scenario,
        sample=sample,
        seed=sample,
        outcome=None if success is None else Outcome(success=success),
        terminal_reward=reward,
        **changes,
    )


def test_means_are_over_scenarios_and_by_category():
    """a: 1 and 0 of two samples, b: 1 and 1 → .75; categories .5 and 1; 1 and 3 completion tokens: mean 1.5."""
    three = {name: np.ones(3, dtype=kind) for name, kind in (("token_ids", np.int32), ("loss_mask", np.bool_))}
    played = [
        _scored("a", 0, success=True, reward=1.0, category="refund"),
        _scored("a", 1, success=False, reward=0.0, category="refund"),
        _scored("b", 0, success=True, reward=0.5, category="return"),
        _scored(
            "b", 1, success=True, reward=0.5, category="return",
            stop="truncated", sampler_logprobs=np.zeros(3, dtype=np.float32), **three,
        ),
    ]  # fmt: skip
    result = evaluate_policy(played, FEW, seed=0)
    assert result.overall.success is not None
    assert result.overall.reward is not None
    assert (result.overall.success.mean, result.overall.reward.mean) == (0.75, 0.5)
    assert result.overall.success.count == 2
    assert {s.name: s.success and s.success.mean for s in result.by_category} == {"refund": 0.5, "return": 1.0}
    assert (result.episodes, result.truncated_share, result.mean_completion_tokens) == (4, 0.25, 1.5)


def test_a_failed_episode_of_one_policy_counts_as_no_success_and_has_no_reward():
    """One of two scenarios failed: success 0.5, the reward is that of the other."""
    played = [_scored("a", 0, success=True, reward=0.8), _scored("b", 0, success=None, reward=None, stop="failed")]
    result = evaluate_policy(played, FEW, seed=0)
    assert result.overall.success is not None
    assert result.overall.reward is not None
    assert (result.overall.success.mean, result.overall.reward.mean, result.failed_share) == (0.5, 0.8, 0.5)


def test_without_verification_success_is_none():
    """Not a success of 0."""
    result = evaluate_policy([_scored("a", 0, success=None, reward=0.25)], FEW, seed=0)
    assert result.overall.success is None
    assert result.overall.reward is not None


def test_episodes_without_outcome_and_reward_are_an_error():
    """Neither verified nor scored."""
    with pytest.raises(DataError, match="nothing to evaluate"):
        evaluate_policy([_scored("a", 0, success=None, reward=None)], FEW, seed=0)


def test_pass_rates_of_one_policy():
    """a 1 of 2, b 2 of 2: pass@2 is 1 [.20, 1], pass^2 is .5 (b alone)."""
    results = {"a": (True, False), "b": (True, True)}
    played = [
        _scored(scenario, sample, success=success, reward=None)
        for scenario, outcomes in results.items()
        for sample, success in enumerate(outcomes)
    ]
    result = evaluate_policy(played, FEW, seed=0)
    assert [rate.mean for rate in result.pass_at_k] == [0.75, 1.0]
    assert [rate.mean for rate in result.pass_hat_k] == [0.75, 0.5]
    assert result.pass_at_k[1].low < 0.5
    assert result.overall.reward is None


def test_without_verification_one_policy_has_no_pass_rates():
    """Rewards alone."""
    result = evaluate_policy([_scored("a", 0, success=None, reward=0.25)], FEW, seed=0)
    assert (result.pass_at_k, result.pass_hat_k) == ((), ())


def test_difficulties_are_in_order():
    """From easy to hard in any order of episodes; another name comes before them."""
    played = [_scored(d, 0, success=True, reward=1.0, difficulty=d) for d in ("hard", "unknown", "medium", "easy")]
    names = [one.name for one in evaluate_policy(played, FEW, seed=0).by_difficulty]
    assert names == ["unknown", "easy", "medium", "hard"]


def test_the_same_episodes_give_the_same_evaluation():
    """The seed is that of the run; another one draws other weights."""
    played = [_scored(str(k), 0, success=k % 2 == 0, reward=0.5) for k in range(6)]
    first, again, other = (evaluate_policy(played, FEW, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
