"""`grpo tune` with real processes: killed in the middle, gone on with, on SQLite and on PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
import yaml
from typer.testing import CliRunner

from grpo.config.loading import load_settings
from grpo.config.pipeline import load_config
from grpo.config.tuning import TuneConfig
from grpo.tuning.document import StudyDocument
from grpo_cli.app import app
from tests.doubles import short_run
from tests.e2e.commands import start
from tests.e2e.served import own_environment

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]

RATE = "training.learning_rate"


def study_file(folder: Path, **changes: object) -> Path:
    """A study of short runs, in a folder of its own."""
    base = short_run(
        folder,
        rollout={"scenarios": 4, "max_new_tokens": 32},
        evaluation={"samples": 3},
        registry={"model_name": "tuned"},
    )
    settings = {
        "name": "rates",
        "base": base,
        "search_space": {RATE: {"type": "loguniform", "low": 1e-5, "high": 1e-2}},
        "n_trials": 3,
        "intermediate_evals": 2,
        "parallel": 2,
        "heartbeat_s": 1,
        **changes,
    }
    path = folder / "tune.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def killed_after_the_first(config: Path, told: dict[str, str]) -> None:
    """Start the search and kill it with -9 when its first trial is complete."""
    command = start("tune", str(config), environment=told, output=config.with_suffix(".txt"))
    seen = []
    for line in command.lines():
        seen.append(line)
        if line.startswith("trial ") and " complete" in line:
            command.process.kill()
            command.process.join()
            return
    raise AssertionError("".join(seen))


def finished(config: Path, told: dict[str, str]) -> str:
    code, printed = start("tune", str(config), environment=told, output=config.with_suffix(".txt")).end()
    assert code == 0, printed
    return printed


def document(home: Path) -> StudyDocument:
    return StudyDocument.model_validate_json((home / "rates" / "study.json").read_bytes())


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, server: str) -> tuple[Path, Path, StudyDocument, str]:
    """A study that was killed with -9 after its first complete trial, and gone on with by the same command."""
    home = tmp_path_factory.mktemp("study")
    config = study_file(home)
    told = own_environment(home, server)
    killed_after_the_first(config, told)
    before = optuna.load_study(study_name=None, storage=f"sqlite:///{home / 'tuning.db'}")
    complete = {t.number: t.datetime_complete for t in before.trials if t.state.name == "COMPLETE"}
    assert 1 <= len(complete) < 3
    printed = finished(config, told)
    after = optuna.load_study(study_name=None, storage=f"sqlite:///{home / 'tuning.db'}")
    again = {t.number: t.datetime_complete for t in after.trials if t.number in complete}
    assert again == complete, "trials that were complete are not repeated"
    return home, config, document(home), printed


def test_a_killed_search_ends_with_as_many_trials_as_were_asked_for(killed: tuple[Path, Path, StudyDocument, str]):
    """Three came to an end; those whose process crashed are there too, and their values were tried again."""
    _, _, found, printed = killed
    ended = [trial for trial in found.study.trials if trial.ended]
    assert len(ended) == 3
    assert all(trial.intermediate_evals for trial in ended)
    tried = [trial.params[RATE] for trial in ended]
    assert len(set(tried)) == 3
    crashed = [trial for trial in found.study.trials if trial.state == "crashed"]
    assert {trial.params[RATE] for trial in crashed if trial.params} <= set(tried), "one may die before it has values"
    assert "best config:" in printed


def test_a_trial_that_is_tried_again_finds_its_stages_in_the_cache(killed: tuple[Path, Path, StudyDocument, str]):
    """Stages shared by all trials are computed once, and so are the finished stages of a dead trial."""
    _, _, found, _ = killed
    assert all(trial.numbers["cached"] >= 5 for trial in found.study.trials if trial.ended)


def test_the_records_agree_with_the_study(killed: tuple[Path, Path, StudyDocument, str]):
    """A nested MLflow run for each trial with its values, looks and state; report and figures at the study's run."""
    from grpo.registry import Registry

    home, _, found, _ = killed
    client = Registry(f"sqlite:///{home}/mlflow.db").client
    [experiment] = [e for e in client.search_experiments() if e.name == "grpo"]
    runs = client.search_runs([experiment.experiment_id])
    [parent] = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    nested = {run.info.run_name: run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id}
    assert set(nested) == {f"trial {trial.number}" for trial in found.study.trials}
    for trial in found.study.trials:
        run = nested[f"trial {trial.number}"]
        assert run.data.tags["state"] == trial.state
        assert {name: float(value) for name, value in run.data.params.items()} == pytest.approx(trial.params)
        assert len(client.get_metric_history(run.info.run_id, "heldout")) == len(trial.intermediate_evals)
    files = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert files >= {"study.html", "study.json", "history.png", "importance.png", "best.yaml"}
    assert client.search_registered_models() == [], "a trial registers nothing"


def test_trials_never_play_the_scenarios_that_gates_judge_by(killed: tuple[Path, Path, StudyDocument, str]):
    """Of 24 training scenarios some judge and the others train; of the held-out side none is in any rollout."""
    from grpo.scenarios.split import Split
    from grpo.tables import read_all

    home, _, found, _ = killed
    splits = [Split.model_validate_json(path.read_text()) for path in (home / "store" / "split").glob("*.json")]
    [whole] = [split for split in splits if len(split.train) == 24]
    [inner] = [split for split in splits if len(split.train) < 24]
    assert (len(inner.train), len(inner.heldout)) == (found.trained, found.validation)
    assert {*inner.train, *inner.heldout} == set(whole.train)
    played = {trajectory.scenario_id for trajectory in read_all(list((home / "store" / "rollout").glob("*.parquet")))}
    assert played & set(inner.heldout)
    assert not played & set(whole.heldout)


def test_the_best_config_is_one_that_train_takes(killed: tuple[Path, Path, StudyDocument, str]):
    """It has the best values and is otherwise the base; a dry run accepts it."""
    home, _, found, _ = killed
    path = home / "rates" / "best.yaml"
    best = load_config(path)
    assert best.training.learning_rate == pytest.approx(found.study.best_params[RATE])
    assert (best.name, best.training.iterations, best.rollout.scenarios) == ("short-tuned", 2, 4)
    assert CliRunner().invoke(app, ["train", str(path), "--dry-run"]).exit_code == 0


def test_a_study_that_is_done_is_not_begun_again(
    killed: tuple[Path, Path, StudyDocument, str], monkeypatch: pytest.MonkeyPatch
):
    """The same study once more: no process, no further trial, the same best."""
    from grpo_flows.tune import tune

    home, config, found, _ = killed
    monkeypatch.setenv("GRPO_HOME", str(home))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home}/mlflow.db")
    tuned = tune(load_settings(config, TuneConfig))
    assert (tuned.best_params, tuned.best_reward) == (found.study.best_params, found.study.best_reward)
    assert document(home).study == found.study


def test_settings_that_a_field_refuses_end_with_code_2(tmp_path: Path):
    """Before a server is started or anything is tried."""
    space = {RATE: {"type": "uniform", "low": -1.0, "high": 1.0}}
    result = CliRunner().invoke(app, ["tune", str(study_file(tmp_path, search_space=space))])
    assert result.exit_code == 2
    assert not (tmp_path / "store").exists()
