"""`quick_hpo`: hyperparameter search for an agent, in memory."""

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
from grpo.config.rollout import EpisodeSettings, equal_episodes
from grpo.config.search_space import SearchSpace, Value, check_space, get_search_space, with_values
from grpo.config.training import TrainingSettings
from grpo.config.tuning import HPOConfig
from grpo.environments.environment import Environment
from grpo.errors import ConfigError, PolicyError
from grpo.notebook.callbacks import Callback, TrainingControl
from grpo.notebook.config import TrainingConfig
from grpo.notebook.diagnostics import IterationRecord
from grpo.notebook.trainer import MultiTurnGRPOTrainer
from grpo.policy.transformers.model import TransformersPolicy, weights_hash
from grpo.rewards.reward import RewardFunction, Scorer
from grpo.scenario import Scenario
from grpo.tuning.study import IntermediateEvaluation, evaluation_iterations, open_study, search
from grpo.tuning.study_summary import StudySummary, summarize_study

logger = logging.getLogger(__name__)
T = TypeVar("T")

_VALIDATION_PART = 4  # one scenario of four is held out by default


async def quick_hpo(
    agent: MultiTurnAgent,
    environment: Environment,
    reward_fn: RewardFunction | Scorer,
    base_config: TrainingConfig | None = None,
    *,
    n_trials: int | None = None,
    search_config: HPOConfig | None = None,
    scenarios: Sequence[Scenario] | None = None,
    eval_scenarios: Sequence[Scenario] | None = None,
) -> StudySummary:
    """Search for hyperparameters of this agent's training. `.best_params` are overrides of the base config.

    Each trial trains a copy of the agent from its current weights, for as many episodes as the base config has. It is
    evaluated on `eval_scenarios` with the rollout settings of the base config. By default a quarter of the scenarios is
    held out. The agent itself does not change.

    Raises `ConfigError` before the first trial if a dimension or a bound does not fit the base config, and
    `BudgetError` if no trial is complete.
    """
    base, search_config = base_config or TrainingConfig(), search_config or HPOConfig()
    if n_trials is not None:
        search_config = with_values(search_config, {"n_trials": n_trials})
    space = search_config.search_space
    if isinstance(space, str):
        space = get_search_space(space)
    check_space(space, base)
    _check_effect(space)
    train, heldout = _split(environment.scenarios if scenarios is None else scenarios, eval_scenarios)
    await agent.initialize()
    runner = _TrialRunner(agent, environment, reward_fn, base, search_config.intermediate_evals, train, heldout)
    storage = optuna.storages.InMemoryStorage()
    study = open_study(search_config, space, base, name="quick_hpo", storage=storage)
    try:
        await asyncio.to_thread(search, study, search_config, space, runner.run, storage=storage)
    finally:
        runner.stop()
    summary = summarize_study(study)
    logger.info("best of %d trials: %s gives %.4g", summary.ended, summary.best_params, summary.best_reward)
    return summary


class _TrialRunner:
    """Trials in memory: training on the caller's event loop, the search in a thread."""

    def __init__(
        self,
        agent: MultiTurnAgent,
        environment: Environment,
        reward_fn: RewardFunction | Scorer,
        base: TrainingConfig,
        intermediate_evals: int,
        train: Sequence[Scenario],
        heldout: Sequence[Scenario],
    ) -> None:
        if not isinstance(agent.policy, TransformersPolicy):
            raise ConfigError(f"a {type(agent.policy).__name__} cannot be trained. Give the agent a model folder")
        self.agent, self.policy = agent, agent.policy
        self.environment, self.reward_fn = environment, reward_fn
        self.base, self.intermediate_evals = base, intermediate_evals
        self.train, self.heldout = train, heldout
        self.start = weights_hash(agent.policy.model)
        self._loop = asyncio.get_running_loop()
        self._stopped = threading.Event()
        self._pending: concurrent.futures.Future[Any] | None = None

    def run(self, number: int, values: dict[str, Value]) -> Generator[IntermediateEvaluation, None, None]:
        """Train a copy of the agent, and evaluate it after each share of the episodes."""
        current = weights_hash(self.policy.model)
        if current != self.start:
            raise PolicyError(f"trial {number} would start from policy {current}, the first one from {self.start}")
        overrides = {"report_to": "none", "wandb_project": None, "eval_steps": None, "save_steps": None}
        config = with_values(self.base, {**overrides, **values})
        config = config.model_copy(update={"iterations": equal_episodes(self.base.iterations, self.base, config)})
        trainer = MultiTurnGRPOTrainer(
            copy.copy(self.agent), self.environment, self.reward_fn, config, scenarios=self.train, live=False
        )
        for index in evaluation_iterations(config.iterations, self.intermediate_evals):
            if len(trainer.monitor.records) < index:
                self._wait(trainer.train([_StopAfter(index)]))
            yield self._wait(self._evaluate(trainer))

    def stop(self) -> None:
        """Start no further work, and cancel what is running."""
        self._stopped.set()
        if self._pending is not None:
            self._pending.cancel()

    async def _evaluate(self, trainer: MultiTurnGRPOTrainer) -> IntermediateEvaluation:
        """Evaluate on the held-out scenarios with the rollout settings of the base config."""
        own, trainer.settings = trainer.settings, self.base
        try:
            metrics = await trainer.evaluate(self.heldout)
        finally:
            trainer.settings = own
        return IntermediateEvaluation(reward=metrics.get("reward", math.nan), numbers=metrics)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._stopped.is_set():
            work.close()
            raise asyncio.CancelledError
        future = self._pending = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError as error:
            raise asyncio.CancelledError from error  # ends the search, not only this trial


class _StopAfter(Callback):
    """Stops the training after a number of iterations."""

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations

    def on_iteration_end(self, record: IterationRecord, checkpoint: Path, control: TrainingControl) -> None:
        """Count all iterations of the training, those before a resume included."""
        if record.index + 1 >= self.iterations:
            control.stop("intermediate evaluation")


def _split(
    scenarios: Sequence[Scenario], heldout: Sequence[Scenario] | None
) -> tuple[Sequence[Scenario], Sequence[Scenario]]:
    """Training and held-out scenarios. By default a quarter, chosen by a digest of their ids, is held out."""
    if heldout is not None:
        return scenarios, heldout
    ordered = sorted(scenarios, key=lambda scenario: hashlib.sha256(scenario.id.encode()).digest())
    count = max(1, len(ordered) // _VALIDATION_PART)
    if len(ordered) < 2:
        raise ConfigError(
            f"{len(ordered)} scenario cannot be split into training and held-out scenarios. Pass eval_scenarios"
        )
    return ordered[count:], ordered[:count]


def _check_effect(space: SearchSpace) -> None:
    """Raise `ConfigError` for dimensions that set the budget of a trial, or that have no effect."""
    for name in space:
        if name == "iterations":
            raise ConfigError(
                "iterations cannot be tuned, because all trials must have the same length. Set iterations in the base "
                "config"
            )
        if name.partition(".")[0] not in {*TrainingSettings.model_fields, *EpisodeSettings.model_fields}:
            raise ConfigError(f"dimension {name} changes neither rollout nor update. Leave it out")
