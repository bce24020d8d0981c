"""The default run: from empty databases, the same again, where the time went, and the race to 85 % against TRL."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from grpo.evaluation.report import read_report
from grpo.evaluation.schema import ReportDocument
from tests.benchmarks.desk import CONFIG, MODEL, quickstart
from tests.benchmarks.measure import apart, command_cost, environment_at
from tests.benchmarks.page import Findings, Table
from tests.benchmarks.race import Race, curve_table, our_curve, trl_curve, verdict

TARGET = 0.85
PATIENCE = 3.5
"""Time limit of TRL's run, as a multiple of the time that ours took to the target."""


def measure() -> Findings:
    """Two runs of the command, then TRL's."""
    rows: list[tuple[str, ...]] = []
    race = Race(config=quickstart(), model=MODEL, target=TARGET)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        environment = environment_at(home)
        command = [sys.executable, "-m", "grpo_cli", "train", CONFIG, "--set", f"store={home}/artifacts"]
        command += ["--set", "save_total_limit=null"]  # the race looks at all checkpoints
        command_cost([sys.executable, "-m", "grpo_cli", "migrate"], environment)
        began = time.time()
        for label in ("default run, nothing cached", "the same again"):
            cost = command_cost(command, environment)
            rows.append(
                (label, f"{cost.wall_s:.1f} s, peak memory {cost.peak_tree_mib:,.0f} MiB with Prefect's server")
            )
            if len(rows) == 1:
                of_run = cost
                document = read_report(home / "quickstart" / "report.json")
        ours = apart(our_curve, race, home / "artifacts" / "checkpoint", began=began, cost=of_run)
    rows += _success(document)
    theirs = apart(trl_curve, race, PATIENCE * ours[-1].seconds)
    stages = [(s.name, str(s.runs), f"{s.compute_s:.2f}", f"{s.wall_s:.2f}") for s in document.stages]
    return Findings(
        title="The default run",
        text=(
            f"`grpo train {CONFIG}` with its own server. Held-out success is that of the run's evaluation. The "
            f"race ends at {TARGET:.0%}: our clock runs from the command's start to the moment at which the checkpoint "
            "is written; TRL's GRPOTrainer, in one process, has the same model, scenarios, environment, "
            "reward, group size, "
            "optimizer steps per iteration and learning rates. Its `environment_factory` ends an episode at the first "
            "turn without a tool call, so a customer who must be asked for the order number is played through "
            "`rollout_func`, with left-padded `generate` for the turns. Evaluation time is excluded for both."
        ),
        tables=(
            Table(head=("measure", "value"), rows=tuple(rows)),
            Table(head=("stage", "runs", "compute s", "wall s"), rows=tuple(stages)),
            curve_table(race, ours, theirs),
        ),
        gist=(verdict(race, ours[-1], theirs[-1], measure=f"time to {TARGET:.0%} held-out success", bound=3),),
    )


def _success(document: ReportDocument) -> list[tuple[str, ...]]:
    assert document.evaluation is not None
    overall = document.evaluation.overall
    told = (("before", overall.champion), ("after", overall.candidate))
    rows: list[tuple[str, ...]] = [
        (f"held-out success {name}", f"{side.mean:.1%} [{side.low:.1%}, {side.high:.1%}]") for name, side in told
    ]
    return [*rows, ("orchestration share of the default run", f"{document.orchestration_share:.1%}")]
