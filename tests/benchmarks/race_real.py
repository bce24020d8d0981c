"""The race with a real model: triage from the same fine-tuned SmolLM2 to 80 % held-out success, against TRL."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.measure import apart, command_cost, environment_at
from tests.benchmarks.page import Findings
from tests.benchmarks.race import ROWS, Race, curve_table, our_curve, trl_curve, verdict
from tests.benchmarks.triage import fine_tuned, triage_config
from tests.places import ROOT

TARGET = 0.8
PATIENCE = 5.5
"""Time limit of TRL's run, as a multiple of the time that ours took to the target."""
TRL_ROWS = 4
"""Episodes in one of TRL's training passes in float32; 2 to 16 take 30 to 40 s a step, bfloat16 44."""
SAMPLES = 4
"""Evaluation episodes per held-out scenario. With the config's one, 120 in all, the standard error is 3.7 points, as
much as an iteration gains."""
TITLE = "Time to a success rate with a real model"


def measure() -> Findings:
    """Our command from its start, then TRL's trainer."""
    config = triage_config()
    if not (ROOT / config.policy.model).exists():
        return Findings(title=TITLE, text="Not measured: `make real` fetches the model.")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        apart(_write_start, home)
        evaluation = config.evaluation.model_copy(update={"samples": SAMPLES})
        race = Race(
            config=config.model_copy(update={"evaluation": evaluation}),
            model=home / "start",
            target=TARGET,
            rows=TRL_ROWS,
        )
        environment = environment_at(home)
        command = [sys.executable, "-m", "grpo_flows.cli", "train", "data/configs/triage.yaml"]
        for setting in (f"policy.model={race.model}", "sft=null", "save_total_limit=null", f"store={home}/artifacts"):
            command += ["--set", setting]
        command_cost([sys.executable, "-m", "grpo_flows.cli", "migrate"], environment)
        began = time.time()
        command_cost(command, environment)
        ours = apart(our_curve, race, home / "artifacts" / "checkpoint", began=began)
        theirs = apart(trl_curve, race, PATIENCE * ours[-1].seconds)
    return Findings(
        title=TITLE,
        text=(
            "`grpo train data/configs/triage.yaml` with its own server, from SmolLM2-135M-Instruct after fine-tuning, "
            "in float32: its clock runs from the command's start to the moment at which the checkpoint is written. "
            "TRL's GRPOTrainer, in one process, has the same policy, scenarios, environment, reward, group size, "
            f"optimizer steps per iteration and learning rates, {TRL_ROWS} episodes in a training pass in float32, its "
            f"fastest setting, and `rollout_func` with left-padded `generate` of {ROWS} conversations. It writes "
            f"nothing, and is stopped after {PATIENCE:g} times as long. Policies are evaluated by {SAMPLES} episodes "
            "of each held-out scenario; evaluation time is excluded for both."
        ),
        tables=(curve_table(ours, theirs),),
        gist=(
            verdict(race, ours[-1], theirs[-1], measure=f"time to {TARGET:.0%} held-out success, 135 M model", bound=5),
        ),
    )


def _write_start(folder: Path) -> None:
    fine_tuned(triage_config(), folder)
