"""Training in memory, for notebooks: the pipeline's own stage functions in a loop, without Prefect or MLflow."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.rollout import RolloutSettings
from grpo.config.training import TrainingSettings
from grpo.environments.environment import Environment, SingleTurnEnvironment
from grpo.errors import ConfigError
from grpo.learner.checkpoints import read_state, save_base
from grpo.learner.update import UpdateMetrics, UpdateSkipped, update
from grpo.notebook.adjuster import Adjuster
from grpo.notebook.callbacks import EVENTS, Callback, Event, TrainingControl, WandbCallback
from grpo.notebook.config import TrainingConfig
from grpo.notebook.diagnostics import DiagnosticsMonitor, IterationRecord
from grpo.policy.transformers.model import TransformersPolicy, model_cache
from grpo.renderers.chat_template import Renderer
from grpo.rewards.judge.assertions import AssertionJudge
from grpo.rewards.reward import RewardFunction
from grpo.rewards.rollout_summary import RolloutSummary, summarize
from grpo.rewards.score import score_rollout
from grpo.rollout.collect import collect, schedule
from grpo.scenarios.scenario import Scenario
from grpo.tables import write_trajectories
from grpo.trajectories import Trajectory, TrajectoryGroup, group

logger = logging.getLogger(__name__)
_HELDOUT = "heldout"
_CONFIG, _RECORD, _ROLLOUT, _CHECKPOINT = "config.json", "record.json", "rollout.parquet", "checkpoint"


class MultiTurnGRPOTrainer:
    """Plays groups of siblings, judges them, and updates the agent's policy, again and again.

    `scenarios` are those of the environment unless others are given; `eval_scenarios` are held out. With a `folder` the
    training leaves its checkpoints there, and the same call goes on where a killed one stopped. `judge` judges what
    scenarios assert in words.
    """

    def __init__(
        self,
        agent: MultiTurnAgent,
        environment: Environment,
        reward_fn: RewardFunction,
        config: TrainingConfig | None = None,
        *,
        scenarios: Sequence[Scenario] | None = None,
        eval_scenarios: Sequence[Scenario] = (),
        folder: str | Path | None = None,
        monitor: DiagnosticsMonitor | None = None,
        judge: AssertionJudge | None = None,
    ) -> None:
        self.agent, self.environment, self.reward_fn, self.judge = agent, environment, reward_fn, judge
        self.config = config or TrainingConfig()
        self.scenarios = {s.id: s for s in (environment.scenarios if scenarios is None else scenarios)}
        if not self.scenarios:
            raise ConfigError("there is nothing to train on: give the environment scenarios, or the trainer")
        self.eval_scenarios = {s.id: s for s in eval_scenarios}
        both = self.scenarios.keys() & self.eval_scenarios.keys()
        if both:
            raise ConfigError(
                f"scenarios {', '.join(sorted(both)[:3])} are trained on and held out; leave them out of one"
            )
        self.monitor = monitor or DiagnosticsMonitor()
        self.settings: TrainingSettings = self.config.training()
        """What the next update obeys."""
        self.rollout: RolloutSettings = self.config.rollout()
        """What the next rollout obeys."""
        self.folder = Path(mkdtemp(prefix="grpo-") if folder is None else folder)
        if folder is None:
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self._begun = False
        self._hooks: dict[Event, list[Callable[..., None]]] = {event: [] for event in EVENTS}

    def register_callback(self, event: Event, function: Callable[..., None]) -> None:
        """Call a function at an event, with what the method of `Callback` of that name is given."""
        if event not in self._hooks:
            raise ConfigError(f"no event {event!r}; there are {', '.join(EVENTS)}")
        self._hooks[event].append(function)

    async def train(self, callbacks: Sequence[Callback] = ()) -> MultiTurnAgent:
        """Train to the end or until a callback stops; the agent then speaks with the trained policy.

        Raises `NoLearningSignal` when the first rollout teaches nothing, and `NoEffect` when an update changes nothing.
        """
        await self.setup()
        watching = [*callbacks, *self._reporters()]
        control = TrainingControl(self.config.iterations)
        self._emit(watching, "on_train_begin", control)
        try:
            for index in range(len(self.monitor.records), self.config.iterations):
                played = await asyncio.to_thread(self._play, self.sample_scenarios(index), index)
                for trajectory in played:
                    self._emit(watching, "on_episode_end", trajectory)
                record = await self.update_policy(played)
                if (index + 1) % self.config.logging_steps == 0:
                    logger.info("iteration %d of %d: reward %s", index + 1, control.iterations, record.rollout.reward)
                self._emit(watching, "on_iteration_end", record, self.checkpoint(index), control)
                last = control.stop_reason is not None or index + 1 == control.iterations
                if self.eval_scenarios and (last or self._due(self.config.eval_steps, index)):
                    metrics = await self.evaluate()
                    self._emit(watching, "on_evaluate", index, metrics, control)
                self._forget(index)
                if control.stop_reason is not None:
                    logger.info("stopped after iteration %d: %s", index + 1, control.stop_reason)
                    break
        finally:
            self._emit(watching, "on_train_end", control)
        return self.agent

    async def setup(self) -> None:
        """Make the agent ready and take its policy in, or what a training in this folder has made of it; once."""
        if not self._begun:
            await self.agent.initialize()
            await asyncio.to_thread(self._begin)
            self._begun = True

    def sample_scenarios(self, index: int, *, count: int | None = None) -> list[Scenario]:
        """The scenarios that iteration `index` plays, in a seeded order; as many as the config says, or `count`."""
        count = self.rollout.scenarios if count is None else count
        ids = schedule(list(self.scenarios), iteration=index, count=count, seed=self.config.seed)
        return [self.scenarios[name] for name in ids]

    async def update_policy(self, played: Sequence[Trajectory]) -> IterationRecord:
        """Update the policy by judged episodes that it has played: the next iteration."""
        await self.setup()
        record = await asyncio.to_thread(self._learn, len(self.monitor.records), played)
        health = self.monitor.observe(record)
        if health.reasons:
            logger.warning("iteration %d: %s", record.index + 1, "; ".join(health.reasons.values()))
        return record

    async def evaluate(self, scenarios: Sequence[Scenario] | None = None) -> dict[str, float]:
        """Mean reward and verified success of held-out scenarios, the same seeds each time; changes nothing."""
        chosen = list(self.eval_scenarios.values() if scenarios is None else scenarios)
        if not chosen:
            raise ConfigError("there is nothing to evaluate on: give eval_scenarios")
        await self.setup()
        played = await asyncio.to_thread(self._play, chosen, _HELDOUT)
        found = summarize(played)
        named = {"reward": found.reward, "success": found.success}
        return {name: value for name, value in named.items() if value is not None}

    async def generate_trajectories(
        self, scenarios: Sequence[Scenario], *, iteration: int = 0
    ) -> list[TrajectoryGroup]:
        """Play and judge `num_generations` siblings of each scenario, exactly; failed ones are among them."""
        await self.setup()
        return list(group(await asyncio.to_thread(self._play, list(scenarios), iteration)))

    def checkpoint(self, index: int) -> Path:
        """Folder of the checkpoint after iteration `index`; -1 is the policy that training started from."""
        return self.folder / f"{index + 1:05d}" / _CHECKPOINT

    def _begin(self) -> None:
        policy = self._policy
        told = self.config.model_dump(mode="json")
        note = self.folder / _CONFIG
        base = self.checkpoint(-1)
        if note.is_file():
            if json.loads(note.read_text(encoding="utf-8")) != told:
                raise ConfigError(f"{self.folder} holds a training with another config; give another folder")
            self._resume()
            return
        shutil.rmtree(base.parent, ignore_errors=True)
        base.mkdir(parents=True)
        save_base(policy, base)
        model_cache.put(policy)
        note.write_text(json.dumps(told), encoding="utf-8")

    def _resume(self) -> None:
        """Go on after the last iteration whose record was written; it is written last."""
        self.monitor.records.clear()
        while (path := self._record(len(self.monitor.records))).is_file():
            found = json.loads(path.read_text(encoding="utf-8"))
            self.monitor.records.append(
                IterationRecord(
                    index=found["index"],
                    rollout=RolloutSummary.model_validate(found["rollout"]),
                    update=UpdateMetrics.model_validate(found["update"]),
                )
            )
        self._speak_with(self.checkpoint(len(self.monitor.records) - 1))

    def _learn(self, index: int, played: Sequence[Trajectory]) -> IterationRecord:
        place = self._record(index).parent
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        base, parent, target = (self.checkpoint(k) for k in (-1, index - 1, index))
        rollout = place / _ROLLOUT
        write_trajectories(rollout, played, provenance={"policy": self._policy.hash})
        try:
            metrics = update([rollout], parent, base, target, self.settings, seed=self.config.seed, iteration=index)
        except UpdateSkipped as skipped:
            shutil.copytree(parent, target, dirs_exist_ok=True)
            metrics = skipped.metrics
        self._speak_with(target)
        record = IterationRecord(index=index, rollout=summarize(played), update=metrics)
        self._write(record)
        return record

    def _play(self, scenarios: list[Scenario], iteration: int | str) -> list[Trajectory]:
        policy = self._policy
        trajectories = collect(
            scenarios,
            policy,
            self.environment,
            Renderer(policy.tokenizer, tools=(*self.environment.tools, *self.agent.tools)),
            self.rollout,
            group_size=self.rollout.group_size if iteration != _HELDOUT else 1,
            temperature=self.rollout.temperature,
            run_seed=self.config.seed,
            iteration=iteration,
            agent=self.agent,
        )
        known = {scenario.id: scenario for scenario in scenarios}
        return score_rollout(
            trajectories, self.reward_fn, known, judge=self.judge, error_budget=self.rollout.error_budget
        )

    @property
    def _policy(self) -> TransformersPolicy:
        policy = self.agent.policy
        if not isinstance(policy, TransformersPolicy):
            raise ConfigError(f"a {type(policy).__name__} can play, not learn; give the agent a model folder")
        return policy

    def _speak_with(self, checkpoint: Path) -> None:
        """Let the agent speak with the policy of a checkpoint."""
        wanted = read_state(checkpoint).policy_hash
        self.agent.set_policy(model_cache.get(wanted, checkpoint, base=self.checkpoint(-1)))

    def _record(self, index: int) -> Path:
        return self.checkpoint(index).parent / _RECORD

    def _write(self, record: IterationRecord) -> None:
        """The record under its name means that the iteration is complete."""
        text = {
            "index": record.index,
            "rollout": record.rollout.model_dump(mode="json"),
            "update": record.update.model_dump(mode="json"),
        }
        path = self._record(record.index)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(text), encoding="utf-8")
        partial.replace(path)

    def _forget(self, index: int) -> None:
        """Drop the checkpoint before this one, unless it is the base or one that is kept."""
        before = index - 1
        if before >= 0 and not self._due(self.config.save_steps, before):
            shutil.rmtree(self.checkpoint(before), ignore_errors=True)
            (self._record(before).parent / _ROLLOUT).unlink(missing_ok=True)

    @staticmethod
    def _due(every: int | None, index: int) -> bool:
        return every is not None and (index + 1) % every == 0

    def _reporters(self) -> list[Callback]:
        if self.config.report_to != "wandb":
            return []
        told = self.config.model_dump(mode="json")
        return [WandbCallback(self.config.wandb_project, folder=self.folder, config=told)]

    def _emit(self, watching: Sequence[Callback], event: Event, *arguments: Any) -> None:
        for callback in watching:
            getattr(callback, event)(*arguments)
        for function in self._hooks[event]:
            function(*arguments)


class SingleTurnGRPOTrainer(MultiTurnGRPOTrainer):
    """The same where an episode is one reply of the agent, whatever the environment would go on to say."""

    def __init__(self, agent: MultiTurnAgent, environment: Environment, *arguments: Any, **options: Any) -> None:
        super().__init__(agent, SingleTurnEnvironment(environment), *arguments, **options)


async def train(
    agent: MultiTurnAgent,
    environment: Environment,
    reward_fn: RewardFunction,
    *,
    num_episodes: int | None = None,
    profile: str = "balanced",
    auto_adjust: bool = False,
    callbacks: Sequence[Callback] = (),
    folder: str | Path | None = None,
    **changes: Any,
) -> MultiTurnAgent:
    """Train an agent with the settings of a profile; `changes` are fields of `TrainingConfig`.

    With `auto_adjust` what the diagnostics find is answered as `grpo.notebook.adjuster.Adjuster` says.
    """
    if num_episodes is not None:
        changes["num_episodes"] = num_episodes
    config = TrainingConfig.from_profile(profile, **changes)
    trainer = MultiTurnGRPOTrainer(agent, environment, reward_fn, config, folder=folder)
    if auto_adjust:
        callbacks = [*callbacks, Adjuster(trainer)]
    return await trainer.train(callbacks)
