"""Checks of the reward: constant, nearly constant or clipped, components that dominate or contradict success."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grpo.diagnosis.evidence import (
    ENOUGH,
    LEAST_GROUPS,
    LEAST_ITERATIONS,
    RISE_ERRORS,
    RunEvidence,
    groups_of,
    rise,
    rise_error,
    share,
)
from grpo.evaluation.explanation import Diagnosis
from grpo.rewards.rollout_summary import component_moments
from grpo.trajectories import Trajectory

FLAT = 1e-9
"""Spread of a constant, up to rounding."""
TINY_SPREAD = 0.01
"""Least standard deviation in a group, as a share of the largest reward. An advantage is divided by it, so a difference
of less than 1 % of the reward, usually noise, gets the same weight as the difference of success and failure."""
DOMINATES = 0.9
"""Share of the variance of the reward from which one component is the reward, and the others have no effect."""
UNRELATED = 0.2
"""Correlation with success below which a dominating component does not stand for success."""
CONTRADICTS = -0.2
"""Correlation with success, within groups, below which a component pays for failure …"""
CONTRADICTION_ERRORS = 3.0
"""… if it is also this many standard errors, 1/√n, below 0."""
WEIGHTY = 0.1
"""Least share of the variance of the reward from which a component can turn it. A small weight on brevity, for example,
may disagree with success without harm."""
CLIPPED_REWARDS = 0.1
"""Most rewards beyond `training.reward_clip`. Clipped rewards are equal, whatever they were before."""
HACKED = 0.05
"""Fall of success, while the reward rises, that shows reward hacking. The health checks in notebooks have the same."""


def constant_reward(evidence: RunEvidence) -> Diagnosis | None:
    """The same reward for all episodes, although their outcomes differ or are not verified.

    Under a teacher the loss is not 0, and a constant reward may be meant.
    """
    rewards = [reward for t in evidence.episodes if (reward := t.total_reward) is not None]
    outcomes = {t.success for t in evidence.episodes if t.success is not None}
    if len(rewards) < ENOUGH or max(rewards) - min(rewards) > FLAT or len(outcomes) == 1:
        return None
    if evidence.is_taught:
        return None
    return Diagnosis(
        kind="constant_reward",
        certainty="certain",
        measured=f"all {len(rewards)} rewards are {rewards[0]:.4g}"
        + (", although some episodes succeed and others fail" if outcomes else ""),
        meaning="The reward says nothing about the outcome. Returns are discounted by turn, so the policy learns to "
        "end episodes early, whatever their outcome."
        if evidence.prefers_short_episodes
        else "A group of equal rewards has advantage 0, so the loss is 0 and no weight changes.",
        change="use a reward that reads the outcome, such as task_completion or checks, or correct your own",
        command=evidence.train("reward=[{kind: task_completion, weight: 0.7}, {kind: checks, weight: 0.3}]")
        if outcomes
        else evidence.show(),
    )


def constant_component(evidence: RunEvidence) -> Diagnosis | None:
    """A component of the reward that is the same for all episodes, in a run that does not learn."""
    statistics = component_moments(evidence.episodes).statistics()
    if len(statistics) < 2 or evidence.is_learning or evidence.is_solved:
        return None
    flat = {name: value for name, value in statistics.items() if value.std < FLAT**0.5 and value.count >= ENOUGH}
    if not flat or len(flat) == len(statistics):
        return None
    name, value = next(iter(flat.items()))
    return Diagnosis(
        kind="constant_component",
        certainty="likely" if value.mean == 0 else "possible",
        measured=f"the reward component {name} is {value.mean:.4g} in all {value.count} episodes",
        meaning="It adds the same to each reward, so it teaches nothing, and its weight is lost for the others.",
        change=f"correct {name} if it should differ, make it easier to earn, or leave it out",
        command=evidence.check_reward(name),
    )


def nearly_equal_rewards(evidence: RunEvidence) -> Diagnosis | None:
    """Differences in a group that are tiny, and that the standard deviation of the group scales up."""
    spreads = [spread for g in evidence.groups if (spread := _spread([t.total_reward for t in g.trajectories])) > FLAT]
    largest = max((abs(reward) for t in evidence.last if (reward := t.total_reward) is not None), default=0.0)
    if len(spreads) < LEAST_GROUPS or not largest or evidence.is_solved:
        return None
    value = float(np.median(spreads)) / largest
    if value >= TINY_SPREAD or not _scales_by_std(evidence):
        return None
    return Diagnosis(
        kind="nearly_equal_rewards",
        certainty="likely",
        measured=f"the median standard deviation in {len(spreads)} groups is {value:.2%} of the largest reward "
        f"(bound {TINY_SPREAD:.0%})",
        meaning="Advantages are divided by the standard deviation of the group, so noise gets the weight of success.",
        change="use a reward with larger differences, or set training.scale_by_std to false",
        command=evidence.train("training.scale_by_std=false"),
    )


def clipped_rewards(evidence: RunEvidence) -> Diagnosis | None:
    """Rewards beyond the bound that the training clips them to."""
    limit = evidence.setting("training.reward_clip")
    rewards = [reward for t in evidence.last if (reward := t.total_reward) is not None]
    value = share(abs(reward) > limit for reward in rewards) if limit is not None else 0.0
    if len(rewards) < ENOUGH or value <= CLIPPED_REWARDS:
        return None
    largest = max(map(abs, rewards))
    return Diagnosis(
        kind="clipped_rewards",
        certainty="certain",
        measured=f"{value:.1%} of the rewards are beyond training.reward_clip {limit:g} (bound {CLIPPED_REWARDS:.0%}); "
        f"the largest is {largest:.4g}",
        meaning="Clipped rewards are equal, so the best episodes of a group cannot be told from good ones.",
        change=f"raise training.reward_clip to {largest:.3g}, or leave it out",
        command=evidence.train(f"training.reward_clip={largest:.3g}"),
    )


def contradicting_reward(evidence: RunEvidence) -> Diagnosis | None:
    """A component, or the whole reward, that is higher for failures than for successes of the same scenario."""
    table = _component_table(evidence.episodes)
    if table is None:
        return None
    names, values, success = table
    variances = values.var(axis=0)
    parts = [name for name, variance in zip(names, variances, strict=True) if variance >= WEIGHTY * variances.sum()]
    bound = min(CONTRADICTS, -CONTRADICTION_ERRORS / math.sqrt(len(success)))
    total = _correlation(values.sum(axis=1), success)
    correlations = [(rho, name) for name in parts if (rho := _correlation(values[:, names.index(name)], success))]
    worst, component = min(correlations, default=(0.0, ""))
    if worst > bound:
        return None
    is_whole = total is not None and total <= bound
    return Diagnosis(
        kind="contradicting_reward",
        certainty="certain" if is_whole else "likely",
        measured=f"the reward component {component} has correlation {worst:+.2f} with success within the groups of "
        f"{len(success)} episodes, while the whole reward has {total or 0.0:+.2f} (bound {bound:+.2f})",
        meaning="Failures are paid more than successes of the same scenario, so the policy is trained to fail."
        if is_whole
        else "This component pulls against the others, so the gradients cancel in part.",
        change=f"correct the sign of {component}, or lower its weight",
        command=evidence.show("failure"),
    )


def dominating_component(evidence: RunEvidence) -> Diagnosis | None:
    """A component that makes nearly all of the variance of the reward, and does not depend on success."""
    table = _component_table(evidence.episodes)
    if table is None or table[1].shape[1] < 2 or evidence.is_solved:
        return None
    names, values, success = table
    variances = values.var(axis=0)
    largest = int(variances.argmax())
    value = float(variances[largest] / variances.sum()) if variances.sum() > FLAT else 0.0
    rho = _correlation(values[:, largest], success)
    if value <= DOMINATES or rho is None or abs(rho) >= UNRELATED:
        return None
    name = names[largest]
    return Diagnosis(
        kind="dominating_component",
        certainty="likely",
        measured=f"the reward component {name} makes {value:.0%} of the variance within groups (bound "
        f"{DOMINATES:.0%}), and its correlation with success is {rho:+.2f} (bound {UNRELATED})",
        meaning="The advantages follow this component, and the components that stand for success have no effect.",
        change=f"lower the weight of {name} to a tenth, or raise the weight of the component that stands for success",
        command=evidence.check_reward(name),
    )


def reward_hacking(evidence: RunEvidence) -> Diagnosis | None:
    """A reward that rises while verified success falls."""
    rewards = evidence.series(lambda iteration: iteration.reward)
    successes = evidence.series(lambda iteration: iteration.success)
    if len(successes) < LEAST_ITERATIONS or len(successes) != len(rewards):
        return None
    gain, loss = rise(rewards), -rise(successes)
    rises = gain > max(0.0, RISE_ERRORS * rise_error(rewards))
    if not rises or loss < HACKED or loss < RISE_ERRORS * rise_error(successes):
        return None
    return Diagnosis(
        kind="reward_hacking",
        certainty="certain",
        measured=f"from the first to the last third of {len(rewards)} iterations the reward rose by {gain:.3g} and "
        f"success fell by {loss:.1%} (bound {HACKED:.0%})",
        meaning="The policy learned what the reward pays for, and that is not success.",
        change="find the exploit in the best paid failures, and let the reward verify the outcome (task_completion)",
        command=f"{evidence.show('failure')} --min-reward {rewards[-1]:.3g}",
    )


CHECKS = (
    constant_reward, contradicting_reward, reward_hacking, clipped_rewards, dominating_component, nearly_equal_rewards,
    constant_component,
)  # fmt: skip


def _scales_by_std(evidence: RunEvidence) -> bool:
    """True if the advantages of the run are divided by the standard deviation of their group."""
    from grpo.algorithms.catalog import make_algorithm  # imports torch, which other checks do not need

    scaled = evidence.setting("training.scale_by_std")
    return make_algorithm(evidence.setting("training.algorithm", "grpo"), scale_by_std=scaled).scale_by_std


def _spread(rewards: Sequence[float | None]) -> float:
    known = [reward for reward in rewards if reward is not None]
    return float(np.std(known, ddof=1)) if len(known) > 1 else 0.0


def _component_table(
    episodes: Sequence[Trajectory],
) -> tuple[list[str], NDArray[np.float64], NDArray[np.float64]] | None:
    """Weighted components [episodes, components] and success [episodes], less the means of their groups.

    None if fewer than `ENOUGH` episodes in groups with both outcomes have all components.
    """
    names = list(dict.fromkeys(name for trajectory in episodes for name in trajectory.breakdown))
    whole = [t for t in episodes if t.success is not None and names and all(name in t.breakdown for name in names)]
    rows, outcomes = [], []
    for siblings in groups_of(whole):
        success = np.array([float(bool(t.success)) for t in siblings.trajectories])
        values = np.array([_weighted(t, names) for t in siblings.trajectories])
        if np.ptp(success):
            rows.append(values - values.mean(axis=0))
            outcomes.append(success - success.mean())
    if sum(map(len, outcomes)) < ENOUGH:
        return None
    return names, np.concatenate(rows), np.concatenate(outcomes)


def _weighted(trajectory: Trajectory, names: Sequence[str]) -> list[float]:
    weights = trajectory.reward_metadata.get("weights", {})
    return [float(weights.get(name, 1.0)) * trajectory.breakdown[name] for name in names]


def _correlation(values: NDArray[np.float64], success: NDArray[np.float64]) -> float | None:
    """Pearson's ρ of two centred columns, or None if one is constant."""
    size = math.sqrt(float(values @ values) * float(success @ success))
    return float(values @ success) / size if size > FLAT else None
