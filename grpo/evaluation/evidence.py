"""Evidence of the promotion gates: an evaluation, its held-out episodes, and the conversations among them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from grpo.config.gates import Metric
from grpo.config.pipeline import EvaluationSettings
from grpo.evaluation.evaluate import pass_comparisons
from grpo.evaluation.metrics import (
    all_episodes,
    metric_values,
    pair_episodes,
    scenario_means,
    stop_and_length_shares,
    value_range,
)
from grpo.evaluation.schema import Evaluation, Interval
from grpo.evaluation.statistics import compare, pass_hat_k
from grpo.evaluation.strata import NO_CONVERSATIONS, Strata
from grpo.rewards.rollout_summary import CallCounts
from grpo.trajectories import Trajectory


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Input of a gate: the evaluation and its held-out episodes."""

    evaluation: Evaluation
    champion: Sequence[Trajectory]
    candidate: Sequence[Trajectory]
    settings: EvaluationSettings
    seed: int
    strata: Strata = NO_CONVERSATIONS
    """Conversations among the held-out scenarios. A plain run of `train` has none."""

    def base(self) -> Evidence | None:
        """The evidence of the base scenarios, which do not come from callers, or None if none is held out."""
        champion, candidate = (self.strata.base(episodes) for episodes in (self.champion, self.candidate))
        if not candidate:
            return None
        changes = {
            **stop_and_length_shares(champion, candidate),
            "calls": CallCounts.of(candidate),
            "pass_hat_k": pass_comparisons(
                pair_episodes(champion, candidate), "pass^", pass_hat_k, self.settings, seed=self.seed
            ),
        }
        evaluation = self.evaluation.model_copy(update=changes)
        return replace(self, evaluation=evaluation, champion=champion, candidate=candidate, strata=NO_CONVERSATIONS)

    def conversations(self) -> Evidence | None:
        """The evidence of conversations, or None if none is held out. The evaluation still covers all scenarios."""
        base = {id(trajectory) for trajectory in self.strata.base([*self.champion, *self.candidate])}
        champion, candidate = (
            [trajectory for trajectory in episodes if id(trajectory) not in base]
            for episodes in (self.champion, self.candidate)
        )
        return replace(self, champion=champion, candidate=candidate) if candidate else None

    def without_keys(self, keys: Collection[str]) -> Evidence:
        """The evidence without the conversations that these keys sent. The evaluation still covers all of them."""
        champion, candidate = (self.strata.without_keys(episodes, keys) for episodes in (self.champion, self.candidate))
        return replace(self, champion=champion, candidate=candidate)

    def difference(self, metric: Metric) -> Interval | None:
        """Paired difference over scenarios, candidate minus champion, or None if no episode has the metric."""
        pairs = pair_episodes(self.champion, self.candidate)
        scenarios = metric_values(pairs, metric, key=all_episodes).get("all")
        if scenarios is None:
            return None
        means = scenario_means(scenarios)
        return compare(
            "all",
            means[:, 0],
            means[:, 1],
            ends=value_range(metric, scenarios),
            confidence=self.settings.confidence,
            resamples=self.settings.resamples,
            seed=self.seed,
        ).difference

    def most_helpful_keys(self, metric: Metric, most: int) -> tuple[str, ...]:
        """The keys that the improvement depends on most, at most `most`, in the order in which they are chosen.

        They are chosen greedily: each is the key without which the mean difference of what the keys before it have left
        is smallest, the first of several in the order of their names. So a better choice of the same number of keys may
        exist if keys sent the same conversations.

        differences .1 .1 of base scenarios, .9 of key a, .2 of keys a and b   →  a: without it .1, without b .37
        """
        pairs = pair_episodes(self.champion, self.candidate)
        by_scenario = metric_values(pairs, metric, key=lambda trajectory: trajectory.scenario_id)
        changes = {name: float(np.diff(scenario_means(values))[0, 0]) for name, values in by_scenario.items()}
        origins, chosen = self.strata.origins, list[str]()
        for _ in range(min(most, len(self.strata.keys))):
            means = {key: -math.inf for key in self.strata.keys.difference(chosen)}
            for key in means:
                rest = [change for name, change in changes.items() if key not in origins.get(name, ())]
                if rest:
                    means[key] = math.fsum(rest) / len(rest)
            chosen.append(min(means, key=lambda key, means=means: (means[key], key)))  # type: ignore[misc]
            changes = {name: change for name, change in changes.items() if chosen[-1] not in origins.get(name, ())}
        return tuple(chosen)
