"""Reports of a retraining: triggers, curation, mixture and verdict."""

from __future__ import annotations

from typing import Literal

from grpo.config.pipeline import PipelineConfig
from grpo.config.retraining import RetrainConfig
from grpo.log.logged_logprobs import ServedCheck
from grpo.retraining.curation import CurationCounts
from grpo.retraining.mixture import MixtureCounts
from grpo.retraining.triggers import TriggerResult
from grpo.scenarios.served_tuning import CorrectionCounts
from grpo.storage.documents import Document

RetrainingVerdict = Literal["running", "nothing to do", "promote", "refuse", "failed"]


class TriggerReport(Document):
    """Results of all triggers, and the counts of curation."""

    model: str
    """Registered model."""
    champion: str | None
    """Name and version in service."""
    results: tuple[TriggerResult, ...]
    """Results of all triggers, also of triggers that did not fire."""
    curation: CurationCounts

    @property
    def fired(self) -> tuple[TriggerResult, ...]:
        """Results of the triggers that fired."""
        return tuple(result for result in self.results if result.fired)

    @property
    def drifted(self) -> bool:
        """True if a trigger fired while a champion is in service."""
        return self.champion is not None and bool(self.fired)

    @property
    def summary(self) -> str:
        """Explanations of the triggers that fired, on one line."""
        if not self.fired:
            return "no trigger fired"
        return "; ".join(result.explanation for result in self.fired)


class PendingRetraining(Document):
    """State of a retraining in progress, so that it can continue after an interruption."""

    config: RetrainConfig
    triggers: TriggerReport
    mixture: MixtureCounts
    corrections: CorrectionCounts | None = None
    """None if the config does not learn from corrections."""
    served: ServedCheck | None = None
    """Check of served log-probabilities. None if no conversations come from a serving log."""
    run: PipelineConfig
    """Config of the training run."""

    def report(self, verdict: RetrainingVerdict, reason: str, *, version: str | None = None) -> RetrainingReport:
        """Report of the retraining of this plan. `version` is the name and number of the candidate."""
        return RetrainingReport(
            name=self.config.name,
            verdict=verdict,
            reason=reason,
            triggers=self.triggers,
            mixture=self.mixture,
            corrections=self.corrections,
            served=self.served,
            version=version,
        )


class RetrainingReport(Document):
    """Result of a retraining."""

    name: str
    verdict: RetrainingVerdict
    """`running` until it ends. If the machine is lost, it stays `running` until the run goes on elsewhere."""
    reason: str
    triggers: TriggerReport | None = None
    """None if it ended before they were checked."""
    mixture: MixtureCounts | None = None
    corrections: CorrectionCounts | None = None
    """None if the config does not learn from corrections."""
    served: ServedCheck | None = None
    """Check of served log-probabilities. None if no conversations come from a serving log."""
    version: str | None = None
    """Name and version of the registered candidate."""
