"""What a study leaves: the page, the figures, the best config and the runs of MLflow."""

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
    usual: dict[str, object] = {
        "number": number,
        "state": "complete",
        "over": True,
        "params": {RATE: 10.0**-number / 10, SIZE: 16},
        "looks": (0.25, 0.5 + number / 100),
        "reward": 0.5 + number / 100,
        "reason": None,
        "numbers": {"cached": 7.0},
        "seconds": 61.0,
    }
    return TrialRecord.model_validate({**usual, **changes})


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
    found = study(*trials, **{RATE: 0.75, SIZE: 0.25})
    return StudyDocument(
        name="rates",
        created="2026-01-01T00:00:00+00:00",
        metric="reward",
        study=found,
        start="start0123",
        trained=480,
        validation=160,
        code_digest="code",
        best_config=best_yaml(plan(), found) if found.best_trial else None,
        config="name: rates\n",
    )


def test_the_page_tells_every_trial_and_the_best():
    """Counts of ends, the best of them, the reason of the failed one, and three figures; nothing from elsewhere."""
    page = render_study(document(*TRIALS))
    assert "4 trials came to an end: 2 complete, 1 pruned, 1 failed" in page
    assert "Best is trial 2" in page
    assert "0.520" in page
    assert page.count("<svg") == 3
    assert "Diverged: &lt;b&gt;the loss is nan&lt;/b&gt;" in page, "what a trial crashed of is text, not markup"
    assert "http" not in page.replace("Content-Security-Policy", "").replace("http-equiv", "")
    assert page == render_study(document(*TRIALS))


@pytest.mark.parametrize("trials", [(), TRIALS[3:]])
def test_a_study_without_a_complete_trial_has_a_page_that_says_so(trials: tuple[TrialRecord, ...]):
    """Nothing is drawn that is not there."""
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
    """Each says of which kind it is, and a setting that is the default is told too where the base tells it."""
    gates = "gates=[{kind: improvement, margin: 0.02}, {kind: kl, max_nats: 3}, {kind: truncation, max_rate: 0.02}]"
    tuned = plan().model_copy(update={"base": load_config(QUICKSTART, (gates,))})
    path = tmp_path / "best.yaml"
    path.write_text(best_yaml(tuned, study(*TRIALS)))
    assert load_config(path) == tuned.best({RATE: 1e-3, SIZE: 16})
    assert path.read_text().count("kind: ") == 7, "one source, one environment, two rewards, three gates"


def test_each_trial_is_a_run_below_the_studys(tmp_path: Path):
    """Values, looks, numbers, state and reason; written twice it is there once, and what still runs is not there."""
    models = Registry(f"sqlite:///{tmp_path / 'mlflow.db'}", artifact_root=f"file://{tmp_path / 'artifacts'}")
    for _ in range(2):
        record = StudyTracker(models, "grpo", "rates", "rates-1", params={"seed": "0"})
        new = [record.add(one) for one in (*TRIALS, trial(5, state="running", reward=None))]
        assert new == [True] * 5 + [False]
        assert not record.add(TRIALS[0])
    record.close(document(*TRIALS), write_study(document(*TRIALS), tmp_path / "rates"))
    runs = {run.info.run_name: run for run in models.client.search_runs([models.experiment("grpo")])}
    assert set(runs) == {"rates", *(f"trial {k}" for k in range(5))}
    parent, best, failed = runs["rates"], runs["trial 2"], runs["trial 3"]
    assert best.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert (best.data.params[SIZE], best.data.metrics["result"], best.info.status) == ("16", 0.52, "FINISHED")
    intermediate_evals = models.client.get_metric_history(best.info.run_id, "heldout")
    assert [look.value for look in intermediate_evals] == [0.25, 0.52]
    assert (failed.info.status, failed.data.tags["reason"]) == ("FAILED", "Diverged: <b>the loss is nan</b>")
    assert "result" not in failed.data.metrics
    assert runs["trial 1"].data.tags["state"] == "pruned"
    files = {file.path for file in models.client.list_artifacts(parent.info.run_id)}
    assert files >= {"study.html", "history.png", "importance.png", "best.yaml"}
    assert (parent.info.status, parent.data.metrics["best"]) == ("FINISHED", 0.52)
