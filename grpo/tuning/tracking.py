"""Tracking of a study in MLflow: a run of the study, with a child run for each trial."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from grpo.registry import Registry
from grpo.tuning.document import StudyDocument
from grpo.tuning.study_summary import TrialRecord

_PARENT = "mlflow.parentRunId"
_STATUS = {"complete": "FINISHED", "pruned": "KILLED", "failed": "FAILED", "crashed": "FAILED"}
"""MLflow status of each final state of a trial."""


class StudyTracker:
    """MLflow runs of a study, which are found again by the name of the study."""

    def __init__(self, models: Registry, experiment: str, name: str, study: str, *, params: Mapping[str, str]) -> None:
        self._models, self._experiment, self._study = models, experiment, study
        self.run_id = models.open_run(experiment, name, run_key=study, params=params)
        self._written: set[int] = set()

    def add(self, trial: TrialRecord) -> bool:
        """Log a trial that has ended. Returns False if it has not ended, or if this tracker has logged it before."""
        if trial.state not in _STATUS or trial.number in self._written:
            return False
        client, key = self._models.client, f"{self._study}/{trial.number}"
        values = {name: str(value) for name, value in trial.params.items()}
        run_id = self._models.open_run(self._experiment, f"trial {trial.number}", run_key=key, params=values)
        if client.get_run(run_id).info.status == "RUNNING":
            for name, value in {_PARENT: self.run_id, "state": trial.state, "reason": trial.reason or ""}.items():
                client.set_tag(run_id, name, value)
            final = {"result": trial.reward, "seconds": trial.seconds}
            once = {**trial.numbers, **{name: value for name, value in final.items() if value is not None}}
            series = {"heldout": list(trial.intermediate_evals), **{name: [value] for name, value in once.items()}}
            self._models.log_metrics(run_id, series)
            self._models.close_run(run_id, _STATUS[trial.state])
        self._written.add(trial.number)
        return True

    def close(self, document: StudyDocument, files: list[Path]) -> None:
        """Log report and figures to the run of the study, and end it."""
        best = document.study.best_trial
        if best is not None and best.reward is not None:
            self._models.log_metrics(self.run_id, {"best": [best.reward]})
        self._models.client.set_tag(self.run_id, "start", document.start)
        self._models.log_files(self.run_id, files)
        self._models.close_run(self.run_id, "FAILED" if best is None else "FINISHED")
