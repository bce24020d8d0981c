from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from grpo.errors import DataError
from grpo.messages import Message, ToolCall
from grpo.trajectories import Outcome, Trajectory, TrajectoryBuffer, TrajectoryGroup, Turn
from tests.doubles import make_trajectory


def _scored(*rewards: float | None) -> TrajectoryGroup:
    return TrajectoryGroup(
        scenario_id="s",
        trajectories=tuple(make_trajectory(sample=k, terminal_reward=reward) for k, reward in enumerate(rewards)),
    )


def test_the_messages_of_a_trajectory_are_those_of_chat_templates():
    """Role and content, and calls as functions."""
    call = Message(role="assistant", content="", tool_calls=(ToolCall(name="f", arguments={"x": 1}),))
    turns = (Turn(message=Message(role="user", content="hi"), start=0, stop=0), Turn(message=call, start=0, stop=1))
    assert make_trajectory(turns=turns).to_messages() == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
        },
    ]


def test_the_statistics_of_a_group():
    """.7 .9 .6 .8: mean .75, squared deviations .0025 .0225 .0225 .0025, sum .05, √(.05 / 3) = .12910."""
    statistics = _scored(0.7, 0.9, 0.6, 0.8).compute_group_statistics()
    assert statistics == pytest.approx({"mean": 0.75, "std": 0.129099, "min": 0.6, "max": 0.9, "n": 4}, abs=1e-6)


def test_siblings_without_a_reward_do_not_count():
    """None is not 0: one of three is scored."""
    assert _scored(None, 0.5, None).compute_group_statistics() == {
        "mean": 0.5,
        "std": 0.0,
        "min": 0.5,
        "max": 0.5,
        "n": 1,
    }


def test_a_group_without_rewards_has_no_statistics():
    """The message names the scenario."""
    with pytest.raises(DataError, match="group s: none of 2"):
        _scored(None, None).compute_group_statistics()


def test_turn_rewards_add_up_to_the_total_without_rounding():
    """Ten times .1 and a terminal 0 are 1 to the last bit; a plain sum is .9999999999999999."""
    assert sum([0.1] * 10) != 1.0
    assert make_trajectory(turn_rewards=(0.1,) * 10, terminal_reward=0.0).total_reward == 1.0


def test_an_unknown_keyword_is_an_error():
    """Neither a turn nor a message nor a trajectory has a speaker."""
    message = Message(role="user", content="hi")
    with pytest.raises(TypeError, match="speaker"):
        Message(role="user", content="hi", speaker="agent")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="reward"):
        Turn(message=message, start=0, stop=0, reward=1.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="episode_reward"):
        make_trajectory(episode_reward=1.0)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"token_ids": np.ones(1, dtype=np.int32)},
        {"loss_mask": np.zeros(1, dtype=np.bool_)},
        {"sampler_logprobs": np.full(1, math.nan, dtype=np.float32)},
        {"turn_rewards": (0.5,)},
        {"breakdown": {"a": 1.0}},
    ],
)
def test_trajectories_are_equal_when_every_field_is(change: dict[str, object]):
    """Arrays by value; NaN log-probabilities are equal."""
    assert make_trajectory() == make_trajectory()
    assert make_trajectory(**change) == make_trajectory(**change)
    assert make_trajectory(**change) != make_trajectory()


def _seeds(trajectories: list[Trajectory] | TrajectoryBuffer) -> list[int]:
    return [trajectory.seed for trajectory in trajectories]


def test_a_full_buffer_drops_the_oldest():
    """Of seven in a buffer of three the last three are left, in their order."""
    buffer = TrajectoryBuffer(size=3)
    buffer.add(*(make_trajectory(seed=k) for k in range(5)))
    buffer.add(make_trajectory(seed=5), make_trajectory(seed=6))
    assert (_seeds(buffer), len(buffer)) == ([4, 5, 6], 3)


def test_a_buffer_is_drawn_from_by_a_seed():
    """No trajectory twice, the same ones for the same seed, and no more than there are."""
    buffer = TrajectoryBuffer(size=100)
    buffer.add(*(make_trajectory(seed=k) for k in range(50)))
    drawn = _seeds(buffer.sample(10, seed=1))
    assert len(set(drawn)) == 10
    assert drawn == _seeds(buffer.sample(10, seed=1)) != _seeds(buffer.sample(10, seed=2))
    assert sorted(_seeds(buffer.sample(99, seed=1))) == list(range(50))


def test_a_buffer_must_hold_something():
    """Size 0 is an error."""
    with pytest.raises(DataError, match="size 0"):
        TrajectoryBuffer(size=0)


@pytest.mark.parametrize("outcome", [{"success": None}, {"success": True, "unjudged": ("NL_ASSERTION",)}])
def test_success_is_unknown_exactly_where_a_part_is_not_judged(outcome: dict[str, Any]):
    """Neither an unknown success without a reason, nor a success with a part left open."""
    with pytest.raises(DataError, match="Success is None if a part is not judged, or if there is a state"):
        Outcome(**outcome)


def test_the_reward_of_an_environment_is_finite():
    """Without a verification it stands beside the state."""
    assert Outcome(success=None, state={"x": 1}, reward=0.5).reward == 0.5
    with pytest.raises(DataError, match="the environment's reward is nan"):
        Outcome(success=None, state={"x": 1}, reward=float("nan"))
    reward: Any
    for reward in (np.float32(0.5), torch.tensor(0.5), Decimal("0.5")):
        stored = Outcome(success=None, state={"x": 1}, reward=reward).reward
        assert (stored, type(stored)) == (0.5, float)
    for reward in ("0.5", b"0.5", [0.5]):
        with pytest.raises(DataError, match=r"the environment's reward is .*Return a finite number"):
            Outcome(success=None, state={"x": 1}, reward=reward)
