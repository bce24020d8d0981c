"""Promotion rate of the default gates: a policy against itself, and a better one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo.config.gates import DEFAULT_GATES
from grpo.config.pipeline import EvaluationSettings
from grpo.evaluation.evaluate import evaluate
from grpo.evaluation.evidence import Evidence
from grpo.evaluation.gates import gate
from grpo.rewards.learned.metrics import wilson_interval
from grpo.trajectories import Outcome, Stop, Trajectory
from tests.benchmarks.page import Findings, Table
from tests.doubles import make_trajectory

CATEGORIES = {"return": 70, "delivery": 50, "charge": 30, "broken": 25, "address": 15, "voucher": 10}
"""200 scenarios; the smallest categories are as small as they are in practice."""
TRUNCATED, FAILED = 0.005, 0.002
"""Share of episodes of either policy that are cut off, or end in an error."""
KL = 0.3
GAIN = 0.10
_ROUGH = EvaluationSettings(resamples=100)
"""For what only the report shows; the gates draw their own, at the settings that are asked for."""
RUNS = 200


@dataclass(frozen=True, kw_only=True)
class World:
    """Scenarios of which some are hard for everybody."""

    baseline: float
    """Mean success of the champion."""
    spread: float = 1 / 3
    """Share of the variance of an outcome that is the scenario's; 0: all are equally hard."""


def promoted(world: World, *, gain: float, runs: int, seed: int, settings: EvaluationSettings) -> list[bool]:
    """Promotions of `runs` candidates, each on scenarios of its own.

    Given the scenario, every episode of either policy is an independent draw: the random numbers that both share in a
    real evaluation would only bring them closer together.
    """
    rng = np.random.default_rng(seed)
    names = np.repeat(list(CATEGORIES), list(CATEGORIES.values()))
    found = []
    for index in range(runs):
        chances = _chances(rng, world, len(names))
        sides = [
            _play(rng, names, chance, settings.samples, policy=policy)
            for policy, chance in (("champion", chances), ("candidate", _raised(chances, gain)))
        ]
        evaluation = evaluate(*sides, _ROUGH, metric="success", kl_to_base=KL, seed=index)
        evidence = Evidence(evaluation=evaluation, champion=sides[0], candidate=sides[1], settings=settings, seed=index)
        found.append(gate(evidence, DEFAULT_GATES).verdict == "promote")
    return found


def _chances(rng: np.random.Generator, world: World, count: int) -> NDArray[np.float64]:
    """Success probability of the champion in each scenario; the mean is the baseline."""
    if world.spread == 0:
        return np.full(count, world.baseline)
    concentration = 1 / world.spread - 1  # of a Beta distribution: its variance is p (1 - p) / (concentration + 1)
    return rng.beta(world.baseline * concentration, (1 - world.baseline) * concentration, size=count)


def _raised(chances: NDArray[np.float64], gain: float) -> NDArray[np.float64]:
    """Chances that are higher by `gain` on average: each scenario moves by its room to move, to 1 at most."""
    room = 1 - chances
    return chances + room * min(1.0, gain / max(1e-9, float(room.mean())))


def _play(
    rng: np.random.Generator, names: NDArray[np.str_], chances: NDArray[np.float64], samples: int, *, policy: str
) -> list[Trajectory]:
    episodes = []
    for scenario, (name, chance) in enumerate(zip(names, chances, strict=True)):
        for sample in range(samples):
            draw, tokens = rng.random(2), int(rng.integers(20, 60))
            stop: Stop = "failed" if draw[0] < FAILED else "truncated" if draw[0] < FAILED + TRUNCATED else "terminated"
            success = bool(draw[1] < chance and stop == "terminated")
            episodes.append(
                make_trajectory(
                    scenario_id=str(scenario),
                    category=str(name),
                    sample=sample,
                    policy_hash=policy,
                    token_ids=np.zeros(tokens, dtype=np.int32),
                    loss_mask=np.ones(tokens, dtype=np.bool_),
                    sampler_logprobs=np.zeros(tokens, dtype=np.float32),
                    stop=stop,
                    outcome=None if stop == "failed" else Outcome(success=success),
                )
            )
    return episodes


def measure() -> Findings:
    """Both rates for three baselines, and for scenarios that have nothing in common with themselves."""
    settings = EvaluationSettings()
    worlds = [*(World(baseline=baseline) for baseline in (0.5, 0.7, 0.9)), World(baseline=0.5, spread=0)]
    rows = []
    for number, world in enumerate(worlds):
        cells = []
        for gain, bound in ((0.0, "at most 5%"), (GAIN, "at least 80%")):
            hits = sum(promoted(world, gain=gain, runs=RUNS, seed=1000 * number + int(100 * gain), settings=settings))
            low, high = wilson_interval(hits, RUNS)
            kept = hits <= 0.05 * RUNS if gain == 0 else hits >= 0.8 * RUNS
            cells.append(f"{hits / RUNS:.1%} [{low:.1%}, {high:.1%}], {bound}{'' if kept else ': missed'}")
        rows.append((f"{world.baseline:.0%}", f"{world.spread:.2f}", *cells))
    sizes = ", ".join(map(str, CATEGORIES.values()))
    text = (
        f"The default gates on {sum(CATEGORIES.values())} held-out scenarios of six categories ({sizes}), "
        f"{settings.samples} episodes each, {RUNS} simulated candidates a cell, with Wilson intervals at 95%. How hard "
        "a scenario is, both policies share; that is all their correlation: given the scenario, their episodes are "
        "independent, though a real evaluation gives both the same random numbers. The better candidate gains "
        f"{100 * GAIN:.0f} points on average, in each scenario in proportion to what is missing there. Of either "
        f"policy's episodes {TRUNCATED:.1%} are cut off and {FAILED:.1%} fail. A policy against itself, with the same "
        "random numbers, would never be promoted: here both draw their own."
    )
    head = ("champion's success", "spread of difficulty", "the same policy promoted", "+10 points promoted")
    return Findings(title="What the gates let through", text=text, tables=(Table(head=head, rows=tuple(rows)),))
