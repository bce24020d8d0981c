"""GRPO trainer in memory, for notebooks: the stage functions of the pipeline in a loop.

Use it to try an agent, an environment or a reward without servers. It has no gates, no registry and no cached stages,
so use the pipeline (`grpo train CONFIG`) for scheduled training.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.environments.environment import Environment, SingleTurnEnvironment
from grpo.errors import ConfigError
from grpo.identity.code import source_digest
from grpo.learner.checkpoints import read_state, save_base
from grpo.learner.teacher_prompts import hints_of
from grpo.learner.update import update
from grpo.notebook import history
from grpo.notebook.adjuster import Adjuster
from grpo.notebook.callbacks import EVENTS, Callback, Event, TrainingControl
from grpo.notebook.config import TrainingConfig
from grpo.notebook.diagnostics import DiagnosticsMonitor, IterationRecord
from grpo.notebook.live import LiveView, in_notebook
from grpo.notebook.reporters import make_reporters
from grpo.policy.catalog import load_merged
from grpo.policy.renderer import make_renderer
from grpo.policy.transformers.model import TransformersPolicy
from grpo.policy.transformers.model_cache import model_cache
from grpo.rewards.composite import as_reward
from grpo.rewards.hacking.turn_rewards import admit_turn_rewards
from grpo.rewards.judge.assertions import AssertionJudge
from grpo.rewards.reward import RewardFunction, Scorer, check_columns
from grpo.rewards.rollout_summary import summarize
from grpo.rewards.score import score_rollout
from grpo.rollout.collect import collect, schedule
from grpo.scenario import Scenario
from grpo.tables import write_trajectories
from grpo.trajectories import Trajectory, TrajectoryGroup, group

if TYPE_CHECKING:
    import pandas as pd

    from grpo.evaluation.plots import NotebookFigure

logger = logging.getLogger(__name__)
_HELDOUT = "heldout"
_CONFIG, _RECORD, _ROLLOUT, _CHECKPOINT = "config.json", "record.json", "rollout.parquet", "checkpoint"
_TEACHER = "teacher"


class MultiTurnGRPOTrainer:
    """Trainer that collects groups of episodes, scores them and updates the agent's policy, in iterations.

    `scenarios` default to the environment's scenarios. `eval_scenarios` are held out. If `folder` is given, checkpoints
    are written there, and the same call resumes an interrupted training. `judge` is the LLM judge of the scenarios'
    assertions. In a notebook, `live` shows a progress bar and the curves of reward and success. `reward_fn` may be a
    plain function of the turns, or one in the form of TRL's `reward_funcs`.
    """

    def __init__(
        self,
        agent: MultiTurnAgent,
        environment: Environment,
        reward_fn: RewardFunction | Scorer,
        config: TrainingConfig | None = None,
        *,
        scenarios: Sequence[Scenario] | None = None,
        eval_scenarios: Sequence[Scenario] = (),
        folder: str | Path | None = None,
        monitor: DiagnosticsMonitor | None = None,
        judge: AssertionJudge | None = None,
        live: bool = True,
    ) -> None:
        _check_kinds(agent, environment)
        self.agent, self.environment, self.judge = agent, environment, judge
        self.reward_fn = as_reward(reward_fn)
        self.config = config or TrainingConfig()
        self.scenarios = {s.id: s for s in (environment.scenarios if scenarios is None else scenarios)}
        if not self.scenarios:
            raise ConfigError("no scenarios to train on. Set them in the environment, or pass scenarios")
        self.eval_scenarios = {s.id: s for s in eval_scenarios}
        shared = self.scenarios.keys() & self.eval_scenarios.keys()
        if shared:
            raise ConfigError(
                f"scenarios {', '.join(sorted(shared)[:3])} are in scenarios and eval_scenarios. Remove them from one"
            )
        self.monitor = monitor or DiagnosticsMonitor()
        self.evaluations: dict[int, dict[str, float]] = {}
        """Metrics on the held-out scenarios, by iteration, that this process measured."""
        self.live = live
        self.settings = self.config
        """Settings of the next rollout and update. An `Adjuster` changes them."""
        self.folder = Path(mkdtemp(prefix="grpo-") if folder is None else folder)
        if folder is None:
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self._is_set_up = False
        self._hooks: dict[Event, list[Callable[..., None]]] = {event: [] for event in EVENTS}

    def register_callback(self, event: Event, function: Callable[..., None]) -> None:
        """Call a function at an event, with the arguments of the `Callback` method of that name."""
        if event not in self._hooks:
            raise ConfigError(f"unknown event {event!r}. Choose from {', '.join(EVENTS)}")
        self._hooks[event].append(function)

    async def train(self, callbacks: Sequence[Callback] = ()) -> MultiTurnAgent:
        """Train to the last iteration, or until a callback stops it. The agent then has the trained policy.

        Raises `NoLearningSignal` if the first rollout has none, and `NoEffect` if an update changes no weight.
        """
        await self.setup()
        active = [*callbacks, *self._reporters()]
        control = TrainingControl(self.config.iterations)
        self._emit(active, "on_train_begin", control)
        try:
            for index in range(len(self.monitor.records), self.config.iterations):
                scored = await asyncio.to_thread(self._collect, self.sample_scenarios(index), index)
                for trajectory in scored:
                    self._emit(active, "on_episode_end", trajectory)
                record = await self.update_policy(scored)
                if (index + 1) % self.config.logging_steps == 0:
                    logger.info("iteration %d of %d: reward %s", index + 1, control.iterations, record.rollout.reward)
                self._emit(active, "on_iteration_end", record, self.checkpoint(index), control)
                last = control.stop_reason is not None or index + 1 == control.iterations
                if self.eval_scenarios and (last or self._due(self.config.eval_steps, index)):
                    metrics = self.evaluations[index] = await self.evaluate()
                    self._emit(active, "on_evaluate", index, metrics, control)
                self._delete_previous(index)
                if control.stop_reason is not None:
                    logger.info("stopped after iteration %d: %s", index + 1, control.stop_reason)
                    break
        finally:
            self._emit(active, "on_train_end", control)
        return self.agent

    async def setup(self) -> None:
        """Initialize the agent and load its policy, or the last checkpoint of the folder. Further calls do nothing."""
        if not self._is_set_up:
            await self.agent.initialize()
            await asyncio.to_thread(self._set_up)
            self._is_set_up = True

    def sample_scenarios(self, index: int, *, count: int | None = None) -> list[Scenario]:
        """Scenarios of iteration `index`, in a seeded order. `count` is by default the config's number."""
        count = self.settings.scenarios if count is None else count
        ids = schedule(list(self.scenarios), iteration=index, count=count, seed=self.config.seed)
        return [self.scenarios[name] for name in ids]

    async def update_policy(self, scored: Sequence[Trajectory]) -> IterationRecord:
        """Update the policy on its scored trajectories, as the next iteration."""
        await self.setup()
        record = await asyncio.to_thread(self._update, len(self.monitor.records), scored)
        health = self.monitor.observe(record)
        if health.reasons:
            logger.warning("iteration %d: %s", record.index + 1, "; ".join(health.reasons.values()))
        return record

    async def evaluate(self, scenarios: Sequence[Scenario] | None = None) -> dict[str, float]:
        """Mean reward and verified success on held-out scenarios, with the same seeds each time."""
        chosen = list(self.eval_scenarios.values() if scenarios is None else scenarios)
        if not chosen:
            raise ConfigError("no scenarios to evaluate on. Pass eval_scenarios")
        await self.setup()
        summary = summarize(await asyncio.to_thread(self._collect, chosen, _HELDOUT))
        metrics = {"reward": summary.reward, "success": summary.success}
        return {name: value for name, value in metrics.items() if value is not None}

    async def generate_trajectories(
        self, scenarios: Sequence[Scenario], *, iteration: int = 0
    ) -> list[TrajectoryGroup]:
        """Collect and score `group_size` trajectories per scenario, including failed ones."""
        await self.setup()
        return list(group(await asyncio.to_thread(self._collect, list(scenarios), iteration)))

    @property
    def history(self) -> pd.DataFrame:
        """Metrics, one row per iteration: reward and success with their intervals, update, held-out."""
        return history.table(self.monitor.records, self.evaluations)

    def plot(self) -> NotebookFigure:
        """Curves of reward and verified success with their intervals, as a matplotlib figure."""
        return history.plot(self.monitor.records, self.evaluations, title=f"{len(self.monitor.records)} iterations")

    def _repr_html_(self) -> str:
        return history.training_html(self.monitor.records, self.evaluations, iterations=self.config.iterations)

    def checkpoint(self, index: int) -> Path:
        """Folder of the checkpoint after iteration `index`. -1 is the base policy."""
        return self.folder / f"{index + 1:05d}" / _CHECKPOINT

    def _set_up(self) -> None:
        check_columns(self.reward_fn, [*self.scenarios.values(), *self.eval_scenarios.values()])
        policy = self._policy
        config = self.config.model_dump(mode="json")
        path = self.folder / _CONFIG
        base = self.checkpoint(-1)
        if path.is_file():
            if json.loads(path.read_text(encoding="utf-8")) != config:
                raise ConfigError(f"{self.folder} has a training with another config. Use another folder")
            self._resume()
            return
        shutil.rmtree(base.parent, ignore_errors=True)
        base.mkdir(parents=True)
        save_base(policy, base)
        if self.settings.teacher is not None:
            shutil.rmtree(self.folder / _TEACHER, ignore_errors=True)
            (self.folder / _TEACHER).mkdir()
            save_base(load_merged(self.settings.teacher), self.folder / _TEACHER)
        if self.settings.lora is None:  # adapters are added in place, but the agent's own policy must not change
            model_cache.put(policy)
        path.write_text(json.dumps(config), encoding="utf-8")

    def _resume(self) -> None:
        """Resume after the last iteration with a record, because an iteration writes its record last."""
        self.monitor.records.clear()
        while (path := self._record(len(self.monitor.records))).is_file():
            self.monitor.records.append(IterationRecord.model_validate_json(path.read_bytes()))
        self._load(self.checkpoint(len(self.monitor.records) - 1))

    def _update(self, index: int, scored: Sequence[Trajectory]) -> IterationRecord:
        summary = summarize(scored)
        if index == 0:
            admit_turn_rewards(summary.turn_rewards, self.settings.turn_reward_admission)
        folder = self._record(index).parent
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        base, parent, target = (self.checkpoint(k) for k in (-1, index - 1, index))
        rollout = folder / _ROLLOUT
        write_trajectories(rollout, scored, provenance={"policy": self._policy.hash})
        updated = update(
            [rollout],
            parent,
            base,
            target,
            self.settings,
            seed=self.config.seed,
            iteration=index,
            renderer=self.agent.config.renderer,
            teacher=None if self.settings.teacher is None else self.folder / _TEACHER,
            hints=self._hints(),
            sources=source_digest() if self.settings.nodes > 1 else None,
        )
        if not updated.changed:
            shutil.copytree(parent, target, dirs_exist_ok=True)
        self._load(target)
        record = IterationRecord(
            index=index,
            rollout=summary,
            update=updated.metrics,
            reward_interval=history.rollout_interval(scored, "reward", seed=index),
            success_interval=history.rollout_interval(scored, "success", seed=index),
        )
        self._write(record)
        return record

    def _hints(self) -> dict[str, str]:
        """Hints of the scenarios, which only the teacher of a distillation reads, by the id of the scenario."""
        settings = self.settings.distillation
        return {} if settings is None else hints_of(self.scenarios.values(), settings.privileged_context)

    def _collect(self, scenarios: list[Scenario], iteration: int | str) -> list[Trajectory]:
        policy, settings = self._policy, self.settings
        tools = (*self.environment.tools, *self.agent.tools)
        trajectories = collect(
            scenarios,
            policy,
            self.environment,
            make_renderer(policy.tokenizer, tools=tools, settings=self.agent.config.renderer),
            settings,
            group_size=settings.group_size if iteration != _HELDOUT else 1,
            temperature=settings.temperature,
            run_seed=self.config.seed,
            iteration=iteration,
            agent=self.agent,
            trees=settings.trees if iteration != _HELDOUT else None,
        )
        by_id = {scenario.id: scenario for scenario in scenarios}
        return score_rollout(
            trajectories,
            self.reward_fn,
            by_id,
            judge=self.judge,
            error_budget=settings.error_budget,
            timeout_s=settings.reward_timeout_s,
        )

    @property
    def _policy(self) -> TransformersPolicy:
        policy = self.agent.policy
        if not isinstance(policy, TransformersPolicy):
            raise ConfigError(f"a {type(policy).__name__} cannot be trained. Give the agent a model folder")
        return policy

    def _load(self, checkpoint: Path) -> None:
        """Set the agent's policy to the policy of a checkpoint."""
        policy_hash = read_state(checkpoint).policy_hash
        self.agent.set_policy(model_cache.get(policy_hash, checkpoint, base=self.checkpoint(-1)))

    def _record(self, index: int) -> Path:
        return self.checkpoint(index).parent / _RECORD

    def _write(self, record: IterationRecord) -> None:
        """Write the record atomically, because an iteration with a record counts as complete."""
        path = self._record(record.index)
        partial = path.with_suffix(".partial")
        partial.write_text(record.model_dump_json(), encoding="utf-8")
        partial.replace(path)

    def _delete_previous(self, index: int) -> None:
        """Delete the checkpoint before this one, unless it is the base or `save_steps` keeps it."""
        before = index - 1
        if before >= 0 and not self._due(self.config.save_steps, before):
            shutil.rmtree(self.checkpoint(before), ignore_errors=True)
            (self._record(before).parent / _ROLLOUT).unlink(missing_ok=True)

    @staticmethod
    def _due(every: int | None, index: int) -> bool:
        return every is not None and (index + 1) % every == 0

    def _reporters(self) -> list[Callback]:
        active: list[Callback] = [*make_reporters(self.folder, self.config)]
        if self.live and in_notebook():
            active.append(LiveView(self.monitor.records, self.evaluations, self.config.iterations))
        return active

    def _emit(self, callbacks: Sequence[Callback], event: Event, *arguments: Any) -> None:
        for callback in callbacks:
            getattr(callback, event)(*arguments)
        for function in self._hooks[event]:
            function(*arguments)


def _check_kinds(agent: object, environment: object) -> None:
    """Raise `ConfigError` for an agent or an environment of another kind."""
    if not isinstance(agent, MultiTurnAgent):
        raise ConfigError(
            f"the agent is a {type(agent).__name__}. Give a MultiTurnAgent, such as "
            "MultiTurnAgent.from_model('path/of/a/model')"
        )
    if not isinstance(environment, Environment):
        raise ConfigError(
            f"the environment is a {type(environment).__name__}. Give an Environment. A class with reset and step in "
            "Gymnasium's form is wrapped by GymEnvironment(the class), one of TRL's by TRLEnvironment(the class)"
        )


class SingleTurnGRPOTrainer(MultiTurnGRPOTrainer):
    """Trainer that ends each episode after one reply of the agent."""

    def __init__(self, agent: MultiTurnAgent, environment: Environment, *arguments: Any, **options: Any) -> None:
        _check_kinds(agent, environment)
        super().__init__(agent, SingleTurnEnvironment(environment), *arguments, **options)


async def train(
    agent: MultiTurnAgent,
    environment: Environment,
    reward_fn: RewardFunction | Scorer,
    *,
    profile: str = "balanced",
    auto_adjust: bool = False,
    callbacks: Sequence[Callback] = (),
    folder: str | Path | None = None,
    **overrides: Any,
) -> MultiTurnAgent:
    """Train an agent with the settings of a profile. `overrides` are settings of `TrainingConfig`.

    If `auto_adjust` is True, `grpo.notebook.adjuster.Adjuster` changes settings when the diagnostics report an issue.
    """
    config = TrainingConfig.from_profile(profile, **overrides)
    trainer = MultiTurnGRPOTrainer(agent, environment, reward_fn, config, folder=folder)
    if auto_adjust:
        callbacks = [*callbacks, Adjuster(trainer)]
    return await trainer.train(callbacks)
