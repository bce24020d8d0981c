"""Time to a held-out success rate: `grpo train` from its start, and TRL's GRPOTrainer on the same model.

TRL's `environment_factory` goes on with an episode only as long as the model calls tools (`_tool_call_loop`): a
customer who must be asked for the order number cannot be played through it. Its route for such an environment is
`rollout_func`, which takes the turns from left-padded `generate` here, and our desk for the world.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
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
from grpo.rewards.catalog import make_reward
from grpo.rewards.score import score
from grpo.rollout.collect import collect
from grpo.scenarios.scenario import Scenario
from grpo.trajectories import Trajectory
from tests.benchmarks.against_trl import Trainer, plain_model
from tests.benchmarks.desk import heldout_success
from tests.benchmarks.measure import use_all_cores
from tests.benchmarks.page import Table, Versus
from tests.benchmarks.triage import sides
from tests.benchmarks.usual import GeneratePolicy

ROWS = 64
"""Conversations in one call of `generate`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """What both sides train, and the held-out success rate at which the race ends."""

    config: PipelineConfig
    model: Path
    """Folder of the initial policy."""
    target: float
    rows: int | None = None
    """Episodes in one of TRL's training passes, its fastest; none takes those of an optimizer step at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A point of the way: so many seconds after the start, so many held-out episodes succeed."""

    seconds: float
    iteration: int
    success: float


def our_way(race: Race, checkpoints: Path, *, began: float) -> list[Reached]:
    """Success of the checkpoints that a run left, in order, until the first that reaches the target.

    When a checkpoint was finished is when its files were written.
    """
    use_all_cores()
    _, heldout = sides(race.config)
    states = sorted(checkpoints.glob(f"**/{STATE}"), key=lambda path: path.stat().st_mtime)
    way: list[Reached] = []
    for iteration, state in enumerate(path for path in states if read_state(path.parent).parent is not None):
        success = heldout_success(load(state.parent), race.config, heldout)
        way.append(Reached(seconds=state.stat().st_mtime - began, iteration=iteration + 1, success=success))
        if success >= race.target:
            break
    return way


def their_way(race: Race, limit_s: float) -> list[Reached]:
    """The same of TRL's trainer in this fresh process, from the process's start; what the looking took is left out."""
    use_all_cores()
    config, judge = race.config, load(race.model)
    train, heldout = sides(config)
    model, tokenizer = plain_model(race.model)
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # rollout_func may change, says TRL
    steps = config.rollout.scenarios // (config.training.groups_per_step or config.rollout.scenarios)
    watch = _Watch(race, judge, heldout, steps=steps, limit_s=limit_s)
    with restored_after(model), TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=_arguments(race, folder, model.device, steps=steps),
            reward_funcs=_stored_reward,
            train_dataset=Dataset.from_dict({"prompt": [scenario.id for scenario in train]}),
            processing_class=tokenizer,
            rollout_func=_Rollout(config, train),
            callbacks=[watch],
        )
        run_trainer(trainer)
    return watch.way


def _arguments(race: Race, folder: str, device: torch.device, *, steps: int) -> GRPOConfig:
    """The config in TRL's words: as many optimizer steps on as many episodes, at the same rates."""
    training, rollout = race.config.training, race.config.rollout
    episodes = rollout.scenarios * rollout.group_size // steps
    passes = episodes // (race.rows or episodes)
    return GRPOConfig(
        **training_arguments(folder, device, seed=race.config.seed),
        max_steps=training.iterations * steps,
        num_generations=rollout.group_size,
        per_device_train_batch_size=episodes // passes,
        gradient_accumulation_steps=passes,
        steps_per_generation=steps * passes,
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

    def __init__(self, config: PipelineConfig, scenarios: Sequence[Scenario]) -> None:
        self._config = config
        self._scenarios = {scenario.id: scenario for scenario in scenarios}
        self._desk = make_environment(config.environment)
        self._reward = make_reward(config.reward)

    def __call__(self, prompts: list[str], trainer: Trainer) -> dict[str, list[Any]]:
        """Prompts are scenario ids, each as often as it has siblings, one after the other."""
        model = trainer.model.eval()
        ids = list(dict.fromkeys(prompts))
        tokenizer = trainer.processing_class
        played = collect(
            [self._scenarios[name] for name in ids],
            GeneratePolicy(model, tokenizer, ROWS),
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
    """Looks at the policy after each iteration, with the clock stopped, and ends the race."""

    def __init__(
        self,
        race: Race,
        judge: TransformersPolicy,
        heldout: Sequence[Scenario],
        *,
        steps: int,
        limit_s: float,
    ) -> None:
        self._race, self._heldout, self._steps, self._limit_s = race, heldout, steps, limit_s
        self._judge = TransformersPolicy(copy.deepcopy(judge.model), judge.tokenizer)
        self._began = psutil.Process().create_time()
        self._looking = 0.0
        self.way: list[Reached] = []

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
        passed = time.time() - self._began - self._looking
        began = time.perf_counter()
        self._judge.model.load_state_dict(model.state_dict())
        success = heldout_success(self._judge, self._race.config, self._heldout)
        self._looking += time.perf_counter() - began
        self.way.append(Reached(seconds=passed, iteration=state.global_step // self._steps, success=success))
        control.should_training_stop = success >= self._race.target or passed >= self._limit_s


def way_table(ours: Sequence[Reached], theirs: Sequence[Reached]) -> Table:
    """Both ways, an iteration a row."""

    def cell(way: Sequence[Reached], index: int) -> str:
        return f"{way[index].seconds:.0f} s: {way[index].success:.1%}" if index < len(way) else ""

    rows = [(str(k + 1), cell(ours, k), cell(theirs, k)) for k in range(max(len(ours), len(theirs)))]
    return Table(head=("iteration", "ours: held-out success", "TRL: held-out success"), rows=tuple(rows))


def verdict(race: Race, ours: Reached, theirs: Reached, *, measure: str, bound: float) -> Versus:
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
