"""Reporters of a training's metrics to TensorBoard, Weights & Biases and MLflow, by the setting `report_to`.

A step is an iteration, from 1. Names are the same as in `trainer.history`: `rollout/reward`, `update/loss`,
`heldout/success`.
"""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from grpo.errors import ConfigError, install_command
from grpo.notebook.callbacks import Callback, TrainingControl, flat_metrics
from grpo.notebook.config import TrainingConfig
from grpo.notebook.diagnostics import IterationRecord

_LONGEST_PARAMETER = 6000  # characters of a parameter that MLflow stores


class Reporter(Callback):
    """Callback that logs the metrics of each iteration and each evaluation."""

    @abstractmethod
    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics of an iteration."""

    def on_iteration_end(self, record: IterationRecord, checkpoint: Path, control: TrainingControl) -> None:
        """Log the metrics of the iteration."""
        self.log(flat_metrics(record), record.index + 1)

    def on_evaluate(self, index: int, metrics: Mapping[str, float], control: TrainingControl) -> None:
        """Log the metrics of the evaluation."""
        self.log({f"heldout/{name}": value for name, value in metrics.items()}, index + 1)


class TensorBoardReporter(Reporter):
    """Writes event files to `folder/tensorboard`: `tensorboard --logdir folder` shows them.

    Raises `ConfigError` when the package is not installed.
    """

    def __init__(self, folder: Path, config: TrainingConfig) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing("tensorboard") from error
        self._open, self._folder, self._config = SummaryWriter, folder / "tensorboard", config

    def on_train_begin(self, control: TrainingControl) -> None:
        """Open an event file, and write the settings as a text."""
        self._writer = self._open(str(self._folder))
        self._writer.add_text("config", f"```\n{self._config.model_dump_json(indent=2)}\n```")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one scalar for each metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def on_train_end(self, control: TrainingControl) -> None:
        """Close the event file."""
        self._writer.close()


class WandbReporter(Reporter):
    """Logs to W&B, offline unless WANDB_MODE is set.

    Raises `ConfigError` when the package is not installed.
    """

    def __init__(self, folder: Path, config: TrainingConfig) -> None:
        try:
            import wandb
        except ImportError as error:
            raise _missing("wandb") from error
        self._wandb, self._folder, self._config = wandb, folder, config

    def on_train_begin(self, control: TrainingControl) -> None:
        """Start the W&B run."""
        mode: Literal["offline"] | None = None if "WANDB_MODE" in os.environ else "offline"
        config = self._config.model_dump(mode="json")
        self._run = self._wandb.init(
            project=self._config.wandb_project, dir=str(self._folder), config=config, mode=mode
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the metrics of a step."""
        self._run.log(dict(metrics), step=step)

    def on_train_end(self, control: TrainingControl) -> None:
        """Finish the W&B run."""
        self._run.finish()


class MLflowReporter(Reporter):
    """Logs to the active MLflow run, or to a run of its own, in the experiment and at the address that MLflow has.

    These are set by `mlflow.set_experiment` and `mlflow.set_tracking_uri`, or by MLFLOW_EXPERIMENT_NAME and
    MLFLOW_TRACKING_URI.
    """

    def __init__(self, folder: Path, config: TrainingConfig) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when MLflow is imported
        import mlflow

        self._mlflow, self._config = mlflow, config
        self._is_own = False

    def on_train_begin(self, control: TrainingControl) -> None:
        """Start a run if none is active, and log the settings."""
        active = self._mlflow.active_run()
        self._is_own = active is None
        self._run_id = (active or self._mlflow.start_run()).info.run_id
        settings = self._config.model_dump(mode="json")
        self._mlflow.log_params({name: _parameter(value) for name, value in settings.items()}, run_id=self._run_id)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the metrics of a step."""
        self._mlflow.log_metrics(dict(metrics), step=step, run_id=self._run_id)

    def on_train_end(self, control: TrainingControl) -> None:
        """End the run that the training started."""
        if self._is_own:
            self._mlflow.end_run()


def make_reporters(folder: Path, config: TrainingConfig) -> list[Reporter]:
    """Make the reporters that `report_to` names. Raises `ConfigError` if a package is not installed."""
    kinds: dict[str, type[TensorBoardReporter | WandbReporter | MLflowReporter]] = {
        "tensorboard": TensorBoardReporter,
        "wandb": WandbReporter,
        "mlflow": MLflowReporter,
    }
    return [] if config.report_to == "none" else [kinds[config.report_to](folder, config)]


def _parameter(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:_LONGEST_PARAMETER]


def _missing(package: str) -> ConfigError:
    return ConfigError(
        f"report_to is {package}, which is not installed. Call {install_command(package)}, or set report_to to none"
    )
