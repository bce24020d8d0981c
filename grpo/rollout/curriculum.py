"""Curriculum: training scenarios are drawn by their success in earlier iterations.

A policy learns from a group only if its samples differ. With success probability p their variance is p (1 − p), which
is 0 for scenarios that always or never succeed. The probability is not known, so each scenario has a Beta posterior
(RLVE, arXiv 2511.07317, adapts difficulty for the same reason).

The state is computed from the scored episodes of earlier iterations only. An interrupted run therefore draws the same
scenarios when it is resumed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from grpo.config.curriculum import CurriculumSettings
from grpo.errors import DataError
from grpo.trajectories import Trajectory


class SuccessCount(BaseModel):
    """Discounted numbers of verified successes and failures."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    successes: float = 0.0
    failures: float = 0.0

    @property
    def mean(self) -> float:
        """Mean of the posterior Beta(1 + successes, 1 + failures): none 1/2, 3 of 4 → 4/6."""
        return (1 + self.successes) / (2 + self.successes + self.failures)

    @property
    def expected_variance(self) -> float:
        """Mean of p (1 − p) under the posterior Beta(a, b): ab / ((a + b) (a + b + 1)).

        none 1/6, 2 of 4 → 9/42, 4 of 4 → 5/42
        """
        a, b = 1 + self.successes, 1 + self.failures
        return a * b / ((a + b) * (a + b + 1))

    def after(self, successes: int, failures: int, *, discount: float) -> SuccessCount:
        """Counts after one more iteration."""
        return SuccessCount(
            successes=discount * self.successes + successes, failures=discount * self.failures + failures
        )


class Curriculum(BaseModel):
    """Successes by scenario and by level before an iteration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scenarios: dict[str, SuccessCount] = {}
    """By scenario id. A scenario that was not rolled out is missing."""
    levels: dict[str, SuccessCount] = {}
    """By level."""
    open_levels: int = 1
    """Number of levels that are open, from the first one on."""

    def after(self, trajectories: Iterable[Trajectory], settings: CurriculumSettings) -> Curriculum:
        """The curriculum after an iteration with these episodes. Episodes without a verified outcome do not count.

        The next level opens if the success of the last open one, the mean of its posterior, has reached `open_at`.
        """
        verified = [(t.scenario_id, t.category, t.success) for t in trajectories if t.success is not None]
        scenarios = _after(self.scenarios, ((name, success) for name, _, success in verified), settings.discount)
        in_levels = ((category, success) for _, category, success in verified if category in settings.levels)
        levels = _after(self.levels, in_levels, settings.discount)
        last = settings.levels[self.open_levels - 1] if settings.levels else ""
        opens = last in levels and levels[last].mean >= settings.open_at and self.open_levels < len(settings.levels)
        return Curriculum(scenarios=scenarios, levels=levels, open_levels=self.open_levels + opens)

    def draw(
        self,
        scenario_ids: Sequence[str],
        settings: CurriculumSettings,
        *,
        categories: Callable[[], Mapping[str, str]],
        iteration: int,
        count: int,
        seed: int,
        round: int = 0,
    ) -> list[str]:
        """Scenario ids of a round of an iteration: in round 0 the first `count` of a weighted order without repeats.

            w_i = (1 − u) v_i / Σ v + u / n        v: expected variance, u: uniform_share, n: open scenarios

        Scenario i comes next with a probability proportional to w_i among the remaining ones (Efraimidis and Spirakis
        2006, by exponential times of rate w_i). Each later round takes the next `count` of the order. `categories`
        gives the category of each scenario, and is read only if there are levels. Raises `DataError` if no training
        scenario has the category of a level.
        """
        ids = self._open(scenario_ids, settings, categories)
        variances = [self.scenarios.get(name, SuccessCount()).expected_variance for name in ids]
        share, total, rng = settings.uniform_share, sum(variances), random.Random(f"{seed}/curriculum/{iteration}")
        times = [rng.expovariate(1.0) / ((1 - share) * variance / total + share / len(ids)) for variance in variances]
        order = [name for _, name in sorted(zip(times, ids, strict=True))]
        return order[round * count : (round + 1) * count]

    def _open(
        self,
        scenario_ids: Sequence[str],
        settings: CurriculumSettings,
        categories: Callable[[], Mapping[str, str]],
    ) -> list[str]:
        """Scenarios that are in no closed level."""
        if not scenario_ids:
            raise DataError("no scenario to roll out: the training split is empty; lower scenarios.validation_fraction")
        if not settings.levels:
            return list(scenario_ids)
        by_id = categories()
        if unknown := set(settings.levels).difference(by_id[name] for name in scenario_ids):
            raise DataError(unknown_levels(unknown, {by_id[name] for name in scenario_ids}))
        closed = settings.levels[self.open_levels :]
        return [name for name in scenario_ids if by_id[name] not in closed]


def unknown_levels(unknown: Iterable[str], categories: Iterable[str]) -> str:
    """Message about levels that no training scenario has as its category."""
    return (
        f"rollout.curriculum.levels: no training scenario has the category {', '.join(sorted(unknown))}; name some of "
        f"{', '.join(sorted(categories))}"
    )


def _after(
    counts: Mapping[str, SuccessCount], outcomes: Iterable[tuple[str, bool]], discount: float
) -> dict[str, SuccessCount]:
    """Counts after an iteration with these outcomes, sorted by name, so that equal counts give equal files."""
    new: dict[str, list[int]] = {}  # failures, successes
    for name, success in outcomes:
        new.setdefault(name, [0, 0])[success] += 1
    after = {}
    for name in sorted({*counts, *new}):
        failures, successes = new.get(name, (0, 0))
        after[name] = counts.get(name, SuccessCount()).after(successes, failures, discount=discount)
    return after
