from __future__ import annotations

import pytest

from grpo.rewards.components import component_moments
from grpo.rewards.rollout_summary import summarize
from grpo.trajectories import Trajectory
from tests.doubles import make_trajectory


def _scored(**breakdown: float) -> Trajectory:
    return make_trajectory(breakdown=breakdown, terminal_reward=0.0)


ROLLOUT = [
    _scored(a=0.0, b=0.1, c=1.0, d=0.5),
    _scored(a=1.0, b=0.9, c=0.0, d=0.5),
    _scored(a=0.5, b=0.5, c=1.0, d=0.5),
]


def test_components_have_mean_spread_and_count():
    """a: 0, 1, .5 → mean .5, variance (.25 + .25 + 0) / 3"""
    a = component_moments(ROLLOUT).statistics()["a"]
    assert (a.mean, a.std, a.count) == (pytest.approx(0.5), pytest.approx((0.5 / 3) ** 0.5), 3)


def test_highly_correlated_components_are_named():
    """a and b lie on a line; c goes another way; d never changes and has no correlation."""
    moments = component_moments(ROLLOUT)
    assert moments.highly_correlated() == {("a", "b"): pytest.approx(1.0)}
    assert moments.correlations()[("a", "c")] == pytest.approx(-0.8660254)  # −1/6 / √(1/6 · 2/9)
    assert set(moments.correlations()) == {("a", "b"), ("a", "c"), ("b", "c")}


def test_the_opposite_is_the_same_too():
    """ρ = −1 is flagged."""
    assert component_moments([_scored(a=0.0, b=1.0), _scored(a=1.0, b=0.0)]).highly_correlated() == {("a", "b"): -1.0}


def test_joined_moments_are_those_of_all_episodes():
    """Also in the summary of two rounds, and with a round in which nothing was judged."""
    whole = component_moments(ROLLOUT)
    joined = summarize(ROLLOUT[:1]).joined(summarize(ROLLOUT[1:])).moments
    assert joined.statistics() == whole.statistics()
    nothing = summarize([make_trajectory(stop="failed")])
    assert nothing.joined(summarize(ROLLOUT)).moments == whole
    assert nothing.moments.statistics() == nothing.moments.correlations() == {}


def test_an_episode_that_lacks_a_component_is_left_out():
    """Two of three have both."""
    assert component_moments([*ROLLOUT[:2], _scored(a=0.3)]).count == 2
