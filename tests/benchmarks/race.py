"""Time to a held-out success rate: `grpo train` from its start, and TRL's GRPOTrainer.

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
from tests.benchmarks.desk import MODEL, desk_policy, heldout_success
from tests.benchmarks.triage import sides
from tests.benchmarks.usual import GeneratePolicy

TARGET = 0.85
ROWS = 64
"""Conversations in one call of `generate`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A point of the way: so many seconds after the start, so many held-out episodes succeed."""

    seconds: float
    iteration: int
    success: float


def our_way(config: PipelineConfig, checkpoints: Path, *, began: float) -> list[Reached]:
    """Success of the checkpoints that a run left, in order, until the first that reaches the target.

    When a checkpoint was finished is when its files were written.
    """
    desk_policy()
    _, heldout = sides(config)
    states = sorted(checkpoints.glob(f"**/{STATE}"), key=lambda path: path.stat().st_mtime)
    way: list[Reached] = []
    for iteration, state in enumerate(path for path in states if read_state(path.parent).parent is not None):
        success = heldout_success(load(state.parent), config, heldout)
        way.append(Reached(seconds=state.stat().st_mtime - began, iteration=iteration + 1, success=success))
        if success >= TARGET:
            break
    return way


def their_way(config: PipelineConfig, limit_s: float) -> list[Reached]:
    """The same of TRL's trainer in this fresh process, from the process's start; what the looking took is left out."""
    judge = desk_policy()
    train, heldout = sides(config)
    model, tokenizer = plain_model(MODEL)
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # rollout_func may change, says TRL
    steps = config.rollout.scenarios // (config.training.groups_per_step or config.rollout.scenarios)
    watch = _Watch(config, judge, heldout, steps=steps, limit_s=limit_s)
    with restored_after(model), TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=_arguments(config, folder, judge, steps=steps),
            reward_funcs=_stored_reward,
            train_dataset=Dataset.from_dict({"prompt": [scenario.id for scenario in train]}),
            processing_class=tokenizer,
            rollout_func=_Rollout(config, train),
            callbacks=[watch],
        )
        run_trainer(trainer)
    return watch.way


def _arguments(config: PipelineConfig, folder: str, policy: TransformersPolicy, *, steps: int) -> GRPOConfig:
    """The quickstart in TRL's words: as many optimizer steps on as many episodes, at the same rates."""
    training, rollout = config.training, config.rollout
    return GRPOConfig(
        **training_arguments(folder, policy.model.device, seed=config.seed),
        max_steps=training.iterations * steps,
        num_generations=rollout.group_size,
        per_device_train_batch_size=rollout.scenarios * rollout.group_size // steps,
        steps_per_generation=steps,
        temperature=rollout.temperature,
        learning_rate=training.learning_rate,
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
        config: PipelineConfig,
        judge: TransformersPolicy,
        heldout: Sequence[Scenario],
        *,
        steps: int,
        limit_s: float,
    ) -> None:
        self._config, self._heldout, self._steps, self._limit_s = config, heldout, steps, limit_s
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
        success = heldout_success(self._judge, self._config, self._heldout)
        self._looking += time.perf_counter() - began
        self.way.append(Reached(seconds=passed, iteration=state.global_step // self._steps, success=success))
        control.should_training_stop = success >= TARGET or passed >= self._limit_s
