from __future__ import annotations

import numpy as np
import pytest

from grpo.config.pipeline import EvaluationSettings
from grpo.errors import DataError
from grpo.evaluation.episode_pairs import select_pairs
from grpo.evaluation.evaluate import evaluate, mean
from grpo.evaluation.schema import Evaluation
from grpo.trajectories import Outcome, Trajectory
from tests.doubles import make_trajectory

SETTINGS = EvaluationSettings(resamples=500)


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
    found = _evaluate(_side("1000"), _side("1110"))
    assert (found.overall.name, found.overall.champion.mean, found.overall.candidate.mean) == ("all", 0.25, 0.75)
    assert found.overall.difference.mean == 0.5
    assert found.episodes == 4


def test_a_failed_episode_is_no_success():
    """Failing does not take a scenario out of the count."""
    after = [_played("0", None, stop="failed"), _played("1", True)]
    found = _evaluate(_side("11"), after)
    assert found.overall.candidate.mean == 0.5
    assert (found.failed_share, found.truncated_share) == (0.5, 0.0)


def test_what_was_cut_off_and_what_failed_are_counted_apart():
    """One of four is truncated, two failed."""
    after = [
        _played(str(k), False, stop=stop) for k, stop in enumerate(["truncated", "failed", "failed", "terminated"])
    ]
    found = _evaluate(_side("0000"), after)
    assert (found.failed_share, found.truncated_share) == (0.5, 0.25)


def test_tries_are_compared_scenario_by_scenario():
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


def test_a_scenario_with_fewer_tries_is_left_out_where_they_are_missing():
    """b was verified twice of three times: at k = 3 only a counts."""
    before, after = _tries(a="111", b="11"), _tries(a="110", b="11")
    before.append(_played("b", None, sample=2))
    after.append(_played("b", True, sample=2))
    evaluation = _evaluate(before, after)
    assert [rate.difference.count for rate in evaluation.pass_hat_k] == [2, 2, 1]
    assert [rate.candidate.mean for rate in evaluation.pass_hat_k] == [pytest.approx(5 / 6), pytest.approx(2 / 3), 0.0]


def test_there_are_no_tries_to_count_where_nothing_is_verified():
    """A reward for each episode and no outcome: a failed one is not a success of 0 there."""
    before = [_played("0", None, terminal_reward=0.5), _played("1", None, stop="failed")]
    evaluation = evaluate(before, before, SETTINGS, metric="reward", kl_to_base=0.1, seed=0)
    assert (evaluation.pass_at_k, evaluation.pass_hat_k) == ((), ())


def test_policies_that_never_differ_have_an_interval_of_their_difference():
    """20 of 20 and 20 of 20: 1.000 [.88, 1] twice, and 0 [-.10, .10] between them."""
    overall = _evaluate(_side("1" * 20), _side("1" * 20)).overall
    assert overall.candidate.low == pytest.approx(0.883, abs=0.02)
    assert (overall.difference.low, overall.difference.high) == pytest.approx((-0.10, 0.10), abs=0.03)


def test_rewards_reach_from_0_to_the_largest_that_was_seen():
    """Twenty of 2 each: the interval is that of shares, twice as wide: Beta(20.5, .5) from .883 on."""
    played = [_played(str(k), None, terminal_reward=2.0) for k in range(20)]
    judged = mean(played, SETTINGS, metric="reward", seed=0)
    assert (judged.mean, judged.low, judged.high) == (2.0, pytest.approx(2 * 0.883, abs=0.04), 2.0)


def test_no_success_at_all_is_not_certain_either():
    """0 of 20: up to 1 - .883."""
    assert mean(_side("0" * 20), SETTINGS, metric="success", seed=0).high == pytest.approx(0.117, abs=0.02)


def test_the_mean_of_one_policy_is_what_its_comparison_shows():
    """The same scenarios, range and random numbers."""
    before, after = _tries(a="110", b="100"), _tries(a="111", b="110")
    assert mean(after, SETTINGS, metric="success", seed=0) == _evaluate(before, after).overall.candidate
    with pytest.raises(DataError, match="no held-out episode has a reward"):
        mean(after, SETTINGS, metric="reward", seed=0)


def test_two_different_exams_are_not_compared():
    """Another seed is another sample."""
    with pytest.raises(DataError, match="same scenarios, samples and seeds"):
        _evaluate(_side("10"), _side("10", seed=9))


def test_shown_conversations_include_a_loss_when_there_is_one():
    """A reader sees what got worse, too."""
    pairs = select_pairs(_side("0000100000"), _side("1111011111"), lambda ids: "x", count=3)
    changes = [(p.champion.success, p.candidate.success) for p in pairs]
    assert (False, True) in changes
    assert (True, False) in changes
