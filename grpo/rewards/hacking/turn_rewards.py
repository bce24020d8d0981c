"""Admission of turn rewards: dense rewards that do not agree with the outcome are refused before they train.

A reward for each turn that looks sensible can pay for the wrong turns, and then lowers success (arXiv 2604.02869
reports 14 points on tau-bench). The episodes of the first rollout show it: within a scenario, episodes with more turn
rewards have to succeed more often.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from grpo.config.training import TurnRewardAdmission
from grpo.errors import RewardError
from grpo.trajectories import TrajectoryGroup

logger = logging.getLogger(__name__)

_CONFIDENCE = 0.95
_NEARLY_ONE = 1 - 1e-12


class Correlation(NamedTuple):
    """A correlation with its interval at 95 % confidence."""

    value: float
    low: float
    high: float


class TurnRewardAgreement(BaseModel):
    """Sums over the groups of a rollout that compare turn rewards with success. They can be added over rollouts.

    Only episodes with a verified outcome count, in groups with at least two of them. Branches do not count, because the
    interval is for independent episodes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups: int
    episodes: int
    rewards: float
    """Σ (x − x̄)² of the sums x of an episode's turn rewards, around the means of their groups."""
    outcomes: float
    """Σ (y − ȳ)² of the outcomes y, which are 0 or 1."""
    products: float
    """Σ (x − x̄) (y − ȳ)."""

    @classmethod
    def of(cls, groups: Iterable[TrajectoryGroup]) -> TurnRewardAgreement | None:
        """Sums over these groups. None if no episode has a turn reward other than 0."""
        groups = tuple(groups)
        if not any(reward for group in groups for t in group.trajectories for reward in t.turn_rewards):
            return None
        sums, count, episodes = np.zeros(3), 0, 0
        for group in groups:
            roots = [t for t in group.trajectories if t.branch is None]  # branches depend on them
            judged = [t for t in roots if t.success is not None and t.terminal_reward is not None]
            if len(judged) < 2:
                continue
            x = np.array([math.fsum(trajectory.turn_rewards) for trajectory in judged])
            y = np.array([float(bool(trajectory.success)) for trajectory in judged])
            x, y = x - x.mean(), y - y.mean()
            sums += (x @ x, y @ y, x @ y)
            count, episodes = count + 1, episodes + len(judged)
        rewards, outcomes, products = map(float, sums)
        return cls(groups=count, episodes=episodes, rewards=rewards, outcomes=outcomes, products=products)

    def joined(self, other: TurnRewardAgreement) -> TurnRewardAgreement:
        """Sums over the groups of both rollouts."""
        return TurnRewardAgreement(
            groups=self.groups + other.groups,
            episodes=self.episodes + other.episodes,
            rewards=self.rewards + other.rewards,
            outcomes=self.outcomes + other.outcomes,
            products=self.products + other.products,
        )

    @property
    def correlation(self) -> Correlation | None:
        """Correlation within groups, with Fisher's interval for a partial correlation given the group.

            z = atanh ρ ± 1.96 / √(episodes − groups − 2)
            turn rewards 1 0 1 0, outcomes 1 0 0 0: ρ = .5 / √.75 = .577, interval [−.862, .989]

        None if turn rewards or outcomes do not differ within any group, or if there are too few episodes.
        """
        freedom = self.episodes - self.groups - 2
        if freedom < 1 or min(self.rewards, self.outcomes) < 1e-9:
            return None
        value = self.products / math.sqrt(self.rewards * self.outcomes)
        z = math.atanh(max(-_NEARLY_ONE, min(_NEARLY_ONE, value)))
        width = NormalDist().inv_cdf((1 + _CONFIDENCE) / 2) / math.sqrt(freedom)
        return Correlation(value, math.tanh(z - width), math.tanh(z + width))


def admit_turn_rewards(agreement: TurnRewardAgreement | None, admission: TurnRewardAdmission) -> None:
    """Refuse turn rewards, or warn of them, unless their correlation with success is shown to be above 0.

    `agreement` is the agreement in the first rollout. If it is None, no turn has a reward, and nothing is refused.
    Raises `RewardError` with the correlation and its interval.
    """
    if agreement is None or admission == "off":
        return
    correlation = agreement.correlation
    if correlation is not None and correlation.low > 0:
        return
    if correlation is None:
        problem = (
            f"turn rewards cannot be compared with success: in the first rollout there are {agreement.episodes} "
            f"episodes with a verified outcome in {agreement.groups} groups, which do not differ enough"
        )
    else:
        verdict = "mislead" if correlation.high < 0 else "are not shown to agree with success"
        problem = (
            f"turn rewards {verdict}: within the {agreement.groups} groups of the first rollout their correlation with "
            f"success is {correlation.value:.2f} [{correlation.low:.2f}, {correlation.high:.2f}], and its lower bound "
            "must be above 0"
        )
    if admission == "warn":
        logger.warning("%s", problem)
        return
    raise RewardError(
        f"{problem}; correct the turn rewards of the environment or the reward, or set "
        "training.turn_reward_admission to warn or off"
    )
