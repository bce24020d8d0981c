"""Learning and time with slow tools: rollouts in stages, and continuous ones with each bound on their staleness.

    python -m tests.benchmarks.continuous                                     five seeds, written into docs/scale.md
    python -m tests.benchmarks.continuous --max-staleness 0 4 --seeds 1       some of them, only printed

The shipped model learns the support desk from the settings of the quickstart, with half of its scenarios and tools
that take two seconds. Each run is timed up to each of its updates. The held-out scenarios are played afterwards, with
fast tools. Records are in runs/continuous, so a measurement that was interrupted goes on. The runs are timed, so one
follows the other.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import product
from tempfile import TemporaryDirectory

from pydantic import BaseModel, ConfigDict

from grpo.config.pipeline import PipelineConfig
from grpo_local import settings
from tests.benchmarks.curves import at_target, interval, ratio_to_target, train
from tests.benchmarks.desk import quickstart
from tests.benchmarks.measure import use_all_cores
from tests.benchmarks.page import Table, here, replace_results
from tests.doubles import changed
from tests.places import ROOT

PAGE, RECORDS = ROOT / "docs" / "scale.md", ROOT / "runs" / "continuous"
TARGET = 0.7
"""Held-out success of the base is 0.3."""
HELDOUT = 96
"""Held-out scenarios that are played after each update."""
BOUNDS, ITERATIONS, SCENARIOS, DELAY_S = (0, 1, 4, 8), 16, 16, 2.0
HEADING = "## Learning with stale tokens\n"
TEXT = (
    "Written by `python -m tests.benchmarks.continuous` ({here}). The shipped model learns the support desk from the "
    f"settings of the quickstart, {ITERATIONS} iterations of {SCENARIOS} scenarios with 8 episodes each, and each call "
    f"of a tool takes {DELAY_S:g} s. `max_staleness` 0 is the mode `stages`. After each update {HELDOUT} held-out "
    "scenarios are played. Differences of success and ratios of time are to `max_staleness` 0 with the same seeds, "
    "with Student's intervals at 95 % over the seeds. The last success is the mean of the last three updates. "
    f"{TARGET:.0%} counts as reached at the first of two consecutive updates at or above it. Staleness is the mean "
    "over the tokens, and both busy is the share of the time in which episodes and an update run at the same time."
)
HEAD = (
    "max_staleness",
    "seeds",
    "success, mean of the updates",
    "difference",
    "last success",
    "difference",
    "wall time",
    "ratio",
    f"time to {TARGET:.0%}, ratio",
    "staleness",
    "dropped episodes",
    "both busy",
)


class Run(BaseModel):
    """One training: wall time and held-out success after each update, and what the continuous rollout did."""

    model_config = ConfigDict(frozen=True)

    seconds: list[float]
    success: list[float]
    staleness: float
    dropped: int
    busy: float | None

    @property
    def mean(self) -> float:
        """Mean of the held-out success over the updates."""
        return statistics.fmean(self.success)

    @property
    def last(self) -> float:
        """Mean of the held-out success after the last three updates."""
        return statistics.fmean(self.success[-3:])

    @property
    def to_target(self) -> float | None:
        """Wall time to the target. None if it is not reached."""
        place = at_target(self.success, TARGET)
        return None if place is None else self.seconds[place]


def measure(max_staleness: int, seed: int) -> Run:
    """Train in stages if `max_staleness` is 0, and otherwise with a continuous rollout, unless its record is there."""
    record = RECORDS / f"{max_staleness}-{seed}.json"
    if record.is_file():
        return Run.model_validate_json(record.read_bytes())
    mode = {"mode": "continuous", "max_staleness": max_staleness} if max_staleness else {}
    desk = {"kind": "python", "object": "tests.benchmarks.slow_desk:SlowDesk", "options": {"delay_s": DELAY_S}}
    with TemporaryDirectory() as folder:
        sections = {**quickstart().model_dump(), "store": folder, "seed": seed, "environment": desk}
        config = changed(
            sections,
            rollout={"scenarios": SCENARIOS, "group_size": 8, **mode},
            training={"iterations": ITERATIONS, "importance_sampling_cap": 2.0, "max_mismatch_kl": 0.2},
        )
        curve = train(
            PipelineConfig.model_validate(config),
            heldout=HELDOUT,
            clock=time.perf_counter,
            heldout_environment=quickstart().environment,
        )
    busy = [iteration.busy_share for iteration in curve.iterations if iteration.busy_share is not None]
    run = Run(
        seconds=curve.seconds,
        success=curve.success,
        staleness=statistics.fmean(iteration.staleness_mean or 0.0 for iteration in curve.iterations),
        dropped=sum(iteration.dropped_episodes or 0 for iteration in curve.iterations),
        busy=statistics.fmean(busy) if busy else None,
    )
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(run.model_dump_json(), encoding="utf-8")
    return run


def row(max_staleness: int, runs: Sequence[Run], stages: Sequence[Run]) -> tuple[str, ...]:
    """A bound next to the stages with the same seeds, which have no differences."""
    pairs, same = list(zip(runs, stages, strict=True)), runs is stages
    reached = [run.to_target for run in runs]
    busy = [run.busy for run in runs if run.busy is not None]
    return (
        str(max_staleness),
        str(len(runs)),
        f"{statistics.fmean(run.mean for run in runs):.1%}",
        "" if same else interval([run.mean - other.mean for run, other in pairs]),
        f"{statistics.fmean(run.last for run in runs):.1%}",
        "" if same else interval([run.last - other.last for run, other in pairs]),
        f"{statistics.fmean(run.seconds[-1] for run in runs):.0f} s",
        "" if same else ratio_to_target([run.seconds[-1] for run in runs], [run.seconds[-1] for run in stages]),
        "" if same else ratio_to_target(reached, [run.to_target for run in stages]),
        f"{statistics.fmean(run.staleness for run in runs):.2f}",
        str(sum(run.dropped for run in runs)),
        f"{statistics.fmean(busy):.0%}" if busy else "–",
    )


def main() -> None:
    """Measure each bound with each seed, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-staleness", type=int, nargs="+", default=BOUNDS, help="bounds, 0 among them")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    options = parser.parse_args()
    settings.apply()
    use_all_cores()
    runs: dict[int, list[Run]] = {bound: [] for bound in options.max_staleness}
    for seed, bound in product(options.seeds, options.max_staleness):
        runs[bound].append(measure(bound, seed))
    table = Table(head=HEAD, rows=tuple(row(bound, runs[bound], runs[0]) for bound in runs))
    sys.stdout.write(table.markdown() + "\n")
    if tuple(options.max_staleness) == BOUNDS and len(options.seeds) > 1:
        replace_results(PAGE, HEADING, TEXT.format(here=here()), table)


if __name__ == "__main__":
    main()
