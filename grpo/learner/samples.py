"""From scored trajectories to what the learner eats: token sequences with mask, log-probabilities and advantage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo.algorithms.advantages import group_advantages
from grpo.errors import DataError, NoLearningSignal, PolicyError
from grpo.trajectories import TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One token sequence; the advantage holds for every token that the policy said."""

    token_ids: NDArray[np.int32]  # [tokens]
    loss_mask: NDArray[np.bool_]  # [tokens]
    sampler_logprobs: NDArray[np.float32]  # [tokens]
    advantage: float
    temperature: float
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The samples of one rollout that teach something, by group, and how many groups there were."""

    groups: tuple[tuple[Sample, ...], ...]
    group_count: int
    sample_count: int
    """Valid siblings of all groups, the uninformative ones included: the denominator of the loss."""

    @property
    def informative_share(self) -> float:
        """Share of groups in which siblings got different rewards."""
        return len(self.groups) / self.group_count


def build_batch(groups: Sequence[TrajectoryGroup], *, policy_hash: str, scale_by_std: bool) -> Batch:
    """Compute advantages within each group and drop the groups that are all equal.

    Raises `PolicyError` for a rollout of another policy, `DataError` for a group of one or NaN log-probabilities,
    `NoLearningSignal` when no group has two different rewards.
    """
    informative: list[tuple[Sample, ...]] = []
    sample_count = 0
    for group in groups:
        if len(group.trajectories) < 2:
            raise DataError(
                f"scenario {group.scenario_id}: a group needs at least 2 trajectories, got 1; raise rollout.group_size"
            )
        rewards = np.array([np.nan if reward is None else reward for reward in group.rewards], dtype=np.float64)
        sample_count += int((~np.isnan(rewards)).sum())
        advantages = group_advantages(rewards, scale_by_std=scale_by_std)
        samples = []
        for trajectory, advantage in zip(group.trajectories, advantages, strict=True):
            if trajectory.policy_hash != policy_hash:
                raise PolicyError(
                    f"{trajectory.place} was sampled by policy {trajectory.policy_hash}, the checkpoint is "
                    f"{policy_hash}: train on rollouts of this checkpoint"
                )
            if not np.isfinite(trajectory.sampler_logprobs).all():
                raise DataError(f"{trajectory.place} has log-probabilities that are not finite")
            if np.isfinite(advantage) and advantage != 0 and trajectory.loss_mask.any():
                samples.append(
                    Sample(
                        token_ids=trajectory.token_ids,
                        loss_mask=trajectory.loss_mask,
                        sampler_logprobs=trajectory.sampler_logprobs,
                        advantage=float(advantage),
                        temperature=trajectory.temperature,
                        place=trajectory.place,
                    )
                )
        if samples:
            informative.append(tuple(samples))
    if not informative:
        raise NoLearningSignal(
            f"no learning signal: in all {len(groups)} groups the siblings have the same reward, so every advantage "
            "is 0; use a reward that tells them apart, scenarios that are neither solved nor hopeless, or more siblings"
        )
    return Batch(groups=tuple(informative), group_count=len(groups), sample_count=sample_count)


def deal(groups: Sequence[tuple[Sample, ...]], *, hands: int, rng: np.random.Generator) -> list[list[Sample]]:
    """Deal whole groups, shuffled, into `hands` batches for as many optimizer steps; empty hands are left out."""
    order = rng.permutation(len(groups))
    dealt = [[sample for index in order[hand::hands] for sample in groups[index]] for hand in range(hands)]
    return [hand for hand in dealt if hand]
