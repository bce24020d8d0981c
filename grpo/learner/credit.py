"""Who gets how much of the credit: from the rewards of siblings to the advantage of each token."""

from __future__ import annotations

from collections.abc import Sequence

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
from grpo.algorithms.catalog import choose
from grpo.config.training import TrainingSettings
from grpo.errors import DataError
from grpo.trajectories import TrajectoryGroup


def token_advantages(
    groups: Sequence[TrajectoryGroup], settings: TrainingSettings
) -> list[list[NDArray[np.float32] | None]]:
    """The advantage of each token of each sibling, [tokens] and 0 where it did not speak; None without a reward.

    Rewards are cut, charged for length and normalized, in this order, before they are compared.
    Raises `DataError` for turn rewards that are not one a turn.
    """
    algorithm = choose(settings.algorithm, baseline=settings.baseline, scale_by_std=settings.scale_by_std)
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
            said = np.array([trajectory.action_count for trajectory in group.trajectories])
            rewards += overlong_penalty(said, limit=settings.overlong_limit, margin=settings.overlong_margin)
    totals = [
        rewards + np.array([part.sum() for part in siblings]) for rewards, siblings in zip(terminal, turns, strict=True)
    ]
    everything = np.concatenate(totals)
    unit = 1.0
    if settings.normalize_rewards:
        unit = float(np.nanstd(everything)) + STD_EPSILON
    if settings.credit == "turn":
        return [
            _by_turn(group, siblings, rewards, unit=unit, scale_by_std=algorithm.scale_by_std)
            for group, siblings, rewards in zip(groups, turns, terminal, strict=True)
        ]
    overall = float(np.nanmean(everything)) / unit if np.isfinite(everything).any() else None
    advantages = [
        group_advantages(
            total / unit, baseline=algorithm.baseline, scale_by_std=algorithm.scale_by_std, overall_mean=overall
        )
        for total in totals
    ]
    return [
        [
            np.float32(advantage) * trajectory.loss_mask if np.isfinite(advantage) else None
            for trajectory, advantage in zip(group.trajectories, values, strict=True)
        ]
        for group, values in zip(groups, advantages, strict=True)
    ]


def _by_turn(
    group: TrajectoryGroup,
    turn_rewards: Sequence[Rewards],
    terminal: Rewards,
    *,
    unit: float,
    scale_by_std: bool,
) -> list[NDArray[np.float32] | None]:
    """Advantages from the return of each turn, laid over the turn's tokens."""
    spoken = [[turn for turn in t.turns if turn.message.role == "assistant"] for t in group.trajectories]
    rewards = []
    for trajectory, turns, given in zip(group.trajectories, spoken, turn_rewards, strict=True):
        if len(given) not in (0, len(turns)):
            raise DataError(
                f"{trajectory.place} has {len(given)} turn rewards for {len(turns)} turns; an environment gives one "
                "each turn or none, else set training.credit to trajectory"
            )
        rewards.append(given / unit if len(given) else np.zeros(len(turns)))
    valid = np.flatnonzero(np.isfinite(terminal))
    values = turn_advantages([rewards[k] for k in valid], terminal[valid] / unit, scale_by_std=scale_by_std)
    laid: list[NDArray[np.float32] | None] = [None] * len(group.trajectories)
    for index, advantages in zip(valid, values, strict=True):
        laid[index] = np.zeros(len(group.trajectories[index].token_ids), dtype=np.float32)
        for turn, advantage in zip(spoken[index], advantages, strict=True):
            laid[index][turn.start : turn.stop] = advantage  # type: ignore[index]
    return laid
