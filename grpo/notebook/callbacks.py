"""What watches training in memory and may act on it: stop, keep checkpoints, write to W&B."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from grpo.errors import ConfigError
from grpo.notebook.diagnostics import IterationRecord
from grpo.trajectories import Trajectory

Event = Literal["on_train_begin", "on_episode_end", "on_iteration_end", "on_evaluate", "on_train_end"]
EVENTS: tuple[Event, ...] = ("on_train_begin", "on_episode_end", "on_iteration_end", "on_evaluate", "on_train_end")


class TrainingControl:
    """Where a training is, and how to end it."""

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations
        self.stop_reason: str | None = None
        """Why training ends before its last iteration."""

    def stop(self, reason: str) -> None:
        """End the training after this iteration; the first reason stands."""
        self.stop_reason = self.stop_reason or reason


class Callback:
    """Base of all callbacks: each method is called at its event, and does nothing unless it is overridden."""

    def on_train_begin(self, control: TrainingControl) -> None:
        """Before the first iteration."""

    def on_episode_end(self, trajectory: Trajectory) -> None:
        """After an episode was judged."""

    def on_iteration_end(self, record: IterationRecord, checkpoint: Path, control: TrainingControl) -> None:
        """After an update; the checkpoint's folder is there until the next iteration ends."""

    def on_evaluate(self, index: int, metrics: Mapping[str, float], control: TrainingControl) -> None:
        """After the held-out scenarios were played, as they stand after iteration `index`."""

    def on_train_end(self, control: TrainingControl) -> None:
        """After the last iteration, also when training was stopped or failed."""


class EarlyStoppingCallback(Callback):
    """Stops when the mean reward has not risen by `min_delta` above its best for `patience` iterations."""

    def __init__(self, patience: int = 10, *, min_delta: float = 0.0) -> None:
        if patience < 1 or min_delta < 0:
            raise ConfigError(f"patience {patience} must be at least 1 and min_delta {min_delta} at least 0")
        self.patience, self.min_delta = patience, min_delta
        self.best: float | None = None
        self.waited = 0

    def on_iteration_end(self, record: IterationRecord, checkpoint: Path, control: TrainingControl) -> None:
        """An iteration in which nothing could be judged counts as one without a rise."""
        reward = record.rollout.reward
        if reward is not None and (self.best is None or reward > self.best + self.min_delta):
            self.best, self.waited = reward, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            control.stop(f"the reward has not risen above {self.best} for {self.patience} iterations")


class CheckpointCallback(Callback):
    """Copies checkpoints to `save_dir/checkpoint-<iteration>`, every `every` iterations; the last `keep` stay."""

    def __init__(self, save_dir: str | Path, *, every: int = 1, keep: int | None = None) -> None:
        if every < 1 or (keep is not None and keep < 1):
            raise ConfigError(f"every {every} and keep {keep} must be at least 1")
        self.folder, self.every, self.keep = Path(save_dir), every, keep
        self.saved: list[Path] = []

    def on_iteration_end(self, record: IterationRecord, checkpoint: Path, control: TrainingControl) -> None:
        """A copy is complete when it has its name."""
        if (record.index + 1) % self.every:
            return
        target = self.folder / f"checkpoint-{record.index + 1}"
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(checkpoint, partial)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        self.saved.append(target)
        while self.keep is not None and len(self.saved) > self.keep:
            shutil.rmtree(self.saved.pop(0))


class WandbCallback(Callback):
    """Writes each iteration's numbers to W&B: offline unless WANDB_MODE says otherwise.

    Raises `ConfigError` when the package is not installed.
    """

    def __init__(self, project: str | None, *, folder: Path, config: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(
                "report_to is wandb, which is not installed; pip install wandb, or set it to none"
            ) from error
        self._wandb, self._project, self._folder, self._config = wandb, project, folder, dict(config)

    def on_train_begin(self, control: TrainingControl) -> None:
        """Open the run."""
        mode: Literal["offline"] | None = None if "WANDB_MODE" in os.environ else "offline"
        self._run = self._wandb.init(project=self._project, dir=str(self._folder), config=self._config, mode=mode)

    def on_iteration_end(self, record: IterationRecord, checkpoint: Path, control: TrainingControl) -> None:
        """Log what the iteration showed."""
        self._run.log(flat_metrics(record), step=record.index + 1)

    def on_evaluate(self, index: int, metrics: Mapping[str, float], control: TrainingControl) -> None:
        """Log what the held-out scenarios showed."""
        self._run.log({f"heldout/{name}": value for name, value in metrics.items()}, step=index + 1)

    def on_train_end(self, control: TrainingControl) -> None:
        """Close the run."""
        self._run.finish()


def flat_metrics(record: IterationRecord) -> dict[str, float]:
    """The numbers of an iteration under flat names; what was not measured is absent."""
    rollout = {name: value for name, value in record.rollout if isinstance(value, int | float)}
    update = record.update.model_dump()
    named = {
        **{f"rollout/{name}": value for name, value in rollout.items()},
        **{f"reward/{name}": value for name, value in record.rollout.components.items()},
        **{f"update/{name}": value for name, value in update.items()},
    }
    return {name: float(value) for name, value in named.items() if value is not None}
