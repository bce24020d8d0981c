"""Training that looks after itself: a profile chosen by what the agent shows, settings changed for stated reasons."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.callbacks import Callback, Progress
from grpo.config.notebook import TrainingConfig, TrainingProfile
from grpo.diagnostics import Finding, IterationRecord
from grpo.environments.environment import Environment
from grpo.errors import NoLearningSignal
from grpo.rewards.reward import RewardFunction
from grpo.trainer import MultiTurnGRPOTrainer
from grpo.trajectories import TrajectoryGroup

logger = logging.getLogger(__name__)

_SOLVED = 0.9
_POOR = 0.3
_SAME = 0.25
"""Share of groups in which siblings differ, below which a rollout teaches little."""
_MOST_TOKENS, _MOST_SIBLINGS, _MOST_ENTROPY = 1024, 64, 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """A setting that was changed, after which iteration, and why."""

    index: int
    setting: str
    before: float
    after: float
    reason: str


class Adjuster(Callback):
    """Answers what the diagnostics find by changing the settings of the iterations to come; each change is recorded.

    KL spike, or a number that is none: half the learning rate. Collapsed entropy: half the learning rate and a larger
    entropy bonus. Dead groups: twice the siblings. Truncation: half as many tokens again in a turn.
    """

    def __init__(self, trainer: MultiTurnGRPOTrainer) -> None:
        self.trainer = trainer
        self.adjustments: list[Adjustment] = []

    def on_iteration_end(self, record: IterationRecord, checkpoint: Path, progress: Progress) -> None:
        """See the class."""
        for finding, reason in self.trainer.monitor.get_health_status().reasons.items():
            for answer in _ANSWERS.get(finding, ()):
                answer(self, record.index, reason)

    def slow_down(self, index: int, reason: str) -> None:
        """Half the learning rate."""
        self._training(index, "learning_rate", self.trainer.settings.learning_rate / 2, reason)

    def explore(self, index: int, reason: str) -> None:
        """Twice the entropy bonus, from .001 on."""
        now = self.trainer.settings.entropy_coefficient
        self._training(index, "entropy_coefficient", min(_MOST_ENTROPY, max(0.001, 2 * now)), reason)

    def compare_more(self, index: int, reason: str) -> None:
        """Twice the siblings."""
        self._rollout(index, "group_size", min(_MOST_SIBLINGS, 2 * self.trainer.rollout.group_size), reason)

    def let_finish(self, index: int, reason: str) -> None:
        """Half as many tokens again in a turn."""
        self._rollout(index, "max_new_tokens", min(_MOST_TOKENS, self.trainer.rollout.max_new_tokens * 3 // 2), reason)

    def _training(self, index: int, name: str, value: float, reason: str) -> None:
        before = getattr(self.trainer.settings, name)
        if value != before:
            self.trainer.settings = self.trainer.settings.model_copy(update={name: value})
            self._note(index, name, before, value, reason)

    def _rollout(self, index: int, name: str, value: int, reason: str) -> None:
        before = getattr(self.trainer.rollout, name)
        if value != before:
            self.trainer.rollout = self.trainer.rollout.model_copy(update={name: value})
            self._note(index, name, before, value, reason)

    def _note(self, index: int, name: str, before: float, after: float, reason: str) -> None:
        self.adjustments.append(Adjustment(index=index, setting=name, before=before, after=after, reason=reason))
        logger.warning("after iteration %d %s goes from %g to %g: %s", index + 1, name, before, after, reason)


_ANSWERS: dict[Finding, Sequence[Callable[[Adjuster, int, str], None]]] = {
    "not_a_number": (Adjuster.slow_down,),
    "kl_spike": (Adjuster.slow_down,),
    "entropy_collapse": (Adjuster.slow_down, Adjuster.explore),
    "dead_groups": (Adjuster.compare_more,),
    "truncation": (Adjuster.let_finish,),
}


def choose_profile(groups: Sequence[TrajectoryGroup]) -> tuple[TrainingProfile, str]:
    """The profile that fits what an agent has shown, and why.

    What is nearly solved is changed little; where siblings hardly ever differ exploration is wanted; far from solved,
    with much to compare, large steps pay. Raises `NoLearningSignal` when no episode has a reward.
    """
    rewards = [[reward for reward in each.rewards if reward is not None] for each in groups]
    known = [reward for siblings in rewards for reward in siblings]
    if not known:
        raise NoLearningSignal("none of the probe episodes has a reward; see their errors")
    verified = [t.outcome.success for each in groups for t in each.trajectories if t.outcome is not None]
    good, kind = (fmean(verified), "verified success") if verified else (fmean(known), "mean reward")
    differ = fmean(len(set(siblings)) > 1 for siblings in rewards)
    told = f"{kind} is {good:.2f}, siblings differ in {differ:.0%} of {len(rewards)} probe groups"
    if good >= _SOLVED:
        return TrainingProfile.CONSERVATIVE, f"{told}: there is more to lose than to win"
    if differ < _SAME:
        return TrainingProfile.EXPERIMENTAL, f"{told}: there is little to compare without exploration"
    if good < _POOR:
        return TrainingProfile.AGGRESSIVE, f"{told}: there is much to learn, and much to learn it from"
    return TrainingProfile.BALANCED, told


class AutoTrainer:
    """Chooses a profile by a few probe episodes, then trains with the adjuster watching."""

    def __init__(self, *, auto_adjust: bool = True, probe_scenarios: int = 4) -> None:
        self.auto_adjust, self.probe_scenarios = auto_adjust, probe_scenarios
        self.profile: TrainingProfile | None = None
        self.reason = ""
        """Why this profile."""
        self.adjustments: list[Adjustment] = []

    async def train(
        self,
        agent: MultiTurnAgent,
        environment: Environment,
        reward_fn: RewardFunction,
        *,
        callbacks: Sequence[Callback] = (),
        **changes: Any,
    ) -> MultiTurnAgent:
        """Probe, choose, train; `changes` are fields of `TrainingConfig` and win over the profile."""
        probe = MultiTurnGRPOTrainer(agent, environment, reward_fn, TrainingConfig(**changes))
        await agent.initialize()
        groups = await probe.generate_trajectories(list(probe.scenarios.values())[: self.probe_scenarios])
        self.profile, self.reason = choose_profile(groups)
        logger.info("profile %s: %s", self.profile, self.reason)
        trainer = MultiTurnGRPOTrainer(
            agent, environment, reward_fn, TrainingConfig.from_profile(self.profile, **changes)
        )
        adjuster = Adjuster(trainer)
        self.adjustments = adjuster.adjustments
        return await trainer.train([*callbacks, *([adjuster] if self.auto_adjust else [])])
