"""Public tasks: `make tasks` trains on each family and writes the results into docs/tasks.md.

    python -m tests.benchmarks.tasks                     one seed of each family
    python -m tests.benchmarks.tasks --seeds 1 2 3       three
    python -m tests.benchmarks.tasks --controls babyai   a constant and a negated reward of one family as well

Records are in runs/tasks. A run that is complete there is not repeated, and one that was interrupted or failed goes on.
Runs that are not named keep their rows on the page.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from pydantic import BaseModel
from scipy import stats

from grpo.evaluation.report import read_report
from grpo.evaluation.schema import Interval, PairedComparison, ReportDocument
from grpo_local.managed_process import free_port
from tests.benchmarks.measure import command_cost, environment_at
from tests.benchmarks.page import Table, commit, here, replace_results
from tests.places import ROOT

RECORDS = ROOT / "runs" / "tasks"
PAGE = ROOT / "docs" / "tasks.md"
FAMILIES = ("babyai", "family_relationships", "family_relationships_smollm2", "treasure_hunter")
CONTROLS = {
    "constant reward": "reward=[{kind: constant, weight: 1.0}]",
    "negated reward": "reward=[{kind: environment, weight: -1.0}]",
}
_HEADING = "## Results\n"
_GAIN = 4
"""Column of the gain of GRPO over SFT."""
Row = tuple[str, ...]
TEXT = (
    "Written by `make tasks` ({here}). The last column names the machine and the commit of each run. Success on "
    "held-out scenarios, one episode each, with intervals at 95 %: of the base model, after fine-tuning on "
    "demonstrations, and after GRPO. The difference is paired by scenario. A level of which no scenario is "
    "trained on is out of distribution (OOD)."
)


class RunTime(BaseModel):
    """Times of a run's command over all attempts, and the commit and machine of the last one."""

    wall_s: float
    cpu_s: float
    commit: str
    machine: str


def run(family: str, seed: int, control: str | None = None) -> tuple[ReportDocument, RunTime]:
    """Train with records of its own, unless the run is complete. Raises `RuntimeError` if it ended without a report."""
    records = RECORDS / "-".join([family, str(seed), *(control or "").split()])
    spent, report = RunTime(wall_s=0.0, cpu_s=0.0, commit=commit(), machine=_machine()), records / "run" / "report.json"
    if (records / "time.json").is_file():
        spent = RunTime.model_validate_json((records / "time.json").read_bytes())
    if not report.is_file() or read_report(report).decision.verdict == "failed":
        records.mkdir(parents=True, exist_ok=True)
        environment = environment_at(records) | {"PREFECT_SERVER_API_PORT": str(free_port())}
        command = [sys.executable, "-m", "grpo_cli", "train", f"data/configs/{family}.yaml"]
        for setting in ("name=run", f"seed={seed}", *([CONTROLS[control]] if control else [])):
            command += ["--set", setting]
        with (records / "log.txt").open("a") as log:
            cost = command_cost(command, environment, log=log, check=False)
        spent = RunTime(
            wall_s=spent.wall_s + cost.wall_s,
            cpu_s=spent.cpu_s + cost.cpu_s,
            commit=commit(),
            machine=_machine(),
        )
        (records / "time.json").write_text(spent.model_dump_json())
    if not report.is_file():
        raise RuntimeError(f"{family} with seed {seed} ended without a report; see {records / 'log.txt'}")
    return read_report(report), spent


def rows(name: str, document: ReportDocument, spent: RunTime) -> Iterator[Row]:
    """A row for all held-out scenarios, then one for each category."""
    tuning, evaluation = document.fine_tuning, document.evaluation
    if tuning is None or evaluation is None:
        yield (name, "–", "–", "–", "–", f"{document.decision.verdict}: {document.decision.reason}", _minutes(spent))
        return
    verdict = document.decision.verdict
    yield (name, _share(tuning.base.success), *_compared(evaluation.overall), verdict, _minutes(spent))
    for part in evaluation.by_category:
        yield (f"{name}: {part.name}", "", *_compared(part), "", "")


def pooled(family: str, rows: Sequence[Row]) -> Row:
    """Mean gain of GRPO over the seeds of these rows, with Student's interval over the seeds."""
    gains = _gains(rows)
    mean, error = statistics.mean(gains), statistics.stdev(gains) / len(gains) ** 0.5
    width = float(stats.t.ppf(0.975, len(gains) - 1)) * error
    return (
        f"{family}, {len(gains)} seeds",
        "",
        "",
        "",
        f"{mean:+.3f} [{mean - width:+.3f}, {mean + width:+.3f}]",
        "",
        "",
    )


def kept_rows(page: Path = PAGE) -> dict[str, dict[str, list[Row]]]:
    """Rows of the results on the page, by family and run, without the rows that pool seeds."""
    section = page.read_text(encoding="utf-8").partition(_HEADING)[2].partition("\n## ")[0]
    rows = [tuple(line[2:-2].split(" | ")) for line in section.splitlines() if line.startswith("| ")][2:]
    kept: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        run = row[0].partition(":")[0]
        if not run.endswith(" seeds"):
            kept.setdefault(run.partition(",")[0], {}).setdefault(run, []).append(row)
    return kept


def family_rows(family: str, runs: Mapping[str, Sequence[Row]]) -> Iterator[Row]:
    """Rows of a family: of each seed, of all seeds together, and of the controls."""
    beginning = f"{family}, seed "
    seeds = sorted((run for run in runs if run.startswith(beginning)), key=lambda run: int(run.removeprefix(beginning)))
    for run in seeds:
        yield from runs[run]
    of_seeds = [row for run in seeds for row in runs[run]]
    if len(_gains(of_seeds)) > 1:
        yield pooled(family, of_seeds)
    for run in sorted(runs.keys() - seeds):
        yield from runs[run]


def _gains(rows: Sequence[Row]) -> list[float]:
    """Gains of the runs that have one, over all held-out scenarios."""
    return [float(row[_GAIN].split()[0]) for row in rows if ":" not in row[0] and row[_GAIN] != "–"]


def _compared(part: PairedComparison) -> tuple[str, str, str]:
    difference = part.difference
    gain = f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    return _share(part.champion), _share(part.candidate), gain


def _share(value: Interval | None) -> str:
    return "not verified" if value is None else f"{value.mean:.1%} [{value.low:.1%}, {value.high:.1%}]"


def _machine() -> str:
    """The GPU, else the number of cores."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} cores"


def _minutes(spent: RunTime) -> str:
    return f"{spent.wall_s / 60:.1f} min ({spent.cpu_s / 60:.1f} of CPU time), {spent.machine}, {spent.commit}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print each row when it is there, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.tasks")
    parser.add_argument("families", nargs="*", default=FAMILIES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--controls", action="store_true", help="train with a constant and a negated reward as well")
    given = parser.parse_args(arguments)
    runs = kept_rows()
    for family in given.families:
        of_family = runs.setdefault(family, {})
        for seed in given.seeds:
            name = f"{family}, seed {seed}"
            of_family[name] = list(rows(name, *run(family, seed)))
        for control in CONTROLS if given.controls else ():
            name = f"{family}, {control}"
            of_family[name] = list(rows(name, *run(family, given.seeds[0], control)))
    table = Table(
        head=("run", "base", "after SFT", "after GRPO", "GRPO − SFT", "verdict", "time, machine, commit"),
        rows=tuple(row for family in FAMILIES for row in family_rows(family, runs.get(family, {}))),
    )
    sys.stdout.write(table.markdown() + "\n")
    replace_results(PAGE, _HEADING, TEXT.format(here=here()), table)


if __name__ == "__main__":
    main()
