"""`quick_hpo`: settings for an agent, searched for in memory."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import hashlib
import logging
import math
import threading
from collections.abc import Coroutine, Generator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import optuna

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.search_space import Dimension, SearchSpace, Value, check_space, get_search_space, with_values
from grpo.config.tuning import HPOConfig
from grpo.environments.environment import Environment
from grpo.errors import ConfigError, PolicyError
from grpo.notebook.callbacks import Callback, TrainingControl
from grpo.notebook.config import TrainingConfig
from grpo.notebook.diagnostics import IterationRecord
from grpo.notebook.trainer import MultiTurnGRPOTrainer
from grpo.policy.transformers.model import TransformersPolicy, weights_hash
from grpo.rewards.reward import RewardFunction
from grpo.scenarios.scenario import Scenario
from grpo.tuning.study import IntermediateEvaluation, evaluation_iterations, open_study, search
from grpo.tuning.study_summary import StudySummary, summarize_study

logger = logging.getLogger(__name__)
T = TypeVar("T")

_HELD_BACK = 4  # one of so many scenarios judges, where no others are given for it


async def quick_hpo(
    agent: MultiTurnAgent,
    environment: Environment,
    reward_fn: RewardFunction,
    base_config: TrainingConfig | None = None,
    *,
    n_trials: int | None = None,
    search_config: HPOConfig | None = None,
    scenarios: Sequence[Scenario] | None = None,
    eval_scenarios: Sequence[Scenario] | None = None,
) -> StudySummary:
    """Search for settings that train this agent best: `.best_params` are changes of the base config.

    Each trial trains a copy of the agent from the weights that it has now, for `num_episodes` of the base config, and
    is judged on `eval_scenarios` as the base config plays; where none are given, a quarter of the scenarios is held
    out for it. The agent itself stays as it is.

    Raises `ConfigError` before the first trial for a dimension or a bound that does not fit, `BudgetError` when no
    trial is complete.
    """
    base, plan = base_config or TrainingConfig(), search_config or HPOConfig()
    if n_trials is not None:
        plan = with_values(plan, {"n_trials": n_trials})
    space = plan.search_space if not isinstance(plan.search_space, str) else get_search_space(plan.search_space)
    check_space(space, base)
    _check_effect(space, base)
    trained, held = _sides(environment.scenarios if scenarios is None else scenarios, eval_scenarios)
    await agent.initialize()
    trials = _Trials(agent, environment, reward_fn, base, plan.intermediate_evals, trained, held)
    storage = optuna.storages.InMemoryStorage()
    study = open_study(plan, space, base, name="quick_hpo", storage=storage)
    try:
        await asyncio.to_thread(search, study, plan, space, trials.run, storage=storage)
    finally:
        trials.stop()
    found = summarize_study(study)
    logger.info("best of %d trials: %s gives %.4g", found.ended, found.best_params, found.best_reward)
    return found


class _Trials:
    """Trials in memory: training on the caller's event loop, the search in a thread beside it."""

    def __init__(
        self,
        agent: MultiTurnAgent,
        environment: Environment,
        reward_fn: RewardFunction,
        base: TrainingConfig,
        intermediate_evals: int,
        trained: Sequence[Scenario],
        held: Sequence[Scenario],
    ) -> None:
        if not isinstance(agent.policy, TransformersPolicy):
            raise ConfigError(f"a {type(agent.policy).__name__} can play, not learn; give the agent a model folder")
        self.agent, self.policy = agent, agent.policy
        self.environment, self.reward_fn = environment, reward_fn
        self.base, self.intermediate_evals = base, intermediate_evals
        self.trained, self.held = trained, held
        self.start = weights_hash(agent.policy.model)
        self._loop = asyncio.get_running_loop()
        self._stopped = threading.Event()
        self._pending: concurrent.futures.Future[Any] | None = None

    def run(self, number: int, values: dict[str, Value]) -> Generator[IntermediateEvaluation, None, None]:
        """Train a copy of the agent, and look at it after each share of the episodes."""
        found = weights_hash(self.policy.model)
        if found != self.start:
            raise PolicyError(f"trial {number} would start from policy {found}, the first one from {self.start}")
        quiet = {"report_to": "none", "wandb_project": None, "eval_steps": None, "save_steps": None}
        config = with_values(self.base, {**quiet, **values})
        trainer = MultiTurnGRPOTrainer(
            copy.copy(self.agent), self.environment, self.reward_fn, config, scenarios=self.trained
        )
        for index in evaluation_iterations(config.iterations, self.intermediate_evals):
            if len(trainer.monitor.records) < index:
                self._wait(trainer.train([_StopAfter(index)]))
            yield self._wait(self._judge(trainer))

    def stop(self) -> None:
        """Begin nothing more, and give up what is going on."""
        self._stopped.set()
        if self._pending is not None:
            self._pending.cancel()

    async def _judge(self, trainer: MultiTurnGRPOTrainer) -> IntermediateEvaluation:
        """Play the held-out scenarios as the base config does, whatever the trial trains with."""
        own, trainer.rollout = trainer.rollout, self.base.rollout()
        try:
            found = await trainer.evaluate(self.held)
        finally:
            trainer.rollout = own
        return IntermediateEvaluation(reward=found.get("reward", math.nan), numbers=found)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._stopped.is_set():
            work.close()
            raise asyncio.CancelledError
        future = self._pending = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError as error:
            raise asyncio.CancelledError from error  # ends the search, not this trial alone


class _StopAfter(Callback):
    """Ends training after so many iterations."""

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations

    def on_iteration_end(self, record: IterationRecord, checkpoint: Path, control: TrainingControl) -> None:
        """The count is of all iterations of the training, those before it was resumed included."""
        if record.index + 1 >= self.iterations:
            control.stop("it is time to look at the held-out scenarios")


def _sides(
    scenarios: Sequence[Scenario], held: Sequence[Scenario] | None
) -> tuple[Sequence[Scenario], Sequence[Scenario]]:
    """Scenarios to train on and to judge by; a quarter of them, by a digest of their ids, where none are given."""
    if held is not None:
        return scenarios, held
    ordered = sorted(scenarios, key=lambda scenario: hashlib.sha256(scenario.id.encode()).digest())
    count = max(1, len(ordered) // _HELD_BACK)
    if len(ordered) < 2:
        raise ConfigError(f"{len(ordered)} scenario cannot be trained on and held out; give eval_scenarios")
    return ordered[count:], ordered[:count]


def _check_effect(space: SearchSpace, base: TrainingConfig) -> None:
    """Refuse dimensions that are the budget of a trial, or that no part of it reads."""
    for name, dimension in space.items():
        if name == "num_episodes":
            raise ConfigError("num_episodes is the length of a trial, the same for all; set it in the base config")
        told = [(config.training(), config.rollout()) for config in _changed(base, name, dimension)]
        if all(one == told[0] for one in told):
            raise ConfigError(f"dimension {name} changes neither rollout nor update; leave it out")


def _changed(base: TrainingConfig, name: str, dimension: Dimension) -> list[TrainingConfig]:
    return [with_values(base, {name: value}) for value in dimension.boundary_values()]
