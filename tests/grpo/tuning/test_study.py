"""The search on objectives that are known: what is best, what is pruned, what fails, and what was not finished."""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState
from sqlalchemy import event
from sqlalchemy.exc import DataError, OperationalError

from grpo.config.search_space import SearchSpace, Value
from grpo.config.tuning import HPOConfig
from grpo.errors import BudgetError, ConfigError, StorageError
from grpo.notebook.config import TrainingConfig
from grpo.storage.locks import file_lock
from grpo.tuning import storage as storage_module
from grpo.tuning.storage import begin_trial, fail_stale_trials, heartbeat, open_storage
from grpo.tuning.study import IntermediateEvaluation, TrialRunner, evaluation_iterations, open_study, search
from grpo.tuning.study_summary import StudySummary, summarize_study
from tests.clock import patch_time

BASE = TrainingConfig(beta=0.5)
CONFIG = HPOConfig.model_validate(
    {"search_space": {"beta": {"type": "uniform", "low": 0.0, "high": 1.0}}, "n_trials": 16, "intermediate_evals": 3}
)


def space() -> SearchSpace:
    assert not isinstance(CONFIG.search_space, str)
    return CONFIG.search_space


def hill(number: int, values: dict[str, Value]) -> Generator[IntermediateEvaluation, None, None]:
    """Best at beta .3, where the last of three evaluations is 1; the first two are a third and two thirds of it."""
    assert isinstance(values["beta"], float)
    for share in (1, 2, 3):
        yield IntermediateEvaluation(reward=(1 - abs(values["beta"] - 0.3)) * share / 3)


def run(runner: TrialRunner, *, storage: optuna.storages.BaseStorage | None = None, **changes: object) -> StudySummary:
    config = CONFIG.model_copy(update=changes)
    store = storage or optuna.storages.InMemoryStorage()
    study = open_study(config, space(), BASE, name="s", storage=store)
    search(study, config, space(), runner, storage=store)
    return summarize_study(study)


def test_the_best_trial_is_near_the_optimum():
    """Sixteen trials, the first of them the base at .5, with reward .8."""
    summary = run(hill)
    assert (summary.ended, summary.trials[0].params) == (16, {"beta": 0.5})
    assert summary.trials[0].reward == pytest.approx(0.8)
    assert summary.best_reward > 0.93
    assert summary.best_params["beta"] == pytest.approx(0.3, abs=0.07)


def test_the_direction_may_be_minimize():
    """At beta 1 the reward is .3, the lowest."""
    assert run(hill, optimization_direction="minimize").best_reward < 0.5


@pytest.mark.parametrize("pruner", ["median", "successive_halving"])
def test_trials_below_the_others_are_pruned(pruner: str):
    """They have fewer evaluations and no reward, count as ended, and none of them is the best."""
    summary = run(hill, pruner=pruner)
    pruned = [trial for trial in summary.trials if trial.state == "pruned"]
    assert pruned
    assert summary.count("complete") + len(pruned) == 16
    assert all(len(trial.intermediate_evals) < 3 and trial.reward is None for trial in pruned)
    assert all(abs(trial.params["beta"] - 0.3) > 0.03 for trial in pruned)  # type: ignore[operator]


def test_without_pruning_every_trial_is_complete():
    """Three evaluations each."""
    assert {len(trial.intermediate_evals) for trial in run(hill, pruning=False).trials} == {3}


def test_the_runner_of_a_pruned_trial_is_closed():
    """Its resources are freed at once."""
    closed = []

    def noisy(number: int, values: dict[str, Value]) -> Generator[IntermediateEvaluation, None, None]:
        try:
            yield from hill(number, values)
        finally:
            closed.append(number)

    summary = run(noisy)
    assert summary.count("pruned")
    assert closed == list(range(16))


@pytest.mark.parametrize(
    ("reward", "reason"), [(math.nan, "Diverged: the held-out reward of evaluation 2 is nan"), (-math.inf, "is -inf")]
)
def test_a_trial_that_diverges_is_failed_with_its_reason(reward: float, reason: str):
    """Above .6 the reward is not finite: failed, without a reward, and never the best, in either direction."""

    def cliff(number: int, values: dict[str, Value]) -> Generator[IntermediateEvaluation, None, None]:
        yield IntermediateEvaluation(reward=0.5)
        yield IntermediateEvaluation(reward=reward if values["beta"] > 0.6 else 0.5)  # type: ignore[operator]

    summary = run(cliff, optimization_direction="minimize", pruning=False)
    failed = [trial for trial in summary.trials if trial.state == "failed"]
    assert failed
    assert summary.ended == 16
    for trial in failed:
        assert trial.params["beta"] > 0.6  # type: ignore[operator]
        assert trial.reward is None
        assert trial.reason is not None
        assert reason in trial.reason
    assert summary.best_params["beta"] <= 0.6  # type: ignore[operator]


def test_an_error_in_a_trial_is_its_result_and_the_others_continue():
    """One of four runs out of memory."""

    def broken(number: int, values: dict[str, Value]) -> Generator[IntermediateEvaluation, None, None]:
        if number == 1:
            raise MemoryError("no room")
        yield from hill(number, values)

    summary = run(broken, n_trials=4, pruning=False)
    assert [trial.state for trial in summary.trials] == ["complete", "failed", "complete", "complete"]
    assert summary.trials[1].reason == "MemoryError: no room"


def test_a_study_without_a_complete_trial_has_no_best():
    """The error has the first reason."""

    def broken(number: int, values: dict[str, Value]) -> Generator[IntermediateEvaluation, None, None]:
        raise RuntimeError("always")
        yield

    summary = run(broken, n_trials=3)
    assert summary.ended == 3
    with pytest.raises(BudgetError, match=r"none of the 3 trials .* trial 0: RuntimeError: always"):
        _ = summary.best_reward


def test_the_same_seed_draws_the_same_values():
    """Another seed draws other values."""
    tried = [[t.params for t in run(hill, n_trials=5, seed=seed).trials] for seed in (1, 1, 2)]
    assert tried[0] == tried[1] != tried[2]


def test_a_seed_may_be_a_date_and_a_time():
    """NumPy, which draws the values, takes seeds below 2³² only."""
    assert run(hill, n_trials=3, seed=20261127120000).ended == 3


def test_a_resumed_search_draws_the_values_of_an_uninterrupted_one(tmp_path: Path):
    """Interrupted in the fourth of eight: its values, and those before, are those of an uninterrupted search."""
    store = open_storage(f"sqlite:///{tmp_path / 'study.db'}", heartbeat_s=10)
    config = CONFIG.model_copy(update={"n_trials": 8, "pruning": False})
    study = open_study(config, space(), BASE, name="s", storage=store)

    class Stopped(BaseException):
        """An exception that ends the search, not the trial alone."""

    def three(number: int, values: dict[str, Value]) -> Generator[IntermediateEvaluation, None, None]:
        if number == 3:
            raise Stopped
        yield from hill(number, values)

    with pytest.raises(Stopped):
        search(study, config, space(), three, storage=store)
    assert [trial.state for trial in summarize_study(study).trials] == ["complete"] * 3 + ["running"]
    config = config.model_copy(update={"n_trials": 3})
    search(study, config, space(), hill, storage=store)
    assert len(study.trials) == 4, "n_trials is 3, and three are complete"
    whole = [trial.params for trial in run(hill, n_trials=8, pruning=False).trials]
    assert [trial.params for trial in study.trials] == whole[:4]


def test_a_heartbeat_that_fails_is_followed_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """While a database restarts, for example. Otherwise the trial would be marked as crashed while it runs."""
    store = open_storage(f"sqlite:///{tmp_path / 'study.db'}", heartbeat_s=1)
    beats: list[int] = []
    second = threading.Event()

    def beat(trial_id: int) -> None:
        beats.append(trial_id)
        if len(beats) == 1:
            raise OSError("the server closed the connection")
        second.set()

    monkeypatch.setattr(store, "record_heartbeat", beat)
    with heartbeat(store, 7):
        assert second.wait(240)
    assert set(beats) == {7}


@pytest.mark.parametrize(
    "statement", ["INSERT INTO trials", "trial_values", "trial_user_attributes", "UPDATE trials", ""]
)
def test_a_storage_that_is_away_for_a_while_costs_no_trial(
    statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Two statements fail, of a kind or the first ones of a trial. The study is that of a search without an outage."""
    monkeypatch.setattr("grpo.tuning.storage._OUTAGE_PAUSE_S", 0.0)
    store = open_storage(f"sqlite:///{tmp_path / 'study.db'}", heartbeat_s=60)
    study = open_study(CONFIG, space(), BASE, name="s", storage=store)
    failures = [OSError("the server closed the connection")] * 2
    has_begun = bool(statement)

    def interrupt(*arguments: Any) -> None:
        if statement in arguments[2] and "heartbeat" not in arguments[2] and has_begun and failures:
            raise OperationalError(arguments[2], {}, failures.pop())

    def runner(number: int, values: dict[str, Value]) -> Generator[IntermediateEvaluation, None, None]:
        nonlocal has_begun
        has_begun = True
        yield from hill(number, values)

    event.listen(store.engine, "before_cursor_execute", interrupt)
    config = CONFIG.model_copy(update={"n_trials": 4, "pruning": False})
    search(study, config, space(), runner, storage=store)
    assert not failures
    expected = run(hill, n_trials=4, pruning=False).trials
    ended = summarize_study(study).trials
    assert [(trial.params, trial.state, trial.intermediate_evals) for trial in ended] == [
        (trial.params, trial.state, trial.intermediate_evals) for trial in expected
    ]
    lines = [line for line in caplog.messages if "the study's storage does not answer: OSError" in line]
    assert len(lines) == (statement != "INSERT INTO trials"), "one for the outage. Optuna repeats this statement itself"


def test_a_value_that_the_storage_refuses_is_an_error_at_once(tmp_path: Path):
    """Repeated, it would be refused for ever."""
    store = open_storage(f"sqlite:///{tmp_path / 'study.db'}", heartbeat_s=60)

    def refuse(*arguments: Any) -> None:
        raise DataError(arguments[2], {}, ValueError("value too long"))

    study = open_study(CONFIG, space(), BASE, name="s", storage=store)
    event.listen(store.engine, "before_cursor_execute", refuse)
    with pytest.raises(StorageInternalError):
        search(study, CONFIG, space(), hill, storage=store)


@pytest.mark.parametrize("beats", [0, 1])
def test_a_trial_whose_process_crashed_is_retried_and_counts_once(tmp_path: Path, beats: int):
    """Killed before its first heartbeat or after: `crashed`, and its values are retried under another number."""
    store = open_storage(f"sqlite:///{tmp_path / 'study.db'}", heartbeat_s=1)
    config = CONFIG.model_copy(update={"n_trials": 3, "pruning": False})
    study = open_study(config, space(), BASE, name="s", storage=store)
    dead = begin_trial(study, {"beta": optuna.distributions.FloatDistribution(0.0, 1.0)})
    for _ in range(beats):
        store.record_heartbeat(dead._trial_id)
    search(study, config, space(), hill, storage=store)
    summary = summarize_study(study)
    assert summary.trials[0].state == "crashed"
    assert [trial.params for trial in summary.trials].count(summary.trials[0].params) == 2
    assert (summary.ended, summary.count("complete")) == (3, 3)


def test_a_trial_whose_process_crashes_each_time_is_failed():
    """After four attempts it is failed with a reason, and counts as ended."""
    study = optuna.create_study()
    history = {"failed_trial": 0, "retry_history": [0, 1, 2]}
    drawn = {"beta": optuna.distributions.FloatDistribution(0.0, 1.0)}
    study.add_trial(
        optuna.trial.create_trial(
            state=TrialState.FAIL, params={"beta": 0.1}, distributions=drawn, system_attrs=history
        )
    )
    [trial] = summarize_study(study).trials
    assert (trial.state, trial.ended) == ("failed", True)
    assert trial.reason is not None
    assert "crashed 4 times" in trial.reason


def test_searches_that_share_a_study_run_n_trials_together(tmp_path: Path):
    """Two searches, n_trials 7: 7 trials, not 8."""
    url, lock = f"sqlite:///{tmp_path / 'study.db'}", tmp_path / "turn.lock"
    config = CONFIG.model_copy(update={"n_trials": 7, "pruning": False})
    stores = [open_storage(url, heartbeat_s=10) for _ in range(2)]
    open_study(config, space(), BASE, name="s", storage=stores[0])

    def go(store: optuna.storages.BaseStorage) -> None:
        study = optuna.load_study(study_name="s", storage=store)
        search(study, config, space(), hill, storage=store, turn=file_lock(lock))

    threads = [threading.Thread(target=go, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    summary = summarize_study(optuna.load_study(study_name="s", storage=url))
    assert [trial.state for trial in summary.trials] == ["complete"] * 7


def test_importance_needs_enough_trials():
    """For one dimension it is 1; with three trials it is empty."""
    assert run(hill, pruning=False).importance == {"beta": pytest.approx(1.0)}
    assert run(hill, pruning=False, n_trials=3).importance == {}


def test_a_storage_without_a_server_is_an_error():
    """No server listens on port 1."""
    with pytest.raises(StorageError, match=r"postgresql\+psycopg2://u@127.0.0.1:1/d cannot be used"):
        open_storage("postgresql+psycopg2://u@127.0.0.1:1/d", heartbeat_s=10)


@pytest.mark.parametrize(
    ("iterations", "intermediate_evals", "after"), [(10, 4, [3, 5, 8, 10]), (8, 4, [2, 4, 6, 8]), (2, 4, [1, 1, 2, 2])]
)
def test_evaluations_come_after_equal_shares(iterations: int, intermediate_evals: int, after: list[int]):
    """A short trial is evaluated twice after one iteration, so that the numbers of evaluations agree."""
    assert evaluation_iterations(iterations, intermediate_evals) == after


def test_a_storage_of_0_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the study would begin again. A process that waits for another one to create it goes on."""
    monkeypatch.setattr("grpo.tuning.storage._CREATED_WITHIN_S", 0.1)
    (tmp_path / "tuning.db").touch()
    with pytest.raises(ConfigError, match=r"tuning\.db has 0 bytes"):
        open_storage(f"sqlite:///{tmp_path}/tuning.db", heartbeat_s=60)


@pytest.mark.parametrize(("beats", "state"), [(True, "RUNNING"), (False, "FAIL")])
def test_a_trial_that_beats_again_after_an_outage_is_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beats: bool, state: str
):
    """Another process has not noticed the outage, and finds the trial before its next heartbeat."""
    url = f"sqlite:///{tmp_path / 'tuning.db'}"
    storage = open_storage(url, heartbeat_s=1)
    study = optuna.create_study(storage=storage)
    trial = begin_trial(study, {})
    storage.record_heartbeat(trial._trial_id)
    with closing(sqlite3.connect(tmp_path / "tuning.db")) as database, database:
        database.execute("UPDATE trial_heartbeats SET heartbeat = datetime('now', '-1 minute')")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if beats:
            storage.record_heartbeat(trial._trial_id)

    patch_time(monkeypatch, storage_module, sleep=pause)
    fail_stale_trials(study)
    assert (study.trials[0].state.name, pauses) == (state, [4.0])
    fail_stale_trials(study)
    assert pauses == [4.0], "there is no stale trial any more, so that nobody waits"
