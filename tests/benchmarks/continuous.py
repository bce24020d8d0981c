"""Wall time to the same held-out success with slow tools: rollouts in stages, and continuous ones.

    python -m tests.benchmarks.continuous                              tools of 2 s, max_staleness 0, 1 and 4, one seed
    python -m tests.benchmarks.continuous --iterations 30 --seeds 0 1 2

The embedded model learns the support desk from the settings of the quickstart, with half of its scenarios. Each run is
timed up to each of its updates. The held-out scenarios are played afterwards, with fast tools.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from grpo.artifacts import ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.evaluation.schema import IterationMetrics
from grpo.learner.checkpoints import load_policy
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.table import read_scenarios
from grpo_flows.pipeline import base_policy, prepare_scenarios, training_steps
from grpo_local import settings
from grpo_tasks.execution.executor import InProcessExecutor
from grpo_tasks.execution.stage import executed_by
from grpo_tasks.split import read_split
from tests.benchmarks.desk import heldout_success, quickstart
from tests.benchmarks.measure import use_all_cores
from tests.doubles import changed

TARGET = 0.8
"""Held-out success of the base is 0.3, and of a whole quickstart above 0.9."""
HELDOUT = 48
"""Held-out scenarios that are played after each update."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training: time and held-out success after each update."""

    seconds: list[float]
    success: list[float]
    iterations: list[IterationMetrics]

    @property
    def seconds_to_target(self) -> float | None:
        """Time of the first update from which on the held-out success stays at the target for two updates."""
        pairs = zip(self.success, self.success[1:], strict=False)
        reached = next((index for index, pair in enumerate(pairs) if min(pair) >= TARGET), None)
        return None if reached is None else self.seconds[reached]


def train(folder: Path, *, max_staleness: int, delay_s: float, iterations: int, scenarios: int, seed: int) -> Run:
    """Train in stages if `max_staleness` is 0, and otherwise with a continuous rollout."""
    fast = quickstart()
    mode = {"mode": "continuous", "max_staleness": max_staleness} if max_staleness else {}
    sections = changed(
        fast.model_dump(),
        seed=seed,
        store=str(folder),
        rollout={"scenarios": scenarios, "group_size": 8, **mode},
        training={"iterations": iterations, "importance_sampling_cap": 2.0, "max_mismatch_kl": 0.2},
    )
    desk = {"kind": "python", "object": "tests.benchmarks.slow_desk:SlowDesk", "options": {"delay_s": delay_s}}
    sections["environment"] = desk
    config = PipelineConfig.model_validate(sections)
    began, seconds, steps = time.perf_counter(), [], []
    with executed_by(InProcessExecutor()):
        data = prepare_scenarios(config.scenarios, store=config.store, environment=config.environment)
        base = base_policy(config.policy, config.store)
        for step in training_steps(config, data.split, base):
            seconds.append(time.perf_counter() - began)
            steps.append(step)
        store = ArtifactStore(config.store)
        ids = read_split(store, data.split.split).heldout[:HELDOUT]
        heldout = list(read_scenarios(store.path(data.artifact) / SCENARIOS_FILE, ids=ids))
    success = [heldout_success(load_policy(store, step.policy.checkpoint), fast, heldout) for step in steps]
    return Run(seconds=seconds, success=success, iterations=[step.iteration for step in steps])


def row(max_staleness: int, seed: int, run: Run) -> str:
    """A line of the table."""
    stale = [iteration.staleness_mean or 0.0 for iteration in run.iterations]
    busy = [iteration.busy_share for iteration in run.iterations if iteration.busy_share is not None]
    reached = run.seconds_to_target
    return (
        f"| {max_staleness} | {seed} | {run.seconds[-1]:.0f} s | {run.success[-1]:.1%} | "
        f"{'not reached' if reached is None else f'{reached:.0f} s'} | {fmean(stale):.2f} | "
        f"{sum(iteration.dropped_episodes or 0 for iteration in run.iterations)} | "
        f"{f'{fmean(busy):.0%}' if busy else '–'} |\n"
    )


def main() -> None:
    """Measure each bound with each seed, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-staleness", type=int, nargs="+", default=[0, 1, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--iterations", type=int, default=16)
    parser.add_argument("--scenarios", type=int, default=16)
    parser.add_argument("--delay", type=float, default=2.0, help="seconds of a tool call")
    options = parser.parse_args()
    settings.apply()
    use_all_cores()
    sys.stdout.write(
        f"| max_staleness | seed | wall time | held-out success | time to {TARGET:.0%} | mean staleness | dropped | "
        "both busy |\n|---|---|---|---|---|---|---|---|\n"
    )
    for seed, most in product(options.seeds, options.max_staleness):
        with TemporaryDirectory() as folder:
            run = train(
                Path(folder),
                max_staleness=most,
                delay_s=options.delay,
                iterations=options.iterations,
                scenarios=options.scenarios,
                seed=seed,
            )
        sys.stdout.write(row(most, seed, run))
        sys.stdout.write(f"  success by update: {' '.join(f'{value:.2f}' for value in run.success)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
