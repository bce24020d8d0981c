"""Trainer that first plays a few episodes, and chooses its training profile by their rewards."""

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
from grpo.rewards.reward import RewardFunction, Scorer
from grpo.trajectories import TrajectoryGroup

logger = logging.getLogger(__name__)

_SOLVED = 0.9
_POOR = 0.3
_FEW_INFORMATIVE = 0.25
"""If the share of informative groups is below this, the gradient of a rollout is too small."""


def choose_profile(groups: Sequence[TrajectoryGroup]) -> tuple[TrainingProfile, str]:
    """Profile that fits the rewards of probe groups, with the reason.

    Conservative if the scenarios are nearly solved, experimental (more exploration) if few groups are informative,
    aggressive if success is low. Raises `NoLearningSignal` if no episode has a reward.
    """
    rewards = [[reward for reward in group.rewards if reward is not None] for group in groups]
    scored = [reward for group in rewards for reward in group]
    if not scored:
        raise NoLearningSignal("none of the probe episodes has a reward. See their errors")
    verified = [t.success for group in groups for t in group.trajectories if t.success is not None]
    level, name = (fmean(verified), "verified success") if verified else (fmean(scored), "mean reward")
    informative = fmean(len(set(group)) > 1 for group in rewards)
    observed = f"{name} is {level:.2f}, {informative:.0%} of {len(rewards)} probe groups are informative"
    if level >= _SOLVED:
        return TrainingProfile.CONSERVATIVE, f"{observed}: small updates"
    if informative < _FEW_INFORMATIVE:
        return TrainingProfile.EXPERIMENTAL, f"{observed}: more exploration"
    if level < _POOR:
        return TrainingProfile.AGGRESSIVE, f"{observed}: large updates"
    return TrainingProfile.BALANCED, observed


class AutoTrainer:
    """Chooses a profile by a few probe episodes, then trains with an adjuster."""

    def __init__(self, *, auto_adjust: bool = True, probe_scenarios: int = 4) -> None:
        self.auto_adjust, self.probe_scenarios = auto_adjust, probe_scenarios
        self.profile: TrainingProfile | None = None
        self.reason = ""
        """Reason of the profile."""
        self.adjustments: list[Adjustment] = []

    async def train(
        self,
        agent: MultiTurnAgent,
        environment: Environment,
        reward_fn: RewardFunction | Scorer,
        *,
        callbacks: Sequence[Callback] = (),
        **overrides: Any,
    ) -> MultiTurnAgent:
        """Probe, choose, train. `overrides` are fields of `TrainingConfig` that take precedence over the profile."""
        probe = MultiTurnGRPOTrainer(agent, environment, reward_fn, TrainingConfig(**overrides))
        await agent.initialize()
        groups = await probe.generate_trajectories(list(probe.scenarios.values())[: self.probe_scenarios])
        self.profile, self.reason = choose_profile(groups)
        logger.info("profile %s: %s", self.profile, self.reason)
        trainer = MultiTurnGRPOTrainer(
            agent, environment, reward_fn, TrainingConfig.from_profile(self.profile, **overrides)
        )
        adjuster = Adjuster(trainer)
        self.adjustments = adjuster.adjustments
        return await trainer.train([*callbacks, *([adjuster] if self.auto_adjust else [])])
