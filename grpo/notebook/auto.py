"""Training that chooses its own profile, by what the agent shows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.environments.environment import Environment
from grpo.errors import NoLearningSignal
from grpo.notebook.adjuster import Adjuster, Adjustment
from grpo.notebook.callbacks import Callback
from grpo.notebook.config import TrainingConfig, TrainingProfile
from grpo.notebook.trainer import MultiTurnGRPOTrainer
from grpo.rewards.reward import RewardFunction
from grpo.trajectories import TrajectoryGroup

logger = logging.getLogger(__name__)

_SOLVED = 0.9
_POOR = 0.3
_SAME = 0.25
"""Share of groups in which siblings differ, below which a rollout teaches little."""


def choose_profile(groups: Sequence[TrajectoryGroup]) -> tuple[TrainingProfile, str]:
    """The profile that fits what an agent has shown, and why.

    What is nearly solved is changed little; where siblings hardly ever differ exploration is wanted; far from solved,
    with much to compare, large steps pay. Raises `NoLearningSignal` when no episode has a reward.
    """
    rewards = [[reward for reward in each.rewards if reward is not None] for each in groups]
    known = [reward for siblings in rewards for reward in siblings]
    if not known:
        raise NoLearningSignal("none of the probe episodes has a reward; see their errors")
    verified = [t.success for each in groups for t in each.trajectories if t.success is not None]
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
