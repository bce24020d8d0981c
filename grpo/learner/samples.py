"""From scored trajectories to what the learner eats: token sequences with mask, log-probabilities and advantage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo.config.training import TrainingSettings
from grpo.errors import DataError, NoLearningSignal, PolicyError
from grpo.learner.credit import token_advantages
from grpo.trajectories import TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One token sequence, and how much better each token of the policy's did than what it is compared with."""

    token_ids: NDArray[np.int32]  # [tokens]
    loss_mask: NDArray[np.bool_]  # [tokens]
    sampler_logprobs: NDArray[np.float32]  # [tokens]
    advantages: NDArray[np.float32]  # [tokens], 0 where the policy did not speak
    temperature: float
    place: str
    old_logprobs: NDArray[np.float32] | None = None  # [tokens]
    """What the policy that the update starts from says, where that is not the sampler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The samples of one rollout that teach something, by group, and how much there was in all."""

    groups: tuple[tuple[Sample, ...], ...]
    group_count: int
    sample_count: int
    """Valid siblings of all groups, the uninformative ones included."""
    token_count: int
    """Tokens that the policy said in them."""

    @property
    def informative_share(self) -> float:
        """Share of groups in which some advantage is not 0."""
        return len(self.groups) / self.group_count


def build_batch(groups: Sequence[TrajectoryGroup], settings: TrainingSettings, *, policy_hash: str) -> Batch:
    """Compute advantages and drop the groups in which all are 0.

    Raises `PolicyError` for a rollout of another policy, `DataError` for a group of one, NaN log-probabilities or turn
    rewards that are not one a turn, `NoLearningSignal` when nothing did better than what it is compared with.
    """
    for group in groups:
        _check(group, policy_hash)
    samples = []
    for group, advantages in zip(groups, token_advantages(groups, settings), strict=True):
        members = tuple(
            Sample(
                token_ids=trajectory.token_ids,
                loss_mask=trajectory.loss_mask,
                sampler_logprobs=trajectory.sampler_logprobs,
                advantages=advantage,
                temperature=trajectory.temperature,
                place=trajectory.place,
            )
            for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
            if advantage is not None and advantage.any()
        )
        if members:
            samples.append(members)
    if not samples:
        raise NoLearningSignal(
            f"no learning signal: in all {len(groups)} groups the siblings have the same reward, so every advantage "
            "is 0; use a reward that tells them apart, scenarios that are neither solved nor hopeless, or more siblings"
        )
    valid = [t for group in groups for t in group.trajectories if t.total_reward is not None]
    return Batch(
        groups=tuple(samples),
        group_count=len(groups),
        sample_count=len(valid),
        token_count=sum(trajectory.action_count for trajectory in valid),
    )


def _check(group: TrajectoryGroup, policy_hash: str) -> None:
    if len(group.trajectories) < 2:
        raise DataError(
            f"scenario {group.scenario_id}: a group needs at least 2 trajectories, got 1; raise rollout.group_size"
        )
    for trajectory in group.trajectories:
        if trajectory.policy_hash != policy_hash:
            raise PolicyError(
                f"{trajectory.place} was sampled by policy {trajectory.policy_hash}, the checkpoint is "
                f"{policy_hash}: train on rollouts of this checkpoint"
            )
        if not np.isfinite(trajectory.sampler_logprobs).all():
            raise DataError(f"{trajectory.place} has log-probabilities that are not finite")


def deal(groups: Sequence[tuple[Sample, ...]], *, per_hand: int | None, rng: np.random.Generator) -> list[list[Sample]]:
    """Deal whole groups, shuffled, into as few hands of at most `per_hand` groups as there must be, one a step."""
    order = rng.permutation(len(groups))
    hands = math.ceil(len(groups) / per_hand) if per_hand else 1
    return [[sample for index in order[hand::hands] for sample in groups[index]] for hand in range(hands)]
