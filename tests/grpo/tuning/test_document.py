"""Outputs of a study: page, figures, best config and MLflow runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo.config.pipeline import load_config
from grpo.config.tuning import TuneConfig
from grpo.registry import Registry
from grpo.tuning.document import StudyDocument, best_yaml, render_study, write_study
from grpo.tuning.study_summary import StudySummary, TrialRecord
from grpo.tuning.tracking import StudyTracker
from tests.places import ROOT

QUICKSTART = ROOT / "data" / "configs" / "quickstart.yaml"
RATE, SIZE = "training.learning_rate", "rollout.group_size"


def trial(number: int, **changes: object) -> TrialRecord:
    fields: dict[str, object] = {
        "number": number,
        "state": "complete",
        "ended": True,
        "params": {RATE: 10.0**-number / 10, SIZE: 16},
        "intermediate_evals": (0.25, 0.5 + number / 100),
        "reward": 0.5 + number / 100,
        "reason": None,
        "numbers": {"cached": 7.0},
        "seconds": 61.0,
    }
    return TrialRecord.model_validate({**fields, **changes})


TRIALS = (
    trial(0),
    trial(1, state="pruned", intermediate_evals=(0.125,), reward=None),
    trial(2),
    trial(3, state="failed", intermediate_evals=(), reward=None, reason="Diverged: <b>the loss is nan</b>"),
    trial(4, state="crashed", ended=False, intermediate_evals=(), reward=None),
)


def plan() -> TuneConfig:
    space = {RATE: {"type": "loguniform", "low": 1e-5, "high": 1e-1}, SIZE: {"type": "categorical", "choices": [8, 16]}}
    return TuneConfig.model_validate({"name": "rates", "base": str(QUICKSTART), "search_space": space})


def study(*trials: TrialRecord, **importance: float) -> StudySummary:
    return StudySummary(name="rates-1", direction="maximize", trials=trials, importance=importance)


def document(*trials: TrialRecord) -> StudyDocument:
    summary = study(*trials, **{RATE: 0.75, SIZE: 0.25})
    return StudyDocument(
        name="rates",
        created="2026-01-01T00:00:00+00:00",
        metric="reward",
        study=summary,
        start="start0123",
        trained=480,
        validation=160,
        code_digest="code",
        best_config=best_yaml(plan(), summary, Path.cwd()) if summary.best_trial else None,
        config="name: rates\n",
    )


def test_the_page_shows_every_trial_and_the_best():
    """Counts by state, the best trial, the reason of the failed one, and three figures; no external resource."""
    page = render_study(document(*TRIALS))
    assert "4 trials have ended: 2 complete, 1 pruned, 1 failed" in page
    assert "Best is trial 2" in page
    assert "0.520" in page
    assert page.count("<svg") == 3
    assert "Diverged: &lt;b&gt;the loss is nan&lt;/b&gt;" in page, "the error of a trial is text, not markup"
    assert "http" not in page.replace("Content-Security-Policy", "").replace("http-equiv", "")
    assert page == render_study(document(*TRIALS))


@pytest.mark.parametrize("trials", [(), TRIALS[3:]])
def test_the_page_of_a_study_without_a_complete_trial(trials: tuple[TrialRecord, ...]):
    """It has no best trial."""
    page = render_study(document(*trials))
    assert "No trial is complete" in page
    assert "Best is trial" not in page


def test_the_best_config_is_the_base_with_the_best_values(tmp_path: Path):
    """Groups of 16 instead of 8: half of the 42 iterations; the rest is the quickstart's."""
    files = write_study(document(*TRIALS), tmp_path)
    assert {file.name for file in files} == {"study.html", "study.json", "history.png", "importance.png", "best.yaml"}
    best, base = load_config(tmp_path / "best.yaml"), load_config(QUICKSTART)
    assert (best.training.learning_rate, best.rollout.group_size, best.training.iterations) == (1e-3, 16, 21)
    assert best.scenarios == base.scenarios
    assert (best.gates, best.seed, best.name) == (base.gates, base.seed, "quickstart-tuned")
    assert StudyDocument.model_validate_json((tmp_path / "study.json").read_bytes()) == document(*TRIALS)


def test_the_best_config_keeps_gates_of_its_own(tmp_path: Path):
    """Each has its kind, and settings of the base that equal the default are kept."""
    gates = "gates=[{kind: improvement, margin: 0.02}, {kind: kl, max_nats: 3}, {kind: truncation, max_rate: 0.02}]"
    tuned = plan().model_copy(update={"base": load_config(QUICKSTART, (gates,))})
    path = tmp_path / "best.yaml"
    path.write_text(best_yaml(tuned, study(*TRIALS), tmp_path))
    assert load_config(path) == tuned.best({RATE: 1e-3, SIZE: 16})
    assert path.read_text().count("kind: ") == 7, "one source, one environment, two rewards, three gates"


def test_each_trial_is_a_child_run_of_the_study(tmp_path: Path):
    """Values, evaluations, metrics, state and reason; logged twice it is there once, and a running trial is not."""
    models = Registry(f"sqlite:///{tmp_path / 'mlflow.db'}", artifact_root=f"file://{tmp_path / 'artifacts'}")
    for _ in range(2):
        tracker = StudyTracker(models, "grpo", "rates", "rates-1", params={"seed": "0"})
        new = [tracker.add(record) for record in (*TRIALS, trial(5, state="running", reward=None))]
        assert new == [True] * 5 + [False]
        assert not tracker.add(TRIALS[0])
    tracker.close(document(*TRIALS), write_study(document(*TRIALS), tmp_path / "rates"))
    runs = {run.info.run_name: run for run in models.client.search_runs([models.experiment("grpo")])}
    assert set(runs) == {"rates", *(f"trial {k}" for k in range(5))}
    parent, best, failed = runs["rates"], runs["trial 2"], runs["trial 3"]
    assert best.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert (best.data.params[SIZE], best.data.metrics["result"], best.info.status) == ("16", 0.52, "FINISHED")
    series = models.client.get_metric_history(best.info.run_id, "heldout")
    assert [point.value for point in series] == [0.25, 0.52]
    assert (failed.info.status, failed.data.tags["reason"]) == ("FAILED", "Diverged: <b>the loss is nan</b>")
    assert "result" not in failed.data.metrics
    assert runs["trial 1"].data.tags["state"] == "pruned"
    files = {file.path for file in models.client.list_artifacts(parent.info.run_id)}
    assert files >= {"study.html", "history.png", "importance.png", "best.yaml"}
    assert (parent.info.status, parent.data.metrics["best"]) == ("FINISHED", 0.52)
