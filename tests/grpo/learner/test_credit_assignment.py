"""Credit of single turns, on groups whose right turn is known."""

from __future__ import annotations

import numpy as np
import pytest

from grpo.config.training import TrainingSettings
from grpo.errors import DataError
from grpo.learner.credit_assignment import token_advantages
from grpo.messages import Message
from grpo.trajectories import Trajectory, TrajectoryGroup, Turn
from tests.doubles import make_trajectory


def episode(sample: int, states: str, reward: float | None) -> Trajectory:
    """An episode of a turn in each state, one letter each; a turn is a prompt token and the agent's."""
    message = Message(role="assistant", content="x")
    size = 2 * len(states)
    return make_trajectory(
        sample=sample,
        turns=tuple(Turn(message=message, start=1 + 2 * k, stop=2 + 2 * k) for k in range(len(states))),
        token_ids=np.arange(size, dtype=np.int32),
        loss_mask=np.arange(size) % 2 == 1,
        sampler_logprobs=np.zeros(size, dtype=np.float32),
        turn_states=tuple(states),
        terminal_reward=reward,
    )


def credit(kind: str, *episodes: Trajectory, **settings: object) -> list[list[float] | None]:
    """Advantage of each turn of each episode; the tokens of the environment have none."""
    training = TrainingSettings.model_validate({"credit_assignment": kind, "scale_by_std": False, **settings})
    (group,) = token_advantages([TrajectoryGroup(scenario_id="s", trajectories=episodes)], training)
    assert all(tokens is None or not tokens[::2].any() for tokens in group)
    return [None if tokens is None else [round(float(a), 6) for a in tokens[1::2]] for tokens in group]


def test_only_credit_by_state_finds_the_turn_that_decided():
    """State b is won or lost by the turn in it; from c every turn wins.

    Rewards 1 0 1 1, mean ¾. By trajectory and by turn the turns in b and in c of a success have the same advantage, ¼.
    By state the turn in b has ½ more, and the one in c nothing: in a the returns have the mean ¾ as well.
    """
    episodes = [episode(0, "ab", 1.0), episode(1, "ab", 0.0), episode(2, "ac", 1.0), episode(3, "ac", 1.0)]
    same = [[0.25, 0.25], [-0.75, -0.75], [0.25, 0.25], [0.25, 0.25]]
    assert credit("trajectory", *episodes) == same
    assert credit("turn", *episodes) == same
    by_state = credit("state", *episodes, state_discount=1.0)
    assert by_state == [[0.5, 0.75], [-1.5, -1.25], [0.5, 0.25], [0.5, 0.25]]


def test_with_its_history_a_turn_is_not_blamed_for_the_way_to_its_state():
    """The state z is reached on a good way g, and every turn in it wins, or on a bad way b, and every turn in it loses.

    The turns in z are all the same, so none of them deserves credit for what came of the way. By state alone they have
    ±½ against each other. With one state before, the comparison with equals is 0, and its weight is 2 of 3.
    """
    episodes = [episode(0, "gz", 1.0), episode(1, "gz", 1.0), episode(2, "bz", 0.0), episode(3, "bz", 0.0)]
    assert credit("state", *episodes, state_discount=1.0)[0] == [0.5, 1.0]
    assert credit("state", *episodes, state_discount=1.0, state_history=1)[0] == [0.5, round(0.5 + 0.5 / 3, 6)]


def test_a_detour_of_a_success_has_less_credit_than_the_step_that_ended_it():
    """The first episode comes back to s and then succeeds; the second never leaves it.

    Discount ½: returns in s are ½ and 1, then 0 and 0, with the mean ⅜. The trajectories have ½ and −½.
    """
    episodes = [episode(0, "ss", 1.0), episode(1, "ss", 0.0)]
    assert credit("state", *episodes, state_discount=0.5) == [[0.625, 1.125], [-0.875, -0.875]]
    assert credit("trajectory", *episodes) == [[0.5, 0.5], [-0.5, -0.5]]
    assert credit("state", *episodes, state_discount=1.0) == [[1.0, 1.0], [-1.0, -1.0]]


def test_what_branches_share_is_rated_by_what_came_of_it():
    """Two roots and a branch of each after their turn in a: 0 and 2 share one turn there, 1 and 3 the other.

    Rewards 1 0 1 0, mean ½. The turn of 0 and 2 leads to success twice, with ½ each by trajectory. By state it has ½
    more, because returns in a have the mean ½. In b only 0 and 2 were, and their turns there are equally good.
    """
    episodes = [episode(0, "ab", 1.0), episode(1, "ac", 0.0), episode(2, "ab", 1.0), episode(3, "ac", 0.0)]
    assert credit("trajectory", *episodes) == [[0.5, 0.5], [-0.5, -0.5], [0.5, 0.5], [-0.5, -0.5]]
    by_state = credit("state", *episodes, state_discount=1.0)
    assert by_state == [[1.0, 0.5], [-1.0, -0.5], [1.0, 0.5], [-1.0, -0.5]]


def test_an_episode_without_a_reward_is_compared_with_nothing():
    """Its turns are in no state's baseline: rewards 1 and 0 alone give ±½ twice."""
    episodes = [episode(0, "s", 1.0), episode(1, "s", None), episode(2, "s", 0.0)]
    assert credit("state", *episodes) == [[1.0], None, [-1.0]]


def test_credit_by_state_needs_a_state_for_each_turn():
    """An environment without digests records none."""
    bare = make_trajectory(turns=episode(0, "s", 1.0).turns, terminal_reward=1.0)
    with pytest.raises(DataError, match=r"sample 0 has 0 states for 1 turns, because its environment gives no digest"):
        credit("state", bare, episode(1, "s", 0.0))
    with pytest.raises(ValueError, match="credit_assignment: state needs a baseline of the group"):
        TrainingSettings(credit_assignment="state", algorithm="reinforce")
