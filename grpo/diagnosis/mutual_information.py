"""Dependence of replies on the scenario: retrieval accuracy, and a lower bound of the mutual information.

A policy whose replies do not depend on what it reads can have a normal entropy (template collapse, RAGEN-2, arXiv
2604.06268). That paper scores each reply under each prompt of a batch with the policy itself. Here a count of tokens
takes the place of the policy, so that stored episodes suffice and no model is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo.trajectories import Trajectory

MOST_SCENARIOS, MOST_SAMPLES = 64, 8
"""Scenarios and replies of each that are compared, which keeps the table of scores small."""
SMOOTHING = 0.5
"""Weight of the tokens of all scenarios in the distribution of one (Jelinek-Mercer), so that no token is impossible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    """Result of finding the scenario of each reply by its tokens."""

    accuracy: float
    """Share of the replies for which the right scenario is the likeliest. A tie of k scenarios counts 1/k."""
    scenarios: int
    replies: int

    @property
    def chance(self) -> float:
        """Accuracy if replies do not depend on the scenario."""
        return 1 / self.scenarios

    @property
    def nats(self) -> float:
        """Lower bound of I(scenario; reply) for scenarios drawn uniformly, by Fano's inequality with e = 1 − accuracy.

        I ≥ ln S − h(e) − e ln(S − 1). S = 4: accuracy 1 → ln 4 = 1.386, accuracy ¼ → 0
        """
        error = 1 - max(self.accuracy, self.chance)
        entropy = -sum(p * math.log(p) for p in (error, 1 - error) if p > 0)
        rest = error * math.log(self.scenarios - 1) if error else 0.0
        return max(0.0, math.log(self.scenarios) - entropy - rest)

    def is_above_chance(self, errors: float) -> bool:
        """True if the accuracy is more than this many binomial standard errors above chance."""
        return self.accuracy > self.chance + errors * math.sqrt(self.chance * (1 - self.chance) / self.replies)


def retrieve(episodes: Sequence[Trajectory]) -> Retrieval | None:
    """Find the scenario of each reply by the other replies to it.

    Replies are the tokens that the policy generated in an episode. The replies of each scenario are divided in two
    halves. The scenario of a reply is the one with the largest likelihood of its tokens under the token frequencies of
    the other half. Returns None if fewer than two scenarios have two replies.
    """
    by_scenario: dict[str, list[NDArray[np.int32]]] = {}
    for trajectory in episodes:
        if trajectory.loss_mask.any():
            by_scenario.setdefault(trajectory.scenario_id, []).append(trajectory.token_ids[trajectory.loss_mask])
    chosen = [replies[:MOST_SAMPLES] for replies in by_scenario.values() if len(replies) > 1][:MOST_SCENARIOS]
    if len(chosen) < 2:
        return None
    _, flat = np.unique(np.concatenate([reply for replies in chosen for reply in replies]), return_inverse=True)
    counts = _count_tokens(chosen, flat)
    hits = [
        hit
        for half in (0, 1)
        for hit in _hits([table[half::2] for table in counts], [table[1 - half :: 2] for table in counts])
    ]
    return Retrieval(accuracy=float(np.mean(hits)), scenarios=len(chosen), replies=len(hits))


def _count_tokens(
    chosen: Sequence[Sequence[NDArray[np.int32]]], flat: NDArray[np.intp]
) -> list[NDArray[np.float64]]:  # [replies, vocabulary] of each scenario
    vocabulary, place, tables = int(flat.max()) + 1, 0, []
    for replies in chosen:
        rows = []
        for reply in replies:
            rows.append(np.bincount(flat[place : place + len(reply)], minlength=vocabulary))
            place += len(reply)
        tables.append(np.array(rows, dtype=np.float64))
    return tables


def _hits(known: Sequence[NDArray[np.float64]], asked: Sequence[NDArray[np.float64]]) -> list[float]:
    """1 for each asked reply if its own scenario is the likeliest, 1/k if it ties with others, else 0."""
    frequencies = np.array([table.sum(axis=0) / table.sum() for table in known])
    pooled = sum(table.sum(axis=0) for table in (*known, *asked))
    pooled = pooled / pooled.sum()
    logs = np.log((1 - SMOOTHING) * frequencies + SMOOTHING * pooled)  # [scenarios, vocabulary]
    hits = []
    for scenario, table in enumerate(asked):
        for scores in table @ logs.T:
            best = np.flatnonzero(np.isclose(scores, scores.max(), rtol=1e-9, atol=1e-9))
            hits.append(1 / len(best) if scenario in best else 0.0)
    return hits
