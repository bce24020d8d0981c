"""Kill -9 at every stage: the same command goes on, and ends with the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from grpo.evaluation.report import read_report
from tests.e2e.served import own_environment
from tests.places import ROOT

STAGES = ("ingest", "validate", "split", "load_base", "rollout", "score", "train", "evaluate", "gate", "register")


def _command(config: Path) -> list[str]:
    return [sys.executable, "-m", "grpo_flows.cli", "train", str(config)]


def _run_until(stage: str, config: Path, environment: dict[str, str]) -> bool:
    """Start the run and kill it when `stage` begins; False if it ended before."""
    with subprocess.Popen(
        _command(config), env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(f"{stage} 0/"):
                os.kill(process.pid, signal.SIGKILL)
                return True
    return False


def _finish(config: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        _command(config), env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode in (0, 3), done.stdout + done.stderr  # promoted or refused, and the same both times


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
