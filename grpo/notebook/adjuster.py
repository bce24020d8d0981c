"""What is changed while a training goes on, and why."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from grpo.config.rollout import RolloutSettings
from grpo.config.training import TrainingSettings
from grpo.notebook.callbacks import Callback, TrainingControl
from grpo.notebook.diagnostics import DiagnosticsMonitor, HealthIssue, IterationRecord

logger = logging.getLogger(__name__)

_MOST_TOKENS, _MOST_SIBLINGS, _MOST_ENTROPY = 1024, 64, 0.01


class AdjustableTrainer(Protocol):
    """A training whose settings may be changed between two iterations."""

    monitor: DiagnosticsMonitor
    settings: TrainingSettings
    rollout: RolloutSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """A setting that was changed, after which iteration, and why."""

    index: int
    setting: str
    before: float
    after: float
    reason: str


class Adjuster(Callback):
    """Answers what the diagnostics find by changing the settings of the iterations to come; each change is recorded.

    KL spike, or a number that is none: half the learning rate. Collapsed entropy: half the learning rate and a larger
    entropy bonus. Dead groups: twice the siblings. Truncation: half as many tokens again in a turn.
    """

    def __init__(self, trainer: AdjustableTrainer) -> None:
        self.trainer = trainer
        self.adjustments: list[Adjustment] = []

    def on_iteration_end(self, record: IterationRecord, checkpoint: Path, control: TrainingControl) -> None:
        """See the class."""
        for finding, reason in self.trainer.monitor.get_health_status().reasons.items():
            for answer in _ANSWERS.get(finding, ()):
                answer(self, record.index, reason)

    def lower_learning_rate(self, index: int, reason: str) -> None:
        """Half the learning rate."""
        self._training(index, "learning_rate", self.trainer.settings.learning_rate / 2, reason)

    def raise_entropy_bonus(self, index: int, reason: str) -> None:
        """Twice the entropy bonus, from .001 on."""
        now = self.trainer.settings.entropy_coefficient
        self._training(index, "entropy_coefficient", min(_MOST_ENTROPY, max(0.001, 2 * now)), reason)

    def enlarge_groups(self, index: int, reason: str) -> None:
        """Twice the siblings."""
        self._rollout(index, "group_size", min(_MOST_SIBLINGS, 2 * self.trainer.rollout.group_size), reason)

    def lengthen_turns(self, index: int, reason: str) -> None:
        """Half as many tokens again in a turn."""
        self._rollout(index, "max_new_tokens", min(_MOST_TOKENS, self.trainer.rollout.max_new_tokens * 3 // 2), reason)

    def _training(self, index: int, name: str, value: float, reason: str) -> None:
        before = getattr(self.trainer.settings, name)
        if value != before:
            self.trainer.settings = self.trainer.settings.model_copy(update={name: value})
            self._note(index, name, before, value, reason)

    def _rollout(self, index: int, name: str, value: int, reason: str) -> None:
        before = getattr(self.trainer.rollout, name)
        if value != before:
            self.trainer.rollout = self.trainer.rollout.model_copy(update={name: value})
            self._note(index, name, before, value, reason)

    def _note(self, index: int, name: str, before: float, after: float, reason: str) -> None:
        self.adjustments.append(Adjustment(index=index, setting=name, before=before, after=after, reason=reason))
        logger.warning("after iteration %d %s goes from %g to %g: %s", index + 1, name, before, after, reason)


_ANSWERS: dict[HealthIssue, Sequence[Callable[[Adjuster, int, str], None]]] = {
    "not_a_number": (Adjuster.lower_learning_rate,),
    "kl_spike": (Adjuster.lower_learning_rate,),
    "entropy_collapse": (Adjuster.lower_learning_rate, Adjuster.raise_entropy_bonus),
    "dead_groups": (Adjuster.enlarge_groups,),
    "truncation": (Adjuster.lengthen_turns,),
}
