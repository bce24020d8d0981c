"""TRL's training loop without network, files and printing. The models keep their configuration."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from grpo import progress
from grpo.errors import ConfigError
from grpo.policy.transformers.dropout import without_dropout

LearningRateSchedule = Callable[[int], float]
"""Learning rate of the k-th optimizer step, k from 0. It is called in order, and once more after the last step."""


class WithoutTelemetry(Trainer):
    """A trainer without TRL's usage telemetry, because that sends a request to a server on the network."""

    def _send_telemetry(self) -> None:
        """Send nothing."""


class ScheduledLR(LambdaLR):
    """Absolute learning rates from a `LearningRateSchedule`."""

    def __init__(self, optimizer: torch.optim.Optimizer, rate: LearningRateSchedule) -> None:
        self.rate = rate
        super().__init__(optimizer, rate)

    def get_lr(self) -> list[float | torch.Tensor]:
        """Rate of the next step, for every parameter group."""
        return [self.rate(self.last_epoch) for _ in self.optimizer.param_groups]


class _Progress(TrainerCallback):
    """Reports the progress of a stage's training."""

    def __init__(self, stage: str) -> None:
        self._stage = stage

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Report an optimizer step."""
        if logs and "loss" in logs:
            progress.report(self._stage, state.global_step, state.max_steps, loss=logs["loss"])


def training_arguments(folder: str, device: torch.device, *, seed: int) -> dict[str, Any]:
    """Arguments that all trainers share: float32, every step logged in memory, nothing written or sent."""
    return {
        "output_dir": folder,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "use_cpu": device.type == "cpu",
        "bf16": False,
        "activation_checkpointing": False,
        "dataloader_pin_memory": False,
        "seed": seed % 2**32,  # NumPy takes no larger one
    }


def rows_per_pass(count: int, *, width: int, max_tokens: int) -> int:
    """Largest number of rows per pass that divides `count` and holds up to `max_tokens`, but at least one.

    Each row is padded to `width` tokens. Passes must have the same size, so that the mean over passes is the mean over
    the batch. 6 rows of 10 tokens with a limit of 45 → 3.
    """
    return max(n for n in range(1, count + 1) if count % n == 0 and (n == 1 or n * width <= max_tokens))


def run_trainer(trainer: Trainer, *, stage: str = "train") -> list[dict[str, float]]:
    """Train to the end and report the progress of a stage; returns the log entry of each optimizer step.

    Raises `ConfigError` under torchrun, because each process would take the whole batch.
    """
    if trainer.args.world_size > 1:
        raise ConfigError(
            f"TRL's trainers train in one process here, not in {trainer.args.world_size}, because each would take "
            "the whole batch. Set training.processes to 1"
        )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(_Progress(stage))
    trainer.train()
    return [entry for entry in trainer.state.log_history if "loss" in entry]


@contextmanager
def restored_after(*models: PreTrainedModel) -> Iterator[None]:
    """Restore the configuration of models that TRL patches inside the context. Afterwards only their weights differ.

    The models are left in eval mode. Dropout is off, because with it the importance ratio would not start at 1.
    """
    kept = [copy.deepcopy((vars(model.config), vars(model.generation_config))) for model in models]
    try:
        with without_dropout(*models), warnings.catch_warnings():
            # TRL 1.16 uses a name that transformers 5.23 deprecates
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprec", category=FutureWarning)
            yield
    finally:
        for model, before in zip(models, kept, strict=True):
            vars(model).pop("forward", None)  # TRL sets its fused head on the instance
            for config, fields in zip((model.config, model.generation_config), before, strict=True):
                vars(config).clear()
                vars(config).update(fields)
            model.eval()
