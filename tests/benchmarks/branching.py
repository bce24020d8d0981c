"""Held-out success over generated tokens: groups of chains, and groups with branches.

    python -m tests.benchmarks.branching                               8 chains; 4 roots and 8 branches; one seed
    python -m tests.benchmarks.branching --iterations 30 --seeds 0 1 2 --credit state

The embedded model learns the support desk from the settings of the quickstart. Both kinds of groups are about the same
number of generated tokens. The held-out scenarios are played after each update.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate, product
from pathlib import Path
from tempfile import TemporaryDirectory

from grpo.artifacts import ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.learner.checkpoints import load_policy
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.table import read_scenarios
from grpo.tables import read_provenance, read_trajectories
from grpo_flows.pipeline import base_policy, prepare_scenarios, training_steps
from grpo_local import settings
from grpo_tasks.execution.executor import InProcessExecutor
from grpo_tasks.execution.stage import executed_by
from grpo_tasks.split import read_split
from tests.benchmarks.desk import heldout_success, quickstart
from tests.doubles import changed

TARGET = 0.8
"""Held-out success of the base is 0.3, and of a whole quickstart above 0.9."""
HELDOUT = 96
"""Held-out scenarios that are played after each update."""
GROUPS: dict[str, dict[str, int]] = {
    "8 chains": {"group_size": 8},
    "4 roots, 8 branches": {"group_size": 12, "trees": 4},
    "2 roots, 6 branches": {"group_size": 8, "trees": 2},
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training: tokens generated so far, and held-out success, after each update."""

    tokens: list[int]
    success: list[float]

    @property
    def tokens_to_target(self) -> int | None:
        """Tokens up to the first update from which on the held-out success stays at the target for two updates."""
        pairs = zip(self.success, self.success[1:], strict=False)
        reached = next((index for index, pair in enumerate(pairs) if min(pair) >= TARGET), None)
        return None if reached is None else self.tokens[reached]


def train(folder: Path, group: dict[str, int], *, credit: str, iterations: int, scenarios: int, seed: int) -> Run:
    """Train with groups of one kind."""
    config = PipelineConfig.model_validate(
        changed(
            quickstart().model_dump(),
            seed=seed,
            store=str(folder),
            rollout={"scenarios": scenarios, **group},
            training={"iterations": iterations, "credit_assignment": credit},
        )
    )
    with executed_by(InProcessExecutor()):
        data = prepare_scenarios(config.scenarios, store=config.store, environment=config.environment)
        base = base_policy(config.policy, config.store)
        steps = list(training_steps(config, data.split, base))
        store = ArtifactStore(config.store)
        ids = read_split(store, data.split.split).heldout[:HELDOUT]
        heldout = list(read_scenarios(store.path(data.artifact) / SCENARIOS_FILE, ids=ids))
    success = [heldout_success(load_policy(store, step.policy.checkpoint), config, heldout) for step in steps]
    return Run(tokens=list(accumulate(_generated(folder, iterations))), success=success)


def _generated(folder: Path, iterations: int) -> list[int]:
    """Tokens that were generated in the rollout of each iteration."""
    tokens: Counter[str] = Counter()
    for path in folder.rglob("rollout*/**/*.parquet"):
        tokens[read_provenance(path)["part"]] += sum(
            int(episode.loss_mask[episode.own_start :].sum()) for episode in read_trajectories(path)
        )
    return [tokens[str(iteration)] for iteration in range(iterations)]


def main() -> None:
    """Train with each kind of group and each seed, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=["8 chains", "4 roots, 8 branches"])
    parser.add_argument("--credit", choices=["trajectory", "turn", "state"], default="trajectory")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--iterations", type=int, default=24)
    parser.add_argument("--scenarios", type=int, default=16)
    options = parser.parse_args()
    settings.apply()
    sys.stdout.write(
        f"| group | credit | seed | generated tokens | held-out success, mean of the updates | last update | "
        f"tokens to {TARGET:.0%} |\n|---|---|---|---|---|---|---|\n"
    )
    for seed, name in product(options.seeds, options.groups):
        with TemporaryDirectory() as folder:
            run = train(
                Path(folder),
                GROUPS[name],
                credit=options.credit,
                iterations=options.iterations,
                scenarios=options.scenarios,
                seed=seed,
            )
        reached = run.tokens_to_target
        sys.stdout.write(
            f"| {name} | {options.credit} | {seed} | {run.tokens[-1]:,} | {sum(run.success) / len(run.success):.1%} | "
            f"{run.success[-1]:.1%} | {'not reached' if reached is None else f'{reached:,}'} |\n"
            f"  success by update: {' '.join(f'{value:.2f}' for value in run.success)}\n"
            f"  tokens by update: {' '.join(map(str, run.tokens))}\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
