"""Callbacks of the trainer: early stopping and checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from grpo.errors import ConfigError
from grpo.notebook.diagnostics import IterationRecord
from grpo.trajectories import Trajectory

Event = Literal["on_train_begin", "on_episode_end", "on_iteration_end", "on_evaluate", "on_train_end"]
EVENTS: tuple[Event, ...] = ("on_train_begin", "on_episode_end", "on_iteration_end", "on_evaluate", "on_train_end")


class TrainingControl:
    """Number of iterations of a training, and the request to stop it."""

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations
        self.stop_reason: str | None = None
        """Reason of an early stop, or None."""

    def stop(self, reason: str) -> None:
        """End the training after this iteration. The first reason is kept."""
        self.stop_reason = self.stop_reason or reason


class Callback:
    """Base of all callbacks, with one method per event. A method does nothing unless it is overridden."""

    def on_train_begin(self, control: TrainingControl) -> None:
        """Event before the first iteration."""

    def on_episode_end(self, trajectory: Trajectory) -> None:
        """Event after an episode is scored."""

    def on_iteration_end(self, record: IterationRecord, checkpoint: Path, control: TrainingControl) -> None:
        """Event after an update. The folder of the checkpoint exists until the next iteration ends."""

    def on_evaluate(self, index: int, metrics: Mapping[str, float], control: TrainingControl) -> None:
        """Event after an evaluation on the held-out scenarios, after iteration `index`."""

    def on_train_end(self, control: TrainingControl) -> None:
        """Event after the last iteration, also when training was stopped or failed."""


class EarlyStoppingCallback(Callback):
    """Stops if the mean reward has not risen by more than `min_delta` above its best for `patience` iterations."""

    def __init__(self, patience: int = 10, *, min_delta: float = 0.0) -> None:
        if patience < 1 or min_delta < 0:
            raise ConfigError(f"patience {patience} must be at least 1 and min_delta {min_delta} at least 0")
        self.patience, self.min_delta = patience, min_delta
        self.best: float | None = None
        self.waited = 0

    def on_iteration_end(self, record: IterationRecord, checkpoint: Path, control: TrainingControl) -> None:
        """Count iterations without a rise. An iteration without a reward counts too."""
        reward = record.rollout.reward
        if reward is not None and (self.best is None or reward > self.best + self.min_delta):
            self.best, self.waited = reward, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            control.stop(f"the reward has not risen above {self.best} for {self.patience} iterations")


class CheckpointCallback(Callback):
    """Copies checkpoints to `save_dir/checkpoint-<iteration>` every `every` iterations, and keeps the last `keep`."""

    def __init__(self, save_dir: str | Path, *, every: int = 1, keep: int | None = None) -> None:
        if every < 1 or (keep is not None and keep < 1):
            raise ConfigError(f"every {every} and keep {keep} must be at least 1")
        self.folder, self.every, self.keep = Path(save_dir), every, keep
        self.saved: list[Path] = []

    def on_iteration_end(self, record: IterationRecord, checkpoint: Path, control: TrainingControl) -> None:
        """Copy the checkpoint, and rename the copy when it is complete."""
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


def flat_metrics(record: IterationRecord) -> dict[str, float]:
    """Metrics of an iteration under flat names. Metrics that are None are left out."""
    rollout: dict[str, float | None] = {}  # reward and success first, because a wide table is cut in its middle
    intervals = (("reward", record.reward_interval), ("success", record.success_interval))
    for name, interval in intervals:
        rollout[name] = getattr(record.rollout, name)
        if interval is not None:
            rollout |= {f"{name}_low": interval.low, f"{name}_high": interval.high}
    rollout |= {name: value for name, value in record.rollout if isinstance(value, int | float)}
    update = record.update.model_dump()
    metrics = {
        **{f"rollout/{name}": value for name, value in rollout.items()},
        **{f"reward/{name}": value for name, value in record.rollout.components.items()},
        **{f"update/{name}": value for name, value in update.items()},
    }
    return {name: float(value) for name, value in metrics.items() if value is not None}
