"""One search: draw values, run a trial with them, and keep what it showed or why it failed.

A runner is a function (number, values) → looks: the held-out reward after each share of the training, the last one
being the result. What runs is its business; the same search serves a notebook's trainer and runs of the pipeline.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field

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
from grpo.tuning.storage import RETRIES, begin_trial, fail_stale_trials, heartbeat, record_first_heartbeats

logger = logging.getLogger(__name__)

NUMBERS, REASON, SECONDS = "numbers", "reason", "seconds"
_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class IntermediateEvaluation:
    """What a trial shows on the held-out scenarios."""

    reward: float
    """What is compared."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Further numbers worth keeping; those of the last look stay."""


TrialRunner = Callable[[int, dict[str, Value]], Generator[IntermediateEvaluation, None, None]]


def open_study(
    plan: HPOConfig, space: SearchSpace, base: Settings, *, name: str, storage: optuna.storages.BaseStorage
) -> optuna.Study:
    """The study of this name in the storage, or a new one, whose first trial has the values of the base config.

    That holds where the base lies within the space: then the best is never worse than what there was.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        direction=plan.optimization_direction,
        pruner=_pruner(plan),
        load_if_exists=True,
    )
    present = {path: get_value(base, path) for path in space}
    drawn = {path: _distribution(dimension) for path, dimension in space.items()}
    if all(_holds(drawn[path], value) for path, value in present.items()):
        study.enqueue_trial(present, skip_if_exists=True)
    return study


def search(
    study: optuna.Study,
    plan: HPOConfig,
    space: SearchSpace,
    runner: TrialRunner,
    *,
    storage: optuna.storages.BaseStorage,
    turn: AbstractContextManager[object] | None = None,
) -> None:
    """Try values until the study has `n_trials` that came to an end; several searches may share a study.

    `turn` is held while a trial is begun, so that the searches of one machine do not begin one too many. A search that
    has nothing to begin waits for those of the others, and takes over what a dead one left.
    """
    distributions = {path: _distribution(dimension) for path, dimension in space.items()}
    seen: set[int] = set()
    while True:
        with turn or nullcontext():
            fail_stale_trials(study)
            known = study.get_trials(deepcopy=False)
            record_first_heartbeats(storage, known, seen)
            ended = sum(map(has_ended, known))
            if ended >= plan.n_trials:
                return
            running = sum(trial.state == TrialState.RUNNING for trial in known)
            trial = None
            if ended + running < plan.n_trials:
                study.sampler = _sampler(plan, begun=len(known))
                trial = begin_trial(study, distributions)
        if trial is None:
            time.sleep(_PAUSE_S)
        else:
            _try(study, plan, trial, runner, storage)


def has_ended(trial: FrozenTrial) -> bool:
    """Whether a trial came to an end of itself; one whose process crashed is tried again, until it is given up."""
    if trial.state in (TrialState.COMPLETE, TrialState.PRUNED):
        return True
    return trial.state == TrialState.FAIL and (REASON in trial.user_attrs or exhausted_retries(trial))


def exhausted_retries(trial: FrozenTrial) -> bool:
    """Whether a trial took its process down each time that it was tried."""
    crashed = trial.state == TrialState.FAIL and REASON not in trial.user_attrs
    return crashed and len(trial.system_attrs.get("retry_history", ())) >= RETRIES


def evaluation_iterations(iterations: int, intermediate_evals: int) -> list[int]:
    """After which iterations a trial is looked at: 10 iterations, 4 looks → 3, 5, 8, 10."""
    return [math.ceil(k * iterations / intermediate_evals) for k in range(1, intermediate_evals + 1)]


def _try(
    study: optuna.Study, plan: HPOConfig, trial: Trial, runner: TrialRunner, storage: optuna.storages.BaseStorage
) -> None:
    """Run one trial to its end: complete, pruned, or failed with its reason."""
    began, step, reward = time.perf_counter(), 0, math.nan
    state = TrialState.COMPLETE
    try:
        with (
            heartbeat(storage, trial._trial_id),
            closing(runner(trial.number, dict(trial.params))) as intermediate_evals,
        ):
            try:
                for step, look in enumerate(intermediate_evals, start=1):
                    reward = _finite(look.reward, step)
                    trial.report(reward, step)
                    trial.set_user_attr(NUMBERS, dict(look.numbers))
                    if plan.pruning and step < plan.intermediate_evals and trial.should_prune():
                        state = TrialState.PRUNED
                        break
                if step == 0:
                    raise ConfigError(f"trial {trial.number} showed nothing; a runner yields at least one look")
            except UpdateFinishedTrialError:
                raise
            except Exception as error:  # whatever a trial dies of is its result
                logger.warning("trial %d failed: %s: %s", trial.number, type(error).__name__, error)
                trial.set_user_attr(REASON, f"{type(error).__name__}: {error}"[:2000])
                state = TrialState.FAIL
            trial.set_user_attr(SECONDS, round(time.perf_counter() - began, 3))
        values = reward if state == TrialState.COMPLETE else None
        study.tell(trial, values, state=state)
    except UpdateFinishedTrialError:
        logger.warning("trial %d gave no sign of life for too long and is tried anew; this run ends", trial.number)


def _finite(reward: float, step: int) -> float:
    if not math.isfinite(reward):
        raise Diverged(f"the held-out reward at look {step} is {reward}; the learning rate may be too high")
    return float(reward)


def _sampler(plan: HPOConfig, *, begun: int) -> optuna.samplers.BaseSampler:
    """A sampler that goes on where the last one stopped: its seed follows from the trials that there are.

    The first third is drawn at random, at most the ten of Optuna's default.
    """
    startup = min(10, max(2, plan.n_trials // 3))
    return optuna.samplers.TPESampler(seed=plan.seed * 1_000_003 + begun, n_startup_trials=startup)


def _pruner(plan: HPOConfig) -> optuna.pruners.BasePruner:
    if not plan.pruning:
        return optuna.pruners.NopPruner()
    if plan.pruner == "successive_halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2)
    return optuna.pruners.MedianPruner(n_startup_trials=min(5, max(1, plan.n_trials // 4)))


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


def _holds(drawn: BaseDistribution, value: Value) -> bool:
    if isinstance(drawn, CategoricalDistribution):
        return value in drawn.choices
    assert isinstance(drawn, FloatDistribution | IntDistribution)
    return isinstance(value, int | float) and drawn.low <= value <= drawn.high
