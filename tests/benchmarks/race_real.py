"""The race with a real model against TRL: from the same fine-tuned SmolLM2 to 80 % held-out success on triage."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.benchmarks.measure import apart
from tests.benchmarks.page import Findings, Table
from tests.benchmarks.race import CurvePoint, Race, curve_table, our_run, trl_curve, verdict
from tests.benchmarks.triage import fine_tuned, triage_config
from tests.places import ROOT

TARGET = 0.8
SEEDS = (1, 2, 3)
"""A single seed says little: ours reached the target after four to eight iterations."""
PATIENCE = 5.5
"""Time limit of each of TRL's runs, as a multiple of the median of ours, so that a stopped run
bounds the median from below."""
TRL_ROWS = 4
"""Episodes in one of TRL's training passes in float32; 2 to 16 take 30 to 40 s a step, bfloat16 44."""
SAMPLES = 4
"""Evaluation episodes per held-out scenario. With the config's one, 120 in all, the standard error is 3.7 points, as
much as an iteration gains."""
TITLE = "Time to a success rate with a real model"


def measure() -> Findings:
    """Our command from its start with each seed, then TRL's trainer with each; the medians are compared."""
    config = triage_config()
    if not (ROOT / config.policy.model).exists():
        return Findings(title=TITLE, text="Not measured: `make real` fetches the model.")
    with tempfile.TemporaryDirectory() as folder:
        apart(_write_start, Path(folder))
        evaluation = config.evaluation.model_copy(update={"samples": SAMPLES})
        races = [
            Race(
                config=config.model_copy(update={"seed": seed, "evaluation": evaluation}),
                model=Path(folder) / "start",
                target=TARGET,
                rows=TRL_ROWS,
            )
            for seed in SEEDS
        ]
        ours = [our_run(race, "triage") for race in races]
        limit_s = PATIENCE * median(curve[-1] for curve in ours).seconds
        theirs = [apart(trl_curve, race, limit_s) for race in races]
    tables = [curve_table(*of_seed) for of_seed in zip(races, ours, theirs, strict=True)]
    rows = [(str(seed), *row) for seed, table in zip(SEEDS, tables, strict=True) for row in table.rows]
    ends = median(curve[-1] for curve in ours), median(curve[-1] for curve in theirs)
    return Findings(
        title=TITLE,
        text=(
            "`grpo train data/configs/triage.yaml` with its own server, from SmolLM2-135M-Instruct after fine-tuning, "
            "in float32: its clock runs from the command's start to the moment at which the checkpoint is written. "
            "TRL's GRPOTrainer, in one process, has the same policy, scenarios, environment, reward, group size, "
            f"optimizer steps per iteration and learning rates, {TRL_ROWS} episodes in a training pass in float32, its "
            "fastest setting, and `rollout_func` with left-padded `generate` of "
            f"{races[0].conversations} conversations. It writes nothing, and is stopped after {PATIENCE:g} times our "
            f"median. Policies play {SAMPLES} episodes of each held-out scenario; evaluation time is excluded for "
            "both. The medians of the seeds are compared."
        ),
        tables=(Table(head=("seed", *tables[0].head), rows=tuple(rows)),),
        gist=(verdict(races[0], *ends, measure=f"time to {TARGET:.0%} held-out success, 135 M model", bound=5),),
    )


def median(ends: Iterable[CurvePoint]) -> CurvePoint:
    """Median of the last points of learning curves by time; runs that did not reach the target are sorted last.

    Runs of TRL are stopped at the same time, so that a median that did not arrive has a time that is a lower bound.
    """
    ordered = sorted(ends, key=lambda end: (end.success < TARGET, end.seconds))
    return ordered[len(ordered) // 2]


def _write_start(folder: Path) -> None:
    fine_tuned(triage_config(), folder)
