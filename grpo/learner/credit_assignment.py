"""Who gets how much of the credit: from the rewards of siblings to the advantage of each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo.algorithms.advantages import (
    STD_EPSILON,
    Rewards,
    clip_rewards,
    group_advantages,
    overlong_penalty,
    turn_advantages,
)
from grpo.algorithms.catalog import Algorithm
from grpo.algorithms.catalog import get_algorithm
from grpo.config.training import TrainingSettings
from grpo.errors import DataError
from grpo.trajectories import Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class _Rewards:
    """The rewards of all groups as they are compared: cut, charged for length and normalized, in this order."""

    terminal: list[Rewards]  # one [siblings] a group, NaN without a reward
    turns: list[list[Rewards]]  # one [turns] a sibling

    @property
    def totals(self) -> list[Rewards]:
        """Of each sibling, [siblings] a group."""
        return [
            rewards + np.array([part.sum() for part in siblings])
            for rewards, siblings in zip(self.terminal, self.turns, strict=True)
        ]


def _rewards(groups: Sequence[TrajectoryGroup], settings: TrainingSettings) -> _Rewards:
    terminal = [
        np.array([np.nan if t.terminal_reward is None else t.terminal_reward for t in group.trajectories])
        for group in groups
    ]
    turns = [[np.array(t.turn_rewards, dtype=np.float64) for t in group.trajectories] for group in groups]
    if settings.reward_clip is not None:
        limit = settings.reward_clip
        terminal = [clip_rewards(rewards, limit) for rewards in terminal]
        turns = [[clip_rewards(rewards, limit) for rewards in siblings] for siblings in turns]
    if settings.overlong_limit is not None:
        for rewards, group in zip(terminal, groups, strict=True):
            said = np.array([trajectory.completion_tokens for trajectory in group.trajectories])
            rewards += overlong_penalty(said, limit=settings.overlong_limit, buffer=settings.overlong_buffer)
    found = _Rewards(terminal, turns)
    if not settings.normalize_rewards:
        return found
    unit = float(np.nanstd(np.concatenate(found.totals))) + STD_EPSILON
    return _Rewards(
        [rewards / unit for rewards in terminal], [[part / unit for part in siblings] for siblings in turns]
    )


def clipped_rewards(trajectories: Sequence[Trajectory], settings: TrainingSettings) -> int:
    """How many rewards of these trajectories, of turns or of the whole, lie beyond `reward_clip`."""
    given = [reward for t in trajectories for reward in (*t.turn_rewards, t.terminal_reward) if reward is not None]
    return 0 if settings.reward_clip is None else sum(abs(reward) > settings.reward_clip for reward in given)


def token_advantages(
    groups: Sequence[TrajectoryGroup], settings: TrainingSettings
) -> list[list[NDArray[np.float32] | None]]:
    """The advantage of each token of each sibling, [tokens] and 0 where it did not speak; None without a reward.

    Raises `DataError` for turn rewards that are not one a turn.
    """
    algorithm = get_algorithm(settings.algorithm, baseline=settings.baseline, scale_by_std=settings.scale_by_std)
    rewards = _rewards(groups, settings)
    if settings.credit_assignment == "turn":
        return [
            _by_turn(group, siblings, terminal, algorithm)
            for group, siblings, terminal in zip(groups, rewards.turns, rewards.terminal, strict=True)
        ]
    everything = np.concatenate(rewards.totals)
    advantages = [
        group_advantages(total, baseline=algorithm.baseline, scale_by_std=algorithm.scale_by_std, batch=everything)
        for total in rewards.totals
    ]
    return [
        [
            np.float32(advantage) * trajectory.loss_mask if np.isfinite(advantage) else None
            for trajectory, advantage in zip(group.trajectories, values, strict=True)
        ]
        for group, values in zip(groups, advantages, strict=True)
    ]


def token_rewards(
    groups: Sequence[TrajectoryGroup], settings: TrainingSettings
) -> list[list[NDArray[np.float64] | None]]:
    """The reward of each token of each sibling, for a critic; None without a reward.

    A turn's reward stands at the last token of the turn, the terminal one at the last token that the policy said. That
    of a turn which the agent's own code reworded stands at what the policy said before it; where it said nothing
    before, nobody earned it.

        turns      P | A1 A1 E | A2 A2      turn rewards .1 .2, terminal 1
        rewards    .   .  .1 .   .  1.2

    Raises `DataError` for turn rewards that are not one a turn.
    """
    rewards = _rewards(groups, settings)
    laid: list[list[NDArray[np.float64] | None]] = []
    for group, siblings, terminal in zip(groups, rewards.turns, rewards.terminal, strict=True):
        laid.append([])
        for trajectory, given, last in zip(group.trajectories, siblings, terminal, strict=True):
            said = np.flatnonzero(trajectory.loss_mask)
            if not np.isfinite(last) or not len(said):
                laid[-1].append(None)
                continue
            spoken = [turn for turn in trajectory.turns if turn.message.role == "assistant"]
            tokens = np.zeros(len(trajectory.token_ids))
            for turn, reward in zip(spoken, _each_turn(trajectory, given, len(spoken)), strict=True):
                before = said[said < turn.stop]
                if len(before):
                    tokens[before[-1]] += reward
            tokens[said[-1]] += last
            laid[-1].append(tokens)
    return laid


def _by_turn(
    group: TrajectoryGroup, given: Sequence[Rewards], terminal: Rewards, algorithm: Algorithm
) -> list[NDArray[np.float32] | None]:
    """Advantages from the return of each turn, laid over the turn's tokens."""
    scored = [int(index) for index in np.flatnonzero(np.isfinite(terminal))]
    spoken = [[turn for turn in t.turns if turn.message.role == "assistant"] for t in group.trajectories]
    rewards = [_each_turn(group.trajectories[k], given[k], len(spoken[k])) for k in scored]
    values = turn_advantages(
        rewards, terminal[scored], baseline=algorithm.baseline, scale_by_std=algorithm.scale_by_std
    )
    laid: list[NDArray[np.float32] | None] = [None] * len(group.trajectories)
    for index, advantages in zip(scored, values, strict=True):
        tokens = np.zeros(len(group.trajectories[index].token_ids), dtype=np.float32)
        for turn, advantage in zip(spoken[index], advantages, strict=True):
            tokens[turn.start : turn.stop] = advantage
        laid[index] = tokens * group.trajectories[index].loss_mask
    return laid


def _each_turn(trajectory: Trajectory, given: Rewards, turns: int) -> Rewards:
    """One reward a turn; a last turn that was cut off got none, and an environment may give none at all."""
    missing = turns - len(given)
    if len(given) and not 0 <= missing <= int(trajectory.stop == "truncated"):
        raise DataError(
            f"{trajectory.place} has {len(given)} turn rewards for {turns} turns; an environment gives one each turn "
            "or none, else set training.credit_assignment to trajectory"
        )
    return np.pad(given, (0, missing))
