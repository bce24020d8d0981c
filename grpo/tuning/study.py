"""Hyperparameter search on an Optuna study: draw values, run a trial, store its result or its error.

A runner is a function (number, values) → intermediate evaluations: the held-out reward after each share of the
training. The last one is the result. A notebook's trainer and runs of the pipeline use the same search.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from functools import partial

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial, TrialState

from grpo.config.base import Settings
from grpo.config.search_space import Dimension, SearchSpace, Value, get_value
from grpo.config.tuning import HPOConfig
from grpo.errors import ConfigError, Diverged
from grpo.tuning.storage import (
    RETRIES,
    begin_trial,
    fail_stale_trials,
    heartbeat,
    record_first_heartbeats,
    repeat_until_answered,
)

logger = logging.getLogger(__name__)

NUMBERS, REASON, SECONDS = "numbers", "reason", "seconds"
_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class IntermediateEvaluation:
    """Result of a trial on the held-out scenarios."""

    reward: float
    """Objective value."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Further metrics. Only the metrics of the last evaluation are stored."""


TrialRunner = Callable[[int, dict[str, Value]], Generator[IntermediateEvaluation, None, None]]


def open_study(
    config: HPOConfig, space: SearchSpace, base: Settings, *, name: str, storage: optuna.storages.BaseStorage
) -> optuna.Study:
    """Open the study of this name, or create it with the values of the base config as the first trial.

    If the base is within the search space, the best trial is therefore at least as good as the base. Otherwise the
    study begins with drawn values.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        direction=config.optimization_direction,
        pruner=_pruner(config),
        load_if_exists=True,
    )
    base_values = {path: get_value(base, path) for path in space}
    distributions = {path: _distribution(dimension) for path, dimension in space.items()}
    if all(_contains(distributions[path], value) for path, value in base_values.items()):
        study.enqueue_trial(base_values, skip_if_exists=True)
    return study


def search(
    study: optuna.Study,
    config: HPOConfig,
    space: SearchSpace,
    runner: TrialRunner,
    *,
    storage: optuna.storages.BaseStorage,
    turn: AbstractContextManager[object] | None = None,
) -> None:
    """Run trials until `n_trials` of the study have ended. Several searches may share a study.

    `turn` is a lock for the start of a trial, so that parallel searches do not start one too many. If a search has no
    trial to start, it waits for the trials of the others, and retries them if their search crashes. While the storage
    does not answer, trials go on, and what they report is recorded afterwards.
    """
    distributions = {path: _distribution(dimension) for path, dimension in space.items()}
    known: set[int] = set()

    def is_complete() -> bool:
        return sum(map(has_ended, study.get_trials(deepcopy=False))) >= config.n_trials

    def begin_next() -> Trial | None:
        """The next trial, unless enough are complete or running."""
        with turn or nullcontext():
            fail_stale_trials(study)
            trials = study.get_trials(deepcopy=False)
            record_first_heartbeats(storage, trials, known)
            running = sum(trial.state == TrialState.RUNNING for trial in trials)
            if sum(map(has_ended, trials)) + running >= config.n_trials:
                return None
            study.sampler = _sampler(config, started=len(trials))
            return begin_trial(study, distributions)

    def revive() -> None:
        """Record a heartbeat for all running trials, because none could be recorded during the outage."""
        known.clear()
        record_first_heartbeats(storage, study.get_trials(deepcopy=False), known)

    while True:
        trial = repeat_until_answered(begin_next, after_outage=revive)
        if trial is not None:
            _run_trial(study, config, trial, runner, storage)
        elif repeat_until_answered(is_complete):
            return
        else:
            time.sleep(_PAUSE_S)


def has_ended(trial: FrozenTrial) -> bool:
    """True if the trial has a result or an error, or if its process crashed and was retried `RETRIES` times."""
    if trial.state in (TrialState.COMPLETE, TrialState.PRUNED):
        return True
    return trial.state == TrialState.FAIL and (REASON in trial.user_attrs or exhausted_retries(trial))


def exhausted_retries(trial: FrozenTrial) -> bool:
    """True if the trial's process crashed in each attempt."""
    crashed = trial.state == TrialState.FAIL and REASON not in trial.user_attrs
    return crashed and len(trial.system_attrs.get("retry_history", ())) >= RETRIES


def evaluation_iterations(iterations: int, intermediate_evals: int) -> list[int]:
    """Iterations after which a trial is evaluated: 10 iterations, 4 evaluations → 3, 5, 8, 10."""
    return [math.ceil(k * iterations / intermediate_evals) for k in range(1, intermediate_evals + 1)]


def _run_trial(
    study: optuna.Study, config: HPOConfig, trial: Trial, runner: TrialRunner, storage: optuna.storages.BaseStorage
) -> None:
    """Run a trial until it is complete, pruned, or failed with its reason."""
    started, step, reward = time.perf_counter(), 0, math.nan
    state = TrialState.COMPLETE
    try:
        with heartbeat(storage, trial._trial_id), closing(runner(trial.number, dict(trial.params))) as evaluations:
            try:
                for step, evaluation in enumerate(evaluations, start=1):
                    reward = _finite(evaluation.reward, step)
                    repeat_until_answered(partial(trial.report, reward, step))
                    repeat_until_answered(partial(trial.set_user_attr, NUMBERS, dict(evaluation.numbers)))
                    may_be_pruned = config.pruning and step < config.intermediate_evals
                    if may_be_pruned and repeat_until_answered(trial.should_prune):
                        state = TrialState.PRUNED
                        break
                if step == 0:
                    raise ConfigError(f"trial {trial.number} has no evaluation. A runner yields at least one")
            except UpdateFinishedTrialError:
                raise
            except Exception as error:  # the error of a trial is its result
                logger.warning("trial %d failed: %s: %s", trial.number, type(error).__name__, error)
                reason = f"{type(error).__name__}: {error}"[:2000]
                repeat_until_answered(partial(trial.set_user_attr, REASON, reason))
                state = TrialState.FAIL
            seconds = round(time.perf_counter() - started, 3)
            repeat_until_answered(partial(trial.set_user_attr, SECONDS, seconds))
        values = reward if state == TrialState.COMPLETE else None
        # skipped if it is finished, because the answer to the first of two tries may have been lost
        repeat_until_answered(partial(study.tell, trial, values, state=state, skip_if_finished=True))
    except UpdateFinishedTrialError:
        logger.warning("trial %d missed its heartbeats and is retried. This attempt ends", trial.number)


def _finite(reward: float, step: int) -> float:
    if not math.isfinite(reward):
        raise Diverged(f"the held-out reward of evaluation {step} is {reward}. The learning rate may be too high")
    return float(reward)


def _sampler(config: HPOConfig, *, started: int) -> optuna.samplers.BaseSampler:
    """Sampler with a seed from the number of trials, so that a resumed study continues the same sequence.

    The first third of the trials is drawn at random, but no more than ten, Optuna's default.
    """
    startup = min(10, max(2, config.n_trials // 3))
    return optuna.samplers.TPESampler(seed=(config.seed * 1_000_003 + started) % 2**32, n_startup_trials=startup)


def _pruner(config: HPOConfig) -> optuna.pruners.BasePruner:
    if not config.pruning:
        return optuna.pruners.NopPruner()
    if config.pruner == "successive_halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2)
    return optuna.pruners.MedianPruner(n_startup_trials=min(5, max(1, config.n_trials // 4)))


def _distribution(dimension: Dimension) -> BaseDistribution:
    match dimension.type:
        case "loguniform":
            return FloatDistribution(dimension.low, dimension.high, log=True)
        case "uniform":
            return FloatDistribution(dimension.low, dimension.high)
        case "int":
            return IntDistribution(dimension.low, dimension.high)
        case "categorical":
            return CategoricalDistribution(dimension.choices)


def _contains(distribution: BaseDistribution, value: Value) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return isinstance(value, int | float) and distribution.low <= value <= distribution.high
