"""Curves of learning: trainings of the shipped model, and how they compare over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from scipy import stats

from grpo.artifacts import ArtifactStore
from grpo.config.environments import EnvironmentSettings
from grpo.config.pipeline import PipelineConfig
from grpo.evaluation.schema import IterationMetrics
from grpo.learner.checkpoints import load_policy
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.table import read_scenarios
from grpo_flows.pipeline import base_policy, prepare_scenarios, starting_policies, training_steps
from grpo_tasks.execution.executor import InProcessExecutor
from grpo_tasks.execution.stage import executed_by
from grpo_tasks.split import read_split
from tests.benchmarks.desk import heldout_success


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One training: the clock and the held-out success after each update."""

    seconds: list[float]
    success: list[float]
    iterations: list[IterationMetrics]


def train(
    config: PipelineConfig,
    *,
    heldout: int,
    clock: Callable[[], float],
    heldout_environment: EnvironmentSettings | None = None,
) -> Curve:
    """Train from the policy that the config starts GRPO from, and play held-out scenarios afterwards.

    The clock starts with the first rollout. The held-out scenarios are played in `heldout_environment` if it is given,
    else in the environment of the training.
    """
    seconds, steps = [], []
    with executed_by(InProcessExecutor()):
        data = prepare_scenarios(config.scenarios, store=config.store, environment=config.environment)
        start = starting_policies(config, base_policy(config.policy, config.store))[-1]
        began = clock()
        for step in training_steps(config, data.split, start):
            seconds.append(clock() - began)
            steps.append(step)
        store = ArtifactStore(config.store)
        ids = read_split(store, data.split.split).heldout[:heldout]
        scenarios = list(read_scenarios(store.path(data.artifact) / SCENARIOS_FILE, ids=ids))
    played = config.model_copy(update={"environment": heldout_environment or config.environment})
    success = [heldout_success(load_policy(store, step.policy.checkpoint), played, scenarios) for step in steps]
    return Curve(seconds=seconds, success=success, iterations=[step.iteration for step in steps])


def at_target(success: Sequence[float], target: float) -> int | None:
    """First update from which on the held-out success stays at the target for two updates."""
    return next((index for index, two in enumerate(pairwise(success)) if min(two) >= target), None)


def interval(values: Sequence[float], form: str = "{:+.3f}", scale: Callable[[float], float] = float) -> str:
    """Mean with Student's interval at 95 %, which one value does not have."""
    mean = statistics.fmean(values)
    if len(values) == 1:
        return form.format(scale(mean))
    width = float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    low, high = (form.format(scale(mean + side * width)) for side in (-1, 1))
    return f"{form.format(scale(mean))} [{low}, {high}]"


def ratio_to_target(costs: Sequence[float | None], others: Sequence[float | None]) -> str:
    """Geometric mean of the ratios of what two settings need to a target, with its interval. None is not reached."""
    logs = []
    for cost, other in zip(costs, others, strict=True):
        if cost is None:
            return f"not reached by {costs.count(None)} of {len(costs)}"
        if other is None:
            return "the other does not reach it"
        logs.append(math.log(cost / other))
    return interval(logs, "{:.2f}", math.exp)
