from __future__ import annotations

import numpy as np
import pytest

from grpo.config.pipeline import EvaluationSettings
from grpo.errors import DataError
from grpo.evaluation.measurement import measure
from grpo.trajectories import Outcome, Trajectory
from tests.doubles import make_trajectory

SETTINGS = EvaluationSettings(resamples=200)


def _played(scenario: str, sample: int, *, success: bool | None, reward: float | None, **changes: object) -> Trajectory:
    return make_trajectory(
        scenario_id=scenario,
        sample=sample,
        seed=sample,
        outcome=None if success is None else Outcome(success=success),
        terminal_reward=reward,
        **changes,
    )


def test_means_are_over_scenarios_and_by_category():
    """a: 1 and 0 of two samples, b: 1 and 1 → .75; categories .5 and 1; said 1 and 3 tokens → 1.5 of four."""
    three = {name: np.ones(3, dtype=kind) for name, kind in (("token_ids", np.int32), ("loss_mask", np.bool_))}
    played = [
        _played("a", 0, success=True, reward=1.0, category="refund"),
        _played("a", 1, success=False, reward=0.0, category="refund"),
        _played("b", 0, success=True, reward=0.5, category="return"),
        _played(
            "b", 1, success=True, reward=0.5, category="return",
            stop="truncated", sampler_logprobs=np.zeros(3, dtype=np.float32), **three,
        ),
    ]  # fmt: skip
    found = measure(played, SETTINGS, seed=0)
    assert found.overall.success is not None
    assert found.overall.reward is not None
    assert (found.overall.success.mean, found.overall.reward.mean) == (0.75, 0.5)
    assert found.overall.success.count == 2
    assert {one.name: one.success and one.success.mean for one in found.by_category} == {"refund": 0.5, "return": 1.0}
    assert (found.episodes, found.truncated_share, found.said) == (4, 0.25, 1.5)


def test_a_failed_episode_is_no_success_and_has_no_reward():
    """One of two scenarios failed: success 0.5, the reward is that of the other."""
    played = [_played("a", 0, success=True, reward=0.8), _played("b", 0, success=None, reward=None, stop="failed")]
    found = measure(played, SETTINGS, seed=0)
    assert found.overall.success is not None
    assert found.overall.reward is not None
    assert (found.overall.success.mean, found.overall.reward.mean, found.failed_share) == (0.5, 0.8, 0.5)


def test_what_nobody_verifies_has_no_success():
    """Not a success of 0."""
    found = measure([_played("a", 0, success=None, reward=0.25)], SETTINGS, seed=0)
    assert found.overall.success is None
    assert found.overall.reward is not None


def test_nothing_is_measured_where_nothing_was_judged():
    """Neither verified nor scored."""
    with pytest.raises(DataError, match="nothing to measure"):
        measure([_played("a", 0, success=None, reward=None)], SETTINGS, seed=0)


def test_tries_of_one_policy_are_counted():
    """a 1 of 2, b 2 of 2: in one of two tries both, 1 [.20, 1]; in each of two tries b alone, .5."""
    results = {"a": (True, False), "b": (True, True)}
    played = [
        _played(scenario, sample, success=success, reward=None)
        for scenario, outcomes in results.items()
        for sample, success in enumerate(outcomes)
    ]
    measurement = measure(played, SETTINGS, seed=0)
    assert [rate.mean for rate in measurement.pass_at_k] == [0.75, 1.0]
    assert [rate.mean for rate in measurement.pass_hat_k] == [0.75, 0.5]
    assert measurement.pass_at_k[1].low < 0.5
    assert measurement.overall.reward is None


def test_there_are_no_tries_where_nothing_is_verified():
    """Rewards alone."""
    measurement = measure([_played("a", 0, success=None, reward=0.25)], SETTINGS, seed=0)
    assert (measurement.pass_at_k, measurement.pass_hat_k) == ((), ())


def test_difficulties_are_in_order():
    """From easy to hard, whatever is played first; another name comes before them."""
    played = [_played(d, 0, success=True, reward=1.0, difficulty=d) for d in ("hard", "unknown", "medium", "easy")]
    names = [one.name for one in measure(played, SETTINGS, seed=0).by_difficulty]
    assert names == ["unknown", "easy", "medium", "hard"]


def test_the_same_episodes_give_the_same_measurement():
    """The seed is that of the run; another one draws other weights."""
    played = [_played(str(k), 0, success=k % 2 == 0, reward=0.5) for k in range(6)]
    first, again, other = (measure(played, SETTINGS, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
