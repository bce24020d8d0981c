"""The default run: from empty databases, the same again, where the time went, and the race to 85 % against TRL."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from grpo.evaluation.report import read_report
from grpo.evaluation.schema import ReportDocument
from grpo_flows.local import settings
from tests.benchmarks.desk import CONFIG, quickstart
from tests.benchmarks.measure import apart, command_cost
from tests.benchmarks.page import Findings, Table, Versus
from tests.benchmarks.race import TARGET, Reached, our_way, their_way

PATIENCE = 3.5
"""TRL is stopped after so many times as long as our run took."""


def measure() -> Findings:
    """Two runs of the command, then TRL's."""
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        environment = {**os.environ, **settings.offline_variables(), **settings.home_variables(home)}
        environment.pop("PREFECT_API_URL", None)
        command = [sys.executable, "-m", "grpo_flows.cli", "train", CONFIG, "--set", f"store={home}/artifacts"]
        command_cost([sys.executable, "-m", "grpo_flows.cli", "migrate"], environment)
        began = time.time()
        for label in ("default run, nothing cached", "the same again"):
            cost = command_cost(command, environment)
            rows.append(
                (label, f"{cost.wall_s:.1f} s, peak memory {cost.peak_tree_mib:,.0f} MiB with Prefect's server")
            )
            if len(rows) == 1:
                document = read_report(home / "quickstart" / "report.json")
        ours = apart(our_way, quickstart(), home / "artifacts" / "checkpoint", began=began)
    rows += _success(document)
    theirs = apart(their_way, quickstart(), PATIENCE * ours[-1].seconds)
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
            _way(ours, theirs),
        ),
        gist=(_verdict(ours[-1], theirs[-1]),),
    )


def _success(document: ReportDocument) -> list[tuple[str, ...]]:
    assert document.evaluation is not None
    overall = document.evaluation.overall
    told = (("before", overall.champion), ("after", overall.candidate))
    rows: list[tuple[str, ...]] = [
        (f"held-out success {name}", f"{side.mean:.1%} [{side.low:.1%}, {side.high:.1%}]") for name, side in told
    ]
    return [*rows, ("orchestration share of the default run", f"{document.orchestration_share:.1%}")]


def _way(ours: list[Reached], theirs: list[Reached]) -> Table:
    def cell(way: list[Reached], index: int) -> str:
        return f"{way[index].seconds:.0f} s: {way[index].success:.1%}" if index < len(way) else ""

    rows = [(str(k + 1), cell(ours, k), cell(theirs, k)) for k in range(max(len(ours), len(theirs)))]
    return Table(head=("iteration", "ours: held-out success", "TRL: held-out success"), rows=tuple(rows))


def _verdict(ours: Reached, theirs: Reached) -> Versus:
    """Ratio to TRL's time; a lower bound where TRL did not arrive."""
    if ours.success < TARGET:
        raise SystemExit(
            f"our own run did not reach {TARGET:.0%}: {ours.success:.1%} after {ours.iteration} iterations"
        )
    arrived = theirs.success >= TARGET
    told = f"{theirs.seconds:.0f} s" if arrived else f"not reached in {theirs.seconds:.0f} s ({theirs.success:.0%})"
    return Versus(
        measure=f"time to {TARGET:.0%} held-out success" + ("" if arrived else ", at least"),
        ours=f"{ours.seconds:.0f} s, whole pipeline",
        against=f"TRL {told}",
        ratio=theirs.seconds / ours.seconds,
        bound=3,
    )
