"""Success over generated tokens and over CPU time, with each setting that could make learning need fewer of them.

    python -m tests.benchmarks.algorithms support_desk              all settings, five seeds, into docs/tasks.md
    python -m tests.benchmarks.algorithms family_relationships      the same on a public task
    python -m tests.benchmarks.algorithms support_desk GRPO MaxRL --seeds 1     some of them, only printed

The shipped model learns a task from the settings of its config, each time with other sections, and the held-out
scenarios are played after each update. Records are in runs/algorithms, so a measurement that was interrupted goes on.
Each run has one thread, and as many run at once as there are cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict

from grpo.config.pipeline import PipelineConfig, load_config
from grpo.tables import read_provenance, read_trajectories
from grpo_local import settings
from tests.benchmarks.curves import at_target, interval, ratio_to_target
from tests.benchmarks.curves import train as train_with_curve
from tests.benchmarks.desk import CONFIG
from tests.benchmarks.page import Table, commit, here, replace_results
from tests.benchmarks.tasks import PAGE
from tests.doubles import changed
from tests.places import ROOT

RECORDS = ROOT / "runs" / "algorithms"
SCENARIOS = 32
"""Scenarios of an iteration, as in the configs of all tasks."""
PLAIN, PLAIN_SUCCESS = "GRPO", "GRPO, success only"
Measure = Literal["episodes", "tokens", "cpu_s"]
MEASURES: tuple[Measure, ...] = ("episodes", "tokens", "cpu_s")
_SUCCESS = [{"kind": "task_completion", "weight": 1.0}]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task on which settings are compared."""

    config: str
    """Path of the config below the project's folder."""
    iterations: int
    heldout: int
    """Held-out scenarios that are played after each update."""
    target: float
    """Held-out success up to which episodes, tokens and CPU time are counted."""
    is_gain: bool = False
    """The target is this much more than GRPO has after its first update with the same seed, because seeds start at
    different success."""
    variants: dict[str, dict[str, Any]]
    """Sections over the config, by the name of the setting."""
    heading: str
    """Heading of the section in docs/tasks.md that the table is written to."""
    what: str
    """Beginning of the sentence that says how the model is trained."""

    def text(self, command: str, commits: Sequence[str]) -> str:
        """Text above the table that `command` has written, from runs at these commits."""
        return (
            f"Written by `{command}` ({here()}), from runs at {', '.join(commits)}. {self.what} {self.iterations} "
            f"iterations of {SCENARIOS} scenarios with 8 episodes each, on one core. After each update {self.heldout} "
            "held-out scenarios are played. The mean of the updates is the area under the learning curve. "
            f"{self._goal} It counts as reached at the first of two consecutive updates at or above it. The row of "
            "GRPO has its own tokens, episodes and CPU time, and the other rows have ratios to them. "
            "Ratios and differences are to GRPO with the same rewards and the same seeds: geometric means of the "
            "ratios, and Student's intervals at 95 % over the seeds. A ratio below 1 is less than GRPO takes. It is "
            "left out if a seed does not reach the target."
        )

    @property
    def _goal(self) -> str:
        if self.is_gain:
            return (
                f"The target is GRPO's success after its first update with the same seed, plus {100 * self.target:.0f} "
                "points."
            )
        return f"The target is {self.target:.0%}."

    @property
    def head(self) -> tuple[str, ...]:
        """Head of the table."""
        goal = f"+{100 * self.target:.0f} points" if self.is_gain else f"{self.target:.0%}"
        return (
            "setting",
            "seeds",
            "success, mean of the updates",
            "difference",
            "last update",
            "difference of the last",
            f"episodes to {goal}, ratio",
            f"generated tokens to {goal}, ratio",
            f"CPU time to {goal}, ratio",
        )

    def targets(self, plain: Sequence[Run]) -> list[float]:
        """Held-out success to reach, for each seed of GRPO."""
        return [run.success[0] + self.target if self.is_gain else self.target for run in plain]


TASKS = {
    "support_desk": Task(
        config=CONFIG,
        iterations=12,
        heldout=96,
        target=0.8,
        variants={
            PLAIN: {},
            "credit by state": {"training": {"credit_assignment": "state"}},
            "credit by state, history 1": {"training": {"credit_assignment": "state", "state_history": 1}},
            "credit by state, history 2": {"training": {"credit_assignment": "state", "state_history": 2}},
            "curriculum": {"rollout": {"curriculum": {}}},
            "4 roots, 8 branches": {"rollout": {"group_size": 12, "trees": 4}},
            "4 roots, 8 branches, credit by state": {
                "rollout": {"group_size": 12, "trees": 4},
                "training": {"credit_assignment": "state"},
            },
            "own hint as teacher, a tenth": {
                "training": {"distillation": {"privileged_context": ["outcome"], "distillation_weight": 0.1}}
            },
            PLAIN_SUCCESS: {"reward": _SUCCESS},
            "MaxRL": {"reward": _SUCCESS, "training": {"algorithm": "maxrl"}},
        },
        heading="## Settings compared\n",
        what="The shipped model learns the support desk from the settings of the quickstart,",
    ),
    "family_relationships": Task(
        config="data/configs/family_relationships.yaml",
        iterations=60,
        heldout=250,
        target=0.15,
        is_gain=True,
        variants={
            PLAIN: {},
            "steps of 4 groups": {"training": {"groups_per_step": 4}},
            "steps of 2 groups": {"training": {"groups_per_step": 2}},
            "4 minibatches": {"training": {"groups_per_step": None, "num_mini_batches": 4}},
            "two passes": {"training": {"epochs": 2}},
            "two passes, steps of 4 groups": {"training": {"epochs": 2, "groups_per_step": 4}},
            "credit by state": {"training": {"credit_assignment": "state"}},
        },
        heading="## Settings compared on families of three people\n",
        what="The shipped model learns family_relationships from the settings of its config, its fine-tuning first,",
    ),
}


class Run(BaseModel):
    """One training: episodes and tokens generated, CPU seconds and held-out success after each update."""

    model_config = ConfigDict(frozen=True)

    commit: str
    episodes: list[int]
    tokens: list[int]
    cpu_s: list[float]
    success: list[float]

    @property
    def mean(self) -> float:
        """Mean of the held-out success over the updates."""
        return statistics.fmean(self.success)


def train(task: str, name: str, seed: int) -> None:
    """Train with the sections of a variant, and write the record."""
    settings.apply()
    torch.set_num_threads(1)
    of_task = TASKS[task]
    with TemporaryDirectory() as folder:
        settings_of_task = changed(
            load_config(ROOT / of_task.config).model_dump(),
            store=folder,
            seed=seed,
            rollout={"scenarios": SCENARIOS},
            training={"iterations": of_task.iterations},
        )
        config = PipelineConfig.model_validate(changed(settings_of_task, **of_task.variants[name]))
        curve = train_with_curve(config, heldout=of_task.heldout, clock=time.process_time)
        counts = _generated(Path(folder), of_task.iterations)
    episodes, tokens = (list(accumulate(column)) for column in zip(*counts, strict=True))
    run = Run(
        commit=commit(),
        episodes=episodes,
        tokens=tokens,
        cpu_s=curve.seconds,
        success=curve.success,
    )
    record = _record(task, name, seed)
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(run.model_dump_json(), encoding="utf-8")


def _record(task: str, name: str, seed: int) -> Path:
    return RECORDS / task / f"{name.replace(' ', '-')}-{seed}.json"


def _generated(folder: Path, iterations: int) -> list[tuple[int, int]]:
    """Episodes and generated tokens of each rollout. A branch counts without the tokens of its root."""
    episodes: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for path in folder.rglob("rollout*/**/*.parquet"):
        part = read_provenance(path)["part"]
        for episode in read_trajectories(path):
            episodes[part] += 1
            tokens[part] += int(episode.loss_mask[episode.own_start :].sum())
    return [(episodes[str(iteration)], tokens[str(iteration)]) for iteration in range(iterations)]


def row(name: str, runs: Sequence[Run], plain: Sequence[Run], targets: Sequence[float]) -> tuple[str, ...]:
    """A variant next to GRPO with the same seeds. GRPO itself has no differences."""
    means, last = [run.mean for run in runs], [run.success[-1] for run in runs]
    cells = (name, str(len(runs)), f"{statistics.fmean(means):.1%}")
    if runs is plain:
        return (*cells, "", f"{statistics.fmean(last):.1%}", "", *_reached(runs, targets))
    return (
        *cells,
        interval([run.mean - other.mean for run, other in zip(runs, plain, strict=True)]),
        f"{statistics.fmean(last):.1%}",
        interval([run.success[-1] - other.success[-1] for run, other in zip(runs, plain, strict=True)]),
        *(ratio_to_target(_cost(runs, measure, targets), _cost(plain, measure, targets)) for measure in MEASURES),
    )


def _cost(runs: Sequence[Run], measure: Measure, targets: Sequence[float]) -> list[float | None]:
    """Episodes, tokens or CPU seconds that each run took up to its target, or None if it did not reach the target."""
    places = [at_target(run.success, target) for run, target in zip(runs, targets, strict=True)]
    return [
        None if place is None else float(getattr(run, measure)[place]) for run, place in zip(runs, places, strict=True)
    ]


def _reached(runs: Sequence[Run], targets: Sequence[float]) -> tuple[str, ...]:
    """Episodes, tokens and CPU time of GRPO itself to the targets, as means."""
    costs = [_cost(runs, measure, targets) for measure in MEASURES]
    if missing := costs[0].count(None):
        return (f"not reached by {missing} of {len(runs)}",) * len(MEASURES)
    episodes, tokens, seconds = (statistics.fmean(filter(None, cost)) for cost in costs)
    return f"{episodes:,.0f}", f"{tokens:,.0f}", f"{seconds:.0f} s"


def table_rows(task: Task, runs: dict[str, list[Run]]) -> Iterator[tuple[str, ...]]:
    """A row for each variant, after the GRPO that it is compared with."""
    for name, of_variant in runs.items():
        plain = runs[PLAIN_SUCCESS if "reward" in task.variants[name] else PLAIN]
        yield row(name, of_variant, plain, task.targets(plain))


def main() -> None:
    """Train each variant with each seed, print the table, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("variants", nargs="*", help="GRPO and other settings of the task; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    options = parser.parse_args()
    task = TASKS[options.task]
    variants = options.variants or list(task.variants)
    if unknown := set(variants) - set(task.variants):
        parser.error(f"no setting {', '.join(sorted(unknown))}; there are {', '.join(task.variants)}")
    cores = len(os.sched_getaffinity(0))
    missing = [
        (options.task, name, seed)
        for seed, name in product(options.seeds, variants)
        if not _record(options.task, name, seed).is_file()
    ]
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for waiting in [pool.submit(train, *run) for run in missing]:
            waiting.result()
    runs = {
        name: [Run.model_validate_json(_record(options.task, name, seed).read_bytes()) for seed in options.seeds]
        for name in variants
    }
    table = Table(head=task.head, rows=tuple(table_rows(task, runs)))
    sys.stdout.write(table.markdown() + "\n")
    if not options.variants:
        commits = sorted({run.commit for of_variant in runs.values() for run in of_variant})
        seeds = " ".join(map(str, options.seeds))
        command = f"python -m tests.benchmarks.algorithms {options.task} --seeds {seeds}"
        replace_results(PAGE, task.heading, task.text(command, commits), table)


if __name__ == "__main__":
    main()
