"""Summary of a scored rollout: means over its episodes, and the spread and correlations of the reward components."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from grpo.algorithms.mutual_information import MutualInformation, mutual_information
from grpo.messages import count_calls
from grpo.rewards.hacking.turn_rewards import TurnRewardAgreement
from grpo.trajectories import Trajectory, group

HIGH_CORRELATION = 0.95
"""Correlation beyond which two components are one reward with two weights."""
_FEWEST_REPLIES, _FEWEST_SCENARIOS = 16, 3
"""Replies and scenarios below which shuffles give too few different arrangements for a test."""
_FLAT = 1e-9  # variance of a constant component, up to rounding


class ComponentStatistic(BaseModel):
    """Mean and spread of one component."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean: float
    std: float
    """Standard deviation of the population, without Bessel's correction."""
    count: int


class ComponentMoments(BaseModel):
    """Sums over the episodes that have all components. They can be added over rollouts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: tuple[str, ...]
    count: int
    sums: tuple[float, ...]  # [components]
    products: tuple[tuple[float, ...], ...]  # [components, components], Σ of the products of two components

    def joined(self, other: ComponentMoments) -> ComponentMoments:
        """Moments over the episodes of both, for the components that both have."""
        if not (self.count and other.count):
            return self if self.count else other
        names = tuple(name for name in self.names if name in other.names)
        (sums, products), (others, other_products) = self._picked(names), other._picked(names)
        return _moments(names, self.count + other.count, sums + others, products + other_products)

    def statistics(self) -> dict[str, ComponentStatistic]:
        """Mean, standard deviation and count by component. Empty if no episode has all components."""
        if not self.count:
            return {}
        means, covariance = self._centred()
        stds = np.sqrt(np.maximum(0, np.diag(covariance)))
        return {
            name: ComponentStatistic(mean=float(mean), std=float(std), count=self.count)
            for name, mean, std in zip(self.names, means, stds, strict=True)
        }

    def correlations(self) -> dict[tuple[str, str], float]:
        """Pearson's ρ of each pair of components that vary."""
        if not self.count:
            return {}
        return dict(self._correlations())

    def highly_correlated(self) -> dict[tuple[str, str], float]:
        """Pairs with |ρ| > .95."""
        return {pair: rho for pair, rho in self.correlations().items() if abs(rho) > HIGH_CORRELATION}

    def _correlations(self) -> Iterator[tuple[tuple[str, str], float]]:
        _, covariance = self._centred()
        for i, j in combinations(range(len(self.names)), 2):
            if min(covariance[i, i], covariance[j, j]) > _FLAT:
                rho = covariance[i, j] / np.sqrt(covariance[i, i] * covariance[j, j])
                yield (self.names[i], self.names[j]), float(np.clip(rho, -1, 1))

    def _centred(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        means = np.array(self.sums) / self.count
        return means, np.array(self.products) / self.count - np.outer(means, means)

    def _picked(self, names: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        rows = np.array([self.names.index(name) for name in names], dtype=np.intp)
        return np.array(self.sums)[rows], np.array(self.products)[np.ix_(rows, rows)]


def component_moments(trajectories: Sequence[Trajectory]) -> ComponentMoments:
    """Moments of a scored rollout. An episode is left out if it lacks a component, e.g. because it has no score."""
    names = tuple(dict.fromkeys(name for trajectory in trajectories for name in trajectory.breakdown))
    whole = [t.breakdown for t in trajectories if names and all(name in t.breakdown for name in names)]
    table = np.array([[breakdown[name] for name in names] for breakdown in whole]).reshape(len(whole), len(names))
    return _moments(names, len(whole), table.sum(axis=0), table.T @ table)


def _moments(
    names: tuple[str, ...], count: int, sums: NDArray[np.float64], products: NDArray[np.float64]
) -> ComponentMoments:
    rows = tuple(tuple(map(float, row)) for row in products)
    return ComponentMoments(names=names, count=count, sums=tuple(map(float, sums)), products=rows)


class CallCounts(BaseModel):
    """Tool calls in the replies of a rollout."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    parsed: int = 0
    """Parsed calls, including the repaired ones."""
    repaired: int = 0
    """Calls that the parser repaired, see `grpo.renderers.tool_formats`."""
    malformed: int = 0
    """Replies with a call that cannot be parsed."""

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory]) -> CallCounts:
        """Counts over the messages of these episodes."""
        return cls(**count_calls(turn.message for trajectory in trajectories for turn in trajectory.own_turns))

    def joined(self, other: CallCounts) -> CallCounts:
        """Counts of both."""
        return CallCounts(
            parsed=self.parsed + other.parsed,
            repaired=self.repaired + other.repaired,
            malformed=self.malformed + other.malformed,
        )


class RolloutSummary(BaseModel):
    """Means over the episodes of a rollout."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups: int
    """Scenarios of the rollout."""
    informative_groups: int
    """Groups with rewards that differ. Only they have a group-relative advantage."""
    episodes: int
    rewarded: int
    """Episodes that have a reward."""
    verified: int
    """Episodes with a verified outcome."""
    unjudged: int = 0
    """Episodes with an unjudged part of success. They do not count as verified."""
    reward: float | None
    """Mean reward, or None if no episode has a reward."""
    success: float | None
    """Share of verified successes, or None if no outcome is verified."""
    components: dict[str, float]
    """Mean of each component over the episodes that have it."""
    component_counts: dict[str, int] = {}
    """Episodes that have the component."""
    truncated_share: float
    """Share of the episodes that the limit of tokens truncated."""
    turn_limit_share: float = 0.0
    """Share of the episodes that the environment's limit of turns ended."""
    failed_share: float
    moments: ComponentMoments = ComponentMoments(names=(), count=0, sums=(), products=())
    """Spread and correlations of the components."""
    calls: CallCounts = CallCounts()
    mutual_information: float | None = None
    """Mutual information of scenario and reply in nats per token, see `grpo.algorithms.mutual_information`. None if
    there are too few replies to measure it. For several rounds it is their mean."""
    input_agnostic: bool = False
    """The replies cannot be told from replies that were shuffled among the scenarios."""
    turn_rewards: TurnRewardAgreement | None = None
    """Agreement of turn rewards with success. None if the reward scores no turns."""

    def joined(self, other: RolloutSummary) -> RolloutSummary:
        """Summary of both rollouts together. They must not share a scenario."""
        rewarded, verified = (self.rewarded, other.rewarded), (self.verified, other.verified)
        episodes = (self.episodes, other.episodes)
        names = dict.fromkeys([*self.components, *other.components])
        measured = [summary for summary in (self, other) if summary.mutual_information is not None]
        agreements = [summary.turn_rewards for summary in (self, other) if summary.turn_rewards is not None]
        return RolloutSummary(
            groups=self.groups + other.groups,
            informative_groups=self.informative_groups + other.informative_groups,
            episodes=sum(episodes),
            rewarded=sum(rewarded),
            verified=sum(verified),
            unjudged=self.unjudged + other.unjudged,
            reward=_mean((self.reward, other.reward), rewarded),
            success=_mean((self.success, other.success), verified),
            components={name: mean for name in names if (mean := self._component(name, other)) is not None},
            component_counts={name: self._count(name) + other._count(name) for name in names},
            moments=self.moments.joined(other.moments),
            calls=self.calls.joined(other.calls),
            truncated_share=_mean((self.truncated_share, other.truncated_share), episodes) or 0.0,
            turn_limit_share=_mean((self.turn_limit_share, other.turn_limit_share), episodes) or 0.0,
            failed_share=_mean((self.failed_share, other.failed_share), episodes) or 0.0,
            mutual_information=_mean((self.mutual_information, other.mutual_information), episodes),
            input_agnostic=bool(measured) and all(summary.input_agnostic for summary in measured),
            turn_rewards=reduce(TurnRewardAgreement.joined, agreements) if agreements else None,
        )

    def _component(self, name: str, other: RolloutSummary) -> float | None:
        means = self.components.get(name), other.components.get(name)
        return _mean(means, (self._count(name), other._count(name)))

    def _count(self, name: str) -> int:
        return self.component_counts.get(name, 0)


def summarize(trajectories: Sequence[Trajectory]) -> RolloutSummary:
    """Average a scored rollout. Failed episodes are counted, but left out of every mean."""
    count = max(1, len(trajectories))
    groups = group(trajectories)
    dependence = reply_dependence(trajectories)
    rewards = [reward for t in trajectories if (reward := t.total_reward) is not None]
    verified = [t.success for t in trajectories if t.success is not None]
    parts: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.breakdown.items():
            parts.setdefault(name, []).append(value)
    return RolloutSummary(
        groups=len(groups),
        informative_groups=sum(len({*siblings.rewards} - {None}) > 1 for siblings in groups),
        episodes=len(trajectories),
        rewarded=len(rewards),
        verified=len(verified),
        unjudged=sum(t.outcome is not None and bool(t.outcome.unjudged) for t in trajectories),
        reward=sum(rewards) / len(rewards) if rewards else None,
        success=sum(verified) / len(verified) if verified else None,
        components={name: sum(values) / len(values) for name, values in parts.items()},
        component_counts={name: len(values) for name, values in parts.items()},
        moments=component_moments(trajectories),
        calls=CallCounts.of(trajectories),
        truncated_share=sum(t.stop == "truncated" for t in trajectories) / count,
        turn_limit_share=sum(t.stop == "turn_limit" for t in trajectories) / count,
        failed_share=sum(t.stop == "failed" for t in trajectories) / count,
        mutual_information=None if dependence is None else dependence.nats,
        input_agnostic=dependence is not None and dependence.is_independent,
        turn_rewards=TurnRewardAgreement.of(groups),
    )


def reply_dependence(trajectories: Sequence[Trajectory]) -> MutualInformation | None:
    """Mutual information of scenario and reply over all turns of the policy, in nats per token.

    The first turn is left out if all scenarios open alike, because no policy could tell them apart there. None if fewer
    than 3 scenarios or 16 replies are left.
    """
    tokens, scenarios, turns = [], [], []
    first = 0 if len({_opening(trajectory) for trajectory in trajectories}) > 1 else 1
    for trajectory in trajectories:
        replies = [turn for turn in trajectory.turns if turn.message.role == "assistant"]
        for number, turn in enumerate(replies[first:]):
            if turn.start < trajectory.own_start:  # the reply of the episode that this one branches off from
                continue
            span = slice(turn.start, turn.stop)
            sampled = trajectory.token_ids[span][trajectory.loss_mask[span]]
            if len(sampled):
                tokens.append(sampled.astype(np.int64))
                scenarios.append(trajectory.scenario_id)
                turns.append(number)
    if len(tokens) < _FEWEST_REPLIES or len(set(scenarios)) < _FEWEST_SCENARIOS:
        return None
    return mutual_information(tokens, np.unique(scenarios, return_inverse=True)[1], np.array(turns))


def _opening(trajectory: Trajectory) -> bytes:
    """Tokens before the first reply."""
    start = next((turn.start for turn in trajectory.turns if turn.message.role == "assistant"), None)
    return trajectory.token_ids[:start].tobytes()


def _mean(means: Sequence[float | None], counts: Sequence[int]) -> float | None:
    """Weighted mean of the means that exist, or None if there are none."""
    known = [(mean, count) for mean, count in zip(means, counts, strict=True) if mean is not None and count]
    return sum(mean * count for mean, count in known) / sum(count for _, count in known) if known else None
