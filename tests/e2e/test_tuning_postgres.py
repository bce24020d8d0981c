"""A study on PostgreSQL: shared by processes, continued after a kill -9 and after an outage of the database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

from grpo.tuning.study_summary import summarize_study
from tests.e2e.postgres import Cluster, postgres
from tests.places import ROOT

pytestmark = pytest.mark.e2e

SEARCHER = textwrap.dedent("""
    import sys, time
    from pathlib import Path
    from grpo.notebook.config import TrainingConfig
    from grpo.config.tuning import HPOConfig
    from grpo.storage.locks import file_lock
    from grpo.tuning.storage import open_storage
    from grpo.tuning.study import IntermediateEvaluation, open_study, search

    url, lock, pause = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    space = {"beta": {"type": "uniform", "low": 0.0, "high": 1.0}}
    plan = HPOConfig.model_validate({"search_space": space, "n_trials": 6, "intermediate_evals": 2, "pruning": False})

    def runner(number, values):
        print("begun", number, flush=True)
        for look in (1, 2):
            time.sleep(pause)
            yield IntermediateEvaluation(reward=look * values["beta"])

    storage = open_storage(url, heartbeat_s=1)
    with file_lock(lock):
        study = open_study(plan, plan.search_space, TrainingConfig(), name="s", storage=storage)
    search(study, plan, plan.search_space, runner, storage=storage, turn=file_lock(lock))
""")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One PostgreSQL for this file."""
    with postgres(durable=True) as running:
        yield running


def searcher(url: str, folder: Path, pause_s: float) -> subprocess.Popen[str]:
    told = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SEARCHER, url, str(folder / "turn.lock"), str(pause_s)]
    return subprocess.Popen(command, env=told, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_two_processes_share_a_study_and_a_killed_ones_trial_is_tried_again(cluster: Cluster, tmp_path: Path):
    """One is killed with -9; two others end the study: six trials, and the dead one, whose values came again."""
    url = cluster.database("studies")
    with searcher(url, tmp_path, 600.0) as doomed:
        assert doomed.stdout is not None
        assert doomed.stdout.readline() == "begun 0\n"
        doomed.send_signal(signal.SIGKILL)
    with searcher(url, tmp_path, 0.05) as one, searcher(url, tmp_path, 0.05) as other:
        printed = [process.communicate(timeout=240)[0] for process in (one, other)]
        assert (one.returncode, other.returncode) == (0, 0)
    assert all(printed), "both had work"
    found = summarize_study(optuna.load_study(study_name="s", storage=url))
    assert found.trials[0].state == "crashed"
    assert (found.ended, found.count("complete")) == (6, 6)
    assert [trial.params for trial in found.trials].count(found.trials[0].params) == 2
    assert found.best_reward == 2 * max(float(trial.params["beta"]) for trial in found.trials)  # type: ignore[arg-type]


def test_a_database_that_is_away_for_longer_than_the_grace_period_costs_no_trial(cluster: Cluster, tmp_path: Path):
    """Two processes report after the outage what their trials found in it, and no trial counts as crashed."""
    url = cluster.database("outage")
    with searcher(url, tmp_path, 3.0) as one, searcher(url, tmp_path, 3.0) as other:
        for process in (one, other):
            assert process.stdout is not None
            assert process.stdout.readline().startswith("begun")
        cluster.stop()
        time.sleep(10)  # six heartbeats of a second are the grace period
        cluster.start()
        for process in (one, other):
            process.communicate(timeout=240)
        assert (one.returncode, other.returncode) == (0, 0)
    summary = summarize_study(optuna.load_study(study_name="s", storage=url))
    assert [trial.state for trial in summary.trials] == ["complete"] * 6
