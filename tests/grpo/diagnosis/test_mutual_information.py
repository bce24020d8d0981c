"""Retrieval of scenarios by replies, worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from grpo.diagnosis.mutual_information import Retrieval, retrieve
from grpo.trajectories import Trajectory
from tests.doubles import make_trajectory


def _replies(scenario: str, *replies: Sequence[int]) -> list[Trajectory]:
    """Episodes with a prompt of the tokens 8 9, which are not part of the reply."""
    return [
        make_trajectory(
            scenario_id=scenario,
            sample=sample,
            token_ids=np.array([8, 9, *reply], dtype=np.int32),
            loss_mask=np.array([False, False, *[True] * len(reply)]),
            sampler_logprobs=np.zeros(2 + len(reply), dtype=np.float32),
        )
        for sample, reply in enumerate(replies)
    ]


def test_replies_that_name_their_scenario_are_retrieved():
    """Each reply has the tokens of the other reply to its scenario: accuracy 1, so I ≥ ln 2 for two scenarios."""
    result = retrieve([*_replies("a", [1, 1], [1]), *_replies("b", [2], [2, 2])])
    assert result is not None
    assert (result.accuracy, result.scenarios, result.replies) == (1.0, 2, 4)
    assert result.nats == pytest.approx(math.log(2))


def test_equal_replies_tie_at_chance():
    """A tie of k scenarios counts 1/k: three scenarios give 1/3 and no information."""
    result = retrieve([t for name in "abc" for t in _replies(name, [1, 2], [1, 2])])
    assert result is not None
    assert result.accuracy == pytest.approx(1 / 3)
    assert result.nats == pytest.approx(0, abs=1e-12)
    assert not result.is_above_chance(1)


def test_some_replies_are_retrieved():
    """Scenario a always says 1. Scenario b says 1, then 2: its 1 is likelier under a, and its 2 is unknown to both.

    asked b [2]: known a [1], b [1] → tie, ½. Asked b [1]: known a [1], b [2] → a, 0. Asked a [1]: ½ and 1. Mean ½.
    """
    result = retrieve([*_replies("a", [1], [1]), *_replies("b", [1], [2])])
    assert result is not None
    assert result.accuracy == pytest.approx(0.5)


def test_the_bound_is_fanos():
    """S = 4, accuracy ¾: e = ¼, ln 4 − h(¼) − ¼ ln 3 = 1.3863 − .5623 − .2747 = .5493"""
    assert Retrieval(accuracy=0.75, scenarios=4, replies=100).nats == pytest.approx(0.5493, abs=1e-4)
    assert Retrieval(accuracy=0.25, scenarios=4, replies=100).nats == pytest.approx(0, abs=1e-9)


def test_chance_has_a_binomial_error():
    """S = 4, 48 replies: error √(¼·¾/48) = .0625, so that .32 is above one error and .30 is not."""
    assert Retrieval(accuracy=0.32, scenarios=4, replies=48).is_above_chance(1)
    assert not Retrieval(accuracy=0.30, scenarios=4, replies=48).is_above_chance(1)


def test_one_scenario_or_one_reply_tells_nothing():
    """There is nothing to choose from."""
    assert retrieve(_replies("a", [1], [1])) is None
    assert retrieve([*_replies("a", [1]), *_replies("b", [2])]) is None
