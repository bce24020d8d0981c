"""Kill -9 at every stage: the same command goes on, and ends with the same bits."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import yaml

from grpo.evaluation.report import read_report
from tests.e2e.commands import start
from tests.e2e.served import own_environment

STAGES = ("ingest", "validate", "split", "load_base", "rollout", "score", "train", "evaluate", "gate", "register")


def _run_until(stage: str, config: Path, environment: dict[str, str]) -> bool:
    """Start the run and kill it when `stage` begins; False if it ended before."""
    debug = {**environment, "GRPO_DEBUG": "1"}  # a line when a stage begins
    command = start("train", str(config), environment=debug, output=config.with_suffix(".txt"))
    for line in command.lines():
        if line.startswith(f"{stage} 0/"):
            command.process.kill()
            command.process.join()
            return command.process.exitcode == -signal.SIGKILL
    return False


def _finish(config: Path, environment: dict[str, str]) -> None:
    code, printed = start("train", str(config), environment=environment, output=config.with_suffix(".txt")).end()
    assert code in (0, 3), printed  # promoted or refused, and the same both times


@pytest.mark.e2e
@pytest.mark.usefixtures("server")
def test_a_run_killed_at_every_stage_ends_with_the_same_weights(
    desk_config: dict[str, object], tmp_path: Path, server: str
):
    """Ten kills, then the rest: candidate, decision and numbers are those of an undisturbed run."""
    reports = []
    for label in ("killed", "whole"):
        home = tmp_path / label
        config = tmp_path / f"{label}.yaml"
        plan = {**desk_config, "store": str(home / "store")}
        config.write_text(yaml.safe_dump(plan))
        environment = own_environment(home, server)
        if label == "killed":
            for stage in STAGES:
                assert _run_until(stage, config, environment), f"{stage} never began"
        _finish(config, environment)
        reports.append(read_report(home / "short" / "report.json"))
    killed, whole = reports
    assert killed.lineage.candidate_policy == whole.lineage.candidate_policy
    assert killed.decision == whole.decision
    assert killed.evaluation == whole.evaluation
    hits = {stage.name: stage.cached for stage in killed.stages}
    assert hits["train"] == 2, "finished stages are not computed again"
