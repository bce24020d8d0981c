"""The search on objectives that are known: what is best, what is pruned, what fails, and what was not finished."""

from __future__ import annotations

import math
import threading
from collections.abc import Generator
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from grpo.config.search_space import SearchSpace, Value
from grpo.config.tuning import HPOConfig
from grpo.errors import BudgetError, StorageError
from grpo.notebook.config import TrainingConfig
from grpo.storage.locks import file_lock
from grpo.tuning.storage import begin_trial, open_storage
from grpo.tuning.study import IntermediateEvaluation, TrialRunner, evaluation_iterations, open_study, search
from grpo.tuning.study_summary import StudySummary, summarize_study

BASE = TrainingConfig(beta=0.5)
PLAN = HPOConfig.model_validate(
    {"search_space": {"beta": {"type": "uniform", "low": 0.0, "high": 1.0}}, "n_trials": 16, "looks": 3}
)


def space() -> SearchSpace:
    assert not isinstance(PLAN.search_space, str)
    return PLAN.search_space


def hill(number: int, values: dict[str, Value]) -> Generator[IntermediateEvaluation, None, None]:
    """Best at beta .3, where the last of three looks shows 1; a look before it a third or two thirds of that."""
    assert isinstance(values["beta"], float)
    for share in (1, 2, 3):
        yield IntermediateEvaluation(reward=(1 - abs(values["beta"] - 0.3)) * share / 3)


def run(runner: TrialRunner, *, storage: optuna.storages.BaseStorage | None = None, **changes: object) -> StudySummary:
    plan = PLAN.model_copy(update=changes)
    kept = storage or optuna.storages.InMemoryStorage()
    study = open_study(plan, space(), BASE, name="s", storage=kept)
    search(study, plan, space(), runner, storage=kept)
    return summarize_study(study)


def test_the_best_of_a_hill_is_found_near_its_top():
    """Sixteen trials, the first of them the base at .5, which scores .8."""
    found = run(hill)
    assert (found.ended, found.trials[0].params) == (16, {"beta": 0.5})
    assert found.trials[0].reward == pytest.approx(0.8)
    assert found.best_reward > 0.93
    assert found.best_params["beta"] == pytest.approx(0.3, abs=0.07)


def test_the_lowest_is_best_where_less_is_wanted():
    """At beta 1 the hill is .3 high; nothing is lower."""
    assert run(hill, optimization_direction="minimize").best_reward < 0.5


@pytest.mark.parametrize("pruner", ["median", "successive_halving"])
def test_trials_that_lag_behind_are_given_up_early(pruner: str):
    """They have fewer looks and no reward, count as ended, and none of them is the best."""
    found = run(hill, pruner=pruner)
    pruned = [trial for trial in found.trials if trial.state == "pruned"]
    assert pruned
    assert found.count("complete") + len(pruned) == 16
    assert all(len(trial.intermediate_evals) < 3 and trial.reward is None for trial in pruned)
    assert all(abs(trial.params["beta"] - 0.3) > 0.03 for trial in pruned)  # type: ignore[operator]


def test_without_pruning_every_trial_is_seen_to_its_end():
    """Three looks each."""
    assert {len(trial.intermediate_evals) for trial in run(hill, pruning=False).trials} == {3}


def test_the_looks_of_a_pruned_trial_stop_at_once():
    """The runner is closed, so that what it holds is freed."""
    closed = []

    def noisy(number: int, values: dict[str, Value]) -> Generator[IntermediateEvaluation, None, None]:
        try:
            yield from hill(number, values)
        finally:
            closed.append(number)

    found = run(noisy)
    assert found.count("pruned")
    assert closed == list(range(16))


@pytest.mark.parametrize(
    ("reward", "reason"), [(math.nan, "Diverged: the held-out reward at look 2 is nan"), (-math.inf, "is -inf")]
)
def test_a_trial_that_explodes_is_failed_with_its_reason(reward: float, reason: str):
    """Above .6 nothing finite comes: failed, without a reward, and never the best, whichever way is up."""

    def cliff(number: int, values: dict[str, Value]) -> Generator[IntermediateEvaluation, None, None]:
        yield IntermediateEvaluation(reward=0.5)
        yield IntermediateEvaluation(reward=reward if values["beta"] > 0.6 else 0.5)  # type: ignore[operator]

    found = run(cliff, optimization_direction="minimize", pruning=False)
    failed = [trial for trial in found.trials if trial.state == "failed"]
    assert failed
    assert found.ended == 16
    for trial in failed:
        assert trial.params["beta"] > 0.6  # type: ignore[operator]
        assert trial.reward is None
        assert trial.reason is not None
        assert reason in trial.reason
    assert found.best_params["beta"] <= 0.6  # type: ignore[operator]


def test_an_error_in_a_trial_is_its_result_and_the_others_go_on():
    """One of four runs out of memory."""

    def broken(number: int, values: dict[str, Value]) -> Generator[IntermediateEvaluation, None, None]:
        if number == 1:
            raise MemoryError("no room")
        yield from hill(number, values)

    found = run(broken, n_trials=4, pruning=False)
    assert [trial.state for trial in found.trials] == ["complete", "failed", "complete", "complete"]
    assert found.trials[1].reason == "MemoryError: no room"


def test_a_study_without_a_complete_trial_has_no_best():
    """It says so with the first reason, and makes no number up."""

    def broken(number: int, values: dict[str, Value]) -> Generator[IntermediateEvaluation, None, None]:
        raise RuntimeError("always")
        yield

    found = run(broken, n_trials=3)
    assert found.ended == 3
    with pytest.raises(BudgetError, match=r"none of the 3 trials .* trial 0: RuntimeError: always"):
        _ = found.best_reward


def test_the_same_seed_tries_the_same():
    """And another seed tries something else."""
    tried = [[t.params for t in run(hill, n_trials=5, seed=seed).trials] for seed in (1, 1, 2)]
    assert tried[0] == tried[1] != tried[2]


def test_an_interrupted_search_has_drawn_what_an_unbroken_one_draws(tmp_path: Path):
    """Interrupted in the fourth of eight: its values, and those before, are those of a search that was left alone."""
    kept = open_storage(f"sqlite:///{tmp_path / 'study.db'}", heartbeat_s=10)
    plan = PLAN.model_copy(update={"n_trials": 8, "pruning": False})
    study = open_study(plan, space(), BASE, name="s", storage=kept)

    class Stopped(BaseException):
        """What ends a search and not a trial alone."""

    def three(number: int, values: dict[str, Value]) -> Generator[IntermediateEvaluation, None, None]:
        if number == 3:
            raise Stopped
        yield from hill(number, values)

    with pytest.raises(Stopped):
        search(study, plan, space(), three, storage=kept)
    assert [trial.state for trial in summarize_study(study).trials] == ["complete"] * 3 + ["running"]
    plan = plan.model_copy(update={"n_trials": 3})
    search(study, plan, space(), hill, storage=kept)
    assert len(study.trials) == 4, "three were asked for, three are there"
    whole = [trial.params for trial in run(hill, n_trials=8, pruning=False).trials]
    assert [trial.params for trial in study.trials] == whole[:4]


@pytest.mark.parametrize("beats", [0, 1])
def test_a_trial_whose_process_died_is_tried_again_and_counts_once(tmp_path: Path, beats: int):
    """Killed before its first sign of life or after: `crashed`, and its values come again under another number."""
    kept = open_storage(f"sqlite:///{tmp_path / 'study.db'}", heartbeat_s=1)
    plan = PLAN.model_copy(update={"n_trials": 3, "pruning": False})
    study = open_study(plan, space(), BASE, name="s", storage=kept)
    dead = begin_trial(study, {"beta": optuna.distributions.FloatDistribution(0.0, 1.0)})
    for _ in range(beats):
        kept.record_heartbeat(dead._trial_id)
    search(study, plan, space(), hill, storage=kept)
    found = summarize_study(study)
    assert found.trials[0].state == "crashed"
    assert [trial.params for trial in found.trials].count(found.trials[0].params) == 2
    assert (found.ended, found.count("complete")) == (3, 3)


def test_a_trial_that_takes_its_process_down_each_time_is_given_up():
    """Tried four times: then it is failed, says why, and counts, so that the search ends."""
    study = optuna.create_study()
    lost = {"failed_trial": 0, "retry_history": [0, 1, 2]}
    drawn = {"beta": optuna.distributions.FloatDistribution(0.0, 1.0)}
    study.add_trial(
        optuna.trial.create_trial(state=TrialState.FAIL, params={"beta": 0.1}, distributions=drawn, system_attrs=lost)
    )
    [trial] = summarize_study(study).trials
    assert (trial.state, trial.ended) == ("failed", True)
    assert trial.reason is not None
    assert "crashed 4 times" in trial.reason


def test_searches_that_share_a_study_run_exactly_as_many_trials_as_are_wanted(tmp_path: Path):
    """Two of them, seven trials: 7, not 8."""
    url, lock = f"sqlite:///{tmp_path / 'study.db'}", tmp_path / "turn.lock"
    plan = PLAN.model_copy(update={"n_trials": 7, "pruning": False})
    stores = [open_storage(url, heartbeat_s=10) for _ in range(2)]
    open_study(plan, space(), BASE, name="s", storage=stores[0])

    def go(kept: optuna.storages.BaseStorage) -> None:
        study = optuna.load_study(study_name="s", storage=kept)
        search(study, plan, space(), hill, storage=kept, turn=file_lock(lock))

    threads = [threading.Thread(target=go, args=(kept,)) for kept in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = summarize_study(optuna.load_study(study_name="s", storage=url))
    assert [trial.state for trial in found.trials] == ["complete"] * 7


def test_importance_adds_up_and_waits_for_enough_trials():
    """Of one dimension it is 1; three trials say nothing about it."""
    assert run(hill, pruning=False).importance == {"beta": pytest.approx(1.0)}
    assert run(hill, pruning=False, n_trials=3).importance == {}


def test_a_storage_that_does_not_answer_is_named():
    """Nobody listens on port 1."""
    with pytest.raises(StorageError, match=r"postgresql\+psycopg2://u@127.0.0.1:1/d cannot be used"):
        open_storage("postgresql+psycopg2://u@127.0.0.1:1/d", heartbeat_s=10)


@pytest.mark.parametrize(
    ("iterations", "looks", "after"), [(10, 4, [3, 5, 8, 10]), (8, 4, [2, 4, 6, 8]), (2, 4, [1, 1, 2, 2])]
)
def test_looks_come_after_equal_shares(iterations: int, intermediate_evals: int, after: list[int]):
    """A short trial is looked at twice after one iteration, so that the numbers of looks agree."""
    assert evaluation_iterations(iterations, intermediate_evals) == after
