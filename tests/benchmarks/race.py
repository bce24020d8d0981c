"""Time to a held-out success rate: `grpo train` from its start, and TRL's GRPOTrainer on the same model.

TRL's `environment_factory` goes on with an episode only as long as the model calls tools (`_tool_call_loop`): a
customer who must be asked for the order number cannot be played through it. Its route for such an environment is
`rollout_func`, which takes the turns from left-padded `generate` here, and our desk for the world.
"""

from __future__ import annotations

import copy
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from datasets import Dataset
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl.trainer.grpo_config import GRPOConfig

from grpo.config.pipeline import PipelineConfig
from grpo.environments.catalog import make_environment
from grpo.learner.checkpoints import STATE, read_state
from grpo.learner.trl.loop import restored_after, run_trainer, training_arguments
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.renderers.chat_template import Renderer
from grpo.rewards.catalog import make_composite_reward
from grpo.rewards.score import score
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo.trajectories import Trajectory
from grpo_local.managed_process import free_port
from tests.benchmarks.against_trl import Trainer, plain_model
from tests.benchmarks.desk import heldout_success
from tests.benchmarks.measure import Cost, apart, command_cost, environment_at, use_all_cores
from tests.benchmarks.page import Table, Versus
from tests.benchmarks.triage import split_scenarios
from tests.benchmarks.usual import GeneratePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """A training task for both trainers, and the held-out success rate that ends it."""

    config: PipelineConfig
    model: Path
    """Folder of the initial policy."""
    target: float
    rows: int | None = None
    """Episodes in each of TRL's training passes; by default all episodes of an optimizer step."""
    conversations: int = 64
    """Conversations in each of TRL's calls of `generate`."""

    @property
    def episodes(self) -> int:
        """Episodes per iteration, the same for both."""
        return self.config.rollout.scenarios * self.config.rollout.group_size


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Point of a learning curve: time since the start, and held-out success rate."""

    seconds: float
    cpu_s: float
    """CPU time of all processes, which other work on the machine changes less."""
    iteration: int
    success: float


def our_run(race: Race, config: str) -> list[CurvePoint]:
    """Learning curve of `grpo train` with this file of data/configs and the race's start."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        environment = environment_at(home) | {"PREFECT_SERVER_API_PORT": str(free_port())}
        command = [sys.executable, "-m", "grpo_cli", "train", f"data/configs/{config}.yaml"]
        settings = (f"policy.model={race.model}", "sft=null", "save_total_limit=null", f"store={home}/artifacts")
        of_race = (f"seed={race.config.seed}", f"training.iterations={race.config.training.iterations}")
        for setting in (*settings, *of_race):
            command += ["--set", setting]
        command_cost([sys.executable, "-m", "grpo_cli", "migrate"], environment)
        began = time.time()
        cost = command_cost(command, environment)
        return apart(our_curve, race, home / "artifacts" / "checkpoint", began=began, cost=cost)


def our_curve(race: Race, checkpoints: Path, *, began: float, cost: Cost) -> list[CurvePoint]:
    """Learning curve of a run from its checkpoints, in order, up to the first that reaches the target.

    The time of a checkpoint is that at which its files were written. The CPU time of the whole run is spread evenly
    over its wall time.
    """
    use_all_cores()
    _, heldout = split_scenarios(race.config)
    states = sorted(checkpoints.glob(f"**/{STATE}"), key=lambda path: path.stat().st_mtime)
    curve: list[CurvePoint] = []
    for iteration, state in enumerate(path for path in states if read_state(path.parent).parent is not None):
        success = heldout_success(load(state.parent), race.config, heldout)
        passed = state.stat().st_mtime - began
        cpu_s = passed * cost.cpu_s / cost.wall_s
        curve.append(CurvePoint(seconds=passed, cpu_s=cpu_s, iteration=iteration + 1, success=success))
        if success >= race.target:
            break
    return curve


def trl_curve(
    race: Race,
    limit_s: float = math.inf,
    *,
    record: Callable[[list[CurvePoint]], None] = lambda curve: None,
) -> list[CurvePoint]:
    """Learning curve of TRL's trainer in this fresh process, timed from the process's start without evaluations.

    It ends at the target or when the limit is reached. `record` gets the curve so far after each point.
    """
    use_all_cores()
    config, evaluated = race.config, load(race.model)
    train, heldout = split_scenarios(config)
    model, tokenizer = plain_model(race.model)
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # rollout_func may change, says TRL
    watch = _Watch(race, evaluated, heldout, limit_s=limit_s, record=record)
    with restored_after(model), tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=_arguments(race, folder, model.device),
            reward_funcs=_stored_reward,
            train_dataset=Dataset.from_dict({"prompt": [scenario.id for scenario in train]}),
            processing_class=tokenizer,
            rollout_func=_Rollout(race, train),
            callbacks=[watch],
        )
        run_trainer(trainer)
    return watch.curve


def steps(config: PipelineConfig) -> int:
    """Optimizer steps per iteration."""
    groups, training = config.rollout.scenarios, config.training
    return training.num_mini_batches or groups // (training.groups_per_step or groups)


def _arguments(race: Race, folder: str, device: torch.device) -> GRPOConfig:
    """The config as TRL's arguments: the same optimizer steps per iteration, episodes and learning rates."""
    training, rollout, per_iteration = race.config.training, race.config.rollout, steps(race.config)
    episodes = race.episodes // per_iteration
    passes = episodes // (race.rows or episodes)
    return GRPOConfig(
        **training_arguments(folder, device, seed=race.config.seed),
        max_steps=training.iterations * per_iteration,
        num_generations=rollout.group_size,
        per_device_train_batch_size=episodes // passes,
        gradient_accumulation_steps=passes,
        steps_per_generation=per_iteration * passes,
        temperature=rollout.temperature,
        learning_rate=training.learning_rate,
        warmup_steps=training.warmup_steps,
        lr_scheduler_type=training.lr_scheduler_type,
        adam_beta1=training.adam_beta1,
        adam_beta2=training.adam_beta2,
        max_grad_norm=training.max_grad_norm,
        loss_type=training.algorithm,
    )


def _stored_reward(reward: list[float], **_: Any) -> list[float]:
    """The rewards that the rollout came with."""
    return reward


class _Rollout:
    """TRL's `rollout_func`: our episodes and rewards, its `generate`."""

    def __init__(self, race: Race, scenarios: Sequence[Scenario]) -> None:
        config = self._config = race.config
        self._conversations = race.conversations
        self._scenarios = {scenario.id: scenario for scenario in scenarios}
        self._desk = make_environment(config.environment)
        self._reward = make_composite_reward(config.reward)

    def __call__(self, prompts: list[str], trainer: Trainer) -> dict[str, list[Any]]:
        """Prompts are scenario ids, each as often as it has siblings, one after the other."""
        model = trainer.model.eval()
        ids = list(dict.fromkeys(prompts))
        tokenizer = trainer.processing_class
        played = collect(
            [self._scenarios[name] for name in ids],
            GeneratePolicy(model, tokenizer, self._conversations),
            self._desk,
            Renderer(tokenizer, tools=self._desk.tools),
            self._config.rollout,
            group_size=len(prompts) // len(ids),
            temperature=self._config.rollout.temperature,
            run_seed=self._config.seed,
            iteration=trainer.state.global_step,
        )
        model.train()
        scored = list(score(played, self._reward))
        starts = [int(trajectory.loss_mask.argmax()) for trajectory in scored]
        pairs = list(zip(scored, starts, strict=True))
        return {
            "prompt_ids": [t.token_ids[:k].tolist() for t, k in pairs],
            "completion_ids": [t.token_ids[k:].tolist() for t, k in pairs],
            "env_mask": [t.loss_mask[k:].astype(int).tolist() for t, k in pairs],
            "logprobs": [t.sampler_logprobs[k:].tolist() for t, k in pairs],
            "reward": [_reward(t) for t in scored],
        }


def _reward(trajectory: Trajectory) -> float:
    """TRL cannot leave an episode out; one that failed counts as worth nothing."""
    return trajectory.total_reward or 0.0


class _Watch(TrainerCallback):
    """Evaluates the policy after each iteration, with the clock stopped, and ends training at the target or limit."""

    def __init__(
        self,
        race: Race,
        evaluated: TransformersPolicy,
        heldout: Sequence[Scenario],
        *,
        limit_s: float,
        record: Callable[[list[CurvePoint]], None],
    ) -> None:
        self._race, self._heldout, self._steps, self._record = race, heldout, steps(race.config), record
        self._limit_s = limit_s
        self._evaluated = TransformersPolicy(copy.deepcopy(evaluated.model), evaluated.tokenizer)
        self._began = psutil.Process().create_time()
        self._evaluating = self._evaluating_cpu = 0.0
        self.curve: list[CurvePoint] = []

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel | None = None,
        **_: Any,
    ) -> None:
        """After the last optimizer step of an iteration."""
        if state.global_step % self._steps or model is None:
            return
        passed, cpu_s = time.time() - self._began - self._evaluating, time.process_time() - self._evaluating_cpu
        began, began_cpu = time.perf_counter(), time.process_time()
        self._evaluated.model.load_state_dict(model.state_dict())
        success = heldout_success(self._evaluated, self._race.config, self._heldout)
        self._evaluating += time.perf_counter() - began
        self._evaluating_cpu += time.process_time() - began_cpu
        iteration = state.global_step // self._steps
        self.curve.append(CurvePoint(seconds=passed, cpu_s=cpu_s, iteration=iteration, success=success))
        self._record(self.curve)
        control.should_training_stop = success >= self._race.target or passed >= self._limit_s


def curve_table(
    race: Race, ours: Sequence[CurvePoint], theirs: Sequence[CurvePoint], *, task: str | None = None
) -> Table:
    """Both learning curves over episodes and wall time, one row per iteration."""

    def cell(curve: Sequence[CurvePoint], index: int) -> str:
        if index >= len(curve):
            return ""
        point = curve[index]
        return f"{point.seconds:.0f} s ({point.cpu_s:.0f} s of CPU time): {point.success:.1%}"

    rows = [
        (str(k + 1), f"{(k + 1) * race.episodes:,}", cell(ours, k), cell(theirs, k))
        for k in range(max(len(ours), len(theirs)))
    ]
    success = "held-out success" if task is None else f"held-out success, {task}"
    return Table(head=("iteration", "episodes", f"ours: {success}", f"TRL: {success}"), rows=tuple(rows))


def verdict(race: Race, ours: CurvePoint, theirs: CurvePoint, *, measure: str, bound: float) -> Versus:
    """Ratio to TRL's time; a lower bound where TRL did not arrive."""
    if ours.success < race.target:
        raise SystemExit(
            f"our own run did not reach {race.target:.0%}: {ours.success:.1%} after {ours.iteration} iterations"
        )
    arrived = theirs.success >= race.target
    told = f"{theirs.seconds:.0f} s" if arrived else f"not reached in {theirs.seconds:.0f} s ({theirs.success:.0%})"
    return Versus(
        measure=measure + ("" if arrived else ", at least"),
        ours=f"{ours.seconds:.0f} s, whole pipeline",
        against=f"TRL {told}",
        ratio=theirs.seconds / ours.seconds,
        bound=bound,
    )
