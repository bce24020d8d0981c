"""Write the report of a tuning study and attach it to Prefect and MLflow. Not cached."""

from __future__ import annotations

import base64
from pathlib import Path

from prefect import task
from prefect.artifacts import create_image_artifact
from prefect.cache_policies import NO_CACHE

from grpo.config.tuning import TuneConfig
from grpo.identity.provenance import parameters
from grpo.tuning.document import BEST, StudyDocument, write_study
from grpo.tuning.study_summary import TrialRecord
from grpo.tuning.tracking import StudyTracker
from grpo_tasks.page_artifacts import show_table, show_text
from grpo_tasks.registry import registry


def study_record(plan: TuneConfig, study: str) -> StudyTracker:
    """The study's record in the registry of this machine, or in the one that MLFLOW_TRACKING_URI names."""
    params = {name: value for name, value in parameters(plan).items() if not name.startswith("base.")}
    return StudyTracker(registry(), plan.base.registry.experiment, plan.name, study, params=params)


@task(name="report-study", cache_policy=NO_CACHE, persist_result=False)
def report_study(document: StudyDocument, record: StudyTracker, folder: Path) -> Path:
    """Write the report of a study and attach it to the records of both services. Returns the page."""
    files = write_study(document, folder)
    for trial in document.study.trials:
        record.add(trial)
    record.close(document, files)
    best = document.study.best_trial
    summary = (
        "No trial is complete."
        if best is None
        else f"Best is trial {best.number}, {document.metric} {best.reward:.4g}."
    )
    places = f"Report: {files[0]}, config: {folder / BEST}"
    show_text(document.name, summary, places, code=document.best_config or "", key="study")
    show_table([_row(trial) for trial in document.study.trials], key="trials")
    for name in ("history", "importance"):
        encoded = base64.b64encode((folder / f"{name}.png").read_bytes()).decode()
        create_image_artifact(f"data:image/png;base64,{encoded}", key=name)
    return files[0]


def _row(trial: TrialRecord) -> dict[str, object]:
    return {
        "trial": trial.number,
        "state": trial.state,
        "reward": trial.reward,
        **trial.params,
        "evaluations": len(trial.intermediate_evals),
        "reason": trial.reason or "",
    }
