"""A real model: triage with three seeds and two controls, the order desk after fine-tuning, and BANKING77.

The runs take hours, so that each is a command, and the page has those that are complete:

    python -m tests.benchmarks.real "triage, seed 2"       runs it, with its records in runs/real
    python -m tests.benchmarks real                        writes the page; what was not run here keeps its row
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pydantic import BaseModel

from grpo.config.pipeline import load_config
from grpo.errors import DataError
from grpo.evaluation.report import read_report
from grpo.evaluation.schema import Interval, ReportDocument, SliceMetrics
from grpo.rewards.learned.metrics import wilson_interval
from grpo_local.managed_process import free_port
from tests.benchmarks.measure import command_cost, environment_at
from tests.benchmarks.page import Findings, Table, commit, read
from tests.places import ROOT

CONFIGS = ROOT / "data" / "configs"
RECORDS = ROOT / "runs" / "real"
RUNS: dict[str, tuple[str, ...]] = {
    **{f"triage, seed {seed}": ("triage", f"seed={seed}") for seed in (1, 2, 3)},
    "triage, constant reward": ("triage", "reward=[{kind: constant, weight: 1.0}]"),
    "triage, negated reward, 6 iterations": (
        "triage",
        "reward=[{kind: task_completion, weight: -0.7}, {kind: checks, weight: -0.3}]",
        "training.iterations=6",
    ),
    "order desk": ("smollm2_desk",),
    "BANKING77, five teams": ("banking77_teams",),
    "BANKING77, 77 intents": ("banking77",),
}
"""Config of each run, and what is set over it."""
HEAD = ("run", "base", "after fine-tuning", "after GRPO", "verdict", "time", "peak memory", "commit")


class RunCost(BaseModel):
    """Time of a run's command, and peak memory of its process, which trains."""

    wall_s: float
    peak_mib: float
    one_thread: bool
    """It had one thread, because other work ran on the machine."""
    commit: str


def measure() -> Findings:
    """All runs, or the reason for their absence."""
    model = ROOT / load_config(CONFIGS / "triage.yaml").policy.model
    if not model.exists():
        return Findings(title="A real model", text=f"Not measured: {model.name} is not here; `make real` fetches it.")
    known = {row[0]: row for table in read()["real"].findings.tables for row in table.rows} if "real" in read() else {}
    return Findings(
        title="A real model",
        text=(
            "SmolLM2-135M-Instruct in float32, all weights trained. Success on held-out scenarios with its Wilson "
            "interval at 95 %, one episode a scenario: of the base, after fine-tuning on demonstrations, and after "
            "GRPO. The time is of the whole command, with the conversion of the model and the evaluations, without "
            "the download. A star marks runs that had one thread, because other work ran. A constant reward ends "
            "the run without a learning signal; a negated one must not help. The peak memory is that of the training "
            "process, without Prefect's server and MLflow."
        ),
        tables=(Table(head=HEAD, rows=tuple(_row(name, known.get(name)) for name in RUNS)),),
    )


def run(name: str, *, one_thread: bool) -> None:
    """Run one command, with records of its own, unless it was complete; one that failed goes on, and times add up."""
    config, *overrides = RUNS[name]
    records = RECORDS / name.replace(", ", "-").replace(" ", "_")
    spent = RunCost(wall_s=0.0, peak_mib=0.0, one_thread=one_thread, commit=commit())
    if (records / "cost.json").is_file():
        spent = RunCost.model_validate_json((records / "cost.json").read_bytes())
        if (records / "run" / "report.json").is_file():
            return
    records.mkdir(parents=True, exist_ok=True)
    environment = environment_at(records)
    environment |= {"PREFECT_SERVER_API_PORT": str(free_port())} | ({"OMP_NUM_THREADS": "1"} if one_thread else {})
    command = [sys.executable, "-m", "grpo_cli", "train", str(CONFIGS / f"{config}.yaml"), "--set", "name=run"]
    for override in overrides:
        command += ["--set", override]
    with (records / "log.txt").open("a") as log:
        of_command = command_cost(command, environment, log=log, check=False)
    cost = spent.model_copy(
        update={
            "wall_s": spent.wall_s + of_command.wall_s,
            "peak_mib": max(spent.peak_mib, of_command.peak_mib),
            "one_thread": spent.one_thread or one_thread,
        }
    )
    (records / "cost.json").write_text(cost.model_dump_json())


def _row(name: str, known: tuple[str, ...] | None) -> tuple[str, ...]:
    """Row of a run by its records, else the one that is known."""
    config = load_config(CONFIGS / f"{RUNS[name][0]}.yaml")
    missing = [path for source in config.scenarios.sources if (path := _published(source)) and not path.exists()]
    records = RECORDS / name.replace(", ", "-").replace(" ", "_")
    if not (records / "cost.json").is_file():
        absent = f"not measured: no data at {missing[0].relative_to(ROOT.parent)}" if missing else "not run yet"
        return known or (name, "–", "–", "–", absent, "–", "–", "–")
    spent = RunCost.model_validate_json((records / "cost.json").read_bytes())
    cost = (
        f"{spent.wall_s / 60:.1f} min{'*' if spent.one_thread else ''}",
        f"{spent.peak_mib:,.0f} MiB",
        spent.commit,
    )
    try:
        document: ReportDocument = read_report(records / "run" / "report.json")
    except DataError:
        return (name, "–", "–", "–", "no report", *cost)
    tuning, verdict = document.fine_tuning, document.decision.verdict
    if tuning is None:
        return (name, "–", "–", "–", f"{verdict}: {document.decision.reason}", *cost)
    return (name, *map(_success, (tuning.base, tuning.fine_tuned, tuning.candidate)), verdict, *cost)


def _published(source: object) -> Path | None:
    """Folder of published data, outside of the project."""
    path = getattr(source, "path", None)
    return (ROOT / path).resolve() if path is not None else None


def _success(part: SliceMetrics) -> str:
    """Share of successes with its Wilson interval, from one episode a scenario."""
    success: Interval | None = part.success
    if success is None:
        return "not verified"
    low, high = wilson_interval(success.mean * success.count, success.count)
    return f"{success.mean:.1%} [{low:.1%}, {high:.1%}]"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.real")
    parser.add_argument("name", choices=sorted(RUNS))
    parser.add_argument(
        "--one-thread", action="store_true", help="with one thread, because another run needs the other core"
    )
    arguments = parser.parse_args()
    run(arguments.name, one_thread=arguments.one_thread)
