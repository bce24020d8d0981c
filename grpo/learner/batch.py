"""Batches of the learner: token sequences with loss mask, log-probabilities and advantages."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from grpo.algorithms.catalog import ALGORITHMS
from grpo.config.training import TrainingSettings
from grpo.errors import DataError, NoLearningSignal, PolicyError
from grpo.learner.credit_assignment import clipped_rewards, token_advantages, token_rewards
from grpo.learner.teacher_prompts import TeacherPrompts, TeacherSequence
from grpo.trajectories import Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Token sequence of a trajectory with the advantage of each completion token.

    It ends with the last completion token, unless a critic needs what follows.
    """

    token_ids: NDArray[np.int32]  # [tokens]
    loss_mask: NDArray[np.bool_]  # [tokens]
    sampler_logprobs: NDArray[np.float32]  # [tokens]
    advantages: NDArray[np.float32]  # [tokens], 0 outside the loss mask
    temperature: float
    place: str
    proximal_logprobs: NDArray[np.float32] | None = None  # [tokens]
    """Log-probabilities of the policy that the update starts from, if it is not the sampler."""
    rewards: NDArray[np.float64] | None = None  # [tokens]
    """Reward of each token, from which a critic computes the advantages."""
    truncated: bool = False
    """A limit of tokens or turns ended the episode, so its last state has a value."""
    teacher: TeacherSequence | None = None
    """Tokens that the teacher of a distillation reads. None if there is no teacher, or if it has no hint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples of a rollout that have a gradient, by group, and the size of the whole rollout."""

    groups: tuple[tuple[Sample, ...], ...]
    informative: int
    """Groups with an advantage other than 0, or with rewards for a critic."""
    group_count: int
    sample_count: int
    """Valid trajectories of all groups, the uninformative ones included."""
    token_count: int
    """Completion tokens in the valid trajectories."""
    clipped_rewards: int = 0
    """Rewards of the valid trajectories beyond `reward_clip`."""

    @property
    def informative_share(self) -> float:
        """Share of informative groups."""
        return self.informative / self.group_count

    @property
    def samples(self) -> list[Sample]:
        """The samples of all groups."""
        return [sample for members in self.groups for sample in members]

    def with_samples(self, samples: Iterable[Sample]) -> Batch:
        """Copy of the batch with other samples, in the same order and groups."""
        rest = iter(samples)
        return replace(self, groups=tuple(tuple(next(rest) for _ in members) for members in self.groups))


def build_batch(
    groups: Sequence[TrajectoryGroup],
    settings: TrainingSettings,
    *,
    policy_hash: str,
    earlier_hashes: Collection[str] = (),
    renderer_hash: str | None = None,
    teacher: TeacherPrompts | None = None,
) -> Batch:
    """Compute advantages and drop samples with advantage 0.

    With a critic, a KL penalty, entropy terms or a `teacher` such samples stay, because they have a gradient too.

    All tokens must come from the policy with `policy_hash`, or from earlier ones with `earlier_hashes`, and must be
    rendered by the tokenizer and template with `renderer_hash`. Otherwise `PolicyError` is raised.

    Raises `DataError` if a group has fewer than two trajectories, log-probabilities are not finite, no trajectory can
    be trained on, or there is not one turn reward per turn. Raises `NoLearningSignal` if every advantage is 0 and no
    sample has a teacher.
    """
    for group in groups:
        _check(group, policy_hash, earlier_hashes, renderer_hash)
    valid = [t for group in groups for t in group.trajectories if t.total_reward is not None and t.loss_mask.any()]
    if not valid:
        trajectories = [t for group in groups for t in group.trajectories]
        if any(t.overridden_turns for t in trajectories):
            raise DataError(
                "no sampled token is left to train on, because the agent's own code overrides the text of its turns. "
                "Let process_turn and generate_response return their argument unchanged, or evaluate this agent"
            )
        if any(t.total_reward is not None for t in trajectories):
            raise DataError(
                f"none of the {len(trajectories)} trajectories has a completion token, because prompts of up to "
                f"{max(len(t.token_ids) for t in trajectories)} tokens leave no room for a reply. Raise "
                "rollout.max_context, or use a policy with a longer context"
            )
        raise DataError(
            f"none of the {len(trajectories)} trajectories has a reward. Score the rollout, and see the errors of "
            "its episodes and rewards"
        )
    if ALGORITHMS[settings.algorithm].critic:
        samples = _with_rewards(groups, settings)
    else:
        samples = _with_advantages(groups, settings, teacher)
    informative = sum(map(_is_informative, samples))
    if teacher is not None and not any(map(_is_taught, samples)):
        _refuse_untaught(len(groups), informative, teacher)
    if teacher is not None and teacher.settings.distillation_weight == 1 and not _has_other_terms(settings):
        samples = [taught for members in samples if (taught := tuple(s for s in members if s.teacher is not None))]
    if not informative and teacher is None:
        raise NoLearningSignal(
            f"no learning signal: in all {len(groups)} groups the rewards are equal, so every advantage is 0. Use a "
            "finer reward, scenarios that are neither solved nor hopeless, or larger groups"
        )
    return Batch(
        groups=tuple(samples),
        informative=informative,
        group_count=len(groups),
        sample_count=len(valid),
        token_count=sum(trajectory.completion_tokens for trajectory in valid),
        clipped_rewards=clipped_rewards(valid, settings),
    )


def _refuse_untaught(groups: int, informative: int, teacher: TeacherPrompts) -> None:
    """Raise `NoLearningSignal` if no scenario has a hint and the policy gradient has nothing to learn either."""
    settings = teacher.settings
    if informative and settings.distillation_weight < 1:
        return
    raise NoLearningSignal(
        f"no learning signal: none of the scenarios of {groups} groups has a hint for the teacher, "
        f"training.distillation.privileged_context {list(settings.privileged_context)}, and "
        + ("distillation_weight 1 leaves the rewards out" if informative else "their rewards are equal")
        + ". Give the scenarios an expected outcome, or name another part of it"
    )


def _with_advantages(
    groups: Sequence[TrajectoryGroup], settings: TrainingSettings, teacher: TeacherPrompts | None
) -> list[tuple[Sample, ...]]:
    """Groups of samples with their advantages and teacher sequences. Samples without a gradient are dropped."""
    keep_all = _has_other_terms(settings) or teacher is not None
    batch = []
    for group, advantages in zip(groups, token_advantages(groups, settings), strict=True):
        members = [
            _sample(trajectory, advantage, teacher=teacher)
            for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
            if advantage is not None and trajectory.loss_mask.any() and (keep_all or advantage.any())
        ]
        if members:
            batch.append(tuple(members))
    return batch


def _has_other_terms(settings: TrainingSettings) -> bool:
    """True if the loss has terms, or choices of tokens, for which samples without an advantage count too."""
    return bool(settings.beta or settings.entropy_coefficient or settings.top_entropy_quantile < 1)


def _with_rewards(groups: Sequence[TrajectoryGroup], settings: TrainingSettings) -> list[tuple[Sample, ...]]:
    """Groups of samples with their token rewards, for a critic. Empty if the total rewards are all equal."""
    batch = []
    totals: set[float] = set()
    for group, rewards in zip(groups, token_rewards(groups, settings), strict=True):
        members = [
            _sample(trajectory, np.zeros_like(trajectory.sampler_logprobs), rewards=given)
            for trajectory, given in zip(group.trajectories, rewards, strict=True)
            if given is not None
        ]
        totals.update(round(float(given.sum()), 9) for given in rewards if given is not None)
        if members:
            batch.append(tuple(members))
    return batch if len(totals) > 1 else []


def _sample(
    trajectory: Trajectory,
    advantages: NDArray[np.float32],
    *,
    rewards: NDArray[np.float64] | None = None,
    teacher: TeacherPrompts | None = None,
) -> Sample:
    end = len(trajectory.token_ids) if rewards is not None else int(np.flatnonzero(trajectory.loss_mask)[-1]) + 1
    return Sample(
        token_ids=trajectory.token_ids[:end],
        loss_mask=trajectory.loss_mask[:end],
        sampler_logprobs=trajectory.sampler_logprobs[:end],
        advantages=advantages[:end],
        temperature=trajectory.temperature,
        place=trajectory.place,
        rewards=rewards,
        truncated=trajectory.is_cut_off,
        teacher=None if teacher is None else teacher.sequence(trajectory, stop=end),
    )


def to_samples(trajectories: Iterable[Trajectory]) -> list[Sample]:
    """Samples with advantage 0, for measurements on trajectories."""
    return [_sample(t, np.zeros_like(t.sampler_logprobs)) for t in trajectories if t.loss_mask.any()]


def _check(
    group: TrajectoryGroup, policy_hash: str, earlier_hashes: Collection[str], renderer_hash: str | None
) -> None:
    if len(group.trajectories) < 2:
        raise DataError(
            f"scenario {group.scenario_id}: a group needs at least 2 trajectories, got "
            f"{len(group.trajectories)}. Raise rollout.group_size"
        )
    for trajectory in group.trajectories:
        unknown = [policy for policy in trajectory.policies if policy != policy_hash and policy not in earlier_hashes]
        if unknown:
            raise PolicyError(
                f"{trajectory.place} was sampled by policy {unknown[0]}, but the checkpoint is {policy_hash}: train on "
                "rollouts of this checkpoint"
            )
        if renderer_hash not in (None, trajectory.renderer_hash):
            raise PolicyError(
                f"{trajectory.place} was rendered with tokenizer and template {trajectory.renderer_hash}, but "
                f"the checkpoint has {renderer_hash}: its token ids have other texts. Repeat the rollout"
            )
        if not np.isfinite(trajectory.sampler_logprobs).all():
            raise DataError(
                f"{trajectory.place} has log-probabilities that are not finite: a backend without them can be "
                "evaluated, not trained on"
            )


def make_minibatches(
    groups: Sequence[tuple[Sample, ...]], settings: TrainingSettings, *, rng: np.random.Generator
) -> list[list[Sample]]:
    """Minibatches, one per optimizer step: of shuffled samples with `num_mini_batches`, else of whole shuffled groups.

    Samples or groups that are informative or have a teacher count. Without `num_mini_batches`, a minibatch has up to
    `groups_per_step` groups that count, and there are as few minibatches as possible. Samples or groups with only a KL
    or entropy gradient are spread over the minibatches.
    """
    units = groups if settings.num_mini_batches is None else [(sample,) for members in groups for sample in members]
    counted = [members for members in units if _is_informative(members) or _is_taught(members)]
    others = [members for members in units if not (_is_informative(members) or _is_taught(members))]
    if settings.num_mini_batches is not None:
        count = min(settings.num_mini_batches, len(counted))
    else:
        count = math.ceil(len(counted) / settings.groups_per_step) if settings.groups_per_step else 1
    minibatches: list[list[Sample]] = [[] for _ in range(count)]
    for part in filter(None, (counted, others)):
        for place, index in enumerate(rng.permutation(len(part))):
            minibatches[place % count] += part[index]
    return minibatches


def _is_informative(members: Sequence[Sample]) -> bool:
    """True if a group has an advantage other than 0, or rewards for a critic."""
    return any(sample.rewards is not None or sample.advantages.any() for sample in members)


def _is_taught(members: Sequence[Sample]) -> bool:
    """True if a teacher reads a sample of a group."""
    return any(sample.teacher is not None for sample in members)
