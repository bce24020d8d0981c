"""Success over generated tokens and over CPU time, with each setting that could make learning need fewer of them.

    python -m tests.benchmarks.algorithms                                all settings, five seeds, into docs/tasks.md
    python -m tests.benchmarks.algorithms GRPO "credit by state" --seeds 1     some of them, only printed

The shipped model learns the support desk from the settings of the quickstart, each time with other sections, and the
held-out scenarios are played after each update. Records are in runs/algorithms, so a measurement that was interrupted
goes on. Each run has one thread, and as many run at once as there are cores.
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
from itertools import accumulate, product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict

from grpo.tables import read_provenance, read_trajectories
from grpo_local import settings
from tests.benchmarks import curves
from tests.benchmarks.curves import interval, ratio_to_target
from tests.benchmarks.page import Table, commit, here, replace_results
from tests.benchmarks.tasks import PAGE
from tests.places import ROOT

RECORDS = ROOT / "runs" / "algorithms"
TARGET = 0.8
"""Held-out success of the base is 0.3, and of a whole quickstart above 0.9."""
HELDOUT = 96
"""Held-out scenarios that are played after each update."""
ITERATIONS, SCENARIOS = 12, 32
PLAIN, PLAIN_SUCCESS = "GRPO", "GRPO, success only"
_SUCCESS = [{"kind": "task_completion", "weight": 1.0}]
VARIANTS: dict[str, dict[str, Any]] = {
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
}
HEADING = "## Settings compared\n"
TEXT = (
    "Written by `python -m tests.benchmarks.algorithms` ({here}). The shipped model learns the support desk from the "
    f"settings of the quickstart, {ITERATIONS} iterations of {SCENARIOS} scenarios with 8 episodes each, on one core. "
    f"After each update {HELDOUT} held-out scenarios are played. The mean of the updates is the area under the curve "
    f"of learning. {TARGET:.0%} is reached at the first update from which on success stays there for two updates. "
    "Ratios and differences are to GRPO with the same rewards and the same seeds: geometric means of the ratios, and "
    "Student's intervals at 95 % over the seeds. A ratio below 1 is less than GRPO takes. It is left out if a seed "
    "does not reach the target."
)
HEAD = (
    "setting",
    "seeds",
    "success, mean of the updates",
    "difference",
    "last update",
    "difference of the last",
    f"generated tokens to {TARGET:.0%}, ratio",
    f"CPU time to {TARGET:.0%}, ratio",
)


class Run(BaseModel):
    """One training: tokens generated, seconds of CPU time and held-out success after each update."""

    model_config = ConfigDict(frozen=True)

    commit: str
    tokens: list[int]
    cpu_s: list[float]
    success: list[float]

    @property
    def mean(self) -> float:
        """Mean of the held-out success over the updates."""
        return statistics.fmean(self.success)

    @property
    def at_target(self) -> int | None:
        """See `curves.at_target`."""
        return curves.at_target(self.success, TARGET)


def train(name: str, seed: int) -> None:
    """Train with the sections of a variant, and write the record."""
    settings.apply()
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        curve = curves.train(
            Path(folder),
            {"seed": seed, "rollout": {"scenarios": SCENARIOS}, "training": {"iterations": ITERATIONS}},
            VARIANTS[name],
            heldout=HELDOUT,
            clock=time.process_time,
        )
        tokens = list(accumulate(_generated(Path(folder))))
    run = Run(commit=commit(), tokens=tokens, cpu_s=curve.seconds, success=curve.success)
    record = _record(name, seed)
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(run.model_dump_json(), encoding="utf-8")


def _record(name: str, seed: int) -> Path:
    return RECORDS / f"{name.replace(' ', '-')}-{seed}.json"


def _generated(folder: Path) -> list[int]:
    """Tokens that were generated in the rollout of each iteration. A branch counts without those of its root."""
    tokens: Counter[str] = Counter()
    for path in folder.rglob("rollout*/**/*.parquet"):
        tokens[read_provenance(path)["part"]] += sum(
            int(episode.loss_mask[episode.own_start :].sum()) for episode in read_trajectories(path)
        )
    return [tokens[str(iteration)] for iteration in range(ITERATIONS)]


def row(name: str, runs: Sequence[Run], plain: Sequence[Run]) -> tuple[str, ...]:
    """A variant beside GRPO with the same seeds. GRPO itself has no differences."""
    means, last = [run.mean for run in runs], [run.success[-1] for run in runs]
    cells = (name, str(len(runs)), f"{statistics.fmean(means):.1%}")
    if runs is plain:
        return (*cells, "", f"{statistics.fmean(last):.1%}", "", *_reached(runs))
    return (
        *cells,
        interval([run.mean - other.mean for run, other in zip(runs, plain, strict=True)]),
        f"{statistics.fmean(last):.1%}",
        interval([run.success[-1] - other.success[-1] for run, other in zip(runs, plain, strict=True)]),
        _ratio(runs, plain, "tokens"),
        _ratio(runs, plain, "cpu_s"),
    )


def _reached(runs: Sequence[Run]) -> tuple[str, str]:
    """Tokens and CPU time of GRPO itself to the target, as means."""
    places = [run.at_target for run in runs]
    missing = sum(place is None for place in places)
    if missing:
        return (f"not reached by {missing} of {len(runs)}",) * 2
    at = [(run.tokens[place], run.cpu_s[place]) for run, place in zip(runs, places, strict=True) if place is not None]
    return f"{statistics.fmean(t for t, _ in at):,.0f}", f"{statistics.fmean(s for _, s in at):.0f} s"


def _ratio(runs: Sequence[Run], plain: Sequence[Run], measure: Literal["tokens", "cpu_s"]) -> str:
    """See `curves.ratio_to_target`."""
    ours, others = (
        [None if run.at_target is None else getattr(run, measure)[run.at_target] for run in side]
        for side in (runs, plain)
    )
    return ratio_to_target(ours, others)


def table_rows(runs: dict[str, list[Run]]) -> Iterator[tuple[str, ...]]:
    """A row for each variant, after the GRPO that it is compared with."""
    for name, of_variant in runs.items():
        same_reward = PLAIN_SUCCESS if "reward" in VARIANTS[name] else PLAIN
        yield row(name, of_variant, runs[same_reward])


def main() -> None:
    """Train each variant with each seed, print the table, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="*", help=f"GRPO and others of: {', '.join(VARIANTS)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    options = parser.parse_args()
    variants = options.variants or list(VARIANTS)
    if unknown := set(variants) - set(VARIANTS):
        parser.error(f"no setting {', '.join(sorted(unknown))}; there are {', '.join(VARIANTS)}")
    cores = len(os.sched_getaffinity(0))
    missing = [(name, seed) for seed, name in product(options.seeds, variants) if not _record(name, seed).is_file()]
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for waiting in [pool.submit(train, *run) for run in missing]:
            waiting.result()
    runs = {
        name: [Run.model_validate_json(_record(name, seed).read_bytes()) for seed in options.seeds] for name in variants
    }
    table = Table(head=HEAD, rows=tuple(table_rows(runs)))
    sys.stdout.write(table.markdown() + "\n")
    if not options.variants:
        replace_results(PAGE, HEADING, TEXT.format(here=here()), table)


if __name__ == "__main__":
    main()
