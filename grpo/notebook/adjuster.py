"""Adjustment of training settings between iterations, if the diagnostics report an issue, e.g. a KL spike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from grpo.notebook.callbacks import Callback, TrainingControl
from grpo.notebook.config import TrainingConfig
from grpo.notebook.diagnostics import DiagnosticsMonitor, HealthIssue, IterationRecord

logger = logging.getLogger(__name__)

_MAX_NEW_TOKENS, _MAX_GROUP_SIZE, _MAX_ENTROPY_COEFFICIENT = 1024, 64, 0.01


class AdjustableTrainer(Protocol):
    """A trainer with settings that may change between two iterations."""

    monitor: DiagnosticsMonitor
    settings: TrainingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """A changed setting, with the iteration and the reason."""

    index: int
    setting: str
    before: float
    after: float
    reason: str


class Adjuster(Callback):
    """Changes settings of the next iterations if the diagnostics report an issue. Each change is recorded.

    KL spike or a non-finite metric: half the learning rate. Entropy collapse: half the learning rate and a larger
    entropy bonus. Uninformative groups: twice the group size. Truncation: 1.5 times the tokens of a turn.
    """

    def __init__(self, trainer: AdjustableTrainer) -> None:
        self.trainer = trainer
        self.adjustments: list[Adjustment] = []

    def on_iteration_end(self, record: IterationRecord, checkpoint: Path, control: TrainingControl) -> None:
        """Apply the changes for each issue of the last iteration."""
        for issue, reason in self.trainer.monitor.get_health_status().reasons.items():
            for change in _CHANGES.get(issue, ()):
                change(self, record.index, reason)

    def lower_learning_rate(self, index: int, reason: str) -> None:
        """Halve the learning rate."""
        self._set(index, "learning_rate", self.trainer.settings.learning_rate / 2, reason)

    def raise_entropy_bonus(self, index: int, reason: str) -> None:
        """Double the entropy bonus, from .001 to .01."""
        current = self.trainer.settings.entropy_coefficient
        value = min(_MAX_ENTROPY_COEFFICIENT, max(0.001, 2 * current))
        self._set(index, "entropy_coefficient", value, reason)

    def enlarge_groups(self, index: int, reason: str) -> None:
        """Double the group size, up to 64."""
        value = min(_MAX_GROUP_SIZE, 2 * self.trainer.settings.group_size)
        self._set(index, "group_size", value, reason)

    def lengthen_turns(self, index: int, reason: str) -> None:
        """Raise the tokens of a turn by half, up to 1024."""
        value = min(_MAX_NEW_TOKENS, self.trainer.settings.max_new_tokens * 3 // 2)
        self._set(index, "max_new_tokens", value, reason)

    def _set(self, index: int, name: str, value: float, reason: str) -> None:
        before = getattr(self.trainer.settings, name)
        if value != before:
            self.trainer.settings = self.trainer.settings.model_copy(update={name: value})
            self.adjustments.append(Adjustment(index=index, setting=name, before=before, after=value, reason=reason))
            logger.warning("after iteration %d: %s from %g to %g: %s", index + 1, name, before, value, reason)


_CHANGES: dict[HealthIssue, Sequence[Callable[[Adjuster, int, str], None]]] = {
    "non_finite": (Adjuster.lower_learning_rate,),
    "kl_spike": (Adjuster.lower_learning_rate,),
    "entropy_collapse": (Adjuster.lower_learning_rate, Adjuster.raise_entropy_bonus),
    "uninformative_groups": (Adjuster.enlarge_groups,),
    "truncation": (Adjuster.lengthen_turns,),
}
