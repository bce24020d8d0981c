"""From scored trajectories to what the learner eats: token sequences with mask, log-probabilities and advantage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo.algorithms.catalog import ALGORITHMS
from grpo.config.training import TrainingSettings
from grpo.errors import DataError, NoLearningSignal, PolicyError
from grpo.learner.credit_assignment import clipped_rewards, token_advantages, token_rewards
from grpo.trajectories import Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One token sequence, and how much better each token of the policy's did than what it is compared with."""

    token_ids: NDArray[np.int32]  # [tokens]
    loss_mask: NDArray[np.bool_]  # [tokens]
    sampler_logprobs: NDArray[np.float32]  # [tokens]
    advantages: NDArray[np.float32]  # [tokens], 0 where the policy did not speak
    temperature: float
    place: str
    proximal_logprobs: NDArray[np.float32] | None = None  # [tokens]
    """What the policy that the update starts from says, where that is not the sampler."""
    rewards: NDArray[np.float64] | None = None  # [tokens]
    """What a critic learns from; the advantages follow from it."""
    truncated: bool = False
    """The episode was cut off: something would have come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The samples of one rollout that teach something, by group, and how much there was in all."""

    groups: tuple[tuple[Sample, ...], ...]
    informative: int
    """Groups in which some advantage is not 0, or whose rewards a critic judges."""
    group_count: int
    sample_count: int
    """Valid siblings of all groups, the uninformative ones included."""
    token_count: int
    """Tokens that the policy said in them."""
    clipped_rewards: int = 0
    """Rewards of them that were beyond `reward_clip`."""

    @property
    def informative_share(self) -> float:
        """Share of groups that teach something."""
        return self.informative / self.group_count


def build_batch(
    groups: Sequence[TrajectoryGroup],
    settings: TrainingSettings,
    *,
    policy_hash: str,
    earlier_hash: str | None = None,
    renderer_hash: str | None = None,
) -> Batch:
    """Compute advantages and drop siblings whose advantage is 0.

    They stay where there is more to learn from them: for a critic, and with a KL penalty or terms of entropy.

    Rollouts are those of the policy with `policy_hash`, or of the one before it where `earlier_hash` is given, through
    the tokenizer and template with `renderer_hash`.
    Raises `PolicyError` for a rollout of another policy or renderer, `DataError` for a group of one, log-probabilities
    that are not finite, no reward at all, or turn rewards that are not one a turn, `NoLearningSignal` when nothing did
    better than what it is compared with.
    """
    for group in groups:
        _check(group, policy_hash, earlier_hash, renderer_hash)
    valid = [t for group in groups for t in group.trajectories if t.total_reward is not None and t.loss_mask.any()]
    if not valid:
        trajectories = [t for group in groups for t in group.trajectories]
        if any(t.overridden_turns for t in trajectories):
            raise DataError(
                "nothing that the policy sampled is left to train on: the agent's own code reworded its turns; let "
                "process_turn and generate_response return what they are given, or evaluate this agent"
            )
        if any(t.total_reward is not None for t in trajectories):
            raise DataError(
                f"in none of the {len(trajectories)} trajectories did the policy say anything: what it was to read has "
                f"up to {max(len(t.token_ids) for t in trajectories)} tokens, which leave no room for a reply; raise "
                "rollout.max_context, or take a policy that reads more"
            )
        raise DataError(
            f"none of the {len(trajectories)} trajectories has a reward; score the rollout, and look at why its "
            "episodes or their rewards failed"
        )
    samples = _judged(groups, settings) if ALGORITHMS[settings.algorithm].critic else _compared(groups, settings)
    informative = sum(map(_is_informative, samples))
    if not informative:
        raise NoLearningSignal(
            f"no learning signal: in all {len(groups)} groups the siblings have the same reward, so every advantage "
            "is 0; use a reward that tells them apart, scenarios that are neither solved nor hopeless, or more siblings"
        )
    return Batch(
        groups=tuple(samples),
        informative=informative,
        group_count=len(groups),
        sample_count=len(valid),
        token_count=sum(trajectory.completion_tokens for trajectory in valid),
        clipped_rewards=clipped_rewards(valid, settings),
    )


def _compared(groups: Sequence[TrajectoryGroup], settings: TrainingSettings) -> list[tuple[Sample, ...]]:
    """Groups with the siblings that teach something."""
    needed = bool(settings.beta or settings.entropy_coefficient or settings.top_entropy_quantile < 1)
    found = []
    for group, advantages in zip(groups, token_advantages(groups, settings), strict=True):
        members = [
            _sample(trajectory, advantage)
            for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
            if advantage is not None and trajectory.loss_mask.any() and (needed or advantage.any())
        ]
        if members:
            found.append(tuple(members))
    return found


def _judged(groups: Sequence[TrajectoryGroup], settings: TrainingSettings) -> list[tuple[Sample, ...]]:
    """Groups with their rewards, advantages still to come; none where all of them have the same."""
    found = []
    totals: set[float] = set()
    for group, rewards in zip(groups, token_rewards(groups, settings), strict=True):
        members = [
            _sample(trajectory, np.zeros_like(trajectory.sampler_logprobs), rewards=given)
            for trajectory, given in zip(group.trajectories, rewards, strict=True)
            if given is not None
        ]
        totals.update(round(float(given.sum()), 9) for given in rewards if given is not None)
        if members:
            found.append(tuple(members))
    return found if len(totals) > 1 else []


def _sample(
    trajectory: Trajectory, advantages: NDArray[np.float32], *, rewards: NDArray[np.float64] | None = None
) -> Sample:
    return Sample(
        token_ids=trajectory.token_ids,
        loss_mask=trajectory.loss_mask,
        sampler_logprobs=trajectory.sampler_logprobs,
        advantages=advantages,
        temperature=trajectory.temperature,
        place=trajectory.place,
        rewards=rewards,
        truncated=trajectory.stop == "truncated",
    )


def to_samples(trajectories: Iterable[Trajectory]) -> list[Sample]:
    """What the policy said in these trajectories, to be looked at and not learned from."""
    return [_sample(t, np.zeros_like(t.sampler_logprobs)) for t in trajectories if t.loss_mask.any()]


def _check(group: TrajectoryGroup, policy_hash: str, earlier_hash: str | None, renderer_hash: str | None) -> None:
    if len(group.trajectories) < 2:
        raise DataError(
            f"scenario {group.scenario_id}: a group needs at least 2 trajectories, got 1; raise rollout.group_size"
        )
    for trajectory in group.trajectories:
        if trajectory.policy_hash not in (policy_hash, earlier_hash):
            raise PolicyError(
                f"{trajectory.place} was sampled by policy {trajectory.policy_hash}, the checkpoint is "
                f"{policy_hash}: train on rollouts of this checkpoint"
            )
        if renderer_hash not in (None, trajectory.renderer_hash):
            raise PolicyError(
                f"{trajectory.place} was rendered with tokenizer and template {trajectory.renderer_hash}, the "
                f"checkpoint has {renderer_hash}: its token ids mean other words; play the rollout again"
            )
        if not np.isfinite(trajectory.sampler_logprobs).all():
            raise DataError(
                f"{trajectory.place} has log-probabilities that are not finite: a backend without them can be "
                "evaluated, not trained on"
            )


def make_minibatches(
    groups: Sequence[tuple[Sample, ...]], *, groups_per_step: int | None, rng: np.random.Generator
) -> list[list[Sample]]:
    """Deal whole groups, shuffled, into as few hands of at most `groups_per_step` groups as there must be, one a step.

    Groups that teach by their KL or entropy alone are spread over the hands and do not count.
    """
    teaching = [members for members in groups if _is_informative(members)]
    others = [members for members in groups if not _is_informative(members)]
    hands = math.ceil(len(teaching) / groups_per_step) if groups_per_step else 1
    dealt: list[list[Sample]] = [[] for _ in range(hands)]
    for part in (teaching, others):
        order = rng.permutation(len(part)) if part else ()
        for place, index in enumerate(order):
            dealt[place % hands] += part[index]
    return dealt


def _is_informative(members: Sequence[Sample]) -> bool:
    """Whether a group's siblings differ, or a critic has judged them."""
    return any(sample.rewards is not None or sample.advantages.any() for sample in members)
