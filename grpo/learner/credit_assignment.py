"""Credit assignment: advantages and rewards of each token from the rewards of each group."""

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
    maximum_likelihood_advantages,
    overlong_penalty,
    state_advantages,
    turn_advantages,
)
from grpo.algorithms.catalog import Algorithm, make_algorithm
from grpo.config.training import TrainingSettings
from grpo.errors import DataError
from grpo.trajectories import Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class _Rewards:
    """Rewards of all groups after clipping, the overlong penalty and normalization, in this order."""

    terminal: list[Rewards]  # [G] per group, NaN without a reward
    turns: list[list[Rewards]]  # [turns] per trajectory

    @property
    def totals(self) -> list[Rewards]:
        """Total reward of each trajectory, [G] per group."""
        return [
            rewards + np.array([part.sum() for part in turns])
            for rewards, turns in zip(self.terminal, self.turns, strict=True)
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
        turns = [[clip_rewards(rewards, limit) for rewards in group] for group in turns]
    if settings.overlong_limit is not None:
        for rewards, group in zip(terminal, groups, strict=True):
            lengths = np.array([trajectory.completion_tokens for trajectory in group.trajectories])
            rewards += overlong_penalty(lengths, limit=settings.overlong_limit, buffer=settings.overlong_buffer)
    shaped = _Rewards(terminal, turns)
    if not settings.normalize_rewards:
        return shaped
    unit = float(np.nanstd(np.concatenate(shaped.totals))) + STD_EPSILON
    return _Rewards([rewards / unit for rewards in terminal], [[part / unit for part in group] for group in turns])


def clipped_rewards(trajectories: Sequence[Trajectory], settings: TrainingSettings) -> int:
    """Number of turn and terminal rewards beyond `reward_clip`."""
    rewards = [reward for t in trajectories for reward in (*t.turn_rewards, t.terminal_reward) if reward is not None]
    return 0 if settings.reward_clip is None else sum(abs(reward) > settings.reward_clip for reward in rewards)


def token_advantages(
    groups: Sequence[TrajectoryGroup], settings: TrainingSettings
) -> list[list[NDArray[np.float32] | None]]:
    """Advantage of each token of each trajectory, [tokens], 0 outside the loss mask; None without a reward.

    Raises `DataError` if a trajectory does not have one turn reward, or one state, per turn.
    """
    algorithm = make_algorithm(settings.algorithm, baseline=settings.baseline, scale_by_std=settings.scale_by_std)
    rewards = _rewards(groups, settings)
    if settings.credit_assignment != "trajectory":
        return [
            _turn_level(group, turns, terminal, algorithm, settings)
            for group, turns, terminal in zip(groups, rewards.turns, rewards.terminal, strict=True)
        ]
    if algorithm.maximum_likelihood:
        return _spread(groups, [_maximum_likelihood(*pair) for pair in zip(groups, rewards.totals, strict=True)])
    everything = np.concatenate(rewards.totals)
    advantages = [
        group_advantages(total, baseline=algorithm.baseline, scale_by_std=algorithm.scale_by_std, batch=everything)
        for total in rewards.totals
    ]
    return _spread(groups, advantages)


def _maximum_likelihood(group: TrajectoryGroup, rewards: Rewards) -> Rewards:
    try:
        return maximum_likelihood_advantages(rewards)
    except ValueError as error:
        raise DataError(
            f"scenario {group.scenario_id}: {error}; with training.algorithm maxrl use rewards of 0 and more, for "
            "example task_completion, or set another algorithm"
        ) from error


def _spread(groups: Sequence[TrajectoryGroup], advantages: Sequence[Rewards]) -> list[list[NDArray[np.float32] | None]]:
    """The advantage of each trajectory at each of its completion tokens. None without a reward."""
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
    """Reward of each token of each trajectory, for a critic; None without a reward.

    A turn's reward goes to the last token of the turn, and the terminal reward to the last completion token. If the
    agent's code overrode the text of a turn, the turn's reward goes to the last completion token before it. If there is
    no such token, the reward is dropped.

        turns      P | A1 A1 E | A2 A2      turn rewards .1 .2, terminal 1
        rewards    .   .  .1 .   .  1.2

    Raises `DataError` if a trajectory does not have one turn reward per turn.
    """
    rewards = _rewards(groups, settings)
    by_group: list[list[NDArray[np.float64] | None]] = []
    for group, turn_rewards, terminal in zip(groups, rewards.turns, rewards.terminal, strict=True):
        by_group.append([])
        for trajectory, given, last in zip(group.trajectories, turn_rewards, terminal, strict=True):
            positions = np.flatnonzero(trajectory.loss_mask)
            if not np.isfinite(last) or not len(positions):
                by_group[-1].append(None)
                continue
            turns = [turn for turn in trajectory.turns if turn.message.role == "assistant"]
            tokens = np.zeros(len(trajectory.token_ids))
            for turn, reward in zip(turns, one_per_turn(trajectory, given, len(turns)), strict=True):
                before = positions[positions < turn.stop]
                if len(before):
                    tokens[before[-1]] += reward
            tokens[positions[-1]] += last
            by_group[-1].append(tokens)
    return by_group


def _turn_level(
    group: TrajectoryGroup,
    given: Sequence[Rewards],
    terminal: Rewards,
    algorithm: Algorithm,
    settings: TrainingSettings,
) -> list[NDArray[np.float32] | None]:
    """Advantage of each token from its turn: compared by turn, or by state plus the trajectory's own advantage."""
    scored = [int(index) for index in np.flatnonzero(np.isfinite(terminal))]
    turns = [[turn for turn in t.turns if turn.message.role == "assistant"] for t in group.trajectories]
    rewards = [one_per_turn(group.trajectories[k], given[k], len(turns[k])) for k in scored]
    if settings.credit_assignment == "turn":
        values = turn_advantages(
            rewards, terminal[scored], baseline=algorithm.baseline, scale_by_std=algorithm.scale_by_std
        )
    else:
        states = [_states(group.trajectories[k], len(turns[k])) for k in scored]
        values = state_advantages(
            states,
            rewards,
            terminal[scored],
            discount=settings.state_discount,
            history=settings.state_history,
            baseline=algorithm.baseline,
            scale_by_std=algorithm.scale_by_std,
        )
        totals = terminal[scored] + np.array([part.sum() for part in rewards])
        whole = group_advantages(totals, baseline=algorithm.baseline, scale_by_std=algorithm.scale_by_std)
        values = [part + advantage for part, advantage in zip(values, whole, strict=True)]
    by_trajectory: list[NDArray[np.float32] | None] = [None] * len(group.trajectories)
    for index, advantages in zip(scored, values, strict=True):
        tokens = np.zeros(len(group.trajectories[index].token_ids), dtype=np.float32)
        for turn, advantage in zip(turns[index], advantages, strict=True):
            tokens[turn.start : turn.stop] = advantage
        by_trajectory[index] = tokens * group.trajectories[index].loss_mask
    return by_trajectory


def _states(trajectory: Trajectory, turns: int) -> tuple[str, ...]:
    """State of each turn of the agent."""
    if len(trajectory.turn_states) != turns:
        raise DataError(
            f"{trajectory.place} has {len(trajectory.turn_states)} states for {turns} turns, because its environment "
            "gives no digest of each state (Environment.state_digest): set training.credit_assignment to trajectory"
        )
    return trajectory.turn_states


def one_per_turn(trajectory: Trajectory, given: Rewards, turns: int) -> Rewards:
    """One reward per turn.

    It is 0 for the last turn of an episode that was cut off, and for all turns if the environment gives none. Raises
    `DataError` if another turn has none.
    """
    missing = turns - len(given)
    if len(given) and not 0 <= missing <= int(trajectory.is_cut_off):
        raise DataError(
            f"{trajectory.place} has {len(given)} turn rewards for {turns} turns. Set "
            "training.credit_assignment to trajectory if the environment does not give one each turn, or none at all"
        )
    return np.pad(given, (0, missing))
